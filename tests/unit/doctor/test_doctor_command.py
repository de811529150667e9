"""`dpprobe doctor` names each kind of damage, and deletes no file that may still be needed."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from dpprobe.doctor import doctor_command, recorded_files
from dpprobe.doctor.recorded_files import read_recorded
from dpprobe.files.atomic_writes import atomic_path
from dpprobe.files.disk_errors import format_size
from dpprobe.files.json_files import read_json, write_json, write_record
from dpprobe.files.plain_files import read_bounded, sha256_file
from dpprobe.json_values import hash_value
from dpprobe.release.bundle import bundle_digest, write_sums
from dpprobe.release.ledger.ledger import Ledger
from dpprobe.release.release_folders import note_releases
from dpprobe.results.cell_files import PAYLOAD_FILES
from dpprobe.results.cell_record import read_cell
from dpprobe.results.network_record import PAYLOAD_FILES as NETWORK_PAYLOAD
from dpprobe.results.network_record import NetworkRecord
from dpprobe.study.snapshot import FOLDER, RUN_KEY
from dpprobe.training.plan_file import FORMAT as PLANS
from dpprobe.training.plan_file import FORMAT_VERSION as PLANS_VERSION
from tests.conftest import REPOSITORY
from tests.support.cell_files import write_cell
from tests.support.command_line import run_main
from tests.support.stored_releases import unpack_release
from tests.unit.release.ledger.test_ledger import FREE, booking, gaussian, part

STORED = REPOSITORY / "tests/stored"
CELL = "results/cells/digits/pixels/sgd/eps-1"
OTHER = "results/cells/digits/pixels/sgd/eps-2"
NETWORK = "results/networks/digits/pixels/tune/eps-1/seed-0"
FEATURES = "results/features/digits/pixels/train"
AUDIT = "results/audit/digits/pixels/sgd/eps-1.json"
# For each kind of file with a recorded hash, the file that Snakemake must make again.
KINDS = {
    f"{CELL}/metrics.json": f"{CELL}/metrics.json",
    **{f"{CELL}/{name}": f"{CELL}/metrics.json" for name in PAYLOAD_FILES},
    f"{NETWORK}/result.json": f"{NETWORK}/result.json",
    **{f"{NETWORK}/{name}": f"{NETWORK}/result.json" for name in NETWORK_PAYLOAD},
    f"{FEATURES}/manifest.json": f"{FEATURES}/manifest.json",
    f"{FEATURES}/shard-00001-of-00002.h5": f"{FEATURES}/shard-00001-of-00002.h5",
    "results/calibration/digits/eps-1.json": "results/calibration/digits/eps-1.json",
    "results/few_shot/digits/pixels.json": "results/few_shot/digits/pixels.json",
    "results/few_shot/digits/pixels.parquet": "results/few_shot/digits/pixels.json",
    "results/tracking/digits.json": "results/tracking/digits.json",
    AUDIT: AUDIT,
    "data/digits/dataset.json": "data/digits/dataset.json",
    "data/digits/train.parquet": "data/digits/train.parquet",
}
WHOLE = len(KINDS) + 7  # plus five files of another cell, the second table and the second shard
Answer = tuple[str | int | None, str]
Doctor = Callable[..., Answer]


def record_cell(path: Path) -> None:
    """Writes a cell's record as a job does, with hashes and sizes."""
    payload = [path.with_name(name) for name in PAYLOAD_FILES]
    files = {file.name: sha256_file(file) for file in payload}
    read_cell(path).model_copy(update={"files": files}).write(path, *payload)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes a folder with results and split tables."""
    folder = tmp_path_factory.mktemp("written")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_results()
    return folder


def write_results() -> None:
    for epsilon in ("1", "2"):
        record_cell(write_cell(Path("results"), method="sgd", epsilon=epsilon))
    network = Path(NETWORK)
    network.mkdir(parents=True)
    for name in NETWORK_PAYLOAD:
        (network / name).write_bytes(name.encode() * 9)
    NetworkRecord.model_validate(
        {
            "cell": {"dataset": "digits", "backbone": "pixels", "method": "tune", "epsilon": "1"},
            "index": 0,
            "fingerprint": "f",
            "device": "cpu",
            "options": {},
            "chosen": {},
            "trained": 1,
            "steps": 1,
            "seconds": 1.0,
            "files": {name: sha256_file(network / name) for name in NETWORK_PAYLOAD},
        }
    ).write(network / "result.json", *(network / name for name in NETWORK_PAYLOAD))
    shutil.copytree(STORED / "features-2", FEATURES)
    plans = {"format": "dpprobe-plans", "format_version": 4, "seeds": 1, "methods": {}}
    write_json(
        Path("results/calibration/digits/eps-1.json"), {**plans, "sha256": hash_value(plans)}
    )
    table = Path("results/few_shot/digits/pixels.parquet")
    table.parent.mkdir(parents=True)
    table.write_bytes(b"rows of a table")
    named = {"format": "dpprobe-few-shot", "dataset": "digits", "backbone": "pixels"}
    write_record(table.with_suffix(".json"), named, table)
    receipt = {"format": "dpprobe-tracking", "dataset": "digits", "uri": "http://server"}
    write_record(Path("results/tracking/digits.json"), receipt)
    write_record(Path(AUDIT), {"format": "dpprobe-audit"})
    Path("results/notes").mkdir()
    Path("results/notes/own.svg").write_text("<svg/>")
    Path("data").mkdir()
    shutil.copytree(STORED / "dataset-1", "data/digits")
    described = read_json(Path("data/digits/dataset.json"))
    described["splits"]["train"]["bytes"] = Path("data/digits/train.parquet").stat().st_size
    write_record(Path("data/digits/dataset.json"), described)


@pytest.fixture
def doctor(
    written: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Doctor:
    """Returns a function that runs the command in a folder with the results of a run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor_command, "PAUSE", 0.001)
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    FOLDER.mkdir(parents=True)
    study = {"results_dir": "results", "data_dir": "data"}
    run = {"study": study, "call": ["--configfile", "my study.yaml"]}
    (FOLDER / "a.json").write_text(json.dumps({RUN_KEY: run}))

    def run_doctor(*words: str) -> Answer:
        return run_main(monkeypatch, "doctor", *words), capsys.readouterr().out

    return run_doctor


