"""A build on an object store: the same bytes, complete or not there, whatever the store does."""

import gzip
import hashlib
import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from dataprep.corpus import BuildConfig, build, lock, output, pass_b
from dataprep.corpus.status import dry_run, status
from dataprep.engine import Engine
from dataprep.errors import UserError
from dataprep.files import atomic_path, write_json
from dataprep.readers import Input
from dataprep.storage import Remote, read, remove
from dataprep.verify import verify
from tests.conftest import document
from tests.corpus.test_determinism import tree
from tests.object_store import Bucket, Faulty

Make = Callable[..., BuildConfig]
# The first two are added by the command line only, and so are their hashes.
BY_COMMAND = ("mindformers.yaml", "report.html", "SHA256SUMS")


def objects(s3: Bucket, prefix: str) -> dict[str, str]:
    """SHA-256 of every object below a prefix."""
    return {
        key.removeprefix(f"{prefix}/"): hashlib.sha256(s3.get(key)).hexdigest()
        for key in s3.names()
        if key.startswith(f"{prefix}/")
    }


def shards(files: dict[str, str]) -> dict[str, str]:
    return {name: digest for name, digest in files.items() if ".mindrecord" in name}


@pytest.fixture
def expected(config_for: Make) -> dict[str, str]:
    """The whole output folder of a run without any store."""
    return tree(Path(str(build(config_for("expected")).out_dir)))


@pytest.fixture
def remote(config_for: Make, s3: Bucket) -> BuildConfig:
    """Local inputs; work and output on the store."""
    return replace(config_for(), out_dir=f"{s3.url}/out", work_dir=f"{s3.url}/work")


def test_work_on_a_store(config_for: Make, s3: Bucket, expected: dict[str, str]) -> None:
    engine = Engine(workers=2, quiet=True)
    result = build(config_for("out", work_dir=f"{s3.url}/work", engine=engine))
    assert tree(Path(str(result.out_dir))) == expected
    assert {key.split("/")[1] for key in s3.names()} >= {"a", "b", "c", "decide", "runs.jsonl"}


def test_output_on_a_store(
    remote: BuildConfig, s3: Bucket, expected: dict[str, str], tmp_path: Path
) -> None:
    build(replace(remote, engine=Engine(workers=2, quiet=True)))
    assert objects(s3, "out") == expected
    assert not objects(s3, "out.building")
    again = build(remote)
    assert not again.seconds
    for name in expected:
        path = tmp_path / "copy" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(s3.get(f"out/{name}"))
    assert not verify(tmp_path / "copy").defects


def test_inputs_of_all_kinds_on_a_store(
    config_for: Make, s3: Bucket, corpus: Path, tmp_path: Path
) -> None:
    """JSON Lines in splits, text, Parquet by row groups, gzip: read as if they were here."""
    table = pa.table({"text": [document(400 + i) for i in range(40)]})
    pq.write_table(table, corpus / "d.parquet", row_group_size=8)
    with gzip.open(corpus / "e.jsonl.gz", "wb") as f:
        f.write((corpus / "b.jsonl").read_bytes().replace(b"corpus", b"korpus"))
    (corpus / "f.txt").write_text(document(999, 40))
    for path in corpus.iterdir():
        s3.put(f"text/{path.name}", path.read_bytes())

    def inputs(folder: str) -> list[Input]:
        return [
            Input(f"{folder}/[a-e].*", source="all"),
            Input(f"{folder}/f.txt", source="file", document="file"),
        ]

    here = build(config_for("here", inputs=inputs(str(corpus))))
    there = build(config_for("there", inputs=inputs(f"{s3.url}/text")))
    assert here.ledger.to_json() == there.ledger.to_json()
    a, b = (tree(Path(str(result.out_dir))) for result in (here, there))
    assert len(shards(a)) == 8
    assert shards(a) == shards(b)


def test_ray_needs_no_shared_folder(
    remote: BuildConfig, s3: Bucket, expected: dict[str, str]
) -> None:
    pytest.importorskip("ray")
    build(replace(remote, engine=Engine(kind="ray", workers=2, memory_mib=256, quiet=True)))
    assert objects(s3, "out") == expected


