"""Metrics, comparisons, records, tables and files over many settings, against stored answers."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import confusion_matrix, multilabel_confusion_matrix

from dpprobe.artifacts import read_json, sha256_file, write_json
from dpprobe.data.options import Headline
from dpprobe.errors import DataError
from dpprobe.results import cell_record, cell_results, confusion, intervals, metrics, unit_counts
from dpprobe.results import network_record as networks
from dpprobe.results.best_private import best_private, choose_highlights, list_best_columns
from dpprobe.results.cautions import list_cautions, never_predicted, never_predicted_lines
from dpprobe.results.cell_record import CellName, Measure, read_cell
from dpprobe.results.halves import half_values, split_rows
from dpprobe.results.paired_difference import compare_entries
from dpprobe.results.search_record import search_path
from dpprobe.results.study_files import StudyFiles
from dpprobe.results.summary import Entry, read_grid, summarise_cells
from dpprobe.results.uncertainty import summarise_records
from dpprobe.study.study_file import load_study
from tests.support.cell_files import grid_of, summarise, write_cell, write_predictions
from tests.support.small_study import STUDY
from tests.support.stored_records import answer_of, check_values, to_plain


def _made(
    *, rows: int, classes: int, several: bool, patients: int, seed: int, quality: float = 1.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Scores with ties, labels of unequal frequency, and patients in no order."""
    generator = np.random.default_rng(seed)
    weights = np.arange(1, classes + 1) ** 2.0
    labels = generator.choice(classes, size=rows, p=weights / weights.sum())
    present = np.eye(classes)[labels]
    if several:
        labels = (generator.random((rows, classes)) < 0.3).astype(np.uint8)
        present = labels.astype(float)
    scores = (generator.normal(size=(rows, classes)) + quality * present - several).round(1)
    units = generator.integers(patients, size=rows) * 3 + 1 if patients else None
    return scores, labels, units


SPLITS: list[dict[str, Any]] = [
    dict(zip(("rows", "classes", "patients", "several"), each, strict=True))
    for each in (
        *itertools.product((60, 9), (2, 4, 11), (0, 12, 3), (False, True)),
        (1, 2, 0, False),
        (1, 3, 1, True),
        (40, 5, 40, False),
        (300, 2, 30, False),
        (40, 6, 16, True),
    )
]


def _halves(name: Headline, scores: np.ndarray, labels: np.ndarray, units: Any, link: Any) -> Any:
    halves = split_rows(name, labels, units=units)
    return np.array(half_values(name, scores, labels, link=link, units=units, halves=halves), float)


def test_metrics_and_intervals_are_as_stored() -> None:
    answers = {}
    for number, split in enumerate(SPLITS):
        link: metrics.Link = ("sigmoid", "none")[number % 2] if split["several"] else "softmax"
        scores, labels, units = _made(**split, seed=number)
        first = metrics.evaluate_scores(scores, labels, link=link, units=units)
        other = metrics.evaluate_scores(scores[::-1], labels, link=link, units=units)
        answers[" ".join(map(str, split.values()))] = {
            "metrics": list(first.items())[:6],
            "training": metrics.training_metrics(scores, labels, link=link, units=units),
            "constant": metrics.constant_accuracy(labels, units=units),
            "summary": {
                f"{name} of {len(records)}": [
                    entry[end]
                    for end in (
                        "mean",
                        "rows_low",
                        "rows_high",
                        "rows_interval",
                        "both_low",
                        "both_high",
                        "low",
                        "high",
                        "std",
                    )
                ]
                for records in ([first], [first, other])
                for name, entry in summarise_records(
                    records,
                    correct=metrics.right_predictions(scores, labels, link=link),
                    labels=labels,
                    scores=scores,
                    units=units,
                ).items()
            },
            "halves": [
                answer_of(lambda name=name: _halves(name, scores, labels, units, link))  # noqa: B023
                for name in ("accuracy", "macro_accuracy", "auc")
            ],
        }
    check_values("metrics_of_splits", answers)


