"""All the papers' tables of made-up studies, against stored answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpprobe.errors import DpprobeError
from dpprobe.exhibits.tables import write_markdown
from dpprobe.reporting.paper_tables.registry import PAPER_TABLES, SECOND_ORDER
from tests.support.comparison_cells import compared_cells
from tests.support.paper_tables import (
    LAMB,
    ablation_cells,
    batch_cells,
    paper_cell,
    paper_run,
    rows_as_text,
    table_of,
)
from tests.support.stored_records import check_values


def _describe(run: Any, name: str) -> Any:
    try:
        table = table_of(run, name)
    except DpprobeError as error:
        return error
    lines = write_markdown(table).splitlines()
    return [table.name, table.title, *map(str.strip, lines[:4]), *map(str.strip, lines[-9:])]


def _own(run: Any, name: str) -> Any:
    """Returns the rows and notes of a table that the cells of the study changed."""
    table, published = table_of(run, name), table_of(paper_run([]), name)
    known, rows = (
        [{title: text for title, text in row.items() if text} for row in rows_as_text(each)]
        for each in (published, table)
    )
    own = [row for row in rows if row not in known]
    return [[c.title for c in table.columns], own[-9:], table.notes] if own else []


def _rate(rate: float, **options: Any) -> dict[str, Any]:
    return {"head": "lamb", "epsilon": "8", "options": LAMB | {"learning_rate": rate} | options}


def _tune(**options: Any) -> dict[str, Any]:
    tuned = {"head": "fine_tune", "tune": "all", "search": None, **options}
    return {"head": "fine_tune", "epsilon": "8", "options": tuned} | CHEST


CHEST: dict[str, Any] = {"dataset": "chexpert", "multi_label": True}
SMALL = {"batch_size": 64}
PRICED = {"head": "tuned", "search": {"learning_rate": [0.1, 0.2]}}
BASE = LAMB | SMALL | {"learning_rate": 9.0}
ILL = {"dataset": "chest_xray", "epsilon": "0.5", "class_names": ("ill", "well")}
# Cells by method; the methods' numbers tell apart cells of one dataset and epsilon.
CELLS: dict[str, list[dict[str, Any]]] = {
    "rates": [_rate(r, **SMALL) | {"quality": q} for r, q in ((0.1, 1.0), (0.2, 4.0), (0.3, 0.5))],
    "one rate": [_rate(0.1, **SMALL)],
    "rates and sizes": [
        *(_rate(rate, batch_size=size) for rate, size in ((0.1, 256), (0.2, 256), (0.1, 64))),
        *(
            _rate(0.1, batch_size=size) | {"epsilon": epsilon, "method": method}
            for size, epsilon, method in ((64, "1", "m2"), (256, "inf", "m0"), (64, "inf", "m2"))
        ),
        *(_rate(rate, **SMALL, init="torch") for rate in (0.1, 0.2)),
    ],
    "large batches": [
        _rate(1.0, batch_size=2**power) | {"head": "momentum", "n": 2**19} for power in (16, 17, 18)
    ],
    "priced": [
        _rate(0.1, **SMALL),
        _rate(0.2, **SMALL),
        {"head": "tuned", "epsilon": "8", "options": PRICED | {"base": BASE}},
        {"head": "tuned", "epsilon": "8", "options": PRICED | {"base": BASE | {"init": "torch"}}},
        *(
            {
                "head": "tuned",
                "epsilon": epsilon,
                "options": PRICED | {"base": BASE, "trials": 9},
                "method": "other",
            }
            for epsilon in ("8", "2")
        ),
    ],
    "changes": [
        _rate(rate, **changed) | {"quality": quality}
        for changed in ({}, {"max_grad_norm": 10.0})
        for rate, quality in ((0.1, 1.0), (0.2, 3.0))
    ],
    "other start": [_rate(1.0, **SMALL), _rate(1.0, **SMALL, init="lecun_normal")],
    "momentum": [_rate(1.0, **SMALL) | {"head": "momentum"}],
    "chest": [
        {"epsilon": "8"} | CHEST,
        _tune(),
        _tune(tune={"blocks": 2}),
        _tune(search={"trials": 2}),
        {"head": "nonprivate", "epsilon": "inf"} | CHEST,
        {"epsilon": "8"},
    ],
    "found chest": [{"head": "nonprivate", "epsilon": "inf"} | CHEST, _tune(search={"trials": 2})],
    "two chests": [
        {"head": head, "epsilon": epsilon, "method": head} | CHEST | {"dataset": dataset}
        for dataset in ("mimic_cxr", "chexpert")
        for head, epsilon in (
            ("sgd", "8"),
            ("momentum", "8"),
            ("nonprivate", "inf"),
            ("sgd", "0.5"),
        )
    ],
    "of one method": [
        {"dataset": "cifar10", "backbone": "clip", "epsilon": epsilon, "method": "sgd"}
        for epsilon in ("0.5", "1", "inf")
    ],
    "shots": [
        {"dataset": "cifar10", "backbone": "clip", "epsilon": epsilon, "method": method}
        for epsilon in ("0.5", "2", "8")
        for method in ("sgd", "sgd_full")
    ],
    "second order": [{"head": head, "method": head} for head in (*SECOND_ORDER, "sgd")],
    "second order twice": [{"head": head, "method": head} for head in (*SECOND_ORDER, "sgd")]
    + [{"epsilon": "2", "method": "sgd"}],
    "some of second order": [{"head": head, "method": head} for head in SECOND_ORDER[1:]],
    "steps": [{"options": {"head": "sgd", "batch_size": 50, "steps": 40}}],
    "a delta above 1/n": [{"n": 200_000, "epsilon": "2"}, {"n": 200_000, "epsilon": "inf"}],
    "two deltas": [{"epsilon": "2", "delta": delta} for delta in (1.25e-6, 1.5e-6)],
    "ill": [ILL | {"headline": "auc", "options": {"head": "sgd"}}],
    "ill by accuracy": [ILL],
    "two datasets": [
        {"dataset": "mine", "epsilon": "0.5"},
        {"dataset": "cifar10", "epsilon": "3"},
        {"dataset": "mine", "epsilon": "3"},
    ],
    "inferred": [{"dataset": "mnist", "backbone": "clip"}],
    "normalised": [_rate(1.0, **SMALL), _rate(1.0, **SMALL, normalize={"kind": "centred"})],
    "one of two": [{}, {"head": "momentum"}],
}
# Of a change of the crop, the number of crops is a part.
BACKBONES: dict[str, dict[str, Any]] = {
    "sizes": {
        "pixels": {"family": "timm", "preprocessing": {"size": 224, "crop": "centre"}},
        "clip": {"family": "timm", "preprocessing": {"size": 256, "crop": "centre"}},
    },
    "crops": {
        "pixels": {"preprocessing": {"size": 256, "crop": "inception", "crops": 4}},
        "clip": {"preprocessing": {"size": 256, "crop": "centre"}},
    },
}
CLIP = {"dataset": "cifar10", "backbone": "clip", "headline": "accuracy"}
ENTRY = {"mean": 0.5, "low": None, "high": None}
ZERO = {"zero_shot": [CLIP | {"headline": "auc", "summary": {"auc": ENTRY}}]}
PROBE = {"shots": 1, "summary": {"accuracy": ENTRY, "auc": ENTRY | {"mean": 0.9}}}
RUNS: dict[str, dict[str, Any]] = {
    "two datasets": {"names": {"cifar10": "cifar10", "mine": "cifar10"}},
    "one of two": {"methods": ("m1",)} | ZERO | {"few_shot": [CLIP | {"results": [PROBE]}]},
    "one rate": ZERO,
    "changes": {"base": "m0"},
    "normalised": {"base": "m0"},
    "inferred": {
        "zero_shot": [
            CLIP | {"dataset": name, "summary": {"accuracy": ENTRY}} for name in ("mnist", "mine")
        ]
    },
    "shots": ZERO
    | {
        "few_shot": [
            CLIP | {"backbone": backbone, "results": [PROBE | {"shots": shots} for shots in given]}
            for backbone, given in (("clip", (None, 16, 4)), ("pixels", (16,)))
        ]
    },
}


def test_the_papers_tables_are_as_stored(tmp_path: Path) -> None:
    compared = compared_cells(tmp_path / "c", datasets=("imagenet", "cifar10"), backbones=["clip"])
    names = {"imagenet": "imagenet", "cifar10": "cifar10", "digits": "imagenet"}
    studies: dict[str, Any] = {
        "batches": paper_run(batch_cells(tmp_path / "b"), names=names),
        "ablations": paper_run(ablation_cells(tmp_path / "a"), names=names),
        **{
            f"ablations of {kind}": paper_run(ablation_cells(tmp_path / kind), backbones=options)
            for kind, options in BACKBONES.items()
        },
        "compared": paper_run([], names=names, cells=compared),
    }
    check_values(
        "tables_of_papers",
        {
            title: {name: _describe(run, name) for name in PAPER_TABLES}
            for title, run in studies.items()
        },
    )
    answers = {}
    for title, cells in CELLS.items():
        made = [
            paper_cell(tmp_path / title, **{"method": f"m{number}"} | cell)
            for number, cell in enumerate(cells)
        ]
        run = paper_run(made, **RUNS.get(title, {}))
        answers[title] = {name: _own(run, name) for name in PAPER_TABLES}
    check_values("tables_of_paper_cells", answers)


def test_an_epsilon_that_the_paper_does_not_state_is_marked() -> None:
    table = table_of(paper_run([]), "foundation_features_table2")
    marked = {(row["Data"], row["ε"]) for row in rows_as_text(table) if "‡" in row["ViT+LC"]}
    assert marked == {("MNIST", "1.2"), ("Fashion-MNIST", "2.7")}
    assert "is inferred" in table.notes[0]
