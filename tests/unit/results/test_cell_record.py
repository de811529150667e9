"""A cell's typed record has the right content, refusals and path."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from dpprobe.errors import DataError
from dpprobe.files.json_files import read_json, write_json
from dpprobe.files.plain_files import sha256_file
from dpprobe.results import cell_record
from dpprobe.results.cell_record import CellName, CellRecord, Measure, read_cell
from tests.support.cell_files import write_cell

SEARCH: dict[str, Any] = {"search": {"trials": 2}}
WEIGHTED: dict[str, Any] = {"class_weights": [1, 2]}


def test_a_record_is_written_as_it_was_read(tmp_path: Path) -> None:
    path = write_cell(tmp_path, class_names=("no", "yes"))
    read_cell(path).write(tmp_path / "again.json")
    again, written = (json.loads(each.read_bytes()) for each in (tmp_path / "again.json", path))
    assert list(again.items())[:-1] == list(written.items())
    assert list(again)[-1] == "record_sha256"


def _record(folder: Path, **changes: Any) -> CellRecord:
    return read_cell(write_cell(folder, epsilon="0.5")).model_copy(update=changes)


@pytest.mark.parametrize(
    ("head", "private", "epsilon", "options", "expected"),
    [
        ("sgd", True, "0.5", {}, True),
        ("sgd", True, "advantage-0.1", {}, True),
        ("sgd", True, "inf", {}, False),
        ("nonprivate", False, "inf", {}, False),
        ("nonprivate", False, "0.5", {}, False),
        ("fine_tune", True, "0.5", {"search": None}, True),
        ("fine_tune", True, "0.5", SEARCH, False),  # its epsilon does not cover the search
        ("tuned", True, "0.5", SEARCH, True),  # a priced search
    ],
)
def test_only_a_private_cell_without_an_unpriced_search_has_a_guarantee(
    head: str, private: bool, epsilon: str, options: Any, expected: bool, tmp_path: Path
) -> None:
    name = CellName(dataset="d", backbone="b", method="m", epsilon=epsilon)
    record = _record(tmp_path, head=head, private=private, cell=name, options=options)
    assert record.guaranteed is expected
    assert record.is_ceiling is (head == "nonprivate")
    assert name.promises is (epsilon != "inf")


@pytest.mark.parametrize(
    ("options", "balanced"),
    [
        ({}, False),
        ({"class_weights": None, "class_priors": None}, False),
        (WEIGHTED, True),
        ({"class_priors": "released"}, True),
        ({"base": {"head": "sgd", "class_priors": [1, 2]}}, True),
        ({"base": {"head": "sgd"}} | WEIGHTED, False),
        ({"chosen": {"head": "sgd"} | WEIGHTED, "base": {"head": "sgd"}}, True),
        ({"chosen": {"head": "sgd"}} | WEIGHTED, False),
        ({"chosen": None} | WEIGHTED, True),
    ],
)
def test_a_cell_is_balanced_by_the_options_of_the_head_that_was_trained(
    options: dict[str, Any], balanced: bool, tmp_path: Path
) -> None:
    assert _record(tmp_path, options=options).balanced is balanced


def test_a_cell_tunes_a_network_by_its_head_or_the_head_below(tmp_path: Path) -> None:
    assert not _record(tmp_path).tunes_network
    assert _record(tmp_path, head="fine_tune").tunes_network
    assert _record(tmp_path, head="tuned", options={"base": {"head": "fine_tune"}}).tunes_network
    assert not _record(tmp_path, head="tuned", options={"base": {"head": "sgd"}}).tunes_network


@pytest.mark.parametrize(
    ("measure", "title", "partial"),
    [
        (Measure(headline="accuracy", num_classes=3), "accuracy", False),
        (Measure(headline="auc", num_classes=2, labels=1), "AUC", False),
        (Measure(headline="macro_accuracy", num_classes=3), "macro accuracy", False),
        (
            Measure(headline="auc", multi_label=True, labels=14, num_classes=14),
            "mean AUC over labels",
            False,
        ),
        (
            Measure(headline="auc", multi_label=True, labels=13, num_classes=14),
            "mean AUC over 13 of 14 labels",
            True,
        ),
        (
            Measure(headline="accuracy", multi_label=True, labels=13, num_classes=14),
            "mean accuracy over labels",
            False,
        ),
    ],
)
def test_a_metric_is_named_with_the_labels_in_its_mean(
    measure: Measure, title: str, partial: bool
) -> None:
    assert (measure.title, measure.is_partial) == (title, partial)
    assert measure.is_accuracy is (title == "accuracy")
    least = "worst-label AUC" if measure.multi_label else "worst-class recall"
    assert measure.least_title == least


def test_a_record_says_its_own_measure_and_mean(tmp_path: Path) -> None:
    path = write_cell(tmp_path, multi_label=True, class_names=("round", "even", "absent"))
    record = read_cell(path)
    expected = Measure(headline="auc", multi_label=True, labels=2, num_classes=3)
    assert record.measure == expected
    assert record.mean == read_json(path)["summary"]["auc"]["mean"]


def test_the_records_of_cells_are_where_cells_lie(tmp_path: Path) -> None:
    names = [("digits", "pixels", "sgd", "0.5"), ("digits", "pixels", "ceiling", "inf")]
    record = write_cell(tmp_path, epsilon="0.5")
    paths = cell_record.record_paths(tmp_path, names)
    assert paths == [record, tmp_path / "cells/digits/pixels/ceiling/eps-inf/metrics.json"]
    assert read_cell(record).cell.key == names[0]


def test_epsilons_come_in_their_order_and_risks_apart() -> None:
    tokens = ["inf", "10", "tpr-0.1-at-0.01", "2", "advantage-0.1", "0.5"]
    names = [CellName(dataset="", backbone="", method="", epsilon=token) for token in tokens]
    finite = [each.epsilon for each in sorted(names, key=lambda name: name.order)]
    assert [each for each in finite if "-" not in each] == ["0.5", "2", "10", "inf"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"headline": "top5_accuracy"}, "headline: "),
        ({"rows": {"train": 1.5, "test": 2}}, "rows.train: "),
        ({"surprise": 1}, "surprise: "),
        ({"cell": {"dataset": "d"}}, "cell.backbone: "),
        ({"seeds": {}}, "seeds: "),
        ({"format": "dpprobe-bundle"}, "its format is not dpprobe-cell 4"),
        ({"format_version": None}, "its format is not dpprobe-cell 4"),
        ({"format_version": 3}, "its format is not dpprobe-cell 4"),
    ],
)
def test_a_fault_is_named_by_its_place_with_the_remedy(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    path = write_cell(tmp_path)
    write_json(path, {**read_json(path), **change})
    with pytest.raises(DataError, match=rf"metrics\.json: {message}.*doctor --fix"):
        read_cell(path)


def test_the_error_for_a_newer_cell_record_does_not_advise_deleting_it(tmp_path: Path) -> None:
    path = write_cell(tmp_path)
    write_json(path, read_json(path) | {"format_version": 5})
    with pytest.raises(DataError, match=r"newer") as caught:
        read_cell(path)
    assert "doctor --fix" not in str(caught.value), "nothing to delete"


@pytest.mark.parametrize("text", ['{"release": "no', "[1]", "3", None])
def test_files_that_cannot_be_read_are_named(tmp_path: Path, text: str | None) -> None:
    for reader, name in ((cell_record.read_statement, "privacy.json"), (read_cell, "metrics.json")):
        path = tmp_path / name
        if text is not None:
            path.write_text(text)
        with pytest.raises(DataError, match=name.replace(".", r"\.")) as caught:
            reader(path)
        if text is None and reader is read_cell:
            assert "missing; run the cell" in str(caught.value)
        path.unlink(missing_ok=True)


def test_a_file_is_compared_with_the_record_next_to_it(tmp_path: Path) -> None:
    path = write_cell(tmp_path)
    statement, heads = path.with_name("privacy.json"), path.with_name("heads.safetensors")
    assert cell_record.check_file(statement) == statement  # the record has no hash of it
    files = {file.name: sha256_file(file) for file in (statement, heads)}
    read_cell(path).model_copy(update={"files": files}).write(path, statement, heads)
    assert cell_record.check_file(heads) == heads
    content = heads.read_bytes()
    heads.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DataError, match=r"heads\.safetensors: does not have the hash"):
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


WANTED: dict[str, Any] = {
    "seeds": 3,
    "study_seed": 0,
    "delta": 1e-5,
    "accountant": "pld",
    "unit": "image",
}


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("seeds", 4),
        ("study_seed", 1),
        ("delta", None),
        ("accountant", "rdp"),
        ("unit", "patient"),
        ("options", {"head": "sgd"}),
    ],
)
def test_what_the_study_changed_since_a_cell_is_found(
    name: str, other: Any, tmp_path: Path
) -> None:
    values = read_json(write_cell(tmp_path))
    wanted = WANTED | {"options": values["options"]}
    assert cell_record.find_disagreement(values, **wanted) is None
    found = cell_record.find_disagreement(values, **wanted | {name: other})
    assert found is not None
    assert found.place.split(".")[0] == name
    old = cell_record.find_disagreement(values | {"format_version": 3}, **wanted)
    assert old is not None, "a record of another format"
    assert cell_record.find_disagreement(values | {"seeds": None}, **wanted) is not None


def test_facts_of_a_record_are_those_that_auto_may_know(tmp_path: Path) -> None:
    values = read_json(write_cell(tmp_path, patients=40))
    facts = cell_record.recorded_facts(values | {"n": 250}, epsilon=math.inf, delta=1e-6)
    assert (facts.n, facts.dimension, facts.classes, facts.unit) == (250, 64, 4, "patient")
    assert (facts.epsilon, facts.delta, facts.metric) == (math.inf, 1e-6, None)
    assert not facts.multi_label
    with pytest.raises(KeyError, match="dimension"):
        cell_record.recorded_facts({"n": 250}, epsilon=1.0, delta=1e-6)
