"""Few-shot probes: training rows, accuracy and record."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from dpprobe.analyses.baseline_record import read_few_shot
from dpprobe.analyses.few_shot import measure as few_shot
from dpprobe.analyses.few_shot.measure import draw_shots, probe_few_shot
from dpprobe.errors import DataError
from dpprobe.heads import nonprivate
from dpprobe.privacy.randomness import cell_seed
from dpprobe.results import uncertainty
from dpprobe.results.metrics import NO_AUC
from tests.support.clouds import clouds, further_columns
from tests.unit.analyses.tsne.test_measure import write_store

if TYPE_CHECKING:
    from dpprobe.study.study import Study

DIGITS = load_digits()


def _stores(folder: Path, train: slice, test: slice) -> tuple[Path, Path]:
    features = DIGITS.data / 16
    return (
        write_store(folder / "train", features[train], DIGITS.target[train]),
        write_store(folder / "test", features[test], DIGITS.target[test]),
    )


def _run(folder: Path, stores: tuple[Path, Path], **changes: Any) -> tuple[dict[str, Any], Any]:
    facts: dict[str, Any] = {
        "dataset": "digits",
        "backbone": "clip",
        "shots": (1, 4, "full"),
        "seeds": 3,
        "seed": 0,
        "memory_mb": 16000,
        "metric": None,
    } | changes
    probe_few_shot(
        *stores,
        rows=folder / "probes.parquet",
        record=folder / "probes.json",
        options={name: facts.pop(name) for name in ("shots", "seeds")},
        threads=torch.get_num_threads(),
        study=cast("Study", SimpleNamespace(device="cpu")),
        **facts,
    )
    return read_few_shot(folder / "probes.json"), pq.read_table(folder / "probes.parquet")


def test_equal_runs_give_equal_files_and_another_seed_other_draws(tmp_path: Path) -> None:
    stores = _stores(tmp_path, slice(0, 200), slice(200, 300))
    first = _run(tmp_path, stores, shots=(1,))[1]["accuracy"].to_pylist()
    text = (tmp_path / "probes.json").read_bytes()
    assert _run(tmp_path, stores, shots=(1,))[1]["accuracy"].to_pylist() == first
    assert (tmp_path / "probes.json").read_bytes() == text
    assert len(set(first)) > 1, "the draws of one run differ"
    assert _run(tmp_path, stores, shots=(1,), seed=1)[1]["accuracy"].to_pylist() != first


@given(
    rows=st.integers(1, 80),
    patients=st.integers(0, 30),
    count=st.integers(1, 8),
    several=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_a_draw_has_one_image_of_a_patient_for_each_class(
    rows: int, patients: int, count: int, several: bool, seed: int
) -> None:
    """Patients span classes; rows without any label form a separate class.

    With one label per row, the counts are exact; without patients, each row is a unit.
    """
    generator = np.random.default_rng(seed)
    given_units = generator.integers(patients, size=rows) if patients else None
    units = np.arange(rows) if given_units is None else given_units
    labels = generator.integers(5, size=rows)
    if several:
        labels = (generator.random((rows, 3)) < 0.3).astype(np.uint8)
    drawn = draw_shots(labels, count, seed, given_units)
    assert (np.diff(drawn) > 0).all()
    assert set(draw_shots(labels, max(1, count - 1), seed, given_units)) <= set(drawn)
    columns = (*labels.T, ~labels.any(axis=1)) if several else np.eye(5)[:, labels]
    for column in columns:
        of, having = units[drawn][column[drawn] != 0], len(np.unique(units[column != 0]))
        assert len(np.unique(of)) >= min(count, having)
        assert several or len(of) == min(count, having)
    assert len(drawn) <= len(columns) * count
    if several and not patients:
        assert (~labels[drawn].any(axis=1)).sum() == min(count, (~labels.any(axis=1)).sum())


def test_a_patient_of_thirty_images_is_drawn_as_often_as_one_of_one() -> None:
    units = np.array([0] * 30 + [1, 2])
    labels = np.zeros(32, dtype=np.int64)
    drawn = [int(draw_shots(labels, 1, seed, units)[0]) for seed in range(600)]
    often = np.bincount(units[drawn], minlength=3)
    # 200 each, with a standard deviation of 11.5
    assert (np.abs(often - 200) < 50).all()
    assert len(set(drawn)) == 32, "each of the thirty has its turn"


# Probes on clouds, compared with scikit-learn


def _clouds(folder: Path, *, several: bool, patients: int) -> tuple[Path, Path]:
    """Writes 90 training rows and 80 test rows; the test has two patients fewer."""
    stores = []
    for seed, (split, rows) in enumerate((("train", 90), ("test", 80))):
        features, labels = clouds(rows, 5, 3, seed=seed, several=several, apart=3.0)
        named = patients - 2 * seed
        units = [f"p{row * 7 % named}" for row in range(rows)] if patients else None
        more = further_columns(labels)
        stores.append(
            write_store(
                folder / split, features, labels, class_names=tuple("abc"), units=units, **more
            )
        )
    return stores[0], stores[1]


def _sklearn_scores(
    rows: np.ndarray, *, several: bool, units: np.ndarray | None, shots: object, penalty: float
) -> np.ndarray:
    """Returns scikit-learn's test scores [n, 3] of logistic regression on rows of the clouds."""
    x, labels = clouds(90, 5, 3, several=several, apart=3.0)
    tested = clouds(80, 5, 3, seed=1, several=several, apart=3.0)[0]
    x, labels = x[rows], labels[rows]
    weights = np.ones(len(rows))
    if units is not None:
        weights /= [(units[rows] == each).sum() for each in units[rows]]
    mean = np.average(x, axis=0, weights=weights)
    variance = np.average((x - mean) ** 2, axis=0, weights=weights)
    scale = np.sqrt(variance if shots == "full" else variance.mean())
    model = LogisticRegression(C=1 / (weights.sum() * penalty), max_iter=5000, tol=1e-8)

    def fit(target: np.ndarray) -> np.ndarray:
        model.fit((x - mean) / scale, target, sample_weight=weights)
        return np.asarray(model.decision_function((tested - mean) / scale))

    return np.stack([fit(column) for column in labels.T], axis=1) if several else fit(labels)


