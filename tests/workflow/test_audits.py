"""Audits in real runs: what is made, kept and shown."""

from __future__ import annotations

from typing import Any

from dpprobe.artifacts import read_json

from .conftest import Workspace

RECORD = "results/audit/digits/pixels/{}/eps-{}.json"


def test_audits_are_made_kept_and_shown(workspace: Workspace, analysed: dict[str, Any]) -> None:
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
    assert "Nothing to be done" in workspace.run(analysed, "audit_digits").stdout

    # A choice of methods keeps the audits that are there: a new one would be another file.
    path = workspace.directory / RECORD.format("sgd", "2")
    before = path.stat().st_ino
    analysed["audit"]["methods"] = ["sgd", "nonprivate"]
    planned = workspace.planned(analysed, "audit_digits")
    assert planned["audit_cells"] == 1
    assert planned["train_heads"] == 0
    workspace.run(analysed, "audit_digits")
    assert path.stat().st_ino == before