def test_small_functions_of_results_are_as_stored() -> None:
    label = np.array([0, 2, 2, 1, 0, 2])
    units = np.array([5, 2, 5, 2, 5, 9])
    accepted = [[0], [1, 2], [], [1], [2], [0, 2]]
    scores = np.array([[3.0, 2, 1], [1, 1, 1], [0, 2, 2], [5, 6, 7], [1, 0, 0], [0, 0, 1]])
    bad = np.where(np.eye(6, 3, -3) == 1, np.nan, scores)  # one score of each row from the fourth
    answers = {
        "wilson": [
            intervals.wilson_interval(share, n)
            for share, n in itertools.product((0.0, 1e-9, 0.3, 1.0), (1, 2.5, 40, 10_000))
        ],
        "combined": [
            intervals.combine_errors(mean, a, b)
            for mean in (0.1, 0.5, 0.99)
            for a, b in (((0.0, 0.6), (0.05, 0.995)), ((0.4, 0.5), (0.5, 0.5)))
        ],
        "by class": [
            intervals.over_classes(mean, right, label)
            for mean in (0.4, 1.0)
            for right in (label == 2, np.ones(6, bool), np.zeros(6, bool))
        ],
        "accepted": [
            metrics.evaluate_scores(scores, label, accepted=accepted, units=each)
            for each in (None, units)
        ],
        "faults": [
            answer_of(lambda: metrics.evaluate_scores(bad, label)),
            answer_of(lambda: metrics.evaluate_scores(scores, label, accepted=[[]] * 6)),
            answer_of(lambda: metrics.evaluate_scores(scores, np.eye(3)[label], link="softmax")),
            metrics.training_metrics(bad[:, :2], label.clip(max=1)),
        ],
        "units": [
            unit_counts.row_weights(units),
            unit_counts.row_weights(np.arange(3)),
            unit_counts.class_counts(label, 5),
            unit_counts.class_counts(np.eye(3, dtype=int), 3),
            unit_counts.unit_codes(None),
            unit_counts.unit_codes(["b", "a", "b", "c"]),
            unit_counts.count_units(np.array([0, 2, 2, 1])),
            unit_counts.count_units(None),
        ],
        "differences": [
            cell_results.compare_means(*pair)
            for pair in (
                ([1.0, 2], [3, 5, 4]),
                ([1], [2, 3]),
                ([1, 1], [2, 2]),
                ([1, 1], [2, 3]),
                ([1, 2], [3]),
            )
        ],
    }
    check_values("small_results", answers)


def test_comparisons_are_as_stored() -> None:
    generator = np.random.default_rng(0)
    answers = []
    halves = generator.normal(50, 5, size=(3, 40, 2))
    halves[0, 3] = np.nan
    base: dict[str, Any] = {
        "low": None,
        "high": None,
        "interval": None,
        "ceiling": False,
        "both_low": 40.0,
        "both_high": 70.0,
        "test_units": 100,
        "private": True,
    }
    kinds: list[dict[str, Any]] = [
        {"values": (50.0, 52.0, 54.0), "halves": halves, "seeds": 3},
        {"values": (49.0,), "halves": halves[1:2], "seeds": 1},
        {"values": (49.0,), "halves": halves[1:2], "seeds": 1, "resting": 19.9},
        {"values": (49.0,), "halves": halves[1:2], "seeds": 1, "resting": 20.0, "private": False},
        {"values": (80.0,), "halves": None, "seeds": 1, "both_low": 75.0, "both_high": 81.0},
        {"values": (80.0,), "halves": None, "seeds": 1, "both_low": None},
        {"values": (50.0, 60.0), "halves": halves[:2, :9], "seeds": 2, "test_units": 19},
        {"values": (50.0, 60.0), "halves": halves[:2, 3:4], "seeds": 2},
        {"values": (50.0, 60.0), "halves": halves[:2, 3:6], "seeds": 2},  # two of three known
        {"values": (50.0, 61.0), "halves": halves[1:, 4:7], "seeds": 2},
    ]
    entries = [Entry(**base | kind, mean=float(np.mean(kind["values"]))) for kind in kinds]
    for first, second in itertools.product(entries, entries):
        found = compare_entries(first, second)
        needed = None if found.low is None else found.units_to_tell(100, least=2.0)
        answers.append([*vars(found).values(), found.apart, needed])
    check_values("comparisons", answers)