@pytest.mark.parametrize("patients", [0, 40])
@pytest.mark.parametrize("several", [False, True])
def test_each_probe_is_scikit_learn_s_on_its_draw(
    tmp_path: Path, several: bool, patients: int
) -> None:
    """Each patient counts once in training and in the test."""
    stores = _clouds(tmp_path, several=several, patients=patients)
    shots: tuple[Any, ...] = (3, 4, "full")
    record, table = _run(tmp_path, stores, shots=shots, seeds=2, seed=4)
    names, units = np.unique(
        [f"p{row * 7 % (patients or 90)}" for row in range(90)], return_inverse=True
    )
    first = {name: place for place, name in enumerate(dict.fromkeys(names[units]))}
    codes = np.array([first[name] for name in names[units]])
    test_units = np.arange(80) * 7 % (patients - 2 if patients else 80)
    weights = 1 / np.bincount(test_units)[test_units]
    labels, tested = (
        clouds(n, 5, 3, seed=s, several=several, apart=3.0)[1] for s, n in enumerate((90, 80))
    )
    place = {"dataset": "digits", "backbone": "clip"}
    identity = {**place, "few_shot": 4, "train": record["features"]["train"]}
    rows = table.to_pylist()
    assert [each["shots"] for each in rows] == [3, 3, 4, 4, None]
    assert [each["seed_index"] for each in rows] == [0, 1, 0, 1, 0]
    for each in rows:
        count: Any = each["shots"] or "full"
        seed = cell_seed(identity, each["seed_index"])
        drawn = np.arange(90)
        if count != "full":
            drawn = draw_shots(labels, count, seed, codes if patients else None)
        assert each["train_rows"] == len(drawn)
        assert each["train_units"] == (len(np.unique(units[drawn])) if patients else None)
        if count == 3:
            assert each["penalty"] == 0.1, "too few images to choose one"
        scores = _sklearn_scores(
            drawn,
            several=several,
            units=units if patients else None,
            shots=count,
            penalty=each["penalty"],
        )
        if several:
            aucs = [
                roc_auc_score(column, score, sample_weight=weights)
                for column, score in zip(tested.T, scores.T, strict=True)
            ]
            assert each["auc"] == pytest.approx(np.mean(aucs), abs=2e-3), each
        else:
            right = scores.argmax(axis=1) == tested
            assert each["accuracy"] == pytest.approx(right @ weights / weights.sum(), abs=0.013)
    headline = record["headline"]
    assert headline == ("auc" if several else "macro_accuracy")
    for probe in record["results"]:
        same = [each for each in rows if each["shots"] == probe["shots"]]
        assert probe["seeds"] == len(same) == (1 if probe["shots"] is None else 2)
        assert probe["train_rows"] == [each["train_rows"] for each in same]
        assert probe["train_units"] == [each["train_units"] for each in same]
        mean = np.mean([each[headline] for each in same])
        assert probe["summary"][headline]["mean"] == pytest.approx(mean)
    assert ("N counts patients" in record["note"]) == bool(patients)
    assert record["units"] == ({"train": 40, "test": 38} if patients else None)
    assert record["rows"] == {"train": 90, "test": 80}
    assert (record["multi_label"], record["class_names"]) == (several, ["a", "b", "c"])
    assert record["private"] is False
    if not several:
        accepted = [[int(label), 2][: 1 + (n % 4 == 0)] for n, label in enumerate(tested)]
        found = [kind in allowed for kind, allowed in zip(scores.argmax(1), accepted, strict=True)]
        assert rows[-1]["real_accuracy"] == pytest.approx(
            np.array(found) @ weights / weights.sum(), abs=0.013
        )


