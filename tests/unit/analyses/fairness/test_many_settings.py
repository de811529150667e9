"""Comparisons of groups over many settings, against stored ones, and their steps against loops.

`test_comparison_parity.py` has the metrics that compare rates, with sources of their own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from dpprobe.analyses.fairness import gaps, groupings
from dpprobe.analyses.fairness.comparison import _compute_intervals
from dpprobe.analyses.fairness.fairness_record import GROUP_METRICS, FairnessRecord, Minimum
from dpprobe.analyses.fairness.gaps import gap_difference, mean_gap_interval
from dpprobe.analyses.fairness.group_metrics import Layout, Resamples
from dpprobe.analyses.fairness.measure import compare_groups
from dpprobe.analyses.fairness.options import FairnessOptions
from dpprobe.artifacts import read_json, write_json
from tests.support.cell_files import write_cell, write_predictions
from tests.support.columns import by_column, or_error
from tests.support.fairness_rows import made_rows
from tests.support.stored_records import check_values

CELLS = (("sgd", "1"), ("sgd", "10"), ("nonprivate", "inf"))
REFERENCES = [(*cell, *CELLS[-1]) for cell in CELLS[:-1]]
FEW = {"units": 5, "positives": 2, "negatives": 3}
SETTINGS: dict[str, dict[str, Any]] = {
    "two classes": {"kind": 2},
    "five classes of patients": {"kind": 5, "patients": 90, "groups": ["site", "class"]},
    "several labels": {
        "kind": -4,
        "patients": 70,
        "minimum": FEW,
        "pairs": [["sex", "group_site"], ["race", "sex"], ["sex", "race"], ["group_site", "sex"]],
    },
    "labels as groups": {"kind": -3, "groups": ["class"], "confidence": 0.8, "seeds": 1},
    "few without a label": {"kind": -4, "groups": ["class"], "minimum": FEW | {"negatives": 110}},
    "a label of no row": {"kind": -3, "rows": 20, "minimum": FEW, "references": []},
    "many groups": {"kind": 3, "sites": 12, "minimum": FEW, "groups": ["group_site"]},
    "no columns": {"kind": 3, "columns": (), "references": []},
    "blanks": {"kind": 2, "columns": ("blank",), "minimum": FEW},
    "sorted": {
        "kind": 2,
        "columns": ("sex",),
        "seeds": 3,
        "order": (2, 0, 1),
        "head": "least_squares",
    },
    "no such group": {"kind": 2, "groups": ["race"]},
    "all of one class": {"kind": 2, "same": True},
    "too small": {"kind": 2, "columns": ("sex",), "minimum": FEW | {"units": 500}},
    "not finite": {"kind": 2, "broken": np.inf},
    "other rows": {"kind": 2, "swapped": True},
    "a risk": {
        "kind": 5,
        "patients": 30,
        "columns": ("sex",),
        "risk": True,
        "minimum": FEW,
        "references": [("nonprivate", "inf", "sgd", "advantage-0.1")],
    },
}


def run(
    root: Path,
    kind: int,
    *,
    patients: int = 0,
    sites: int = 3,
    rows: int = 200,
    seeds: int = 2,
    columns: tuple[str, ...] = ("site", "sex"),
    order: Any = (0, 1, 2),
    broken: float = 0.0,
    references: Any = REFERENCES,
    head: str = "",
    risk: bool = False,
    swapped: bool = False,
    same: bool = False,
    **options: Any,
) -> Any:
    generator, classes = np.random.default_rng(kind % 100), abs(kind)
    labels: Any = generator.integers(classes, size=rows) * (not same)
    target = np.eye(classes)[labels]
    if kind < 0:
        labels = target = (generator.random((rows, classes)) < [0.4, 0.3, 0.02, 0.5][:classes]) * 1
    site = generator.integers(sites, size=rows) * (generator.random(rows) < 0.9)
    groups: dict[str, Any] = {
        "site": [f"site {number}" for number in site],
        "sex": [("F", "M", "", None)[number % 4] for number in generator.integers(6, size=rows)],
        "blank": [None] * (rows - 20) + ["x"] * 20,
    }
    quality = {"1": 0.6, "10": 1.2, "inf": 2.0}
    cells: list[Any] = []
    units: dict[str, Any] = {}
    for method, epsilon in (CELLS[place] for place in order):
        far = np.where(site == 0, 1.0, quality[epsilon] / 2)[:, None]
        scores = generator.normal(size=(seeds, rows, classes)) + quality[epsilon] * far * target
        scores[0, 7, 1] += broken
        if patients:  # all cells have the units of the first
            units.setdefault("unit", generator.integers(patients, size=rows))
        path = write_cell(
            root,
            method=method,
            epsilon=epsilon,
            seeds=seeds,
            multi_label=kind < 0,
            rows=rows,
            class_names=[f"class {k}" for k in range(classes)],
        )
        trained = {"loss": "sigmoid"} if kind < 0 and method == "sgd" else {}
        record = read_json(path) | {"options": {"head": head or method, **trained}}
        if risk and epsilon == "1":
            record["cell"]["epsilon"] = "advantage-0.1"
        write_json(path, record)
        write_predictions(
            path.with_name("predictions.parquet"),
            np.round(scores, 1),
            labels[::-1] if swapped and epsilon == "10" else labels,
            **{f"group_{name}": groups[name] for name in columns},
            **units,
        )
        cells.append(path)
    compare_groups(
        cells,
        options=FairnessOptions(resamples=200, **options),
        references=references,
        table=root / "groups.parquet",
        record=root / "groups.json",
        seed=3,
        threads=1,
    )
    record = FairnessRecord.read(root / "groups.json").model_dump(mode="json")
    cells = record.pop("cells")
    gaps = [
        {"at": f"{cell['method']} {cell['epsilon']} {part['attribute']} {metric}", **gap}
        for cell in cells
        for part in cell.pop("attributes")
        for metric, gap in part["gaps"].items()
        if metric in GROUP_METRICS
    ]
    rows_of = pq.read_table(root / "groups.parquet").to_pylist()
    rows_of = [row for row in rows_of if row["metric"] in GROUP_METRICS]
    attributes = record.pop("attributes")
    for attribute in attributes:
        compared = attribute["compared"]
        attribute["compared"] = {m: compared[m] for m in compared if m in GROUP_METRICS}
    return [attributes, record, by_column(cells), by_column(gaps), by_column(rows_of)]


def test_groups_are_compared_as_stored(tmp_path: Path) -> None:
    made = {name: or_error(run, tmp_path / name, **given) for name, given in SETTINGS.items()}
    for name in ("no such group", "not finite", "other rows"):
        made[name] = made[name].replace(str(tmp_path), "")
    check_values("computed_fairness", made, rel=1e-4, abs=1e-6)


def test_groups_and_labels_are_chosen_as_stored() -> None:
    found: list[Any] = []
    for seed in range(15):
        generator = np.random.default_rng(seed)
        count, classes = int(generator.integers(20, 60)), int(generator.integers(2, 6))
        several = bool(seed % 2)
        labels = generator.integers(classes, size=count)
        if several:
            labels = (generator.random((count, classes)) < generator.random(classes) / 2) * 1
        names = generator.choice([">=80", "18-79", "<18", "b10", "b9", " ", "-5"], size=count)
        rows = made_rows(
            labels,
            {"site": names.tolist()},
            classes=classes,
            units=np.unique(generator.integers(count, size=count), return_inverse=True)[1],
        )
        minimum = Minimum(units=1 + seed % 5, positives=1 + seed % 3, negatives=1 + seed % 4)
        for grouping in groupings.make_groupings(
            rows, groups=("site", "class"), pairs=[("site", "site")], minimum=minimum
        ):
            of = rows.class_names if grouping.by_label else rows.recalled_labels
            counts = groupings.label_counts(rows, grouping, of)
            line: list[Any] = [grouping.names, grouping.left_out, grouping.rows, grouping.units]
            line += [counts.positives.sum(axis=1), counts.negatives.sum(axis=0)]
            if not grouping.by_label:
                line += [
                    groupings.choose_compared(
                        rows, grouping, of, counts, minimum, negatives=each
                    ).model_dump()
                    for each in (False, True)
                ]
            found.append({"at": f"{seed} {grouping.attribute}", "line": str(line)})
    check_values("chosen_groups", [each["line"] for each in found])
    texts = ["<18", "18-79", ">=80", "b9", "b10", "7", "1e3", "-5", "", "(blank)", "80+", "5.5-7"]
    ordered = sorted(texts, key=groupings.natural_key)
    check_values("sorted_groups", [ordered, [groupings.natural_key(text) for text in texts]])


def prepare(values: Any, drawn: Any, least: Any, excess: Any) -> gaps.Groups:
    return gaps.Groups.prepare_groups(values, drawn, least=least, excess=excess)


def test_gaps_and_their_bounds_are_as_stored() -> None:
    made: dict[str, Any] = {}
    for seed in range(8):
        generator = np.random.default_rng(seed)
        heads = []
        for head in range(3):
            groups = 2 + seed % 4
            values = generator.random(groups)
            drawn = values[:, None] + 0.1 * generator.normal(size=(groups, 100))
            drawn[0, : 10 * seed] = np.nan
            excess = (0.05 + (seed == 7)) * generator.random(groups) * (seed % 2)
            least = np.full(groups, 0.02 * head * (seed == 3))
            each = (part[None] for part in (values, drawn, least, excess))
            heads.append(prepare(*each))
        intervals = [mean_gap_interval(heads[:k], level) for k in (1, 3) for level in (0.8, 0.95)]
        differences = [gap_difference(heads[:k], heads[k:], 0.9) for k in (1, 2)]
        made[f"seed {seed}"] = np.array([x for each in intervals + differences for x in each])
        (made[f"errors {seed}"],) = heads[0].errors
    still = np.zeros((1, 3))
    none = prepare(still + 1, np.full((1, 3, 5), np.nan), still, still)
    made["no resample"] = mean_gap_interval([none], 0.95)
    units = np.array([[1, 2], [0, 100], [30, 30]])
    made["units"] = [gaps.count_units(units), gaps.smallest_deviation(np.array([0.5, 1, 40]), 0.9)]
    generator = np.random.default_rng(0)
    values = np.array([[0.0, 1.0, 0.5], [0.01, 0.97, 0.6]])
    drawn = values[..., None] + 0.05 * generator.normal(size=(2, 3, 61))
    drawn[0, 2, :30], drawn[1, 2] = np.nan, np.nan
    drawn[0, :2] = values[0, :2, None]
    for level in (0.5, 0.9, 0.95):
        ends = _compute_intervals(values, drawn.astype(np.float32), np.full((2, 3), 20.0), level)
        made[f"intervals {level}"] = np.stack(ends)
    one, three = np.full((1, 1), 0.125), np.array([[[0.0, 0.125, 0.25]]], dtype=np.float32)
    made["an end at 0"] = np.stack(_compute_intervals(one, three, 160 * one, 0.95))
    made["resamples"] = [
        np.concatenate(Resamples(units_, count, seed=seed).blocks, axis=1)
        for units_, count, seed in ((1, 0, 0), (5, 63, 1), (5, 64, 1), (7, 130, 2))
    ]
    rows = made_rows(np.arange(12) % 2, units=np.arange(12) // 2)
    codes = np.array([0, 1, 2, -1, 0, 1, 2, -1, -1, 0, 0, 1], dtype=np.int32)
    layout = Layout(codes=codes, groups=3)
    made["layout"] = [*layout.in_groups(np.arange(12)[::-1]), *layout.assign_blocks(rows)]
    made["ways"] = layout.shuffle_blocks(rows, 4)
    # resamples are float32, so what is 0 on one processor may be 4e-9 on another
    check_values("computed_gaps", made, rel=1e-4, abs=1e-7)
