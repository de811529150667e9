"""A study with an epsilon and two permitted risks has cells, audit, tables and a release."""

from __future__ import annotations

import copy
import csv
from typing import Any

import pytest

from dpprobe.files.json_files import read_json
from dpprobe.privacy.risk import Risk

from .conftest import SMALL, Workspace

pytestmark = pytest.mark.slow

ADVANTAGE = {"advantage": 0.2}
RATE = {"true_positives": 0.02, "at": 0.001}
TOKENS = {"advantage-0.2": ADVANTAGE, "tpr-0.02-at-0.001": RATE}
STUDY: dict[str, Any] = copy.deepcopy(SMALL) | {
    "datasets": {"digits": {"source": "sklearn", "name": "digits", "split_by": "id"}},
    "methods": {
        "sampled": {"head": "sgd", "batch_size": 256, "epochs": 1},
        "auto": {"head": "auto"},
        "ceiling": {"head": "nonprivate"},
    },
    "epsilons": [1, ADVANTAGE, RATE],
    "audit": {"methods": ["auto"], "epsilons": [ADVANTAGE], "runs": 40},
    "releases": {
        "first": {
            "dataset": "digits",
            "backbone": "pixels",
            "method": "auto",
            "epsilon": ADVANTAGE,
            "evaluate": {"epsilon": 2},
        },
    },
}


def test_risks_are_budgets_of_cells_audits_tables_and_releases(workspace: Workspace) -> None:
    workspace.run(STUDY, "results/report.html", "audits", "releases", "tracking")
    results = workspace.directory / "results"
    cells = results / "cells/digits/pixels"
    realised = {}
    for token, risk in TOKENS.items():
        for method in ("sampled", "auto"):
            folder = cells / method / f"eps-{token}"
            statement = read_json(folder / "privacy.json")
            assert statement["risk_target"] == risk
            allows = statement["allows"]
            if risk is ADVANTAGE:
                assert 2 * allows["balanced_accuracy"] - 1 <= 0.2 + 1e-9
            else:
                assert allows["true_positives"]["0.001"] <= 0.02
            realised[token, method] = statement["epsilon_realised"]
            assert ("mu" in statement) == (method == "auto")
        exact = Risk.from_dict(risk).to_epsilon(1e-5)
        assert realised[token, "auto"] <= exact <= realised[token, "auto"] * 1.0001
        assert abs(realised[token, "sampled"] - exact) > 0.02
    assert "risk_target" not in read_json(cells / "auto/eps-1/privacy.json")

    with (results / "tables/accuracy.csv").open(encoding="utf-8", newline="") as stream:
        rows = {line["risk"]: line for line in csv.DictReader(stream)}
    assert set(rows) == {"", *TOKENS}
    for token in TOKENS:
        largest = max(realised[token, "sampled"], realised[token, "auto"])
        assert largest <= float(rows[token]["epsilon"]) <= largest * 1.002
    table = (results / "tables/accuracy.md").read_text(encoding="utf-8")
    assert "| advantage 0.2 (ε ≤ " in table
    assert "| TPR 0.02 at FPR 0.001 (ε ≤ " in table
    assert "advantage 0.2 is ε" in table
    assert "at 0.1% FPR)" in table
    page = (results / "report.html").read_text(encoding="utf-8")
    assert "(advantage 0.2)" in page
    assert "at 0.1% FPR)" in page

    audited = read_json(results / "audit/digits/pixels/auto/eps-advantage-0.2.json")
    assert audited["claim"]["epsilon"] == realised["advantage-0.2", "auto"]
    assert audited["white_box"]["holds"]

    bundle = results / "releases/first"
    assert read_json(bundle / "privacy.json")["risk_target"] == ADVANTAGE
    assert "advantage 0.2 (mu 0.506" in (bundle / "README.md").read_text(encoding="utf-8")
    checked = workspace.dpprobe("verify", str(bundle))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    ledger = workspace.dpprobe("ledger", "data/digits")
    assert ledger.returncode == 0, ledger.stderr
    told = workspace.dpprobe("results")
    assert "advantage 0.2 (ε ≤ " in told.stdout
    again = workspace.run(STUDY, "results/report.html", "audits", "releases", "tracking")
    assert "Nothing to be done" in again.stdout