def flip(path: Path, place: int = -5) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(bytes(content))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def test_whole_results_have_no_damage(doctor: Doctor) -> None:
    code, output = doctor()
    (summary,) = output.splitlines()
    assert code == 0
    where, _, summary = summary.partition(": ")
    assert where == "results and data"
    written = [path for folder in ("results", "data") for path in Path(folder).rglob("*.*")]
    sizes = [
        path.stat().st_size
        for path in written
        if path.is_file() and path.suffix not in (".svg", ".done")
    ]
    said = f"{WHOLE} files, {re.escape(format_size(sum(sizes)))} checked in .* s"
    assert re.search(rf"^{said} \(.*/s\): 0 damaged$", summary)
    shutil.rmtree("data")
    assert re.match(r"results: .*: 0 damaged\n$", doctor()[1])


# Snakemake itself detects the other missing files; only `doctor` detects these.
MISSED = [path for path in KINDS if KINDS[path] != path or path.startswith((CELL, NETWORK))]


@pytest.mark.parametrize(
    ("damage", "path"),
    [
        *((damage, path) for damage in (flip, truncate) for path in KINDS),
        *((Path.unlink, path) for path in [*MISSED, f"{FEATURES}/shard-00001-of-00002.h5"]),
    ],
)
def test_each_damaged_file_is_named_with_the_command_that_makes_it_again(
    doctor: Doctor, damage: Callable[[Path], None], path: str
) -> None:
    damage(Path(path))
    code, output = doctor()
    lines = [line for line in output.splitlines() if line.startswith(f"{path}: ")]
    assert code == 1
    assert len(lines) == 1, output
    wanted: dict[Callable[[Path], None], str] = {
        flip: "changed|not valid JSON",
        truncate: "truncated|changed|not valid JSON",
    }
    assert re.search(wanted.get(damage, "missing"), lines[0]), lines
    command = f"run `dpprobe run {KINDS[path]} --cores all --configfile 'my study.yaml'`"
    assert lines[0].endswith(command)
    assert "1 damaged" in output
    there = Path(path).exists()
    assert there == (damage is not Path.unlink)
    code, output = doctor("--fix")
    assert code == 0
    assert not Path(path).exists()
    assert f"{path}: " in output
    assert ("; deleted; run" in output) == there