def test_best_results_and_cautions_are_as_stored(tmp_path: Path) -> None:
    """Two datasets, two backbones, a strong head without noise, and classes never predicted."""
    released = {"head": "auto", "chosen": {"head": "sgd", "class_priors": "released"}}
    cells = []
    for number, (dataset, backbone, method, epsilon) in enumerate(
        itertools.product("ab", "xy", ("m", "n", "nonprivate"), ("0.5", "2", "10", "inf"))
    ):
        if method == "nonprivate" and (epsilon != "inf" or backbone == "y"):
            continue
        path = write_cell(
            tmp_path,
            dataset=dataset,
            backbone=backbone,
            method=method,
            epsilon=epsilon,
            rows=80,
            quality=0.3 + number % 5 / 3,
        )
        record = read_json(path)
        for seed in record["seeds"][: number % 4]:
            seed["never_predicted"] = [number % 3, 3][: 1 + (number % 5 > 2)]
        options = {"options": released} if method == "n" and dataset == "b" else {}
        write_json(path, record | options)
        cells.append(path)
    grid = grid_of(tmp_path, *cells)
    zero = {("a", "x"): ("auc", 90.0), ("b", "x"): ("accuracy", 60.0), ("b", "y"): ("auc", 95.0)}
    shown = next(iter(grid.entries.values()))
    never: list[dict[str, int]] = [
        {},
        {"a": 4},
        {"a": 2},
        {"a": 3, "b": 3},
        {"a": 1, "b": 3},
        {"a": 4, "b": 1, "c": 4},
        {f"c{k}": 4 for k in range(5)},
        {f"c{k}": 4 for k in range(12)},
    ]
    bests = best_private(grid, zero)
    answers: dict[str, Any] = {
        "best": [
            [
                best.dataset,
                best.epsilon,
                best.at,
                best.backbone,
                best.method,
                best.entry.mean,
                best.gap,
                best.zero_shot,
                best.choice.candidates,
                best.budget,
            ]
            for best in bests
        ],
        "highlights": [[best.dataset, best.at] for best in choose_highlights(bests)],
        "columns": [list_best_columns(bests, name) for name in "abc"],
        "cautions": [
            list(list_cautions(grid, name, columns=columns))
            for name in "ab"
            for columns in (None, [("x", "n")])
        ],
        "lines": [
            never_predicted_lines(grid, "a", [("x", "n")] * k, balanced=False)[-1] for k in (4, 5)
        ],
        "reasons": grid.reasons,
        "constant": [entry.constant for entry in grid.entries.values()],
        "never": [never_predicted(replace(shown, seeds=4, never=each)) for each in never]
        + [never_predicted(replace(shown, seeds=1, never={"a": 1}))],
    }
    check_values("best_results", answers)


def test_of_equal_results_the_first_is_the_best_and_a_point_makes_a_weak_baseline(
    tmp_path: Path,
) -> None:
    methods = (("m", "1"), ("n", "1"), ("free", "inf"), ("nonprivate", "inf"))
    grid = grid_of(tmp_path, *(write_cell(tmp_path, method=m, epsilon=e) for m, e in methods))

    def moved(*tuned: str, **means: float) -> Any:
        entries = {
            key: replace(one, mean=means[key[3]], network=key[3] in tuned)
            for key, one in grid.entries.items()
        }
        return replace(grid, entries=entries)

    zero = {
        ("other", "a"): ("accuracy", 99.0),
        ("digits", "b"): ("accuracy", 8.0),
        ("digits", "pixels"): ("accuracy", 9.0),
    }
    for n, name in ((50.0, "m"), (49.9, "m"), (50.1, "n")):
        (best,) = best_private(moved(m=50.0, n=n, free=60.0, nonprivate=60.0), zero)
        assert (best.method, best.entry.mean) == (name, max(50.0, n))
        assert best.zero_shot == ("pixels", "accuracy", 9.0)
        assert best.ceiling is not None
        assert best.gap == 60.0 - best.entry.mean
    cells = moved(m=99.0, n=1.0, free=60.0, nonprivate=60.0)
    entries = {
        key: replace(one, unpriced=key[3] == "m", private=key[3] == "n")
        for key, one in cells.entries.items()
    }
    assert [best.method for best in best_private(replace(grid, entries=entries), zero)] == ["n"]
    for free, told in ((60.0, 0), (60.9375, 0), (61.0, 1), (59.0, 0)):
        for tuned in ((), ("free",)):  # a network is no head
            cells = moved(*tuned, m=1, n=1, free=free, nonprivate=60.0)
            cautions = [one for one in list_cautions(cells, "digits") if "reference" in one]
            assert ["below free" in one for one in cautions] == [True] * (told and not tuned)


