"""Tables of predictions: the predicted class, thresholds, and files that other tools can read."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.errors import ConfigError
from dpprobe.release import prediction_table
from dpprobe.release.bundle import BundleFacts, read_facts
from dpprobe.release.prediction_table import Origin, Prediction, check_thresholds, label_of
from dpprobe.release.probabilities import SetRule
from tests.support.bundles import write_example
from tests.support.refusals import refuses

NAMES = ("a", "b", "c")
LEVELS = [0.0, 0.1, 0.3, 0.5, 0.7, 1.0]


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> BundleFacts:
    made = read_facts(write_example(tmp_path_factory.mktemp("bundle") / "v1"))
    return made.model_copy(update={"class_names": NAMES})


def of_labels(facts: BundleFacts) -> BundleFacts:
    return facts.model_copy(update={"multi_label": True})


@given(
    st.lists(st.sampled_from(LEVELS), min_size=3, max_size=3),
    st.dictionaries(st.sampled_from(NAMES), st.sampled_from(LEVELS), max_size=2),
)
def test_the_most_probable_class_that_reaches_its_threshold_is_named(
    facts: BundleFacts, row: list[float], thresholds: dict[str, float]
) -> None:
    """Otherwise, the best class without a threshold is named. Float32 values of 0.7 reach 0.7."""
    reached = [name for name, limit in thresholds.items() if row[NAMES.index(name)] >= limit]
    candidates = reached or [name for name in NAMES if name not in thresholds]
    best = max(row[NAMES.index(name)] for name in candidates)
    named = label_of(np.array(row, np.float32), facts, thresholds)
    assert named in candidates
    assert row[NAMES.index(named)] == best
    labels = label_of(np.array(row, np.float32), of_labels(facts), thresholds)
    wanted = [
        name
        for name, value in zip(NAMES, row, strict=True)
        if (value >= thresholds[name] if name in thresholds else value > 0.5)
    ]
    assert labels == "|".join(wanted), f"labels of {row} at {thresholds}"


@pytest.mark.parametrize(
    ("thresholds", "said"),
    [
        ({"d": 0.5}, ("threshold of d", "lesions_v1", "a, b, c")),
        ({"a": 1.5}, ("threshold of a", 1.5, 0, 1)),
        ({"a": -0.1}, ("threshold of a", -0.1)),
        ({"a": math.nan}, ("threshold of a", "nan")),
        ({"a": 0.0, "b": 1.0, "c": 0.5}, ("threshold", "3 classes")),
    ],
)
def test_thresholds_that_cannot_be_are_refused(
    facts: BundleFacts, thresholds: dict[str, float], said: tuple[object, ...]
) -> None:
    with refuses(ConfigError, *said):
        check_thresholds(thresholds, facts)


def test_thresholds_need_probabilities_and_of_labels_each_may_have_one(facts: BundleFacts) -> None:
    every = {"a": 0.0, "b": 1.0, "c": 0.5}
    assert check_thresholds(every, of_labels(facts)) == every
    some = {"a": 0.0, "b": 1.0}
    assert check_thresholds(some, facts) == some
    scores = facts.model_copy(update={"head": facts.head.model_copy(update={"link": "none"})})
    assert check_thresholds({}, scores) == {}
    assert check_thresholds(some, scores, link="softmax") == some, "calibrated"
    for asked, link in ((scores, None), (facts, "none")):
        with refuses(ConfigError, "lesions_v1", "thresholds"):
            check_thresholds(some, asked, link=link)


def test_a_set_s_classes_are_joined_most_probable_first() -> None:
    rule = SetRule(threshold=0.25, abstain_below=None)
    row = np.array([0.3, 0.2, 0.5], np.float32)
    assert prediction_table.name_set(row, rule, NAMES) == ("c|a", True)
    assert prediction_table.name_set(row[:2], rule, NAMES) == ("a", False)


ORIGIN = Origin("v1", "ab" * 32, "1.0", {"a": 0.5, "b": 0.25})
VALUES = np.array([0.1, 0.9], np.float32)
ROWS = (
    Prediction("i,1", "a", VALUES, None, ("a|b", True)),
    Prediction('i"2', None, None, "bad, very"),
    Prediction("3", "b", VALUES[::-1], None, ("b", False)),
    Prediction("=1+1", "=b", VALUES, None, ("=b", False)),  # a spreadsheet takes them as formulas
)


def write(path: Path | None, rows: Sequence[Prediction], *, with_sets: bool, times: int) -> None:
    columns = prediction_table.value_columns("ab", "softmax")
    with prediction_table.open_predictions(path, columns, ORIGIN, with_sets=with_sets) as append:
        append([])
        for _ in range(times):
            append(rows)


@pytest.mark.parametrize("with_sets", [False, True])
@pytest.mark.parametrize("name", ["out.csv", "out.CSV"])
def test_a_csv_repeats_its_origin_and_keeps_every_digit(
    tmp_path: Path, name: str, with_sets: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / name, ROWS, with_sets=with_sets, times=2)
    write(None, ROWS, with_sets=with_sets, times=2)
    text = (tmp_path / name).read_bytes().decode()
    assert capsys.readouterr().out == text
    assert "\r" not in text
    rows = list(csv.DictReader(text.splitlines()))
    sets = ["set", "abstain"] if with_sets else []
    assert list(rows[0]) == [
        *("id", "class", "probability_a", "probability_b", *sets, "error"),
        *("bundle", "bundle_sha256", "dpprobe", "thresholds"),
    ]
    assert len(rows) == 2 * len(ROWS)
    assert rows[:4] == rows[4:]
    for row in rows:
        assert [row[key] for key in ("bundle", "bundle_sha256", "dpprobe")] == [*ORIGIN[:3]]
        assert row["thresholds"] == "a=0.5|b=0.25"
    assert [row["id"] for row in rows[:3]] == ["i,1", 'i"2', "3"]
    assert rows[3]["id"] != "=1+1", "no spreadsheet computes an id"
    assert rows[3]["id"].endswith("=1+1")
    assert [row["class"] for row in rows[:3]] == ["a", "", "b"]
    assert rows[3]["class"] != "=b"
    assert [row["error"] for row in rows[:4]] == ["", "bad, very", "", ""]
    assert [row["probability_a"] for row in rows[:3]] == ["0.1", "", "0.9"]
    assert np.float32(rows[0]["probability_b"]) == VALUES[1]
    if with_sets:
        assert [row["abstain"] for row in rows[:4]] == ["true", "", "false", "false"]
        assert [row["set"] for row in rows[:3]] == ["a|b", "", "b"]
        assert rows[3]["set"] != "=b"


@pytest.mark.parametrize("with_sets", [False, True])
def test_a_parquet_file_has_types_and_its_origin_once(tmp_path: Path, with_sets: bool) -> None:
    path = tmp_path / "out.parquet"
    write(path, ROWS, with_sets=with_sets, times=1)
    table = pq.read_table(path)
    sets: list[Any] = [("set", pa.string()), ("abstain", pa.bool_())] if with_sets else []
    assert [(field.name, field.type) for field in table.schema] == [
        *(("id", pa.string()), ("class", pa.string())),
        *(("probability_a", pa.float32()), ("probability_b", pa.float32())),
        *(*sets, ("error", pa.string())),
    ]
    assert json.loads(table.schema.metadata[b"dpprobe"]) == ORIGIN.to_dict()
    rows = table.to_pylist()
    assert [row["id"] for row in rows] == [each.id for each in ROWS], "as they are"
    assert [row["class"] for row in rows] == ["a", None, "b", "=b"]
    assert [row["error"] for row in rows] == [None, "bad, very", None, None]
    assert rows[1]["probability_a"] is None
    assert np.float32(rows[2]["probability_a"]) == VALUES[1]
    if with_sets:
        assert [row["abstain"] for row in rows] == [True, None, False, False]
        assert [row["set"] for row in rows] == ["a|b", None, "b", "=b"]


def test_an_output_is_a_new_table_outside_of_bundles_and_inputs(tmp_path: Path) -> None:
    bundle = write_example(tmp_path / "bundle")
    (tmp_path / "out.csv").write_text("an input")
    for name, target in (("folder.csv", tmp_path), ("alias.csv", "out.csv"), ("link", bundle)):
        (tmp_path / name).symlink_to(target)
    inputs = [tmp_path / "gone.csv", tmp_path / "out.csv"]
    for name, said in {
        "out.csv": "is one of the inputs",
        "alias.csv": "is one of the inputs",
        "new.txt": "use a name that ends in .csv or .parquet",
        "new": "use a name that ends in",
        "folder.csv": "a folder; name a file",
        "bundle/new.csv": "is a bundle, which must not change",
        "link/new.csv": "is a bundle",
        "folder.csv/bundle/within/../new.csv": "is a bundle",
    }.items():
        with pytest.raises(ConfigError, match=said):
            prediction_table.check_output(tmp_path / name, inputs)
    for name in ("new.CSV", "new.Parquet", "gone.csv"):
        prediction_table.check_output(tmp_path / name, inputs)
    prediction_table.check_output(tmp_path / "out.csv", inputs[:1])  # replaced
    prediction_table.check_output(None, inputs)