def hide(path: Path) -> None:
    """Removes a record, as `cp results/* elsewhere` would by skipping hidden files."""
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def record_figure(name: str, content: bytes) -> Path:
    """Writes a figure as a job does, with the job's record; returns the record."""
    path = Path("results", name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    written = {name: {"sha256": sha256_file(path), "bytes": len(content), "times": [0, 0]}}
    record = Path("results/.written", name).with_suffix(".json")
    values = {"format": "dpprobe-written", "format_version": 1, "files": written}
    write_record(record, values)
    return record


@pytest.mark.parametrize(
    "name",
    [
        "figures/digits/a.png",
        "tables/accuracy.csv",
        "report.html",
        "summary/digits.parquet",
        "embeddings/digits/pixels/tsne.parquet",
        "few_shot/digits/other.parquet",
    ],
)
@pytest.mark.parametrize("whole", [True, False])
def test_results_whose_records_are_lost_are_reported(
    doctor: Doctor, name: str, whole: bool
) -> None:
    record = record_figure(name, b"as written")
    record_figure("tables/other.csv", b"as written")
    assert doctor()[0] == 0
    hide(Path("results/.written") if whole else record)
    Path("results", name).write_bytes(b"edited 0.9")
    code, output = doctor()
    assert code == 1
    lines = [line for line in output.splitlines() if line.startswith("not checked: ")]
    assert len(lines) == 1
    count = "2 files" if whole else "1 file"
    first = min(f"results/{name}", "results/tables/other.csv") if whole else f"results/{name}"
    assert f"not checked: {count} without a recorded hash, such as {first}. Copy " in lines[0]
    assert "results/.written too" in lines[0]
    assert "run `dpprobe run --cores all --configfile 'my study.yaml'`" in lines[0]


def write_calibration(**inputs: Any) -> Path:
    body = {"format": "dpprobe-calibration", "inputs": inputs, "noise": inputs["n"] / 10}
    path = Path("results/calibration", f"{hash_value(inputs)}.json")
    write_json(path, {**body, "sha256": hash_value(body)})
    return path


def test_calibrations_under_names_of_others_are_damaged(doctor: Doctor) -> None:
    first, second, third = (write_calibration(n=n) for n in (10, 20, 30))
    assert doctor()[0] == 0
    aside = first.rename("aside")
    second.rename(first)
    aside.rename(second)
    shutil.copy(third, third.with_name(f"{'0' * 64}.json"))
    code, output = doctor()
    assert code == 1
    wrong = [
        line
        for line in output.splitlines()
        if "its file name is the hash of another calibration" in line
    ]
    assert len(wrong) == 3
    assert "3 damaged" in output
    assert doctor("--fix")[0] == 0
    assert [path.exists() for path in (first, second, third)] == [False, False, True]


@pytest.mark.parametrize(
    "place",
    [
        f"{CELL}",
        f"{CELL}/metrics.json",
        f"{CELL}/heads.safetensors",
        "results/cells/digits",
        "results/cells/loop",
        "data/digits",
        "results/.written/loop.json",
    ],
)
def test_links_to_themselves_are_named(doctor: Doctor, place: str) -> None:
    path = Path(place)
    if path.exists():
        hide(path)
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(path.name)
    code, output = doctor()
    assert "permissions" not in output
    lines = [line for line in output.splitlines() if "symbolic links" in line]
    assert lines or code == 0
    assert all(
        line.endswith("delete the link, which leads to itself, and run the study again")
        for line in lines
    )
    doctor("--fix")


def test_temporary_files_of_killed_jobs_are_reported_and_deleted(doctor: Doctor) -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED], check=False)
    assert ended.returncode == -signal.SIGKILL
    with atomic_path(Path(FEATURES, "shard-x.h5")) as mine:
        mine.touch()
        (left,) = set(Path(FEATURES).glob(".*.partial")) - {mine}
        code, output = doctor()
        told = f"1 temporary file of killed jobs, such as {left}: the next run replaces it"
        assert (code, told in output) == (0, True)
        doctor("--fix")
        assert mine.exists()
        assert not left.exists()
        assert "killed" not in doctor()[1]


KILLED = f"""
import os
from pathlib import Path
from dpprobe.files.atomic_writes import atomic_path
with atomic_path(Path({FEATURES!r}, "shard-00000-of-00002.h5")) as path:
    path.touch()
    os.kill(os.getpid(), 9)
"""


def test_sizes_are_reported_of_a_truncated_file(doctor: Doctor) -> None:
    path = Path(CELL, "heads.safetensors")
    size = path.stat().st_size
    truncate(path)
    assert f"{path}: truncated: {size - 3} bytes, but {size} were written; " in doctor()[1]
    path.write_bytes(path.read_bytes() + b"0000")
    assert f"{path}: too long: {size + 1} bytes, but {size} were written; " in doctor()[1]


@pytest.mark.usefixtures("doctor")
def test_an_edited_number_shows_whatever_its_place() -> None:
    path = Path(CELL, "metrics.json")
    text = path.read_text()
    for place in (match.start(1) for match in re.finditer(r"(\d)", text)):
        path.write_text(text[:place] + str((int(text[place]) + 1) % 10) + text[place + 1 :])
        found = read_recorded(path)
        assert found is not None
        assert found.checked.fault == "changed after it was written"


def test_files_of_two_cells_that_changed_places(doctor: Doctor) -> None:
    for name in ("predictions.parquet", "metrics.json"):
        first, second = Path(CELL, name), Path(OTHER, name)
        first.rename("kept")
        second.rename(first)
        Path("kept").rename(second)
        code, output = doctor()
        assert code == 1
        assert "2 damaged" in output
        if name == "metrics.json":
            # both records are complete, but match none of the files next to them
            assert f"{first}: belongs to eps-2; the record is complete: move it" in output
            doctor("--fix")
            assert first.exists()
        else:
            for path in (first, second):
                assert re.search(f"{path}: (changed|truncated|too long)", output)
                record_cell(path.with_name("metrics.json"))


