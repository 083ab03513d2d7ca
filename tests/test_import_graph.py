"""The house: imports go downward only, and the data preparation needs no MindSpore."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# Base modules, then the data's order; a part may import itself and parts above it in this list.
DATAPREP = [
    *("version", "errors", "storage", "files", "chars", "batch", "ledger", "manifest", "sums"),
    *("readers", "clean", "dedup", "tokens", "pack", "mindrecord", "engine"),
    *("mindformers", "report", "trace", "verify", "corpus", "convert"),
]
# Stages do not know each other: what they share is the form of the data.
STAGES = ["readers", "clean", "dedup", "tokens", "pack", "mindrecord", "engine"]
ALLOWED_IN_TRAINING = {"manifest", "mindrecord", "errors", "files"}


def imports(path: Path) -> set[str]:
    """Absolute names of all modules that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def ours(path: Path, package: str) -> set[str]:
    """Second parts of what a file imports from one of our packages."""
    names = (name.split(".") for name in imports(path))
    return {parts[1] for parts in names if parts[0] == package and len(parts) > 1}


def files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("path", files("dataprep"), ids=str)
def test_dataprep_imports_downward(path: Path) -> None:
    part = path.relative_to(ROOT / "dataprep").parts[0].removesuffix(".py")
    used = {name for name in ours(path, "dataprep") if name in DATAPREP}
    assert not {name.split(".")[0] for name in imports(path)} & {"training", "pipelines"}
    if part == "__init__":
        return
    assert used <= set(DATAPREP[: DATAPREP.index(part) + 1]), f"{part} imports upward"
    if part in STAGES:
        assert used & set(STAGES) <= {part}, f"{part} knows another stage"


def test_no_part_is_forgotten() -> None:
    parts = {p.stem for p in (ROOT / "dataprep").iterdir() if p.suffix == ".py" or p.is_dir()}
    assert parts - {"__init__", "__pycache__", "py"} == set(DATAPREP)


@pytest.mark.parametrize("path", files("training"), ids=str)
def test_training_knows_only_the_data_format(path: Path) -> None:
    assert ours(path, "dataprep") <= ALLOWED_IN_TRAINING | {"UserError", "Manifest"}
    assert not ours(path, "pipelines")


def test_no_cycle_between_modules() -> None:
    """Within a package too: module by module."""
    modules = {}
    for package in ("dataprep", "training"):
        for path in files(package):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            modules[name.removesuffix(".__init__")] = path
    graph = {}
    for name, path in modules.items():
        used = set()
        for target in imports(path):
            while target and target not in modules:
                target = target.rpartition(".")[0]
            # A part of a package may not import the package's face, only its other parts.
            if target and target != name:
                used.add(target)
        graph[name] = used
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail, name))
        if name not in done:
            for target in graph[name]:
                visit(target, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_data_preparation_needs_no_mindspore() -> None:
    """Preparation nodes write shards without it."""
    code = (
        "import sys, dataprep, dataprep.corpus, dataprep.mindrecord, dataprep.verify, "
        "pipelines.build_corpus; sys.exit('mindspore' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_the_public_surface() -> None:
    import dataprep

    assert dataprep.__all__ == ["Ledger", "Manifest", "UserError", "__version__"]