SGD = {"head": "sgd", "batch_size": "full", "steps": 10}
NET = {"head": "fine_tune", "tune": "all", "batch_size": 25, "steps": 10}
SEARCH = {"search": {"trials": 2, "space": {"learning_rate": [0.1, 1.0]}}}
AUTO = {"head": "auto", "rule": 1, "chosen": SGD | {"class_weights": [1, 0.5, 0.5, 0.5]}}
TWO: dict[str, Any] = {"class_names": ("benign", "malignant")}
# Options of `write_cell`, and what a cell's record has besides.
CELLS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    *(({"epsilon": epsilon, "seeds": 2}, {}) for epsilon in ("10", "2", "0.5")),
    ({"epsilon": "inf", "seeds": 2}, {"private": True}),
    ({"epsilon": "2", "backbone": "scattering", "seeds": 11, "quality": 0.5}, {}),
    ({"epsilon": "2", "method": "net", "seeds": 1}, {"head": "fine_tune", "options": NET}),
    ({"epsilon": "2", "method": "unpriced"}, {"head": "fine_tune", "options": NET | SEARCH}),
    ({"epsilon": "2", "method": "auto"}, {"options": AUTO}),
    ({"epsilon": "inf", "method": "nonprivate"}, {}),
    *(({"dataset": f"n{n}"}, {"n": n}) for n in (99_999, 100_000, 100_001)),
    *(
        ({"dataset": "named", "method": f"m{k}", "patients": 40}, {"n": 250, "options": each})
        for k, each in enumerate(
            (SGD, SGD | {"head": "adam", "batch_size": 25}, NET, {"head": "least_squares"})
        )
    ),
    ({"dataset": "rows 3", "rows": 3, "seeds": 1, "shares": (0.5, 0.5)} | TWO, {}),
    ({"dataset": "lesions", "shares": (0.9, 0.1), "patients": 50} | TWO, {}),
    ({"dataset": "chosen", "headline": "auc"} | TWO, {"seconds": None}),
    ({"dataset": "one class", "shares": (1.0, 0.0)} | TWO, {}),
    ({"dataset": "several", "multi_label": True, "class_names": ("round", "even", "absent")}, {}),
    ({"dataset": "labels", "multi_label": True, "headline": "accuracy"}, {}),
    (
        {
            "dataset": "none",
            "multi_label": True,
            "headline": "accuracy",
            "class_names": ("absent", "absent"),
        },
        {},
    ),
    ({"dataset": "rare", "shares": (0.6, 0.2, 0.1, 0.1)}, {}),
    (
        {
            "dataset": "many",
            "rows": 400,
            "class_names": [f"c{k}" for k in range(12)],
            "shares": [0.34] + [0.06] * 11,
        },
        {},
    ),
]
BLANK = {f"{part}{end}": None for part in ("", "rows_") for end in ("low", "high", "interval")}


