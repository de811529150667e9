"""The command that predicts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command_line import run_main

CALL = ["plan", "--n", "3000", "--d", "1280", "--classes", "4", "--epsilon", "1"]


@pytest.mark.parametrize(
    ("options", "said", "unsaid"),
    [
        ((), ["3,000 images, 4 classes"], "no better than"),
        (
            ("--n", "64", "--unit", "patient", "--epsilon", "0.1"),
            ["64 patients, 4 classes", "with 64 patients in 4 classes", "patients are enough",
             "10x patients", "accuracy with one label per image, not AUC or macro accuracy"],
            "images",
        ),
        (
            ("--n", "300", "--classes", "2", "--majority", "0.75", "--ceiling", "0.77"),
            ["If a non-private head reaches 77%, these are no better than the majority-class "
             "baseline (75%): this"],
            "patients",
        ),
        (("--ceiling", "0.82"), [], "no better than"),
        (
            ("--advantage", "0.1"),
            ["epsilon 0.931718, delta 1e-05",
             "advantage 0.1 is ε 0.931718 (TPR at most 0.26% at 0.1% FPR); mu 0.2513"],
            "no better than",
        ),
    ],
)  # fmt: skip
def test_it_prints_a_plan_in_the_terms_that_were_asked(
    options: tuple[str, ...], said: list[str], unsaid: str,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    call = CALL[:-2] if "--advantage" in options else CALL
    assert run_main(monkeypatch, *call, *options) == 0
    printed = capsys.readouterr().out
    assert all(words in printed for words in said)
    assert unsaid not in printed.partition("Lead kept = (private")[0]  # of the data


def test_it_prints_json_and_draws(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    svg = tmp_path / "plan.svg"
    options = ("--json", "--ceiling", "0.82", "--figure", str(svg))
    assert run_main(monkeypatch, *CALL, *options) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["ceilings"] == [0.82]
    assert svg.read_text(encoding="utf-8").startswith("<?xml")
    risk = ("--true-positives", "0.01", "--at", "0.001", "--json")
    assert run_main(monkeypatch, *CALL[:-2], *risk) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["risk_target"] == {"true_positives": 0.01, "at": 0.001}
    assert values["setting"]["epsilon"] == pytest.approx(3.213, abs=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--at", "0.1"), "risk: write advantage, such as"),
        (("--epsilon", "-1"), "epsilon -1: outside"),
        (("--n", "2"), "n 2: fewer than the 4 classes"),
        (("--figure", "plan.pdf"), "plan.pdf: write a name that ends in .svg or .png"),
    ],
)
def test_faults_end_it_with_a_line(
    options: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = run_main(monkeypatch, *CALL, *options)
    assert str(ended).startswith("dpprobe: ")
    assert message in str(ended)
