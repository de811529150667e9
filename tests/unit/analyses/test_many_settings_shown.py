"""What tables, figures and sections of analyses show, of many records, against stored ones."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from dpprobe.analyses.analysis import Page
from dpprobe.analyses.audit import show as audit_show
from dpprobe.analyses.audit.audit_record import AuditRecord
from dpprobe.analyses.fairness import fairness_table
from dpprobe.analyses.fairness import show as fairness_show
from dpprobe.analyses.imbalance import imbalance_table
from dpprobe.analyses.imbalance import show as imbalance_show
from dpprobe.analyses.long_tail import long_tail_tables
from dpprobe.analyses.long_tail import show as long_tail_show
from dpprobe.analyses.long_tail.long_tail_record import read_long_tails
from dpprobe.analyses.representation_law import law_tables
from dpprobe.analyses.representation_law import show as law_show
from dpprobe.analyses.representation_law.law_record import MEASURES, law_path
from dpprobe.analyses.sites import show as sites_show
from dpprobe.analyses.sites.sites_record import SitesRecord
from dpprobe.analyses.tsne.show import plot_tsne, plot_tsne_grid
from dpprobe.artifacts import read_json, write_json
from dpprobe.exhibits.published import read_published
from dpprobe.exhibits.style import use_settings
from dpprobe.exhibits.tables import Table, comma_separated, write_markdown
from tests.support.audit_records import (
    ATTACK,
    CONTROLS,
    MEMBERSHIP,
    WHITE_BOX,
    membership_record,
    write_audit,
)
from tests.support.cell_files import grid_of, write_cell
from tests.support.columns import or_error
from tests.support.fairness_records import APART, NO_INTERVAL, RECORD, write_fairness
from tests.support.figures import describe_figure, write_embedding
from tests.support.imbalance_records import imbalance_record, lawful_cells, rare_cell
from tests.support.law_records import law_record, network, tuned_networks
from tests.support.long_tail_records import FREQUENCIES, SCORES, write_long_tail
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


def show_audit(root: Path) -> Shown:
    weak = {**WHITE_BOX, "caught_factor": None, "number_factor": None, "runs": 200}
    boxes = {
        "0.5": WHITE_BOX | {"epsilon_lower": 0.0, "caught_factor": 3.0},
        "2": WHITE_BOX | {"epsilon_lower": 0.01},
        "8": WHITE_BOX
        | {
            "epsilon_lower": "inf",
            "holds": False,
            "caught_factor": 11.0,
            "tests": [
                {"name": "releases", "p_value": 0.0},
                {"name": "variance", "p_value": WHITE_BOX["level"]},
            ],
        },
        "10": WHITE_BOX
        | {"epsilon_lower": 40.0, "caught_factor": 2.0, "runs": 80, "confidence": 0.9},
    }
    missed = {**CONTROLS[1], "caught": False, "refuted_by": []}
    given: dict[str, Any] = {"controls": (*CONTROLS, missed)}
    members = MEMBERSHIP | {"rows": [*MEMBERSHIP["rows"], ATTACK | {"rows": "rarest_classes"}]}
    audits = [
        write_audit(
            root,
            backbone=backbone,
            method=method,
            epsilon=epsilon,
            white_box=box,
            membership=members if epsilon == "2" else None,
            **given,
        )
        for backbone in ("pixels", "clip")
        for method in ("sgd", "newton", "adam")[: 2 + (backbone == "clip")]
        for epsilon, box in boxes.items()
    ]
    lone = write_audit(root / "lone", white_box=weak, epsilon="1")
    other = write_audit(root / "lone", dataset="other", epsilon="3")
    inf = write_audit(root / "lone", white_box=None, epsilon="inf", membership=MEMBERSHIP)
    for name, paths in {
        "many": audits,
        "one": [lone],
        "none": [inf],
        "two": [lone, inf],
        "strong": audits[:1],
        "of two datasets": [lone, other],
    }.items():
        made = or_error(audit_show.plot_audit, audits=paths, dataset="digits")
        yield f"figure of {name}", made if isinstance(made, str) else describe_figure(made)
        for part in plain(audit_show.make_section(paths[::-1], section_page("digits", "other"))):
            part["cells"] = [
                f"{one['backbone']} {one['method']} {one['epsilon']}" for one in part["cells"]
            ]
            part["attacks"] = [
                f"{one['method']} {one['epsilon']} {each['rows']} {each['attack']}"
                for one, _, each in part["attacks"]
            ]
            yield f"section of {name}", part
    (part,) = audit_show.make_section([lone], section_page("digits"))
    numbers = (0.0, 0.01234, 0.5, 1.23456, 12.349, 123.456, math.inf)
    yield (
        "numbers",
        {
            name: [
                part[name](value)
                for value in (*numbers, *([None] if name in ("factor", "rate") else []))
            ]
            for name in ("claim", "bound", "factor", "rate")
        },
    )
    controls = AuditRecord.read(audits[0]).controls
    yield "controls", [str(part["control"](control)) for control in controls]
    yield "words", [AuditRecord.read(path).in_words for path in (*audits[:4], lone, inf)]
    yield from show_attacks(root)


def show_attacks(root: Path) -> Shown:
    roc = membership_record(groups=("mislabelled", "all"))
    roc["roc"]["curves"][-1]["tpr"][2] = 0.0
    free = roc | {"roc": roc["roc"] | {"allowed": [1.0] * 9}}
    for name, one, beside in (
        ("private", roc, None),
        ("with a ceiling", roc, free),
        ("free", free, None),
    ):
        made = audit_show.membership_roc(one, title="digits, sgd", beside=beside)
        yield f"attacks, {name}", describe_figure(made)
    paths = [
        write_audit(
            root / "m",
            method=name,
            epsilon="inf" if name == "c" else "1",
            membership=MEMBERSHIP
            | {
                "roc": kind["roc"],
                "rows": [{**ATTACK, "attack": a} for a in ("loss", "lira", "rmia")],
            },
        )
        for name, kind in (("a", roc), ("c", free))
    ]
    figure = audit_show.plot_membership(
        audit=paths[0], ceiling=paths[1], dataset="digits", backbone="clip", method="a", epsilon="1"
    )
    yield "a cell's attacks", describe_figure(figure)
    yield (
        "without a ceiling",
        describe_figure(
            audit_show.plot_membership(
                audit=paths[1],
                ceiling=None,
                dataset="digits",
                backbone="b",
                method="c",
                epsilon="inf",
            )
        ),
    )
    roc = membership_record(groups=("mislabelled",))
    yield "no attack", or_error(audit_show.membership_roc, roc, title="digits")


def show_long_tail(root: Path) -> Shown:
    high = {**FREQUENCIES, "index": {"value": 4.9, "low": 4.1, "high": None}}
    part = {"clusters": 7, "measured": high, "reference": FREQUENCIES, "m_ln_n": 1234.5}
    records: dict[str, Any] = {
        "pixels": {},
        "scattering": {
            "memorisation": None,
            "notes": ["8 units", "another"],
            "sub_classes": [part | {"clusters": 5}],
        },
        "clip": {
            "sub_classes": [part | {"clusters": 3, "m_ln_n": 1.0}, part],
            "memorisation": SCORES | {"share": 0.02},
        },
        "other": {"memorisation": SCORES | {"share": 0.01}, "units": 50},
        "dino": {"memorisation": SCORES | {"share": 0.3}},
        "vit": {},
    }
    paths = [write_long_tail(root, backbone=name, **values) for name, values in records.items()]
    paths.append(write_long_tail(root, dataset="apples"))
    cells = [
        write_cell(root, backbone=backbone, method=method, epsilon=epsilon, quality=1 + number / 3)
        for number, backbone in enumerate(("vit", "clip", "other", "dino", "pixels"))
        for method, epsilon in (
            ("sgd", "1"),
            ("newton", "1"),
            ("sgd", "10"),
            ("sgd", "2"),
            ("nonprivate", "inf"),
            ("sgd", "inf"),
        )
        if (backbone, method) != ("other", "nonprivate")
    ]
    grid = grid_of(root, *cells)
    gaps = long_tail_tables.private_gaps(grid)
    yield "gaps", gaps
    made = long_tail_tables.make_long_tail_tables(paths, [root / "summary.parquet"])
    yield "tables", [in_words(table) for table in made]
    read = read_long_tails(paths)
    yield (
        "near",
        in_words(
            long_tail_tables.gap_table(
                read[1:3],
                [
                    long_tail_tables.Gap("digits", "clip", "1", 2.0),
                    long_tail_tables.Gap("digits", "clip", "10", 1.0),
                    long_tail_tables.Gap("digits", "dino", "2", 2.1),
                ],
            )
        ),
    )
    same = [replace(gap, points=1.0) for gap in gaps]
    even = [one.model_copy(update={"memorisation": read[1].memorisation}) for one in read]
    pairs = ((read, gaps), (read, gaps[:9]), (read, same), (even, gaps))
    yield "correlations", [long_tail_tables.describe_correlations(*pair) for pair in pairs]
    page = Page(grid=grid, names={}, folder=root)
    section = long_tail_show.make_section(paths[:2], page)
    assert section is not None
    yield "section", [section["notes"], [str(table)[:160] for table in section["tables"]]]
    yield "empty section", long_tail_show.make_section([], page)
    for name, few in {"all": paths[:4], "unscored": paths[1:2]}.items():
        yield f"figure of {name}", describe_figure(long_tail_show.plot_long_tail(few))


def show_imbalance(root: Path) -> Shown:
    none: dict[str, Any] = dict.fromkeys(("reference", "reference_recall", "drop", "auc"))
    none |= dict.fromkeys(("drop_low", "drop_high"))
    ants: dict[str, Any] = {"class_name": "ant", "class_rows": 5000, "method": "newton"}
    several = [
        rare_cell(0.3, class_name="ant", seeds=1),
        rare_cell(0.2, epsilon="1"),
        rare_cell(0.5, method="prototypes", never_predicted=2),
        rare_cell(0.5, method="newton"),
        rare_cell(0.0, epsilon="10"),
        rare_cell(0.39, epsilon="2", class_rows=3, fraction=0.02, reference=("sgd", "inf")),
        rare_cell(0.4, epsilon="2", class_rows=3, fraction=0.01, reference_recall=0.7),
        rare_cell(0.7, epsilon="inf", **none),
        rare_cell(0.6, epsilon="10", **ants),
        rare_cell(0.4, epsilon="advantage-0.1", class_name="ant", reference_learnt=False),
        rare_cell(0.75, class_rows=5000, epsilon="8", class_name="ant", **none),
        rare_cell(0.3, epsilon="4", fraction=0.05, reference_learnt=False),
        rare_cell(0.4, epsilon="8", seeds=8, **ants),
        rare_cell(0.7, epsilon="20"),
    ]
    records = {
        "several": several,
        "lawful": [*lawful_cells(), *lawful_cells(20.0, method="other")],
        "one": several[1:2],
        "free": several[7:8],
    }
    paths = []
    for name, cells in records.items():
        made = imbalance_record(cells).model_copy(update={"backbone": name})
        paths.append(root / f"{name}.json")
        made.write(paths[-1])
        if name != "lawful":
            figure = or_error(imbalance_show.plot_imbalance, record=paths[-1])
            yield name, figure if isinstance(figure, str) else describe_figure(figure)
        yield f"{name}: break-downs", plain(made.break_downs)
    yield "tables", in_words(imbalance_table.make_imbalance_tables([paths[0], *paths[2:]]))
    yield "best", write_markdown(imbalance_table.make_imbalance_tables(paths[:2])).splitlines()
    (section,) = imbalance_show.make_section(paths[:3], section_page("digits", "other"))
    yield "section", {name: str(value)[:3000] for name, value in plain(section).items()}


def show_laws(root: Path) -> Shown:
    lone = type(law_record()).model_validate(
        law_record().model_dump(mode="json") | {"networks": [network(rho=0.9)]}
    )
    odd = law_record().model_dump(mode="json") | {
        "backbone": "clip",
        "token": "class",
        "networks": [
            network(first=False),
            *tuned_networks()[:3],
            network("nine", "10", tuned="last 9 blocks", setting="constant", blocks=9),
            network("four", "2", tuned="last 4 blocks", setting="searched", blocks=4),
            network("lora", "10", "searched", "lora 8", None, rho=0.7),
            network("full", "inf", "searched", "all", None, rho=0.9, first=False),
        ],
    }
    for split, place in (("test", 3), ("train", 10), ("test", 2), ("test", 2), ("train", 3)):
        left = {"layer": place, "split": split, "measures": ["residual"], "reason": f"in {split}"}
        odd["networks"][2]["left_out"].append(left)
    series = odd["networks"][1]["series"]
    for one in series[:2]:
        one |= {"law": None, "fault": "2 layers; a law needs 3", "null": None}
    series[4]["values"] = [None, 0.0, 1e-3, 0.5, 0.2, 10.0]
    records = [law_record(), type(lone).model_validate(odd)]
    for name, record in {"many": records[0], "odd": records[1], "lone": lone}.items():
        for measure in MEASURES[:: 2 if name == "odd" else 4]:
            yield f"{name}, {measure}", describe_figure(law_show.law_figure(record, measure))
    cells = [
        write_cell(root, backbone=backbone, method=method, epsilon=epsilon)
        for backbone in ("pixels", "clip")
        for method, epsilon in (
            ("constant_0", "1"),
            ("searched_2", "8"),
            ("full", "2"),
            ("sgd", "10"),
            ("nonprivate", "inf"),
            ("searched_9", "8"),
            ("searched_9", "1"),
        )
    ]
    search = {"trials": 2, "space": {"learning_rate": [0.1, 1.0]}, "held_out": 0.2}
    tuned = cells[5:7] + cells[12:]
    for path, options in zip(tuned, ({"search": search}, {}, {}, {}), strict=True):
        write_json(path, read_json(path) | {"head": "fine_tune", "options": options})
    cells.append(write_cell(root, dataset="other", method="elsewhere", epsilon="77"))
    grid = grid_of(root, *cells)
    records.append(lone.model_copy(update={"dataset": "cifar10", "train_rows": 50_000}))
    for one in records[1:]:
        numbers = law_tables.published_laws(read_published(), "cifar10", [one])
        rows = law_tables._published_rows(numbers[::-1], [0.1, 1.0, 8.0])
        yield f"published of {one.dataset}", [[cell.text for cell in row] for row in rows]
    paths = [law_path(root, record.dataset, record.backbone) for record in records]
    for path, record in zip(paths, records, strict=True):
        record.write(path)
    for name in ("digits", "cifar10"):
        made = law_tables.make_law_tables(
            records=paths,
            summary=root / "summary.parquet",
            published=read_published(),
            name=name,
            dataset="digits",
        )
        yield f"tables of {name}", [in_words(table) for table in made[name == "cifar10" :]]
    page = Page(grid=grid, names={"digits": "cifar10"}, folder=root)
    (section,) = law_show.make_section(paths, page)
    yield "section", {name: str(value)[:2000] for name, value in plain(section).items()}
    assert len(law_show.plot_law(record=paths[0])) == len(MEASURES)


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


def show_sites(root: Path) -> Shown:
    other = sites_record(backbone="clip", metric="auc", seeds=1, cells=sites_record().cells[:2])
    paths = [root / "a.json", root / "b.json", root / "c.json"]
    kept = (sites_record(), other, sites_record(dataset="other"))
    for path, record in zip(paths, kept, strict=True):
        record.write(path)
    yield "table", in_words(sites_show.make_sites_table(paths[:2]))
    parts = sites_show.make_section(paths, section_page("digits", "empty", "other"))
    tables = {part["dataset"]: str(part["table"]) for part in parts}
    yield "section", [[name, text[:900], text.count("<tr>")] for name, text in tables.items()]
    for path in paths[:2]:
        yield path.name, describe_figure(sites_show.plot_sites(path))


def show_tsne(root: Path) -> Shown:
    def embed(place: str, classes: int, **changes: Any) -> Path:
        return write_embedding(root / place / "tsne.parquet", classes=classes, **changes)

    empty: dict[str, Any] = {"method": None, "note": "no points: 9 rows", "points": 0}
    paths = [
        embed("digits/pixels", 4, rows=40),
        embed("wide/clip", 20, seed=3),
        embed("cells/pixels", 21, points=600),
        embed("cells/clip", 4, **empty),
        embed(
            "moles/clip",
            9,
            rows=50,
            seed=4,
            points=100,
            class_names=[f"{k} a class with names"[: 18 + k % 2] for k in range(10)],
        ),
        embed("several/clip", 25, legend="positive labels", rows=1500),
    ]
    for path in paths:
        names = {"dataset": path.parts[-3], "backbone": path.parts[-2], "split": "test"}
        yield f"{path.parts[-3:-1]}", describe_figure(plot_tsne(embedding=path, **names))
    for name, few in {"all": paths, "one": paths[:1]}.items():
        yield name, describe_figure(plot_tsne_grid(embeddings=few, split="train"))


SHOWN: dict[str, Callable[[Path], Shown]] = {
    "audit": show_audit,
    "fairness": show_fairness,
    "imbalance": show_imbalance,
    "laws": show_laws,
    "long_tail": show_long_tail,
    "sites": show_sites,
    "tsne": show_tsne,
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
