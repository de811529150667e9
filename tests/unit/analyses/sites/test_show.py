"""Table, figure and section of simulated sites."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpprobe.analyses.sites import show
from dpprobe.analyses.sites.sites_record import HEADS, SitesRecord
from tests.support.figures import drawn_bars, tick_texts
from tests.support.report_page import section_page
from tests.support.shown import legend_of, rows_of, title_of

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


@pytest.mark.parametrize(
    ("changes", "notes"),
    [
        ({}, []),
        (
            {"untrained": 3, "reason": "too few: 3 units"},
            [
                "pixels, equal sizes, 10 sites, epsilon 1: 3 sites of 20 over all seeds can train "
                "no head alone, and are left out of the first two heads (too few: 3 units)."
            ],
        ),
        (
            {"one_class": 1},
            [
                "pixels, equal sizes, 10 sites: 1 site of 20 over all seeds with examples of one "
                "class alone."
            ],
        ),
    ],
    ids=["none", "untrained", "one class"],
)
def test_sites_that_lack_something_are_counted(changes: dict[str, Any], notes: list[str]) -> None:
    assert show.list_notes(sites_record(_cell(**changes))) == notes
    # what does not depend on the budget is told once
    two = sites_record(_cell(**changes), _cell(epsilon="10", **changes))
    assert len(show.list_notes(two)) == (2 if "untrained" in changes else len(notes))


def _write(folder: Path, name: str, record: SitesRecord) -> Path:
    path = folder / f"{name}.json"
    record.write(path)
    return path


def test_panels_are_splits_by_budgets_and_lines_heads_by_sites(tmp_path: Path) -> None:
    cells = [
        _cell(
            split=split,
            epsilon=epsilon,
            sites=sites,
            pooled={"mean": mean - sites / 100, "low": mean - 0.2, "high": mean + 0.1},
        )
        for split in ("equal", "labels")
        for epsilon, mean in (("1", 0.82), ("10", 0.9), ("30", 0.95))
        for sites in (10, 2)
    ]
    figure: Any = show.plot_sites(_write(tmp_path, "a", sites_record(*cells)))
    assert legend_of(figure) == list(HEADS.values())
    assert [bool(axes.get_xlabel()) for axes in figure.axes] == [False] * 4 + [True] * 2
    assert len({axes.get_position().x0 for axes in figure.axes}) == 2, "a column for each split"
    assert "mean and 95% interval, 2 seeds" in figure.get_suptitle()
    assert [title_of(axes) for axes in figure.axes] == [
        f"{split}, ε = {epsilon}"
        for epsilon in (1, 10, 30)  # a row for each
        for split in ("equal sizes", "skewed labels")
    ]
    for axes, pooled in zip(figure.axes, (82, 82, 90, 90, 95, 95), strict=True):
        assert tick_texts(axes.xaxis) == ["2", "10"]
        bars = [bar[1:] for bar in drawn_bars(axes)]  # of each head, at 2 and at 10 sites
        assert bars[::2][:3] == [
            pytest.approx((100 * mean, 100 * mean - 3, 100 * mean + 2))
            for mean in [*MEANS.values()][:3]
        ]
        ends = pooled - 20, pooled + 10
        assert bars[6:] == [pytest.approx((pooled - sites, *ends)) for sites in (2, 10)]
        (worst_to_best, *_) = [
            part.get_segments() for part in axes.collections if part.get_linewidth()[0] == 6
        ]
        assert [line[:, 1].tolist() for line in worst_to_best] == [pytest.approx([31, 62])] * 2


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
