"""Release commands: exit statuses, and one-line messages for mistakes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

from dpprobe.errors import ConfigError
from dpprobe.files.json_files import read_json, write_json
from dpprobe.release import image_monitor as monitor
from dpprobe.release.bundle import bundle_digest
from dpprobe.release.checks import Check
from dpprobe.release.checks import Report as Checked
from dpprobe.release.export import Exported
from dpprobe.release.ledger.ledger import Ledger, describe_ledger
from dpprobe.release.predict import Summary
from dpprobe.release.release_folders import note_releases
from dpprobe.study.snapshot import FOLDER, RUN_KEY
from tests.support.bundles import write_example
from tests.support.command_line import run_main
from tests.support.refusals import check_tokens
from tests.unit.release.ledger.test_ledger import FREE, booking, gaussian, part


@pytest.mark.parametrize(
    ("words", "function", "wanted"),
    [
        (
            "predict b x y --output o --checkpoint w --device cpu --allow-hub --image-column i "
            "--root r --id-column n --coverage 0.99 --abstain-below 0.5 --threshold a=b=0.3 "
            "--threshold c=1 --operating-point --monitor --monitor-groups g --prevalence a=b=0.02",
            "predict.predict",
            {
                "": (Path("b"), [Path("x"), Path("y")]),
                "output": Path("o"),
                "checkpoint": [Path("w")],
                "device": "cpu",
                "allow_hub": True,
                "allow_module": False,
                "image_column": "i",
                "root": Path("r"),
                "id_column": "n",
                "coverage": 0.99,
                "abstain_below": 0.5,
                "thresholds": {"a=b": 0.3, "c": 1.0},
                "operating_point": True,
                "prevalence": {"a=b": 0.02},
                "watch": (monitor.open_watch, Path("g")),
            },
        ),
        (
            "verify b --checkpoint w --public-key k --predecessor p --predecessor q",
            "verification.verify.verify_bundle",
            {
                "": (Path("b"),),
                "checkpoint": [Path("w")],
                "public_key": Path("k"),
                "predecessors": [Path("p"), Path("q")],
            },
        ),
        (
            "export b --onnx o --checkpoint w --allow-module",
            "export.export_onnx",
            {
                "": (Path("b"), Path("o")),
                "checkpoint": [Path("w")],
                "allow_hub": False,
                "allow_module": True,
            },
        ),
    ],
)
def test_each_option_reaches_its_function_with_its_type(
    monkeypatch: pytest.MonkeyPatch, words: str, function: str, wanted: dict[str, Any]
) -> None:
    def record(*arguments: Any, **named: Any) -> NoReturn:
        if "watch" in named:
            named["watch"] = (named["watch"].func, *named["watch"].args)
        assert {"": arguments, **named} == wanted
        raise ConfigError("recorded")

    monkeypatch.setattr(f"dpprobe.release.{function}", record)
    assert run_main(monkeypatch, *words.split()) == "dpprobe: recorded"
    assert run_main(monkeypatch, *words.split(), "--typo") == 2


def test_help_lists_release_commands_and_imports_no_heavy_package() -> None:
    code = (
        "import sys; sys.argv = ['dpprobe', '--help']\n"
        "from dpprobe.__main__ import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print([name for name in ('torch', 'numpy', 'mlflow', 'onnx') if name in sys.modules])"
    )
    words = [sys.executable, "-c", code]
    shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    for command in (
        "predict",
        "verify",
        "export",
        "passport",
        "release-notes",
        "rollback",
        "ledger",
        "compare",
    ):
        assert f"\n    {command} " in shown
    assert shown.endswith("[]\n")


def test_a_release_is_compared_and_rolled_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = write_example(tmp_path / "first")
    second = write_example(tmp_path / "second", name="lesions_v2", predecessor=first)
    folders = (str(second), str(first))
    assert run_main(monkeypatch, "release-notes", *folders, "--max-epsilon", "5") == 0
    said = capsys.readouterr().out
    assert said.startswith("# `lesions_v2`, compared with `lesions_v1`\n")
    check_tokens(said, "leaves 4")
    refused = run_main(monkeypatch, "release-notes", *folders, "--ledger", str(tmp_path / "data"))
    check_tokens(str(refused), tmp_path / "data")
    check_tokens(str(run_main(monkeypatch, "rollback", folders[0])), "MLflow")


@pytest.mark.parametrize(
    "command",
    ["predict empty x", "verify empty", "export empty --onnx a.onnx", "explain empty"],
)
def test_a_folder_that_is_not_a_bundle_is_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x").touch()
    said = str(run_main(monkeypatch, *command.split()))
    check_tokens(said, "dpprobe", "empty", "bundle")
    assert "\n" not in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        *(
            (f"--threshold {each}", (f"--threshold {each}", "CLASS=VALUE"))
            for each in ("a", "0.3", "=0.3", "a=", "a=0,3")
        ),
        ("--prevalence a", ("--prevalence a", "CLASS=VALUE")),
        ("--prevalence a=0.1 --prevalence estimate", ("--prevalence estimate", "pass no other")),
        ("--threshold a=0.1 --threshold a=0.2", ("--threshold a=0.2",)),
        ("--monitor-report r.json", ("--monitor-report", "need --monitor")),
        ("--monitor-groups g.csv", ("--monitor-groups", "need --monitor")),
        ("--monitor --monitor-report .", ("--monitor-report .", "file")),
    ],
)
def test_impossible_options_are_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, said: tuple[object, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dpprobe.release.predict.predict", lambda *_, **__: 1 / 0)
    check_tokens(str(run_main(monkeypatch, "predict", "b", "x", *words.split())), *said)


def answering(monkeypatch: pytest.MonkeyPatch, function: str, answer: Any) -> None:
    monkeypatch.setattr(f"dpprobe.release.{function}", lambda *_, **__: answer)


@pytest.mark.parametrize("unread", [0, 1, 20, 21, 22])
def test_twenty_unreadable_images_are_listed_and_all_are_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], unread: int
) -> None:
    faults = tuple(
        (f"{number}.png\x1b\ndpprobe: all read", f"bad {number}") for number in range(unread)
    )
    answering(monkeypatch, "predict.predict", Summary(rows=30, unreadable=faults))
    assert run_main(monkeypatch, "predict", "b", "x") == (3 if unread else 0)
    printed, told = capsys.readouterr()
    assert printed == "", "the table alone stands there"
    assert "\x1b" not in told, "no name drives a terminal"
    lines = told.splitlines()
    if not unread:
        assert lines == []
        return
    *listed, last = lines
    assert len(listed) == min(unread, 20)
    for number, line in enumerate(listed):
        assert line.startswith(f"dpprobe: {number}.png")
        assert line.endswith(f": bad {number}")
    check_tokens(last, "dpprobe", unread, "30 images")
    assert ("20 are shown" in last) == (unread > 20)


def test_a_comparison_is_printed_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tables = {
        name: monitor.Comparison(
            verdict=verdict, distance=0.5, by_chance=0.25, needed=None, change=""
        )
        for name, verdict in zip(monitor.WORDS, (monitor.SIMILAR, monitor.DIFFERENT), strict=False)
    }
    report = monitor.Report(images=4, units=3, test_units=90, tables=tables, most_unusual=())
    fault = (("a.png", "bad"),)
    answering(monkeypatch, "predict.predict", Summary(rows=4, unreadable=fault, report=report))
    words = ("predict", "folder/b", "x", "--monitor")
    assert run_main(monkeypatch, *words, "--monitor-report", "r.json") == 3
    told = capsys.readouterr().err.splitlines()
    assert told[:-2] == [f"dpprobe: {line}" for line in report.list_lines()]
    assert any("WARNING" in line for line in told)
    stated = {**report.to_dict(), "bundle": "b", "most_unusual": []}
    assert read_json(Path("r.json")) == stated
    Path("r.json").unlink()
    assert run_main(monkeypatch, *words) == 3
    assert not Path("r.json").exists()


@pytest.mark.parametrize(
    ("checks", "status"),
    [
        ((Check("price", True, "epsilon 1"),), 0),
        ((Check("price", True, "epsilon 1"), Check("files", False, "one is missing")), 1),
        ((Check("backbone", None, "pass it"),), 0),
    ],
)
def test_a_verification_ends_with_its_verdict(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    checks: tuple[Check, ...],
    status: int,
) -> None:
    report = Checked(checks)
    answering(monkeypatch, "verification.verify.verify_bundle", report)
    for more, lines in (((), report.summarize()), (("--all",), report.list_checks())):
        assert run_main(monkeypatch, "verify", "b", *more) == status
        assert capsys.readouterr().out.splitlines() == lines


def test_an_export_states_both_differences_and_its_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    exported = Exported(
        path=Path("m.onnx"),
        largest_difference=1.2e-7,
        precision_difference=0.034,
        opset=18,
        input="uint8 [batch]",
    )
    answering(monkeypatch, "export.export_onnx", exported)
    assert run_main(monkeypatch, "export", "b", "--onnx", "m.onnx") == 0
    first, second = capsys.readouterr().out.splitlines()
    check_tokens(first, "m.onnx", "opset 18", "1.2e-07 in float32", "3.4e-02")
    assert second == "input: uint8 [batch]"


RUNS = {"results_dir": "runs", "data_dir": "tables"}


@pytest.fixture
def booked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """Returns the ledger of data/toy, with one closed and two open entries; data/other has none."""
    monkeypatch.chdir(tmp_path)
    for name in ("data/toy/ledger.jsonl", "data/other/dataset.json"):
        Path(name).parent.mkdir(parents=True)
        Path(name).touch()
    ledger = Ledger(Path("data/toy/ledger.jsonl"))
    for number in (1, 2, 3):
        ledger.book_release(booking(f"v{number}", part("train", gaussian(5.0))), FREE)
    ledger.close_entry(1, "d" * 64)
    return ledger


def test_a_ledger_is_described_and_an_entry_abandoned(
    booked: Ledger, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for more, delta in (((), None), (("--delta", "1e-3"), 1e-3)):
        assert run_main(monkeypatch, "ledger", "data/toy", *more) == 0
        assert capsys.readouterr().out == f"{describe_ledger(booked, delta=delta)}\n"
    words = ("ledger", "data/toy", "--abandon", "3", "--reason", "the job died")
    assert run_main(monkeypatch, *words) == 0
    assert [entry.state for entry in booked.read_entries()] == ["closed", "open", "abandoned"]
    assert booked.read_entries()[2].reason == "the job died"
    assert capsys.readouterr().out == f"{describe_ledger(booked, delta=None)}\n", "as it is then"


@pytest.mark.parametrize("results", ["results", "results/study", "runs", "noted/far/away"])
def test_a_ledger_without_the_entry_of_a_release_is_reported_as_too_short(
    tmp_path: Path,
    booked: Ledger,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    results: str,
) -> None:
    bundle = write_example(tmp_path / results / "releases/lesions_v1")
    dataset = read_json(bundle / "bundle.json")["dataset"]
    ledger = booked.path.parents[1].rename("tables") / dataset / "ledger.jsonl"
    ledger.parent.mkdir()
    ledger.touch()
    if results.startswith("noted"):
        note_releases(ledger, bundle.parent)
    write_json(FOLDER / "a.json", {RUN_KEY: {"study": RUNS, "call": []}})
    assert run_main(monkeypatch, "ledger", f"tables/{dataset}") == 1
    said = capsys.readouterr().out
    check_tokens(said, "no release is recorded", f"releases/lesions_v1: a release from {dataset}")
    number = Ledger(ledger).book_release(booking("v1", part("train", gaussian(5.0))), FREE).number
    Ledger(ledger).close_entry(number, bundle_digest(bundle))
    assert run_main(monkeypatch, "ledger", f"tables/{dataset}") == 0
    assert "too short" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("data/toy --delta 0", ("delta 0.0", "1e-10 to 1")),
        ("data/toy --abandon 3 --reason because --delta 2", ("delta 2.0", "1e-10 to 1")),
        ("data/toy --reason because", ("--abandon", "--reason")),
        ("data/toy --abandon 3", ("--abandon", "--reason")),
        ("data/toy --abandon 1 --reason because", ("entry 1", "closed")),
        ("data/toy --abandon 9 --reason because", ("entry 9", "`dpprobe ledger data/toy`")),
        ("data", ("data/other", "data/toy")),
        (".", ("<data_dir>/<dataset>",)),
    ],
)
def test_invalid_arguments_of_the_ledger_command_leave_the_ledger_unchanged(
    booked: Ledger, monkeypatch: pytest.MonkeyPatch, words: str, said: tuple[object, ...]
) -> None:
    before = booked.path.read_bytes()
    check_tokens(str(run_main(monkeypatch, "ledger", *words.split())), *said)
    assert booked.path.read_bytes() == before
