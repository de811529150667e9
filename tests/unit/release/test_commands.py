"""The command line: exit statuses, and mistakes that are told in a line."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from dpprobe.errors import ConfigError
from dpprobe.release.export import Exported
from dpprobe.release.ledger import Ledger
from dpprobe.release.parts.monitor import compare_images as monitor
from dpprobe.release.predict import Summary
from dpprobe.release.verification.checks import Check
from dpprobe.release.verification.checks import Report as Checked
from tests.support.bundles import write_example
from tests.support.command_line import run_main
from tests.support.stored_records import check_values
from tests.unit.release.test_ledger import FREE, booking, gaussian, part


@pytest.mark.parametrize(
    ("words", "function", "wanted"),
    [
        (
            "predict b x y --output o --checkpoint w --device cpu --allow-hub --image-column i "
            "--root r --id-column n --coverage 0.99 --abstain-below 0.5 --threshold a=b=0.3 "
            "--threshold c=1 --monitor --monitor-groups g",
            "predict.predict",
            {
                "": (Path("b"), [Path("x"), Path("y")]),
                "output": Path("o"),
                "checkpoint": Path("w"),
                "device": "cpu",
                "allow_hub": True,
                "allow_module": False,
                "image_column": "i",
                "root": Path("r"),
                "id_column": "n",
                "coverage": 0.99,
                "abstain_below": 0.5,
                "thresholds": {"a=b": 0.3, "c": 1.0},
                "monitor": True,
                "groups": Path("g"),
            },
        ),
        (
            "verify b --checkpoint w --public-key k --predecessor p --predecessor q",
            "verification.verify.verify_bundle",
            {
                "": (Path("b"),),
                "checkpoint": Path("w"),
                "public_key": Path("k"),
                "predecessors": [Path("p"), Path("q")],
            },
        ),
        (
            "export b --onnx o --checkpoint w --allow-module",
            "export.export_onnx",
            {
                "": (Path("b"), Path("o")),
                "checkpoint": Path("w"),
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
        assert {"": arguments, **named} == wanted
        raise ConfigError("recorded")

    monkeypatch.setattr(f"dpprobe.release.{function}", record)
    assert run_main(monkeypatch, *words.split()) == "dpprobe: recorded"
    assert run_main(monkeypatch, *words.split(), "--typo") == 2


def test_help_names_every_command_and_loads_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['dpprobe', '--help']\n"
        "from dpprobe.__main__ import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print([name for name in ('torch', 'numpy', 'mlflow', 'onnx') if name in sys.modules])"
    )
    words = [sys.executable, "-c", code]
    shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    for command in ("predict", "verify", "export", "release-notes", "rollback", "ledger"):
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
    assert "which leaves 4 if" in said
    refused = run_main(monkeypatch, "release-notes", *folders, "--ledger", str(tmp_path / "data"))
    assert "neither a ledger nor split tables" in str(refused)
    assert "MLflow has no record of this bundle" in str(
        run_main(monkeypatch, "rollback", folders[0])
    )


def test_lines_and_exit_statuses_are_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}

    def run(case: str, function: str, answer: Any, words: str) -> None:
        monkeypatch.setattr(f"dpprobe.release.{function}", lambda *_, **__: answer)
        found[case] = [run_main(monkeypatch, *words.split()), *capsys.readouterr()]

    Path("x").touch()
    for command in (
        "predict empty x",
        "verify empty",
        "export empty --onnx a.onnx",
        *(
            f"predict b x --threshold {each}"
            for each in ("a", "0.3", "=0.3", "a=", "a=0,3", "a=0.1 --threshold a=0.2")
        ),
        *(
            f"predict b x {each}"
            for each in (
                "--monitor-report r.json",
                "--monitor-groups g.csv",
                "--monitor --monitor-report .",
                "--monitor --monitor-report no/r.json",
            )
        ),
    ):
        found[command] = [run_main(monkeypatch, *command.split()), *capsys.readouterr()]
    tables = {
        name: monitor.Comparison(
            verdict=verdict, distance=0.5, by_chance=0.25, needed=None, change=""
        )
        for name, verdict in zip(monitor.WORDS, (monitor.SIMILAR, monitor.DIFFERENT), strict=False)
    }
    report = monitor.Report(images=4, units=3, test_units=90, tables=tables, most_unusual=())
    for unread, compared in itertools.product((0, 1, 20, 21, 22), (None, report)):
        faults = tuple((f"{number}.png", f"bad {number}") for number in range(unread))
        answer = Summary(rows=30, unreadable=faults, report=compared)
        run(
            f"predict {unread} {compared is None}",
            "predict.predict",
            answer,
            "predict folder/b x --monitor --monitor-report r.json",
        )
        path = Path("r.json")
        path.touch()
        found[f"report {unread} {compared is None}"] = path.read_text()
        path.unlink()
    good, bad = Check("price", True, "epsilon 1"), Check("files", False, "one is missing")
    for checks, more in itertools.product(((good,), (good, bad), ()), ("", " --all")):
        run(
            f"verify {len(checks)}{more}",
            "verification.verify.verify_bundle",
            Checked(checks),
            f"verify b{more}",
        )
    exported = Exported(
        path=Path("m.onnx"),
        largest_difference=1.2e-7,
        precision_difference=0.034,
        opset=18,
        input="uint8 [batch]",
    )
    run("export", "export.export_onnx", exported, "export b --onnx m.onnx")
    for name in ("data/toy/ledger.jsonl", "data/other/dataset.json"):
        Path(name).parent.mkdir(parents=True)
        Path(name).touch()
    ledger = Ledger(Path("data/toy/ledger.jsonl"))
    for number, each in enumerate((0.5, 1e-3, 2e-4), 1):
        price = replace(part("test" if number == 2 else "train", gaussian(5.0)), delta=each / 100)
        ledger.book_release(booking(f"v{number}", price), FREE)
    ledger.close_entry(1, "d" * 64)
    for folder, number in itertools.product((".", "data", "data/toy", "data/other"), (1, 3)):
        for more in (
            "",
            " --delta 0",
            f" --abandon {number} --delta 2 --reason because",
            f" --abandon {number} --reason because",
            " --reason because",
            " --abandon 2",
        ):
            case = f"ledger {folder}{more}"
            found[case] = [
                run_main(monkeypatch, *case.split()),
                *(re.sub(r"\d{4}-\d\d-\d\dT[\d:]*Z", "NOW", text) for text in capsys.readouterr()),
            ]
    check_values("lines_of_commands", found)