def test_tables_grids_and_results_of_cells_are_as_stored(tmp_path: Path) -> None:
    """One row per cell and seed in order, whatever the order of the files, and what is read."""
    paths = []
    for options, more in CELLS:
        paths.append(write_cell(tmp_path, **options))
        write_json(paths[-1], read_json(paths[-1]) | more)
    blank = read_json(paths[0])
    blank["summary"]["accuracy"] |= BLANK
    write_json(paths[0], blank)
    file = summarise(tmp_path / "summary.parquet", *reversed(paths))
    table, grid = pq.read_table(file), read_grid([file])
    shown = [
        name
        for name in table.column_names
        if name not in ("half_values", "fingerprint", "content_hash")
    ]
    check_values(
        "tables_of_cells",
        {
            "table": table.select(shown),
            "halves": np.concatenate(table["half_values"].to_pylist()),
        },
    )
    lasting = (
        "rows",
        "columns",
        "deltas",
        "above",
        "measures",
        "choices",
        "reasons",
        "unpriced",
        "tested",
        "patients",
        "risks",
    )
    check_values(
        "grids_of_cells",
        {
            **{name: getattr(grid, name) for name in lasting},
            "deltas said": [grid.delta_text(name) for name in ("digits", "n100001", "absent")],
            "entries": {
                key: {**vars(entry), "over_seeds": entry.over_seeds, "reach": entry.rows_reach}
                for key, entry in grid.entries.items()
            },
        },
    )
    for name in ("rare", "chosen"):
        some = [path for path in paths if name in path.parts]
        summarise_cells(some, tmp_path / name, study="s", metric_of="a file")
    two = read_grid([tmp_path / name for name in ("rare", "chosen")])
    assert [row[0] for row in two.rows] == ["rare", "chosen"]
    assert two.reasons["chosen"].endswith("(set by a file).")
    results = cell_results.read_cell_results(paths)
    asked = (
        "place",
        "percent",
        "base_options",
        "delta_above",
        "batch_size",
        "epochs",
        "visited_rows",
    )
    check_values(
        "results_of_cells",
        [{**vars(result), **{name: getattr(result, name) for name in asked}} for result in results],
    )
    for path, result in zip(paths, results, strict=True):
        record = read_cell(path)
        entry = grid.get((record.cell.dataset, result.epsilon), record.cell.key[1:3])
        assert entry is not None
        summary, name = record.summary[record.headline], record.headline
        assert entry.values == pytest.approx([100 * seed[name] for seed in record.seeds])
        for end in ("mean", "low", "both_high"):
            value = getattr(summary, end)
            assert getattr(entry, end) == (None if value is None else pytest.approx(100 * value))
        assert entry.halves is not None
        assert entry.halves.shape == (len(record.seeds), 32, 2)


KINDS: list[dict[str, Any]] = [
    {},
    {"search": None},
    SEARCH,
    {"base": {"head": "fine_tune"}},
    {"class_priors": "released"},
    {"chosen": {"class_weights": [1, 2]}},
    {"base": {"head": "sgd", "class_priors": [1, 2]}},
    {"chosen": {"class_weights": [1, 2]}, "base": {"head": "sgd"}},
    {"chosen": None, "class_weights": [1, 0.5]},
    {"chosen": {"head": "sgd"}, "class_priors": [1]},
]
NO_RECORDS: list[Any] = [
    None,
    "{",
    "[1]",
    {"format": "dpprobe-cell", "format_version": 1},
    {"format": "dpprobe-bundle"},
    {"headline": "top5_accuracy"},
    {"rows": {"train": 1.5, "test": 2}},
    {"surprise": 1},
    {"format_version": 5},
    {"record_sha256": "0" * 64},
    {"cell": {"dataset": "d"}},
    {"seeds": {}},
    {"format_version": None},
]


def test_records_of_cells_say_and_refuse_what_is_stored(tmp_path: Path) -> None:
    path = write_cell(tmp_path, epsilon="0.5")
    whole, content = read_cell(path), path.read_bytes()
    kinds = {}
    for head, private, epsilon, options in itertools.product(
        ("sgd", "fine_tune", "nonprivate"), (True, False), ("0.5", "inf", "advantage-0.1"), KINDS
    ):
        cell = CellName(**whole.cell.model_dump() | {"epsilon": epsilon})
        update = {"head": head, "private": private, "cell": cell, "options": options}
        record = whole.model_copy(update=update)
        kinds[f"{head} {private} {epsilon} {options}"] = "".join(
            "01"[each]
            for each in (
                record.guaranteed,
                record.tunes_network,
                record.balanced,
                record.is_ceiling,
                cell.promises,
            )
        )
    values = whole.model_dump(mode="json")
    wanted: dict[str, Any] = {
        "options": values["options"],
        "seeds": 3,
        "study_seed": 0,
        "delta": 1e-5,
        "accountant": "pld",
        "unit": "image",
    }
    other = {
        "options": {"head": "sgd"},
        "seeds": 4,
        "study_seed": 1,
        "delta": None,
        "accountant": "rdp",
        "unit": "patient",
    }
    assert cell_record.find_disagreement(values, **wanted) is None
    faults = []
    for number, given in enumerate(NO_RECORDS):
        readers = ((read_cell, "metrics.json"), (cell_record.read_statement, "p.json"))
        for reader, name in readers[: 2 if number < 4 else 1]:
            file = tmp_path / str(number) / name
            file.parent.mkdir(exist_ok=True)
            if isinstance(given, str):
                file.write_text(given)
            elif given is not None:
                write_json(file, read_json(path) | given if reader is read_cell else {"a": 1})
            said = to_plain(answer_of(reader, file))
            faults.append(said.replace(str(tmp_path), "~") if isinstance(said, str) else said)
            file.unlink(missing_ok=True)
    path.write_bytes(content.replace(b'"seconds": 1.5', b'"seconds": 9.5'))
    names = [("d", "b", "m", epsilon) for epsilon in ("0.5", "inf", "tpr-0.1-at-0.01")]
    check_values(
        "records_of_cells",
        {
            "kinds": kinds,
            "faults": faults,
            "differences": [
                cell_record.find_disagreement(values, **wanted | {key: each})
                for key, each in other.items()
            ]
            + [cell_record.find_disagreement({**values, "seeds": None}, **wanted)],
            "facts": cell_record.recorded_facts(values, epsilon=math.inf, delta=1e-6),
            "titles": {
                f"{name} {several} {labels}": [
                    one.title,
                    one.least_title,
                    one.is_partial,
                    one.is_accuracy,
                ]
                for name, several, labels in itertools.product(
                    get_args(Headline), (True, False), (0, 2, 3)
                )
                for one in [
                    Measure(headline=name, multi_label=several, labels=labels, num_classes=3)
                ]
            },
            "paths": [str(each) for each in cell_record.record_paths(Path("r"), names)],
            "orders": [
                CellName(dataset="", backbone="", method="", epsilon=each[3]).order
                for each in names
            ],
            "searches": str(
                search_path(
                    "s", CellName(**dict(zip(CellName.model_fields, names[0], strict=True)))
                )
            ),
        },
    )


