"""What tables, figures and sections of analyses show, of many records, against stored ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from dpprobe.analyses.fairness import fairness_table
from dpprobe.analyses.fairness import show as fairness_show
from dpprobe.analyses.representation_law.law_record import law_path
from dpprobe.analyses.sites.sites_record import SitesRecord
from dpprobe.exhibits.style import use_settings
from dpprobe.exhibits.tables import Table, comma_separated, write_markdown
from tests.support.audit_records import (
    CONTROLS,
    MEMBERSHIP,
    WHITE_BOX,
    write_audit,
)
from tests.support.fairness_records import APART, NO_INTERVAL, RECORD, write_fairness
from tests.support.figures import describe_figure
from tests.support.imbalance_records import imbalance_record, rare_cell
from tests.support.law_records import law_record
from tests.support.long_tail_records import write_long_tail
from tests.support.report_page import Made, section_page
from tests.support.stored_records import check_values

Shown = Iterator[tuple[str, Any]]


def in_words(table: Table) -> list[Any]:
    """A table as people and as programs read it, by lines."""
    return [write_markdown(table).splitlines(), comma_separated(table).splitlines()]


def plain(value: Any) -> Any:
    """Parts of a section, without the functions that its template calls."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items() if not callable(each)}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value


def fairness_settings() -> dict[str, dict[str, Any]]:
    first, second = (f"cells.{k}.attributes.0.gaps.auc" for k in (0, 1))
    cells = [*range(len(RECORD.cells))]
    ages = dict(zip(("left", "middle", "right"), (">=80", "18-79", "<18"), strict=True))
    ones = RECORD.class_names
    small = {"left": "3 rows, 30 needed", "right": "9 rows, 30 needed"}
    partly = {"auc": {"labels": [ones[1]], "left_out": small}}
    return {
        "as run": {},
        "apart": {
            "gap": APART,
            "changes": {
                f"{second}.chance_gap": 0.06,
                f"{second}.low": 0.0,
                f"{first}.groups": 1,
                f"{first}.difference_low": 0.0,
                f"{second}.difference_high": 0.0,
            },
        },
        "by chance": {
            "gap": APART
            | {
                "chance_gap": 0.07,
                "difference": -0.03,
                "difference_low": -0.05,
                "difference_high": -0.01,
            }
        },
        "two references": {
            "names": {"0.5": "20"},
            "changes": {
                "cells.1.reference": {"method": "sgd", "epsilon": "0.5"},
                "attributes.0.groups.0.units": 7,
            },
        },
        "no interval": {"gap": NO_INTERVAL, "reference": False},
        "nothing": {"compared": False},
        "ranges": {
            "names": ages | {"ink": "outside"},
            "changes": {"units": 321, "confidence": 0.9, "attributes.1.groups.3.left_out": None},
        },
        "pairs of ranges": {"names": {side: f"{age} x f" for side, age in ages.items()}},
        "a risk": {
            "changes": {
                "cells.0.epsilon": "advantage-0.1",
                "cells.0.epsilon_at_delta": 0.46,
                "cells.1.epsilon": "10",
                "cell_headline": "macro_accuracy",
                "headline": "accuracy",
            }
        },
        "left out": {
            "changes": {
                "attributes.0.compared": partly,
                "multi_label": False,
                "class_names": ones[:2],
                **{f"cells.{k}.private": True for k in cells},
            }
        },
        "left out of one metric alone": {
            "changes": {
                "attributes.0.compared": partly,
                "attributes.1.groups.3.left_out": None,
                f"{second}.gap": None,
                f"{first}.difference": None,
            }
        },
        "not the headline": {
            "changes": {f"cells.{k}.attributes.{a}.gaps.auc": ... for k in cells for a in (0, 1)}
        },
    }


