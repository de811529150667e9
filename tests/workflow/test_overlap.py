"""Near-duplicates of private images in a public dataset are found and stated."""

from __future__ import annotations

import json
from typing import Any

import pyarrow.parquet as pq

from tests.support.digits_file import digits_file

from .conftest import PREPARED, Template, Workspace


def test_near_duplicates_are_in_the_privacy_statement(
    workspace: Workspace, small: dict[str, Any], template: Template
) -> None:
    template(workspace, small, *PREPARED)
    seen = digits_file(workspace.directory / "seen.parquet") | {"split_seed": 7}
    small |= {"public_datasets": {"seen": seen}, "overlap": {"public": ["seen"]}}
    small["overlap"]["threshold"] = 0.999
    workspace.run(small, "heads", "overlaps")
    folder = workspace.directory / "results/overlap/digits"
    report = json.loads((folder / "pixels.json").read_text())
    # The public dataset has the same 1,797 images in another split: all are found.
    for split, rows in (("train", 1438), ("test", 359)):
        part = report[split]
        assert part["exact"] == part["near"] == part["rows"] == rows
    listed = pq.read_table(folder / "pixels.parquet", columns=["split"])["split"].to_pylist()
    assert listed == ["train"] * 1438 + ["test"] * 359
    statement = json.loads((workspace.cell("sgd", "2") / "privacy.json").read_text())
    check = statement["public_data"]["near_duplicate_check"]
    assert (check["train"]["near"], check["threshold"]) == (1438, 0.999)
    assert check["test"]["near"] == 359
    assert "near_duplicates" in statement["not_covered"]
    log = workspace.directory / "results/logs/check_overlap/digits/pixels.log"
    assert "1438 of 1438 private train rows have a near-duplicate" in log.read_text()
    assert "359 of 359 private test rows have a near-duplicate" in log.read_text()

    # Another threshold changes the heads' statement, but not the heads.
    heads = workspace.cell("sgd", "2") / "heads.safetensors"
    before = heads.read_bytes()
    small["overlap"]["threshold"] = 0.95
    workspace.run(small, "heads")
    assert heads.read_bytes() == before
    statement = json.loads((workspace.cell("sgd", "2") / "privacy.json").read_text())
    assert statement["public_data"]["near_duplicate_check"]["threshold"] == 0.95
    assert "Nothing to be done" in workspace.run(small, "heads", "overlaps").stdout
