"""The command that predicts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command_line import run_main

CALL = ["plan", "--n", "3000", "--d", "1280", "--classes", "4", "--epsilon", "1"]


def test_it_prints_a_plan(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, *CALL) == 0
    assert "3,000 images, 4 classes" in capsys.readouterr().out


def test_it_says_patients_where_n_counts_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ("--n", "64", "--unit", "patient", "--epsilon", "0.1")
    assert run_main(monkeypatch, *CALL, *few) == 0
    printed = capsys.readouterr().out
    assert "64 patients, 4 classes" in printed
    assert "with 64 patients in 4 classes" in printed
    assert "patients are enough" in printed
    assert "10x patients" in printed
    assert (
        "Predicted is accuracy with one label per image; AUC and macro accuracy are not" in printed
    )
    of_data = printed.partition("Lead kept = (private")[0]
    assert "images" not in of_data


def test_it_flags_what_naming_the_largest_class_does_as_well(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    low = ("--n", "300", "--classes", "2", "--majority", "0.75")
    assert run_main(monkeypatch, *CALL, *low, "--ceiling", "0.77") == 0
    flag = "If a non-private head reaches 77%, these are no better than the majority-class baseline"
    assert f"{flag} (75%): this" in capsys.readouterr().out
    assert run_main(monkeypatch, *CALL, "--ceiling", "0.82") == 0
    assert "no better than" not in capsys.readouterr().out


def test_it_prints_json_and_draws(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    svg = tmp_path / "plan.svg"
    options = ("--json", "--ceiling", "0.82", "--figure", str(svg))
    assert run_main(monkeypatch, *CALL, *options) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["ceilings"] == [0.82]
    assert svg.read_text(encoding="utf-8").startswith("<?xml")


def test_it_plans_with_a_permitted_risk(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call = [*CALL[:-2], "--advantage", "0.1"]
    assert run_main(monkeypatch, *call) == 0
    printed = capsys.readouterr().out
    assert "epsilon 0.931718, delta 1e-05" in printed
    assert "advantage 0.1 is ε 0.931718 (TPR at most 0.26% at 0.1% FPR); mu 0.2513" in printed
    assert (
        run_main(monkeypatch, *CALL[:-2], "--true-positives", "0.01", "--at", "0.001", "--json")
        == 0
    )
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