def _command(config: BuildConfig, tmp_path: Path) -> list[str]:
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump({**asdict(config), "engine": {"workers": 2}}))
    return [sys.executable, "-m", "pipelines.build_corpus", "--config", str(path)]


@pytest.mark.soak
@pytest.mark.parametrize("sign", ["work/b/", "out/run.json"])
def test_killed_and_resumed(
    remote: BuildConfig, s3: Bucket, expected: dict[str, str], tmp_path: Path, sign: str
) -> None:
    """The process group gets SIGKILL when the first object of a pass, or of the output, appears."""
    command = _command(remote, tmp_path)
    run = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not any(key.startswith(sign) for key in s3.names()) and run.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    if run.poll() is None:
        os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    again = subprocess.run(command, check=False, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    got = objects(s3, "out")
    assert {name: got[name] for name in got if name not in BY_COMMAND} == {
        name: expected[name] for name in expected if name not in BY_COMMAND
    }


def test_stopped_at_every_moment_of_publishing(
    remote: BuildConfig,
    s3: Bucket,
    expected: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until the manifest is there, nothing counts as an output; then all of it is there."""
    left = 0
    real = output.copy

    def copy(a: Remote, b: Remote) -> None:
        nonlocal left
        if left == 0:
            raise KeyboardInterrupt
        left -= 1
        real(a, b)

    monkeypatch.setattr(output, "copy", copy)
    monkeypatch.setattr(output, "AT_ONCE", 1)
    for copies in (0, 1, 2, len(expected) // 2, len(expected) - 1):
        left = copies
        with pytest.raises(KeyboardInterrupt):
            build(remote)
        assert "out/manifest.json" not in s3.names()
        assert "out.building/manifest.json" in s3.names()
    left = len(expected)
    build(remote)
    assert objects(s3, "out") == expected
    assert not objects(s3, "out.building")


def test_an_earlier_output_stays_until_the_new_one_is_there(
    remote: BuildConfig, s3: Bucket, expected: dict[str, str], faulty: Faulty
) -> None:
    build(remote)
    other = replace(remote, seed=18)
    with pytest.raises(UserError, match="out_dir: s3://.* holds another run .*overwrite: true"):
        build(other)
    other = replace(other, overwrite=True)
    faulty.answer(403, "AccessDenied", 1, "PUT", r"/out\.building/train/")
    with pytest.raises(UserError, match="cannot write .*the store refuses it"):
        build(other)
    assert objects(s3, "out") == expected
    build(other)
    got = objects(s3, "out")
    assert got.keys() == expected.keys()
    assert shards(got) != shards(expected)


def test_a_store_that_fails_in_passing(
    remote: BuildConfig, s3: Bucket, expected: dict[str, str], faulty: Faulty, hurried: None
) -> None:
    """503 and lost connections cost time, not bytes."""
    faulty.answer(503, "SlowDown", 2, "GET", "/work/")
    faulty.answer(503, "ServiceUnavailable", 2, "PUT", "/work/b/")
    faulty.cut(100, 2, "GET", r"spill\.arrow")
    faulty.cut(100, 2, "GET", r"cleaned\.arrow")
    build(remote)
    assert objects(s3, "out") == expected
    assert all(fault.times == 0 for fault in faulty.faults)


def test_a_store_that_is_gone(
    remote: BuildConfig,
    s3: Bucket,
    expected: dict[str, str],
    faulty: Faulty,
    hurried: None,
) -> None:
    faulty.answer(503, "ServiceUnavailable", 10**6, "PUT", "/work/b/")
    with pytest.raises(UserError, match="cannot write s3://.*/work/b/.*tried 6 times.*is kept"):
        build(remote)
    faulty.faults.clear()
    before = s3.client.head_object(Bucket=s3.name, Key="work/a/00000/receipt.json")
    build(remote)
    after = s3.client.head_object(Bucket=s3.name, Key="work/a/00000/receipt.json")
    assert objects(s3, "out") == expected
    assert before["LastModified"] == after["LastModified"]


def test_an_input_that_changes_on_the_store(
    config_for: Make, s3: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = b'{"text": "%s"}\n' % document(1).replace("\n", " ").encode()
    s3.put("text/a.jsonl", lines)
    config = config_for("out", inputs=[Input(f"{s3.url}/text/a.jsonl")])
    module = importlib.import_module("dataprep.corpus.build")
    real = module.make_plan

    def planned(config: BuildConfig) -> Any:
        plan = real(config)
        s3.put("text/a.jsonl", lines.replace(b"the", b"teh"))
        return plan

    monkeypatch.setattr(module, "make_plan", planned)
    with pytest.raises(UserError, match="s3://.*/a.jsonl changed during the run"):
        build(config)


def test_one_run_at_a_time(
    remote: BuildConfig, s3: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second refuses as soon as it sees the first renew its lock."""
    monkeypatch.setattr(lock, "RENEW", 0.05)
    assert isinstance(remote.work, Remote)
    with lock.exclusive(remote.work) as held:
        with pytest.raises(UserError, match="another run is at work in s3://.*/work"):
            build(remote)
        held.check()
    assert "work/.lock" not in s3.names()
    build(remote)
    assert "work/.lock" not in s3.names()


def test_a_lock_that_nobody_renews(
    remote: BuildConfig, s3: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a machine that is gone: free after a while. Of a dead process of this machine: at once."""
    monkeypatch.setattr(lock, "WATCH", 0.3)
    assert isinstance(remote.work, Remote)
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], check=True,
                          capture_output=True, text=True)  # fmt: skip
    here = lock._whoami()["within"]
    dead = {"within": here, "pid": int(gone.stdout), "run": "x", "renewed": 3}
    others = [{**dead, "within": [*here[:k], "another", *here[k + 1 :]]} for k in range(len(here))]
    for left, waits in ((dead, False), *((other, True) for other in others)):
        write_json(remote.work / lock.LOCK, left)
        slept: list[float] = []
        monkeypatch.setattr(lock.time, "sleep", slept.append)
        with lock.exclusive(remote.work) as held:
            assert bool(slept) is waits
            held.check()
            write_json(remote.work / lock.LOCK, dead)  # somebody takes it in turn
            with pytest.raises(UserError, match="another run has taken s3://"):
                held.check()
            assert held.lost
        s3.client.delete_object(Bucket=s3.name, Key="work/.lock")


def test_a_run_that_lost_its_lock_publishes_nothing(remote: BuildConfig, s3: Bucket) -> None:
    with pytest.raises(UserError, match="another run has taken s3://"):
        build(remote, finish=[lambda *_: _steal(remote)])
    assert not objects(s3, "out")


def _steal(config: BuildConfig) -> None:
    write_json(config.work / lock.LOCK, {"within": ["elsewhere"], "pid": 1, "run": "x"})


def test_a_run_that_lost_its_lock_stops_at_the_next_task(
    remote: BuildConfig, s3: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "RENEW", 0.02)
    real = pass_b.TokenizeAndSpill.__call__
    leases: list[Any] = []

    class Noted(lock._Lease):
        def __init__(self, folder: Remote) -> None:
            super().__init__(folder)
            leases.append(self)

    def slow(self: Any, folder: Any) -> Any:
        deadline = time.monotonic() + 60
        while not leases[0].lost:
            # Again and again, as a run that holds a lock does: a renewal that was already on its
            # way when the lock was taken writes over the first one.
            _steal(remote)
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return real(self, folder)

    monkeypatch.setattr(lock, "_Lease", Noted)

    monkeypatch.setattr(pass_b.TokenizeAndSpill, "__call__", slow)
    with pytest.raises(UserError, match="another run has taken s3://"):
        build(remote)
    assert not any(key.startswith("work/c/") for key in s3.names())


def test_a_run_that_lost_its_lock_while_it_publishes_removes_nothing(
    remote: BuildConfig, s3: Bucket, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It wakes up where another run has published since."""
    real = output.copy

    def copy(a: Remote, b: Remote) -> None:
        real(a, b)
        if b.name == output.RUN:
            _steal(remote)
            s3.put("out/train/of-another", b"x")

    monkeypatch.setattr(output, "copy", copy)
    with pytest.raises(UserError, match="another run has taken s3://"):
        build(remote)
    assert "out/train/of-another" in s3.names()


def test_a_shard_that_another_run_wrote_is_not_published(remote: BuildConfig, s3: Bucket) -> None:
    name = "out.building/train/train-00000-of-00003.mindrecord"

    def meddle(*_: Any) -> None:
        s3.put(name, s3.get(name)[::-1])

    with pytest.raises(UserError, match="mindrecord was written by another run as well; run again"):
        build(remote, finish=[meddle])
    assert not objects(s3, "out")


@pytest.mark.parametrize("kind", ["local", "remote"])
def test_what_came_during_the_run_is_left_alone(
    config_for: Make, request: pytest.FixtureRequest, kind: str
) -> None:
    """Another run's output, or a person's file."""
    config = config_for() if kind == "local" else request.getfixturevalue("remote")

    def note(*_: Any) -> None:
        with atomic_path(config.out / "notes.txt") as tmp:
            tmp.write_text("mine")

    with pytest.raises(UserError, match=r"out_dir: .* holds no manifest\.json"):
        build(config, finish=[note])
    assert read(config.out / "notes.txt") == b"mine"
    remove(config.out / "notes.txt")
    other = replace(config, seed=18, work_dir=f"{config.work}2")

    def meanwhile(*_: Any) -> None:
        build(other)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output, "make_folders", _after(output.make_folders, meanwhile))
        with pytest.raises(UserError, match=r"holds another run \(different: config.seed\)"):
            build(config)
    assert not build(other).seconds


def _after(real: Callable[..., None], then: Callable[..., None]) -> Callable[..., None]:
    """`real`, and `then` after its first call."""
    todo = [then]

    def do(*args: Any) -> None:
        real(*args)
        while todo:
            todo.pop()()

    return do


def test_what_is_left_of_building_goes(
    remote: BuildConfig, s3: Bucket, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the manifest was there: by the next run of the same config, or of another."""
    real = output._remove_building

    def stop(building: Remote, files: Any) -> None:
        raise KeyboardInterrupt

    for config in (remote, replace(remote, seed=18, overwrite=True)):
        monkeypatch.setattr(output, "_remove_building", stop)
        with pytest.raises(KeyboardInterrupt):
            build(remote)
        assert "out.building/run.json" in s3.names()
        monkeypatch.setattr(output, "_remove_building", real)
        build(config)
        assert not objects(s3, "out.building")
        for key in s3.names():
            s3.client.delete_object(Bucket=s3.name, Key=key)


def test_two_names_of_one_store(remote: BuildConfig, s3: Bucket) -> None:
    inputs = [Input(f"s3a://{s3.name}/out/text/a.jsonl")]
    s3.put("out/text/a.jsonl", b'{"text": "a"}\n')
    with pytest.raises(UserError, match="lies inside of out_dir"):
        build(replace(remote, inputs=inputs, overwrite=True))


def test_receipts_that_may_not_be_read(remote: BuildConfig, faulty: Faulty) -> None:
    """No reason to do it all again in silence."""
    build(replace(remote, out_dir=f"{remote.out_dir}1"))
    faulty.answer(403, "AccessDenied", 10**6, "GET", r"/a/.*receipt\.json")
    with pytest.raises(UserError, match="cannot read .*receipt.json: the store refuses it"):
        build(remote)


def test_a_name_with_two_colons(config_for: Make, s3: Bucket, corpus: Path) -> None:
    s3.put("text/a::b.jsonl", (corpus / "a.jsonl").read_bytes())
    inputs = [Input(f"{s3.url}/text/*.jsonl")]
    assert build(config_for(inputs=inputs)).ledger.total("documents.read") == 80


def test_status_and_plan(remote: BuildConfig, s3: Bucket) -> None:
    assert any("to do" in line for line in dry_run(remote))
    assert not s3.names()
    build(remote)
    lines = list(status(remote.out, remote.work))
    assert "complete" in lines[0]
    assert "finished" in lines[1]
    s3.client.delete_object(Bucket=s3.name, Key="work/b/00001/spill.arrow")
    told = "\n".join(dry_run(replace(remote, out_dir=f"{remote.out_dir}2")))
    assert "missing or cut short: s3://" in told


def test_no_credentials(
    remote: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = _command(remote, tmp_path)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    run = subprocess.run(command, check=False, capture_output=True, text=True)
    assert run.returncode == 2
    assert run.stderr.count("\n") == 1
    assert "AWS_ACCESS_KEY_ID" in run.stderr
