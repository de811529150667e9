"""Audits in real runs: what is made, kept and shown."""

from __future__ import annotations

from typing import Any

import pytest

from dpprobe.artifacts import read_json

from .conftest import Workspace

METHODS = {
    "least_squares": {"head": "least_squares"},
    "sgd": {"head": "sgd", "batch_size": "full", "steps": 3},
    "nonprivate": {"head": "nonprivate"},
}
RECORD = "results/audit/digits/pixels/{}/eps-{}.json"


@pytest.fixture
def study(small: dict[str, Any]) -> dict[str, Any]:
    audit = {"runs": 40, "membership": {"shadows": 8, "rows": 60}}
    return small | {"methods": METHODS, "audit": audit}


def test_audits_are_made_kept_and_shown(workspace: Workspace, study: dict[str, Any]) -> None:
    workspace.run(study, "audits", "results/report.html", "tracking")
    records = {
        cell: read_json(workspace.directory / RECORD.format(*cell))
        for cell in (("least_squares", "2"), ("sgd", "2"), ("nonprivate", "inf"))
    }
    for (method, epsilon), record in records.items():
        assert (record["method"], record["epsilon"]) == (method, epsilon)
        assert (record["white_box"] is None) == (epsilon == "inf")
        assert record["membership"]["units"] <= 60 < record["membership"]["n"]
        scores = workspace.directory / RECORD.format(method, epsilon)
        assert scores.with_suffix(".parquet").is_file()
    assert records["sgd", "2"]["white_box"]["runs"] == 40
    assert records["sgd", "2"]["claim"]["epsilon"] <= 2
    figures = workspace.directory / "results/figures/digits"
    for name in ("audit", "membership_pixels-sgd-eps-2"):
        assert (figures / f"{name}.png").is_file()
    page = (workspace.directory / "results/report.html").read_text(encoding="utf-8")
    assert '<section id="audits"' in page
    assert "Nothing to be done" in workspace.run(study, "audits").stdout

    # A choice of methods keeps the audits that are there: a new one would be another file.
    path = workspace.directory / RECORD.format("sgd", "2")
    before = path.stat().st_ino
    study["audit"]["methods"] = ["sgd", "nonprivate"]
    planned = workspace.planned(study, "audits")
    assert planned["audit_cells"] == 1
    assert planned["train_heads"] == 0
    workspace.run(study, "audits")
    assert path.stat().st_ino == before


def test_a_changed_option_of_an_audit_makes_audits_and_no_heads(
    workspace: Workspace, study: dict[str, Any]
) -> None:
    del study["audit"]["membership"]
    assert workspace.planned(study, "audits")["audit_cells_without_privacy"] == 0
    workspace.run(study, "audit_digits")
    study["audit"]["runs"] = 50
    planned = workspace.planned(study, "audit_digits")
    assert planned["audit_cells"] == 1
    assert planned["train_heads"] == planned["extract_features"] == planned["calibrate"] == 0
