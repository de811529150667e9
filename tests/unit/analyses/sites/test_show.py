"""Table, figure and section of simulated sites."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpprobe.analyses.sites import show
from dpprobe.analyses.sites.sites_record import HEADS, SitesRecord
from tests.support.report_page import section_page
from tests.support.shown import rows_of

MEANS = {"alone": 0.4, "averaged": 0.7, "together": 0.8, "pooled": 0.82}


def _cell(**changes: Any) -> dict[str, Any]:
    cell: dict[str, Any] = {
        "split": "equal",
        "sites": 10,
        "epsilon": "1",
        "smallest": 99,
        "largest": 1100,
        "worst": 0.31,
        "best": 0.62,
        "untrained": 0,
        "reason": "",
        "one_class": 0,
    }
    cell |= {
        name: {"mean": mean, "low": mean - 0.03, "high": mean + 0.02}
        for name, mean in MEANS.items()
    }
    return cell | changes


LOST: dict[str, Any] = dict.fromkeys(("alone", "worst", "best", "averaged"))


def sites_record(*cells: dict[str, Any], **changes: Any) -> SitesRecord:
    values = {
        "dataset": "digits",
        "backbone": "pixels",
        "method": "head",
        "metric": "accuracy",
        "unit": "image",
        "n": 1000,
        "colluders": 1,
        "seeds": 2,
        "cells": cells or (_cell(),),
    }
    return SitesRecord.model_validate(values | changes)


def test_a_row_has_four_heads_and_the_range_over_sites() -> None:
    table = show.sites_table(
        [sites_record(_cell(), _cell(split="labels", **LOST, smallest=500, largest=500))]
    )
    first, lost = rows_of(table)
    assert ", ".join(first) == (
        "backbone, split, sites, units per site, epsilon, one site alone, worst to best site, "
        "average of heads, secure sums, pooled data"
    )
    assert (first["split"], first["sites"], first["epsilon"]) == ("equal sizes", "10", "1")
    assert first["units per site"] == "99 to 1,100"
    assert first["worst to best site"] == "31.0 to 62.0"
    assert [first[title] for title in HEADS.values()] == [
        "40.0 (37.0 to 42.0)",
        "70.0 (67.0 to 72.0)",
        "80.0 (77.0 to 82.0)",
        "82.0 (79.0 to 84.0)",
    ]
    assert (lost["split"], lost["units per site"]) == ("skewed labels", "500")
    assert not lost["one site alone"] + lost["worst to best site"] + lost["average of heads"]
    assert lost["secure sums"] == "80.0 (77.0 to 82.0)"
    assert table.notes[0].startswith("head on pixels: accuracy. Mean and 95%")


def _write(folder: Path, name: str, record: SitesRecord) -> Path:
    path = folder / f"{name}.json"
    record.write(path)
    return path


def test_table_and_section_are_made_of_files(tmp_path: Path) -> None:
    paths = [
        _write(tmp_path, "a", sites_record()),
        _write(tmp_path, "b", sites_record(backbone="clip")),
        _write(tmp_path, "c", sites_record(dataset="other")),
    ]
    assert [row["backbone"] for row in rows_of(show.make_sites_table(paths[:2]))] == [
        "pixels",
        "clip",
    ]
    parts = show.make_section(paths, section_page("other", "empty", "digits"))
    assert [part["dataset"] for part in parts] == ["other", "digits"]
    assert [part["table"].count("<tr>") for part in parts] == [2, 3], "a head and a row for each"