def test_a_record_is_written_as_it_was_read(tmp_path: Path) -> None:
    path = write_cell(tmp_path, class_names=("no", "yes"))
    read_cell(path).write(tmp_path / "again.json")
    again, written = (json.loads(each.read_bytes()) for each in (tmp_path / "again.json", path))
    assert list(again.items())[:-1] == list(written.items())
    assert list(again)[-1] == "record_sha256"


def test_a_file_is_held_against_the_record_beside_it(tmp_path: Path) -> None:
    path = write_cell(tmp_path)
    statement, heads = path.with_name("privacy.json"), path.with_name("heads.safetensors")
    assert cell_record.check_file(statement) == statement  # nothing is recorded of it
    files = {file.name: sha256_file(file) for file in (statement, heads)}
    read_cell(path).model_copy(update={"files": files}).write(path, statement, heads)
    assert cell_record.check_file(heads) == heads
    content = heads.read_bytes()
    heads.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DataError, match=r"heads\.safetensors"):
        cell_record.check_file(heads)
    heads.unlink()
    with pytest.raises(DataError, match=r"heads\.safetensors: .*doctor --fix"):
        cell_record.check_file(heads)
    statement.write_text(statement.read_text().replace("0.996", "0.5"))
    with pytest.raises(DataError, match=r"privacy\.json"):
        cell_record.read_statement(statement)
    for damaged in (
        path.read_text().replace('"seconds": 1.5', '"seconds": 9.5'),
        "{}",
        "[]",
        '{"files": []}',
    ):
        path.write_text(damaged)
        with pytest.raises(DataError, match=r"metrics\.json"):
            cell_record.check_file(heads)


def test_a_network_is_whole_with_each_of_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "seed-0"
    folder.mkdir()
    for name in networks.PAYLOAD_FILES:
        (folder / name).write_text(name)
    record = networks.NetworkRecord(
        cell=CellName(dataset="d", backbone="b", method="m", epsilon="1"),
        index=0,
        fingerprint="f",
        device="cpu",
        options={},
        chosen={},
        trained=3,
        steps=1,
        seconds=1.0,
        files={name: sha256_file(folder / name) for name in networks.PAYLOAD_FILES},
    )
    record.write(*(folder / name for name in networks.NETWORK_FILES))
    for name in networks.NETWORK_FILES:
        content = (folder / name).read_bytes()
        assert networks.whole_network_record(folder) is not None
        (folder / name).write_bytes(content[:-1])
        assert networks.whole_network_record(folder) is None
        (folder / name).unlink()
        assert networks.whole_network_record(folder) is None
        (folder / name).write_bytes(content)