def show_fairness(root: Path) -> Shown:
    for name, options in fairness_settings().items():
        paths = [write_fairness(root / name, **options)]
        if name in ("as run", "apart", "left out"):
            changes = options["changes"] if name == "left out" else {}
            paths.append(write_fairness(root / name, backbone="scattering", changes=changes))
        table = fairness_table.make_fairness_table(paths)
        yield f"{name}: table", in_words(table)[: 1 + (name == "apart")]
        page = replace(section_page("other", "digits"), folder=root / name)
        (part,) = fairness_table.make_section(paths[::-1], page)
        part["groups"] = len(str(part["groups"]))
        part["gaps"] = [
            f"{place} {cell.method} {cell.epsilon} {gap.gap}" for *place, cell, gap in part["gaps"]
        ]
        yield f"{name}: section", plain(part)
        if name in ("as run", "apart", "no interval", "nothing", "a risk", "two references"):
            for figure in fairness_show.plot_fairness(paths[:1] if name == "apart" else paths)[:2]:
                yield f"{name}: figure {figure.get_suptitle()}", describe_figure(figure)
    size = len(write_markdown(table).encode())
    for gaps, most in ((0, size), (1, size - 1), (3, size)):
        with patch.multiple(fairness_table, GAPS_SHOWN=gaps, TABLE_BYTES=most):
            (part,) = fairness_table.make_section(paths, page)
        yield f"limits {gaps}", [len(part["gaps"]), part["gaps_count"], part["groups"] is None]
    one, two, free = RECORD.cells
    lacking = two.model_copy(update={"attributes": two.attributes[1:], "epsilon": "4"})
    more = [one.model_copy(update={"method": f"m{k}", "epsilon": "40"}) for k in range(6)]
    free = free.model_copy(update={"attributes": free.attributes[1:]})
    record = RECORD.model_copy(update={"cells": (two, lacking, one, free, *more), "units": 9})
    for figure in (fairness_show.gap_figure([record]), fairness_show.quality_figure([record])):
        yield f"many: {figure.get_suptitle()}", describe_figure(figure)
    for attribute in record.attributes:
        yield (f"many: {attribute.attribute}", fairness_table._count_gaps(record, attribute, "auc"))
        auc = one.find_gap(attribute.attribute, "auc")
    assert auc is not None
    zeros = ((0.0, 0.1), (-0.1, 0.0), (0.01, 0.1), (-0.1, -0.01), (0.0, 0.0), (None, None))
    for low, high in zeros:
        gap = auc.model_copy(
            update={
                "difference_low": low,
                "difference_high": high,
                "difference": high,
                "gap": 0.1,
                "chance_gap": high,
                "low": low,
            }
        )
        yield (
            f"gap {low} {high}",
            [
                fairness_table.stands_apart(gap),
                str(fairness_table._difference_cell(gap)),
                fairness_table.beyond_chance(gap),
            ],
        )
    ends = ((None, 1.0), (0.0, None), (0.0, 0.25))
    yield "ends", [fairness_table._format_ends(*each) for each in ends]
    points = (None, 0.0, 0.1234, -0.5)
    yield "points", [fairness_table._format_points(value) for value in points]
    yield "named", [fairness_table.reference_in_words("a", each) for each in ("inf", "2")]


def sites_record(**changes: Any) -> SitesRecord:
    def share(mean: float) -> dict[str, float]:
        return {"mean": mean, "low": mean - 0.03, "high": mean + 0.02}

    cells: list[dict[str, Any]] = [
        {
            "split": split,
            "sites": sites,
            "epsilon": epsilon,
            "smallest": 1000 // sites - place,
            "largest": 1000 // sites,
            "alone": share(0.5 - sites / 100),
            "worst": 0.31,
            "best": 0.62,
            "averaged": share(0.7),
            "together": share(0.8),
            "pooled": share(0.82),
            "untrained": 0,
            "reason": "",
            "one_class": place,
        }
        for place, split in enumerate(("equal", "labels", "sizes"))
        for sites in (10, 2)
        for epsilon in ("1", "10")
    ]
    cells[-1] |= {"untrained": 3, "reason": "too few: 3 units"}
    cells[0] |= dict.fromkeys(("alone", "worst", "best", "averaged")) | {"untrained": 1}
    return SitesRecord.model_validate(
        {
            "dataset": "digits",
            "backbone": "pixels",
            "method": "head",
            "metric": "accuracy",
            "unit": "image",
            "n": 1000,
            "colluders": 1,
            "seeds": 2,
            "cells": cells,
        }
        | changes
    )


SHOWN: dict[str, Callable[[Path], Shown]] = {
    "fairness": show_fairness,
}


@pytest.mark.parametrize("name", SHOWN)
def test_what_is_shown_is_as_stored(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with use_settings():
        check_values(f"shown_{name}", dict(SHOWN[name](Path())), rel=1e-4)


def test_sections_of_a_report_are_as_stored(made: Made) -> None:
    names = {"ink": "<i>", "bold": "<b>x", "thin": "</script>"}
    law, audit = law_path(made.results / "layers", "digits", "pixels"), made.results
    law_record().write(law)
    files = [made.results / f"{name}.json" for name in ("imbalance", "sites")]
    imbalance_record([rare_cell(0.2), rare_cell(0.5, method="other")]).write(files[0])
    sites_record().write(files[1])
    records = {
        "fairness": [write_fairness(made.results, gap=APART, names=names)],
        "representation_law": [law],
        "imbalance": files[:1],
        "sites": files[1:],
        "long_tail": [write_long_tail(made.results, notes=["no memorisation: 8 units"])],
        "audit": [
            write_audit(audit, white_box=WHITE_BOX, controls=CONTROLS, membership=MEMBERSHIP)
        ],
    }
    page = made.page(records=records)
    assert page.all("script") == [{}]
    sections = re.findall(r'<section id="([a-z-]+)".*?</section>', page.text, re.DOTALL)
    shown = {}
    for name in ("subgroups", "laws", "imbalance", "sites", "long-tail", "audits"):
        start = page.text.index(f'<section id="{name}"')
        text = page.text[start : page.text.index("</section>", start)]
        assert "<b>x" not in text
        shown[name] = re.sub(r"<[^>]+>|\s+", " ", text).split("  ")
        shown[name] = [part.strip() for part in shown[name] if re.search(r"[0-9]", part)]
    assert set(sections) >= set(shown)
    check_values("sections", shown)