def test_features_read_from_disk_in_blocks_give_the_same_probes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    features, labels = clouds(24, 3, 3, apart=3.0)
    more: dict[str, Any] = {
        "class_names": tuple("abc"),
        "units": [f"p{row % 16}" for row in range(24)],
    }
    stores = (
        write_store(tmp_path / "train", features, labels, **more),
        write_store(tmp_path / "test", features[::-1], labels[::-1], **more),
    )
    given: dict[str, Any] = {"shots": (1, "full"), "seeds": 1}
    whole = _run(tmp_path / "whole", stores, **given)[1].to_pylist()
    monkeypatch.setattr(few_shot, "BLOCK_ROWS", 7)
    streamed = _run(tmp_path / "streamed", stores, memory_mb=0, **given)[1].to_pylist()
    for one, other in zip(whole, streamed, strict=True):
        assert one == pytest.approx(other, abs=1e-5)


def test_a_headline_that_the_test_rows_do_not_define_is_refused(tmp_path: Path) -> None:
    train, _ = _clouds(tmp_path / "several", several=True, patients=0)
    features, labels = clouds(30, 5, 3, several=True)
    none = write_store(tmp_path / "none", features, 0 * labels, class_names=tuple("abc"))
    with pytest.raises(DataError, match=f"manifest.json: {re.escape(NO_AUC)}"):
        _run(tmp_path, (train, none), shots=(1,))
    assert not (tmp_path / "probes.parquet").exists()
    train, _ = _clouds(tmp_path, several=False, patients=0)
    even = write_store(tmp_path / "even", features, np.arange(30) % 3, class_names=tuple("abc"))
    record, _ = _run(tmp_path, (train, even), shots=(1,), seeds=1)
    assert record["headline"] == "accuracy", "macro accuracy is for uneven classes"


def test_a_penalty_is_chosen_from_four_images_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nonprivate, "choose_penalty", lambda *_: 0.5)
    stores = _clouds(tmp_path, several=False, patients=0)
    _, table = _run(tmp_path, stores, shots=(1, 3, 4, "full"), seeds=1)
    assert table["penalty"].to_pylist() == [0.1, 0.1, 0.5, 0.5]


def test_the_interval_over_test_rows_equals_that_of_the_first_draw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[float, list[float]]] = []
    summarise = uncertainty.summarise_records

    def note(draws: Any, first: Any, **named: Any) -> Any:
        accuracy = float((first.scores.argmax(axis=1) == first.labels).mean())
        told.append((accuracy, [draw["accuracy"] for draw in draws]))
        return summarise(draws, first, **named)

    monkeypatch.setattr(uncertainty, "summarise_records", note)
    _run(tmp_path, _clouds(tmp_path, several=False, patients=0), shots=(1, 3), seeds=3)
    for shown, drawn in told:
        assert shown == drawn[0]
        assert len(set(drawn)) > 1