def test_files_of_stages_are_where_they_are_stored() -> None:
    digits = {"source": "sklearn", "name": "digits"}
    several = STUDY | {
        "datasets": {"digits": digits, "wine": digits | {"test_fraction": 0.5}},
        "seeds": 2,
        "public_datasets": {"other": {"source": "torchvision", "name": "MNIST"}},
        "backbones": {
            "pixels": {"family": "pixels"},
            "vit": {"family": "timm", "model": "test_vit", "pretrained": False},
            "clip": {"family": "open_clip", "model": "ViT-B-32-quickgelu.openai"},
            "lip": {"family": "open_clip", "model": "ViT-B-16-quickgelu.openai"},
        },
        "methods": {
            "sgd": {"head": "sgd"},
            "net": NET | SEARCH,
            "blocks": {"head": "fine_tune", "tune": {"blocks": 2}},
        },
        "overlap": {"public": ["other"]},
        "few_shot": {},
        "features": {"shards": 11},
        "epsilons": [10, "inf"],
    }
    answers: dict[str, Any] = {}
    for name, values in (("small", STUDY), ("several", several)):
        study = load_study(values)
        files = StudyFiles(study, data="d", results="r")
        cells = files.list_study_cells("digits")
        assert cells is files.list_study_cells("digits")  # of thousands of cells computed once
        of_dataset = (
            "tables",
            "features",
            "texts",
            "overlap_splits",
            "overlaps",
            "calibrations",
            "zero_shot",
            "embeddings",
            "cuts",
            "zero_shot_records",
            "few_shot_records",
        )
        of_cells = ("searches", "networks", "network_marks", "cells", "marks")
        of_study = (
            "shard_names",
            "cuts",
            "zero_shot_records",
            "few_shot_records",
            "summaries",
            "study_cells",
        )
        listed = {
            **{each: getattr(files, f"list_{each}")("digits") for each in of_dataset},
            **{each: getattr(files, f"list_{each}")(cells) for each in of_cells},
            **{f"all {each}": getattr(files, f"list_{each}")() for each in of_study},
            "shards": [
                files.list_shards("digits", "pixels", *splits) for splits in ((), ("test",))
            ],
        }
        answers[name] = {  # the number, and some of long lists
            each: [len(found), *(found if len(found) < 15 else found[:: len(found) // 9])]
            for each, found in listed.items()
        }
    check_values("files_of_stages", answers)


# Confusion counts and their table.


def test_counts_are_scikit_learns_over_all_seeds(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    labels = generator.integers(5, size=300)
    scores = generator.normal(size=(3, 300, 5)) + 2 * np.eye(5)[labels]
    path = tmp_path / "predictions.parquet"
    write_predictions(path, scores, labels)
    expected = sum(confusion_matrix(labels, seed.argmax(1), labels=range(5)) for seed in scores)
    np.testing.assert_array_equal(confusion.count_confusion(path, 5), expected)


@pytest.mark.parametrize("threshold", [0.0, 0.5])
def test_labels_counts_are_scikit_learns(tmp_path: Path, threshold: float) -> None:
    generator = np.random.default_rng(1)
    labels = (generator.random((200, 4)) < 0.3).astype(np.int8)
    scores = (generator.normal(size=(2, 200, 4)) + labels).round(1)  # some are the threshold
    path = tmp_path / "predictions.parquet"
    write_predictions(path, scores, labels)
    pq.write_table(pq.read_table(path), path, row_group_size=90)
    every = np.concatenate([labels, labels])
    predicted = (np.concatenate(list(scores)) > threshold).astype(int)
    matrices = multilabel_confusion_matrix(every, predicted)
    expected = np.stack(
        [matrices[:, 1, 1], matrices[:, 0, 1], matrices[:, 1, 0], matrices[:, 0, 0]], axis=1
    )
    counts = confusion.label_confusion(path, 4, threshold=threshold)
    np.testing.assert_array_equal(counts, expected)
    rows = list(csv.DictReader(io.StringIO(confusion.label_confusion_csv(counts, list("abcd")))))
    assert int(rows[2]["false_negative"]) == counts[2, 2]


def test_the_table_reads_back() -> None:
    counts = np.array([[3, 1], [0, 9]])
    rows = list(csv.reader(io.StringIO(confusion.confusion_csv(counts, ['a "quoted", name', "b"]))))
    assert rows[0][1:] == ['a "quoted", name', "b"]
    assert rows[1] == ['a "quoted", name', "3", "1"]
