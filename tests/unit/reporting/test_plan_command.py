"""The command that predicts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command_line import run_main
from tests.support.stored_records import check_values

CALL = ["plan", "--n", "3000", "--d", "1280", "--classes", "4", "--epsilon", "1"]
TYPED = [
    "",
    "--n 64 --unit patient --epsilon 0.1",
    "--n 300 --classes 2 --majority 0.75 --ceiling 0.77",
    "--ceiling 0.82",
    "--advantage 0.1",
    "--at 0.1",
    "--epsilon -1",
    "--n 2",
    "--figure plan.pdf",
    "--delta 1e-3",
    "--months 3 --unit patient",
]


def test_what_it_prints_in_the_terms_that_were_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = {}
    for text in TYPED:
        call = CALL[:-2] if "--advantage" in text else CALL
        ended = run_main(monkeypatch, *call, *text.split())
        answers[text] = [ended, *capsys.readouterr().out.splitlines()]
    check_values("plans_printed", answers)


def test_it_prints_json_and_draws(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    svg = tmp_path / "plan.svg"
    options = ("--json", "--ceiling", "0.82", "--unit", "patient", "--figure", str(svg))
    assert run_main(monkeypatch, *CALL, *options) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["ceilings"] == [0.82]
    assert svg.read_text(encoding="utf-8").startswith("<?xml")
    assert "training patients" in svg.read_text(encoding="utf-8")
    risk = ("--true-positives", "0.01", "--at", "0.001", "--json", "--months", "2")
    assert run_main(monkeypatch, *CALL[:-2], *risk) == 0
    values = json.loads(capsys.readouterr().out)
    assert [month["n"] for month in values["months"]] == [3000, 6000]
    assert values["risk_target"] == {"true_positives": 0.01, "at": 0.001}
    assert values["setting"]["epsilon"] == pytest.approx(3.213, abs=1e-3)
