"""What all command lines share: typed configs from YAML and flags, and how errors end."""

import contextlib
import difflib
import io
import os
import re
import select
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import yaml
from jsonargparse import ArgumentError, ArgumentParser, set_parsing_settings

from dataprep.errors import UserError, printable
from dataprep.storage import is_url

Config = TypeVar("Config")
Main = Callable[[Sequence[str] | None], int]

set_parsing_settings(docstring_parse_attribute_docstrings=True)  # --help shows each field's text


def parse_config(
    kind: type[Config], argv: Sequence[str] | None, prog: str, description: str
) -> Config:
    """A config object from `--config FILE.yaml` and overrides such as `--pack.seq_length 512`.

    Raises UserError for an unknown key (naming the nearest), a value of a wrong type, a missing
    key, or a file that cannot be read.
    """
    parser = ArgumentParser(
        prog=prog, description=description, exit_on_error=False, allow_abbrev=False
    )
    parser.add_argument("--config", action="config", help="YAML file; later flags override it.")
    parser.add_class_arguments(kind, as_positional=False)
    args = list(sys.argv[1:] if argv is None else argv)
    known = known_keys(kind)
    for path in _config_files(args):
        _check_file(Path(path), known)
    try:
        values = vars(parser.instantiate(parser.parse_args(args)))
        return kind(**{name: value for name, value in values.items() if name != "config"})
    except UserError:
        raise
    except (ArgumentError, TypeError, ValueError) as e:
        raise _explained(e, known) from e


def known_keys(kind: Any, prefix: str = "") -> dict[str, Any]:
    """All dotted keys of a config class and their types; items of lists are `name.*.key`."""
    keys = {}
    for name, hint in get_type_hints(kind).items():
        if name not in {f.name for f in fields(kind)}:
            continue
        keys[prefix + name] = hint
        for inner, star in sections(hint):
            keys |= known_keys(inner, f"{prefix}{name}.{star}")
    return keys


def sections(hint: Any) -> Iterator[tuple[Any, str]]:
    """The config classes in a type, and "*." for those that are items of a list."""
    if is_dataclass(hint):
        yield hint, ""
    for part in get_args(hint):
        star = "*." if get_origin(hint) is list else ""
        for inner, more in sections(part):
            yield inner, star + more


def _config_files(args: Sequence[str]) -> list[str]:
    found = [arg.split("=", 1)[1] for arg in args if arg.startswith("--config=")]
    return found + [b for a, b in zip(args, args[1:]) if a == "--config"]


def _check_file(path: Path, known: Mapping[str, Any]) -> None:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise UserError(f"--config: cannot read {path}: {e.strerror}") from e
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as e:
        raise UserError(f"--config: {path} is not valid YAML: {' '.join(str(e).split())}") from e
    if not isinstance(content, dict):
        raise UserError(f"--config: {path} holds no keys; see --help for those it may hold")
    _check_keys(content, known, "", path)


def _check_keys(value: Any, known: Mapping[str, Any], prefix: str, path: Path) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            dotted = f"{prefix}{key}"
            if dotted not in known:
                raise UserError(f"{path}: unknown key {dotted!r}{_nearest(dotted, known)}")
            below = [k for k in known if k.startswith(dotted + ".")]
            if below and not (isinstance(inner, str) and str in get_args(known[dotted])):
                wants: type = list if below[0].startswith(dotted + ".*") else dict
                if not isinstance(inner, wants):
                    form = "a list of entries" if wants is list else "a section of keys"
                    raise UserError(f"{path}: {dotted} must be {form}, not {inner!r:.60}")
                _check_keys(inner, known, dotted + ".", path)
    elif isinstance(value, list):
        for inner in value:
            if not isinstance(inner, dict):
                name = prefix.removesuffix(".")
                raise UserError(
                    f"{path}: each of {name} must be a section of keys, not {inner!r:.60}"
                )
            _check_keys(inner, known, prefix + "*.", path)


def _nearest(key: str, known: Collection[str]) -> str:
    """A hint that names the most similar key: by its whole name, or by its last part."""
    close = difflib.get_close_matches(key, known, 1, 0.6)
    if not close:
        last = key.rsplit(".", 1)[-1]
        same = [k for k in known if k.rsplit(".", 1)[-1] == last]
        close = same or difflib.get_close_matches(key, known, 1, 0.0)
    return f"; did you mean {close[0].replace('*.', '')!r}? (--help lists all)"


def _explained(error: Exception, known: Collection[str]) -> UserError:
    """jsonargparse's message in one line; an unknown flag gets the nearest known one."""
    text = " ".join(str(error).split())
    flag = re.search(r"Unrecognized arguments?:? *--([\w.\-]+)", text, re.IGNORECASE)
    if flag:
        key = flag.group(1)
        return UserError(f"unknown key {key!r}{_nearest(key, [k for k in known if '*' not in k])}")
    return UserError(text)


def run(main: Main, argv: Sequence[str] | None = None) -> int:
    """Runs a command: an expected failure is one line on stderr and exit code 2.

    130: stopped by Ctrl-C; 70: a defect of this program, with its traceback.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by who started us
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (for as long as we live)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal may not know every character
            stream.reconfigure(errors="backslashreplace")
    try:
        code = main(argv)
        sys.stdout.flush()
        return code
    except UserError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    except OSError as e:
        if isinstance(e, BrokenPipeError) and _reader_is_gone():
            return 0
        told = printable(str(e) or type(e).__name__)
        print(f"error: {told}; check the path and the disk", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; run the same command again to go on", file=sys.stderr)
        return 130
    except Exception:
        traceback.print_exc()
        return 70


def _reader_is_gone() -> bool:
    """Whether nobody reads our output any more, as `head` does; then it goes nowhere from now on.

    Another pipe may have broken just as well.
    """
    with contextlib.suppress(OSError, ValueError):  # it may be no file at all
        stdout = sys.stdout.fileno()
        look = select.poll()
        look.register(stdout, select.POLLOUT)
        if any(event & (select.POLLERR | select.POLLHUP) for _, event in look.poll(0)):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stdout)
            return True
    return False


def output_folder(text: str) -> Path:
    """An output folder named on a command line. Raises UserError when it is a URL."""
    if is_url(text):
        raise UserError(
            f"{text} is a URL, and MindSpore reads local files only; copy the folder here first"
        )
    return Path(text)


def human(n: float) -> str:
    """1234567 -> "1.23 M"."""
    for scale, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(n) >= scale:
            return f"{n / scale:.3g} {unit}"
    return f"{n:.0f}"
