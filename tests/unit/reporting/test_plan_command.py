"""The command `dpprobe plan`."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tests.support.command_line import run_main

CALL = ["plan", "--n", "3000", "--d", "1280", "--classes", "4", "--epsilon", "1"]


def _printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *options: str
) -> str:
    assert run_main(monkeypatch, *options) == 0
    return capsys.readouterr().out


def test_it_prints_a_plan_of_what_was_typed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = _printed(monkeypatch, capsys, *CALL)
    assert words.startswith("3,000 images, 4 classes, 1,280 features, epsilon 1, delta 1e-05")
    assert "delta 0.001" in _printed(monkeypatch, capsys, *CALL, "--delta", "1e-3")
    unknown = _printed(monkeypatch, capsys, *CALL[:3], *CALL[5:])
    assert unknown.startswith("3,000 images, 4 classes, number of features unknown (")


def test_it_says_patients_where_n_counts_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ("--n", "64", "--unit", "patient", "--epsilon", "0.1")
    printed = _printed(monkeypatch, capsys, *CALL, *few)
    assert "64 patients, 4 classes" in printed
    assert "with 64 patients in 4 classes" in printed
    assert "images" not in printed.partition("Lead kept = (private")[0].replace("public images", "")
    months = _printed(monkeypatch, capsys, *CALL, *few, "--months", "3")
    table = months[len(printed.rstrip("\n")) :]
    assert "patients" in table
    assert [n in table for n in ("64", "128", "192")] == [True] * 3
    assert months.startswith(printed.rstrip("\n")), "the months follow the plan"


def test_it_plans_with_a_permitted_risk(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Gaussian noise of parameter mu has advantage 2 Phi(mu / 2) - 1 (Dong et al. 2022)."""
    printed = _printed(monkeypatch, capsys, *CALL[:-2], "--advantage", "0.1")
    mu = float(printed.partition("; mu ")[2].split()[0].rstrip(".;,)"))
    assert math.erf(mu / 2 / math.sqrt(2)) == pytest.approx(0.1, abs=1e-4)
    assert "epsilon 0.931718, delta 1e-05" in printed
    risk = ("--true-positives", "0.01", "--at", "0.001", "--json", "--months", "2")
    values = json.loads(_printed(monkeypatch, capsys, *CALL[:-2], *risk))
    assert [month["n"] for month in values["months"]] == [3000, 6000]
    assert values["risk_target"] == {"true_positives": 0.01, "at": 0.001}
    assert values["setting"]["epsilon"] == pytest.approx(3.213, abs=1e-3)


def test_it_prints_json_and_draws(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    svg = tmp_path / "plan.svg"
    options = ("--json", "--ceiling", "0.82", "--unit", "patient", "--figure", str(svg))
    values = json.loads(_printed(monkeypatch, capsys, *CALL, *options))
    assert values["ceilings"] == [0.82]
    assert "months" not in values
    text = svg.read_text(encoding="utf-8")
    assert text.startswith("<?xml")
    assert "training patients" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--at", "0.1"), "risk: set advantage, such as"),
        (("--epsilon", "-1"), "epsilon -1: outside"),
        (("--n", "2"), "n 2: fewer than the 4 classes"),
        (("--figure", "plan.pdf"), "plan.pdf: use a name that ends in .svg or .png"),
        (("--months", "0"), "months 0"),
        (("--majority", "0.9", "--ceiling", "0.8"), "0.9"),
    ],
)
def test_faults_end_it_with_a_line(
    options: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = str(run_main(monkeypatch, *CALL, *options))
    assert ended.startswith("dpprobe: ")
    assert message in ended
    assert "\n" not in ended.strip()