def test_what_is_half_published_is_looked_at_again(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs replace the record last, so the other files are newer for a moment."""
    flip(Path(CELL, "predictions.parquet"))
    looks = []

    def publish(_: float) -> None:
        looks.append(1)
        if len(looks) == 4:
            record_cell(Path(CELL, "metrics.json"))

    # threads of other tests sleep, too
    clock = SimpleNamespace(sleep=publish, monotonic=time.monotonic, time=time.time)
    monkeypatch.setattr(doctor_command, "time", clock)
    code, output = doctor()
    assert (code, len(looks)) == (0, 4)
    assert "0 damaged" in output
    flip(Path(CELL, "predictions.parquet"))
    clock.time = lambda: time.time() + 70  # publishing has surely ended
    assert (doctor()[0], len(looks)) == (1, 4)


def test_results_of_former_options_are_counted_and_stay(doctor: Doctor) -> None:
    fingerprint = json.loads(Path(CELL, "metrics.json").read_text())["fingerprint"]
    for name in (fingerprint, "former"):
        shutil.copytree(CELL, Path("results/.cells", name))
    size = format_size(sum(path.stat().st_size for path in Path(CELL).iterdir()))
    for words in ((), ("--fix",)):
        code, output = doctor(*words)
        assert code == 0
        assert f"results/.cells: 1 result of earlier options or failed jobs, {size}; " in output
    assert Path("results/.cells/former").exists(), "it is not damaged"


def test_what_cannot_be_read_or_deleted_stays(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads, record = Path(CELL, "heads.safetensors"), Path(OTHER, "metrics.json")
    truncate(Path(CELL, "history.parquet"))

    def refuse(path: Path, **_: object) -> NoReturn:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    def hash_file(path: Path) -> str:
        return sha256_file(path) if path != heads else refuse(path)

    def read(path: Path) -> bytes:
        return read_bounded(path) if path != record else refuse(path)

    monkeypatch.setattr(recorded_files, "sha256_file", hash_file)
    monkeypatch.setattr(recorded_files, "read_bounded", read)
    monkeypatch.setattr(Path, "unlink", refuse)
    code, output = doctor("--fix")
    assert code == 1
    for path in (heads, record):
        assert (
            f"{path}: unreadable (Permission denied); correct its permissions, and check again"
            in output
        )
    assert "history.parquet: truncated" in output
    assert "; not deleted (Permission denied); delete it and run" in output


@dataclass(frozen=True)
class Expected:
    """The expected answer of `dpprobe doctor`: exit code, parts of its lines, and deleted files.

    The exit code of a refusal is None.

    Each line is about a damaged file, or about something that was not checked.
    """

    words: tuple[str, ...] = ()
    code: int | None = 0
    said: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()


Calls = Iterator[Expected]
HEADS = f"{CELL}/heads.safetensors"
FEW_SHOT = "results/few_shot/digits/pixels.json"
FIX = ("--fix",)


def run_of(output: str) -> str:
    return f"run `dpprobe run {output} --cores all --configfile 'my study.yaml'`"


MAKE_CELL = run_of(f"{CELL}/metrics.json")
CHANGED = "changed after it was written; "
FROM_BACKUP = "restore the bundle from a backup: dpprobe cannot recreate a release"


def run_is_at_work() -> Calls:
    stored = Path("results/.cells/.f.partial")
    shutil.copytree(CELL, stored)
    truncate(stored / "heads.safetensors")
    Path(CELL, ".metrics.json.0a1b2c3d.partial").write_text("{")
    Path(FEATURES, ".shard-00000-of-00002.h5.0a1b2c3d.partial").write_text("half")
    started = Path("results/cells/digits/pixels/sgd/eps-4")
    started.mkdir()
    (started / ".heads.safetensors.0a1b2c3d.partial").write_bytes(b"published first")
    yield Expected()
    truncate(Path(CELL, "heads.safetensors"))
    Path(".snakemake/locks").mkdir()
    Path(".snakemake/locks/0.output.lock").touch()
    yield Expected(
        FIX,
        None,
        ("dpprobe: --fix: a run has locked this folder (.snakemake/locks); wait until the",),
    )
    yield Expected((), 1, (f"{HEADS}: truncated: ",))
    Path(".snakemake/locks/0.output.lock").unlink()
    yield Expected(FIX, 0, (f"deleted; {MAKE_CELL}",), (HEADS,))


def records_without_own_hash() -> Calls:
    path = write_cell(Path("results"), method="sgd", epsilon="1")
    record = json.loads(path.read_text())
    names = [path.with_name(name) for name in PAYLOAD_FILES]
    write_json(path, record | {"files": {file.name: sha256_file(file) for file in names}})
    yield Expected()
    flip(Path(CELL, "predictions.parquet"))
    yield Expected((), 1, (f"{CELL}/predictions.parquet: {CHANGED}delete it and {MAKE_CELL}",))


def links_and_strangers() -> Calls:
    outside = Path("outside").absolute()
    shutil.move(OTHER, outside)
    Path(OTHER).symlink_to(outside)
    truncate(outside / "heads.safetensors")
    heads = Path(CELL, "heads.safetensors")
    heads.rename("elsewhere")
    truncate(Path("elsewhere"))
    heads.symlink_to(Path("elsewhere").resolve())
    os.mkfifo("results/few_shot/digits/pipe.json")
    Path(CELL, "history.parquet").unlink()
    os.mkfifo(Path(CELL, "history.parquet"))
    mine = {
        "notes.json": "{mine",
        "other.json": '{"format": "mine"}',
        "list.json": "[1]",
        ".hidden.json": '{"format": "dpprobe-few-shot"',
    }
    for name, text in mine.items():
        Path("results/few_shot/digits", name).write_text(text)
    yield Expected(
        FIX,
        1,
        (
            f"{HEADS}: truncated: ... not deleted, because it is behind a symbolic",
            f"{CELL}/history.parquet: not a plain file; inspect it, and move it elsewhere",
            f"{OTHER}/heads.safetensors: truncated: ... not deleted, because it is behind a",
            "not checked: 3 files without a recorded hash, such as results/few_shot/digits/list",
        ),
    )


def records_that_name_files_elsewhere() -> Calls:
    Path("kept").write_text("mine")
    record = {"format": "dpprobe-few-shot", "dataset": "digits", "backbone": "pixels"}
    path = Path("results/few_shot/digits/pixels.json")
    for name in (None, "../../../../../../kept", "/etc/hostname", "deep/file"):
        fault = f"names {name}, outside the record's folder" if name else "lacks hashes of files"
        write_record(path, {**record, "files": {name: "0" * 64} if name else ["x"]})
        yield Expected(FIX, 1, (f"{FEW_SHOT}: {fault}",))
    Path("data/downloads/mnist").mkdir(parents=True)
    part = {"name": "../other/kept", "sha256": "0" * 64, "bytes": 4}
    receipt = {"format": "dpprobe-download", "format_version": 1, "files": [part]}
    write_record(Path("data/downloads/mnist/receipt.json"), receipt)
    Path("results/fairness/digits/a").mkdir(parents=True)
    write_record(Path("results/fairness/digits/a/x.json"), {**record, "files": {"x": "0" * 64}})
    others = (
        "data/downloads/mnist/receipt.json: names ../other/kept, outside the record's folder",
        "results/fairness/digits/a/x.json: belongs to pixels; the record is complete: move it to",
    )
    yield Expected(
        ("--fix", "--data", "data"), 1, (*others, f"{FEW_SHOT}: names deep/file, outside")
    )
    for content in (b"", b"\0" * 900, b'{"format": "dpprobe-few-shot",'):  # cut short by a crash
        path.write_bytes(content)
        yield Expected(
            FIX,
            1,
            (*others, f"{FEW_SHOT}: not valid JSON ... deleted; {run_of(FEW_SHOT)}"),
            (FEW_SHOT,),
        )


def files_of_a_newer_dpprobe() -> Calls:
    for path in (f"{FEATURES}/manifest.json", "results/calibration/digits/eps-1.json"):
        values = json.loads(Path(path).read_text())
        write_json(Path(path), values | {"format_version": 9, "more": 1})
    without_hash = "results/calibration/digits/eps-2.json"
    write_json(
        Path(without_hash),
        {"format": PLANS, "format_version": PLANS_VERSION},
    )
    newer = {"format": "dpprobe-dataset", "format_version": 9}
    write_record(Path("data/digits/dataset.json"), newer)
    yield Expected(
        FIX,
        1,
        (
            "data/digits/dataset.json: lacks hashes of files; check if another version of dpprobe",
            "results/calibration/digits/eps-1.json: written by another version of dpprobe, or "
            "changed",
            f"{without_hash}: {CHANGED}deleted; {run_of(without_hash)}",
            f"{FEATURES}/manifest.json: written by another version of dpprobe, or changed",
        ),
        (without_hash,),
    )


def downloads_and_cached_noise() -> Calls:
    image = Path("data/downloads/digits/images/a.png")
    image.parent.mkdir(parents=True)
    image.write_bytes(b"picture")
    fetched = {"name": "images/a.png", "bytes": 7, "sha256": sha256_file(image)}
    receipt = {"format": "dpprobe-download", "format_version": 1, "files": [fetched]}
    write_record(Path("data/downloads/digits/receipt.json"), receipt)
    write_record(Path("data/downloads/no/receipt.json"), receipt | {"files": 3})
    no_files = "data/downloads/no/receipt.json: lacks hashes of files; check if another version"
    picture = (
        f"{image}: {CHANGED}delete it and the receipt.json of its dataset, to download it again"
    )
    inputs = {"epsilon": 1}
    path = Path(f"results/calibration/{hash_value(inputs)}.json")
    values = {"format": "dpprobe-calibration", "factor": 1.5, "inputs": inputs}
    write_json(path, {**values, "sha256": hash_value(values)})
    yield Expected((), 1, (no_files,))
    flip(image)
    path.write_text(path.read_text().replace("1.5", "0.5"))
    yield Expected(
        (), 1, (picture, no_files, f"{path}: {CHANGED}delete it and run `dpprobe run --cores")
    )
    yield Expected(
        FIX,
        1,
        (picture, no_files, f"{path}: {CHANGED}deleted; run `dpprobe run --cores"),
        (str(path),),
    )


def list_release(bundle: Path) -> Ledger:
    """Writes a ledger that lists only one bundle."""
    ledger = Ledger(Path("data", read_json(bundle / "bundle.json")["dataset"], "ledger.jsonl"))
    entry = ledger.book_release(booking("clinic_v1", part("train", gaussian(5.0))), FREE)
    ledger.close_entry(entry.number, bundle_digest(bundle))
    return ledger


def bundles_that_the_ledger_lacks() -> Calls:
    """Cases: an old backup of the ledger is restored, the ledger is lost, folders are swapped."""
    bundle = Path("results/releases/clinic_v1")
    shutil.copytree(unpack_release(Path("stored")), bundle)
    ledger = list_release(bundle)
    yield Expected()
    bundle.rename(other := bundle.with_name("clinic_v2"))
    yield Expected((), 1, (f"{other}: holds the release 'clinic_v1'; move it to {bundle}, if",))
    other.rename(bundle)
    whole = ledger.path.read_bytes()
    short = f"{bundle}: a release from data that {ledger.path} does not list; restore the ledger"
    for kept in (whole.splitlines(keepends=True)[0], b"", None):  # only booked, empty, deleted
        ledger.path.write_bytes(kept or b"")
        if kept is None:
            ledger.path.unlink()
        yield Expected(FIX, 1, (short,))
    shutil.move(bundle, elsewhere := Path("elsewhere/releases/clinic_v1").absolute())
    yield Expected()  # nothing refers to this folder
    note_releases(ledger.path, elsewhere.parent)
    note_releases(ledger.path.parents[1] / "digits/ledger.jsonl", elsewhere.parent)
    yield Expected((), 1, (short.replace(str(bundle), str(elsewhere)),))
    ledger.path.write_bytes(whole)
    yield Expected()
    shutil.move(elsewhere, bundle)
    statement = read_json(bundle / "privacy.json")
    named = {"name": "clinic_v0", "sha256": "0" * 64}
    write_json(bundle / "privacy.json", {**statement, "predecessor": named})
    write_sums(bundle)
    ledger.path.unlink()
    list_release(bundle)
    yield Expected(
        (), 1, (f"{bundle}: replaces 'clinic_v0', which no ledger in data lists; restore",)
    )


def releases_and_ledgers() -> Calls:
    bundle = Path("results/releases/clinic_v1")
    stored = unpack_release(Path("stored"))
    list_release(stored)
    shutil.copytree(stored, bundle)
    (bundle / "SHA256SUMS").unlink()
    (bundle / "README.md").unlink()
    yield Expected()  # still being copied
    bundle.with_name(".clinic_v1.done").touch()
    yield Expected((), 1, (f"{bundle}/SHA256SUMS: missing; {FROM_BACKUP}",))
    shutil.copytree(stored, bundle, dirs_exist_ok=True)
    shutil.copytree(bundle, bundle.with_name("second"))
    flip(bundle.with_name("second") / "README.md")
    second = f"results/releases/second/README.md: {CHANGED}{FROM_BACKUP}"
    staged = bundle.with_name(".clinic_v1.entry-1.staged")
    shutil.copytree(bundle, staged)
    shutil.copy(STORED / "ledger-1/ledger.jsonl", "data/digits")
    yield Expected((), 1, (second,))
    flip(bundle / "head.safetensors")
    (bundle / "README.md").unlink()
    last = Path("results/tracking/digits.json")  # sorts after the bundle, and may be deleted
    flip(last)
    last.with_name(".checked").touch()
    yield Expected(
        FIX,
        1,
        (
            f"{bundle}/README.md: missing; copy the bundle from {staged}: dpprobe cannot",
            f"{bundle}/head.safetensors: {CHANGED}copy the bundle from {staged}: dpprobe cannot",
            second,
            f"{last}: {CHANGED}deleted; {run_of(str(last))}",
        ),
        ("results/tracking/.checked", str(last)),
    )
    truncate(staged / "SHA256SUMS")
    flip(Path("data/digits/ledger.jsonl"), 40)
    yield Expected(
        FIX,
        1,
        (
            "data/digits/ledger.jsonl, line 1: damaged (altered: the line's hash does not match "
            "its content); restore it from a backup: dpprobe cannot recreate a ledger",
            f"{staged}/release.ht: missing; {FROM_BACKUP}",
            f"{staged}/release.html: {CHANGED}{FROM_BACKUP}",
            f"{bundle}/README.md: missing; {FROM_BACKUP}",
            f"{bundle}/head.safetensors: {CHANGED}{FROM_BACKUP}",
            second,
        ),
    )


def records_of_comparisons() -> Calls:
    shutil.copy(STORED / "ledger-1/ledger.jsonl", "data/digits")  # entry 1: abandoned, 2: closed
    folder = Path("results/comparisons/a_vs_b")
    record = folder / "comparison.json"
    stored = {"format": "dpprobe-comparison", "format_version": 1, "dataset": "digits"}
    staged = {number: folder / f".entry-{number}.json" for number in (1, 2)}
    for number, path in staged.items():
        write_record(path, stored | {"entry": number})
    shutil.copy(staged[2], record)
    yield Expected()
    record.unlink()
    restored = "missing; repeat its `dpprobe compare`, which restores it and spends nothing"
    yield Expected(FIX, 1, (f"{record}: {restored}",))
    staged[2].unlink()
    yield Expected()  # its entry is abandoned: repeating the comparison would spend epsilon
    write_record(staged[2], stored | {"entry": 2})
    shutil.copy(staged[2], record)
    truncate(record)
    kept = "dpprobe cannot recreate a comparison"
    yield Expected(FIX, 1, (f"{record}: {CHANGED}copy it from {staged[2]}: {kept}",))
    flip(staged[2])
    backup = f"{CHANGED}restore it from a backup: {kept}"
    yield Expected(FIX, 1, tuple(f"{path}: {backup}" for path in (staged[2], record)))
    newer = stored | {"entry": 2, "format_version": 2}
    write_record(record, newer)
    write_record(staged[2], newer)
    yield Expected((), 1, tuple(f"{path}: " for path in (staged[2], record)))


def folders_without_results() -> Calls:
    Path("empty").mkdir()
    yield Expected(
        ("empty",),
        None,
        ("dpprobe: empty: no file here has a recorded hash; name the results_dir",),
    )
    yield Expected(
        ("gone",), None, ("dpprobe: gone: no such folder; name the results_dir of a study",)
    )
    yield Expected(
        ("--data", "gone"), None, ("dpprobe: gone: no such folder; name the data_dir of",)
    )
    shutil.rmtree(FOLDER)
    yield Expected()


def stores_of_tracking() -> Calls:
    for name, store in (("b", "store.db"), ("a", "store.db"), ("digits", "gone.db")):
        record = {"format": "dpprobe-tracking", "dataset": name, "uri": f"sqlite:///{store}"}
        write_record(Path(f"results/tracking/{name}.json"), record)
    Path("store.db").write_bytes(b"no database" * 99)
    digits, store = "results/tracking/digits.json", "results/tracking/store.db"
    gone = f"{digits}: its MLflow store is gone; {run_of(digits)}"
    again = run_of("results/tracking/a.json")
    outside = "store.db: damaged (file is not a database); not deleted, because it is behind"
    yield Expected(
        (), 1, (gone, f"store.db: damaged (file is not a database); delete it and {again}")
    )
    yield Expected(FIX, 1, (gone, f"{outside} ... delete it and {again}"))
    Path("results/tracking/store.db").write_bytes(b"no database" * 99)
    record = record | {"uri": "sqlite:///results/tracking/store.db"}
    write_record(Path("results/tracking/digits.json"), record)
    yield Expected(
        FIX,
        1,
        (
            f"{store}: damaged (file is not a database); deleted; {run_of(digits)}",
            f"{outside} ... delete it and {again}",
        ),
        (store,),
    )
    flip(Path("results/tracking/a.json"))
    yield Expected(
        FIX,
        1,
        (
            f"results/tracking/a.json: {CHANGED}deleted; {again}",
            gone,
            f"{outside} ... delete it and {run_of('results/tracking/b.json')}",
        ),
        ("results/tracking/a.json",),
    )


def files_of_jobs() -> Calls:
    page = run_of("results/figures/all.html")
    Path("results/figures").mkdir()
    Path("results/figures/accuracy.svg").write_text("<svg/>")
    Path("results/figures/all.html").write_text("<html>")
    files = {
        name: {"sha256": sha256_file(Path("results", name)), "bytes": size} | more
        for name, size, more in (
            ("figures/accuracy.svg", 6, {"output": "figures/all.html"}),
            ("figures/all.html", 6, {}),
            ("../data/digits/train.parquet", 1, {}),
        )
    }
    written = {"format": "dpprobe-written", "format_version": 1, "files": files}
    write_record(Path("results/.written/deep/job.json"), written)
    Path("results/figures/accuracy.svg").write_text("<svg>>")
    yield Expected(
        (),
        1,
        (
            "data/digits/train.parquet: too long: ... but 1 were written; delete it and",
            f"results/figures/accuracy.svg: {CHANGED}delete it and {page}",
        ),
    )
    Path("results/figures/accuracy.svg").write_text("<svg/>+")
    (FOLDER / "a.json").unlink()
    yield Expected(  # without the folder of split tables
        (),
        1,
        (
            "results/figures/accuracy.svg: too long: ... but 6 were written; delete it and run "
            "`dpprobe run results/figures/all.html --cores all`",
            "no run in this folder wrote results: add --configfile FILE to the commands",
        ),
    )


def results_of_other_runs() -> Calls:
    others = (
        "not checked: deep/in/here, the results of another study",
        "not checked: other results, the results of another study",
    )
    latest = "not found: gone, the results of the latest run"
    pixels = f"moved/few_shot/digits/pixels.parquet: {CHANGED}delete it and run `dpprobe run moved/"
    for folder in ("gone", "other results", "results"):  # the latest run is last
        run = {"study": {"results_dir": folder, "data_dir": "data"}, "call": []}
        (FOLDER / f"{folder}.json").write_text(json.dumps({RUN_KEY: run}))
        os.utime(FOLDER / f"{folder}.json", (len(folder),) * 2)
    for folder in ("other results", "deep/in/here/.written", "results/.written"):
        Path(folder).mkdir(parents=True)
    yield Expected((), 0, others)
    os.utime(FOLDER / "gone.json", (time.time() + 9,) * 2)
    yield Expected((), 0, (latest, *others))
    shutil.move("results", "moved")  # no run here wrote this folder
    yield Expected(("moved",), 0, (latest, *others))
    flip(Path("moved/few_shot/digits/pixels.parquet"))
    yield Expected(
        ("moved",),
        1,
        (pixels, "no run in this folder wrote moved: add --configfile", latest, *others),
    )
    flip(Path("data/digits/train.parquet"))
    yield Expected(
        ("moved", "--data", "data"),
        1,
        (
            f"data/digits/train.parquet: {CHANGED}delete it and run `dpprobe run data/digits/train",
            pixels,
            "no run in this folder wrote moved: add --configfile FILE to the commands",
            latest,
            *others,
        ),
    )


def other_spellings() -> Calls:
    """Suggested commands name outputs as the study does, however the folder is written."""
    shutil.move("results", "disk")
    Path("results").symlink_to(Path("disk").absolute())
    on_disk = f"disk/{HEADS.removeprefix('results/')}"
    table = "data/digits/train.parquet"
    for results in ("", "disk", "disk/../results", f"{Path.cwd()}/results"):
        for path, again, gone in (
            (HEADS, MAKE_CELL, on_disk),
            (table, run_of(table), table),
        ):
            kept = Path(path).read_bytes()
            truncate(Path(path))
            words = tuple(filter(None, [results, "--fix"]))
            yield Expected(words, 0, (f"truncated: ... deleted; {again}",), (gone,))
            assert not Path(path).exists()
            Path(path).write_bytes(kept)


SCENES = [
    run_is_at_work,
    records_without_own_hash,
    links_and_strangers,
    records_that_name_files_elsewhere,
    files_of_a_newer_dpprobe,
    downloads_and_cached_noise,
    releases_and_ledgers,
    records_of_comparisons,
    bundles_that_the_ledger_lacks,
    folders_without_results,
    results_of_other_runs,
    other_spellings,
    stores_of_tracking,
    files_of_jobs,
]


@pytest.mark.parametrize("scene", SCENES)
def test_doctor_deletes_no_file_that_a_run_a_stranger_or_a_release_may_need(
    doctor: Doctor, scene: Callable[[], Calls]
) -> None:
    """Files of a newer dpprobe stay, too. Each line names the file, the fault and the remedy."""
    for told in scene():
        before = {path for path in Path().rglob("*") if not path.is_dir()}
        code, output = doctor(*told.words)
        refused = isinstance(code, str)
        assert refused == (told.code is None), (code, output)
        assert refused or code == told.code, output
        *lines, last = [code, ": 0 damaged"] if isinstance(code, str) else output.splitlines()
        assert len(lines) == len(told.said), output
        for line, said in zip(lines, told.said, strict=True):
            assert re.search(".*".join(map(re.escape, said.split(" ... "))), line), (line, said)
        others = ("not checked", "not found", "no run in", "dpprobe: ")
        damaged = [line for line in told.said if not line.startswith(others)]
        assert f": {len(damaged)} damaged" in last
        gone = sorted(str(path) for path in before if not os.path.lexists(path))
        assert gone == list(told.gone), told.words
