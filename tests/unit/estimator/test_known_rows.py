"""Each fact of a dataset is used, stated or refused at each door of the estimator, not dropped.

The lists are generated: facts are the fields of `PromiseFacts`, and a door is each way in which
rows of a store reach a private fit.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV, KFold, RandomizedSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, StandardScaler

from dpprobe.data.promise_facts import PromiseFacts
from dpprobe.errors import PrivacyError, StoreError
from dpprobe.estimator import known_rows
from dpprobe.estimator.budget import Budget
from dpprobe.estimator.private_classifier import PrivateClassifier
from dpprobe.estimator.public_functions import read_features
from dpprobe.features.feature_store import FeatureStore
from dpprobe.release.verification.verify import verify_bundle
from tests.support.classifiers import DELTA, FAST, make_budget
from tests.support.feature_stores import separable, write_split
from tests.support.refusals import check_tokens, refuses

pytestmark = pytest.mark.filterwarnings("ignore:fit number")

PATIENTS, EACH, DIMENSION = 20, 6, 5
ROWS = PATIENTS * EACH
NAMES = [f"p{row // EACH}" for row in range(ROWS)]
LABELS = np.arange(ROWS) % 3
OF_PATIENTS = PromiseFacts(unit_column="who")
STRANGERS = separable(np.arange(30) % 3, DIMENSION, seed=9).astype(np.float32)
Door = Callable[[PrivateClassifier, FeatureStore, list[str] | None], Any]


def open_store(
    folder: Path, promise: PromiseFacts | None, *, dataset: str = "clinic", seed: int = 0
) -> FeatureStore:
    named = promise is None or promise.unit_column is not None
    write_split(
        folder / "features" / dataset / "pixels/train",
        separable(LABELS, DIMENSION, seed=seed).astype(np.float32),
        LABELS,
        units=NAMES if named else None,
        promise=promise and replace(promise, copies=None),
        copies=promise.copies if promise else None,
    )
    return read_features(folder, dataset, "pixels")


def make_head(**options: Any) -> PrivateClassifier:
    values: dict[str, Any] = {
        "head": FAST,
        "classes": (0, 1, 2),
        "budget": make_budget(max_epsilon=50.0),
    }
    return PrivateClassifier(**values | options)


def some(head: PrivateClassifier, rows: Any, store: FeatureStore, names: Any, *places: Any) -> Any:
    """Fits some of a store's rows; `places` has their positions in the store."""
    at = places[0] if places else slice(None)
    return head.fit(rows, store.labels[at], None if names is None else np.array(names)[at])


def in_pipeline(head: Any, rows: Any, labels: Any, names: Any, *steps: Any) -> Any:
    groups = {} if names is None else {"privateclassifier__groups": names}
    return make_pipeline(Normalizer(), *steps, head).fit(rows, labels, **groups)


ODD = np.arange(ROWS)[::-1][: ROWS - 3]


class OwnSource:
    """A user's own class of rows, which hides the store."""

    def __init__(self, store: FeatureStore) -> None:
        self.rows, self.dimension = store.rows, store.dimension
        self.read_blocks = store.read_blocks


def searched(kind: Any, grid: str) -> Door:
    def fit(head: PrivateClassifier, store: FeatureStore, names: list[str] | None) -> Any:
        search = kind(
            head,
            {"epsilon": [1.0]},
            cv=KFold(2),
            error_score="raise",
            refit=True,
            **({"n_iter": 1} if grid == "random" else {}),
        )
        return search.fit(store.read(), store.labels, groups=names).best_estimator_

    return fit


def beside_strangers(head: Any, store: FeatureStore, names: Any) -> Any:
    rows = np.concatenate([store.read(), STRANGERS])
    others = None if names is None else [*names, *(f"s{row}" for row in range(len(STRANGERS)))]
    return head.fit(rows, np.concatenate([store.labels, np.arange(30) % 3]), others)


def framed(head: Any, store: FeatureStore, names: Any) -> Any:
    return some(head, pd.DataFrame(store.read(), columns=list("abcde")), store, names)


def scored(head: Any, store: FeatureStore, names: Any) -> Any:
    cross_val_score(
        head,
        store.read(),
        store.labels,
        cv=KFold(2),
        error_score="raise",
        params=None if names is None else {"groups": names},
    )


WHOLE: dict[str, Door] = {
    "store": lambda head, store, names: head.fit(store, store.labels, names),
    "opened without read_features": lambda head, store, names: head.fit(
        FeatureStore(store.path), store.labels, names
    ),
    "array": lambda head, store, names: some(head, store.read(), store, names),
    "float64": lambda head, store, names: some(head, store.read("float64"), store, names),
    "list": lambda head, store, names: some(head, store.read().tolist(), store, names),
    "frame": framed,
    "tensor": lambda head, store, names: some(head, torch.from_numpy(store.read()), store, names),
    "iterator": lambda head, store, names: some(
        head, iter([store.read()[:50], store.read()[50:]]), store, names
    ),
    "own source": lambda head, store, names: some(head, OwnSource(store), store, names),
    "pipeline": lambda head, store, names: in_pipeline(head, store.read(), store.labels, names),
    "scaled by hand": lambda head, store, names: some(
        head, StandardScaler().fit_transform(store.read()), store, names
    ),
    "some columns": lambda head, store, names: some(head, store.read()[:, :3], store, names),
    "names of classes": lambda head, store, names: head.set_params(classes=("a", "b", "c")).fit(
        3 * store.read(), [store.class_names[label] for label in store.labels], names
    ),
}
PARTS: dict[str, Door] = {
    "slice": lambda head, store, names: some(
        head, store.read()[: ROWS - 6], store, names, slice(ROWS - 6)
    ),
    "any order": lambda head, store, names: some(head, store.read()[ODD], store, names, ODD),
    "blocks of a view": lambda head, store, names: some(
        head, np.asfortranarray(store.read()[::2]), store, names, slice(None, None, 2)
    ),
    "read_rows": lambda head, store, names: some(
        head, store.read_rows(np.arange(90)), store, names, slice(90)
    ),
    "with strangers": beside_strangers,
    "frozen step": lambda head, store, names: in_pipeline(
        head.set_params(public_steps=["frozenestimator"]),
        store.read()[:90],
        store.labels[:90],
        names and names[:90],
        FrozenEstimator(StandardScaler().fit(STRANGERS)),
    ),
}
SEARCHES: dict[str, Door] = {
    "grid search": searched(GridSearchCV, "grid"),
    "random search": searched(RandomizedSearchCV, "random"),
    "cross-validation": scored,
}
DOORS = WHOLE | PARTS | SEARCHES

# Facts that every door refuses if rows are units, with words of the refusal.
REFUSED: dict[str, tuple[PromiseFacts, str]] = {
    "unit_column": (OF_PATIENTS, "names a patient \\(who\\) for each image"),
    "split_fault": (PromiseFacts(split_fault="split_by: class"), "split_by: class"),
    "images_fault": (replace(OF_PATIENTS, images_fault="keeps the first"), "keeps the first"),
    "labels_fault": (PromiseFacts(labels_fault="missing: drop"), "missing: drop"),
    "subsample_fault": (PromiseFacts(subsample_fault="fractions chooses"), "fractions chooses"),
    "same_units_as": (PromiseFacts(same_units_as="films"), "shares units with films"),
}


@pytest.mark.parametrize("fact", REFUSED)
@pytest.mark.parametrize("door", DOORS)
def test_a_fact_that_no_fit_can_keep_is_refused_at_every_door(
    door: str, fact: str, tmp_path: Path
) -> None:
    promise, reason = REFUSED[fact]
    store, head = open_store(tmp_path, promise), make_head()
    with pytest.raises(PrivacyError, match=reason):
        DOORS[door](head, store, None)
    assert head.budget is not None
    assert head.budget.compute_spent().entries == 0


def budget_of(head: PrivateClassifier) -> Budget:
    assert head.budget is not None
    return head.budget


def see_split(head: Any, store: FeatureStore, door: Door) -> None:
    """Checks that a fit books all rows as a separate split, whose cost adds to every side."""
    budget = budget_of(head)
    booked = Mock(wraps=budget.book_fit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(budget, "book_fit", booked)
        door(head, store, None)
    bookings = [call.args[0] for call in booked.call_args_list]
    assert {(each.split, each.parts[0].side) for each in bookings} == {("all rows", "train")}


def see_subsample(head: Any, store: FeatureStore, door: Door) -> None:
    fitted = door(head, store, None)
    if fitted is None:  # a score publishes no head
        return
    statement = find_head(fitted).privacy_
    assert statement["public_data"]["subsample"] == {"fraction": 0.5, "public_seed": 3}
    assert "drawn_units" in statement["public"]


def see_copies(head: Any, store: FeatureStore, door: Door) -> None:
    with pytest.warns(UserWarning, match="7 rows repeat another row, and one row occurs 4 times"):
        door(head, store, None)


def see_limit(head: Any, store: FeatureStore, door: Door) -> None:
    """Checks that for images as units, a patient's epsilon assumes the public limit of images."""
    fitted = door(head.set_params(unit="image"), store, None)
    if fitted is not None:
        patients = find_head(fitted).privacy_["patients"]
        assert patients["images"] == EACH
        assert patients["epsilon"] > 3 * find_head(fitted).plan_.realised_epsilon


def find_head(fitted: Any) -> PrivateClassifier:
    return fitted if isinstance(fitted, PrivateClassifier) else fitted.steps[-1][1]


# Facts that a fit uses or states, with a check for it.
KEPT: dict[str, tuple[PromiseFacts, Callable[[Any, FeatureStore, Door], None]]] = {
    "split_rule": (PromiseFacts(split_rule="id, seed 0, fraction 0.2"), see_split),
    "copies_across": (PromiseFacts(copies_across=5), see_split),
    "ids_across": (PromiseFacts(ids_across=5), see_split),
    "test_copies": (PromiseFacts(test_copies={"image": {"rows": 7, "most": 4}}), see_split),
    "subsample": (PromiseFacts(subsample={"fraction": 0.5, "public_seed": 3}), see_subsample),
    "copies": (PromiseFacts(copies={"image": {"rows": 7, "most": 4}}), see_copies),
    "images_per_patient": (replace(OF_PATIENTS, images_per_patient=EACH), see_limit),
}


@pytest.mark.parametrize("fact", KEPT)
@pytest.mark.parametrize("door", DOORS)
def test_a_fact_is_used_or_stated_at_every_door(door: str, fact: str, tmp_path: Path) -> None:
    promise, see = KEPT[fact]
    see(make_head(), open_store(tmp_path, promise), DOORS[door])


def test_every_fact_has_a_test() -> None:
    assert {*REFUSED, *KEPT} == {field.name for field in fields(PromiseFacts)}


@pytest.mark.parametrize("door", [*WHOLE, *PARTS])
def test_named_patients_are_the_units(door: str, tmp_path: Path) -> None:
    """Groups that split a patient are refused; users may give coarser groups, such as families."""
    store = open_store(tmp_path, OF_PATIENTS)
    own = [f"r{row}" for row in range(ROWS)]
    with pytest.raises(PrivacyError, match="rows of one patient .* are in several groups"):
        DOORS[door](make_head(unit="group"), store, own)
    one = [*NAMES[:-1], "of another person"]  # one row of one patient
    if "slice" not in door and door not in ("blocks of a view", "read_rows", "frozen step"):
        with pytest.raises(PrivacyError, match="are in several groups"):
            DOORS[door](make_head(unit="group"), store, one)
    families = [f"f{int(name[1:]) // 2}" for name in NAMES]
    whole = door not in PARTS
    for names, count in ((NAMES, PATIENTS), (families, PATIENTS // 2)):
        fitted = find_head(DOORS[door](make_head(unit="group"), store, names))
        assert fitted.plan_.n == count or not whole


@pytest.mark.parametrize("unit", ["patient", "image"])
def test_a_store_brings_the_names_of_its_patients(unit: Any, tmp_path: Path) -> None:
    """As units, 20 patients have the fit's epsilon; if images are the units, patients have none."""
    store = open_store(tmp_path, OF_PATIENTS)
    head = make_head(unit=unit).fit(store, store.labels)
    assert head.plan_.n == (PATIENTS if unit == "patient" else ROWS)
    assert head.privacy_["unit"] == unit
    unpromised = {"images": None, "epsilon": None}
    assert head.privacy_["patients"] == (unpromised if unit == "image" else None)
    folder = head.save_bundle(
        tmp_path / "bundle",
        dataset="clinic",
        model="pixels",
        each_by_itself=True,
        pretrained=False,
    )
    assert verify_bundle(folder).passed


# Equal labels do not identify rows: other people may have the same labels, especially if sorted.

SORTED = np.sort(LABELS)
OTHER_LABELS = np.random.default_rng(5).permutation(LABELS)
TWO_IMAGES = replace(OF_PATIENTS, images_per_patient=EACH)
EQUAL_LABELS = "y has the labels of all rows of"


def open_labelled(folder: Path, labels: np.ndarray, promise: PromiseFacts = TWO_IMAGES) -> Any:
    features = separable(labels, DIMENSION, seed=0).astype(np.float32)
    path = folder / "features/clinic/pixels/train"
    write_split(path, features, labels, units=NAMES, promise=promise, shards=3)
    return read_features(folder, "clinic", "pixels")


def scatter(labels: np.ndarray, dimension: int = 7) -> np.ndarray:
    return separable(labels, dimension, seed=99).astype(np.float32)


# Rows of other people with the labels of a store.
OTHERS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "more columns": scatter,
    "as many columns": lambda labels: scatter(labels, DIMENSION),
    "one column": lambda labels: scatter(labels)[:, :1],
    "columns that follow labels": lambda labels: np.eye(3, dtype=np.float32)[labels],
    "columns near labels": lambda labels: (
        50 * np.eye(3, dtype=np.float32)[labels] + scatter(labels)[:, :3]
    ),
    "equal rows": lambda labels: np.ones((len(labels), 4), np.float32),
    "binary": lambda labels: (scatter(labels) > 0).astype(np.float32),
}


@pytest.mark.filterwarnings("ignore:X. .* rows repeat")
@pytest.mark.parametrize("labels", [SORTED, LABELS, OTHER_LABELS], ids=["sorted", "turns", "any"])
@pytest.mark.parametrize("rows", OTHERS.values(), ids=OTHERS)
def test_other_rows_with_the_labels_of_a_store_give_a_warning_and_no_promise(
    rows: Callable[[np.ndarray], np.ndarray], labels: np.ndarray, tmp_path: Path
) -> None:
    store = open_labelled(tmp_path, labels)
    assert known_rows.find_origins(rows(labels), labels) == []
    for unit in ("image", "row"):
        head = make_head(unit=unit)
        with pytest.warns(UserWarning, match=EQUAL_LABELS) as told:
            head.fit(rows(labels), labels)
        (line,) = (str(each.message) for each in told if EQUAL_LABELS in str(each.message))
        check_tokens(line, store.path.parent, "read_features", "unit and groups")
        assert head.fit_.promise is None
        assert head.plan_.patients is None


def test_equal_labels_of_a_store_without_patients_give_no_warning(tmp_path: Path) -> None:
    open_labelled(tmp_path, SORTED, PromiseFacts(split_rule="id, seed 0, fraction 0.2"))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", f".*{EQUAL_LABELS}")
        make_head().fit(scatter(SORTED), SORTED)


def normalise(rows: np.ndarray) -> np.ndarray:
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


# Changes after which a store's columns are recognised, and changes after which only labels match.
CHANGED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "scaled": lambda rows: 3 * rows,
    "standardised": lambda rows: StandardScaler().fit_transform(rows),
    "far from zero": lambda rows: rows + 1000,
    "of another sign": np.negative,
    "float16": lambda rows: rows.astype(np.float16).astype(np.float32) * 2,
    "columns in another order": lambda rows: 2 * rows[:, ::-1],
    "one column": lambda rows: rows[:, 2:3] - 1,
    "with a constant": lambda rows: np.hstack([rows / 7, np.ones((len(rows), 1), np.float32)]),
}
MIXED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "rows of norm 1": normalise,
    "turned": lambda rows: (
        rows @ np.linalg.qr(np.random.default_rng(1).normal(size=(DIMENSION, DIMENSION)))[0]
    ).astype(np.float32),
}


@pytest.mark.parametrize("block", [2**10, 2**26], ids=["blocks", "whole"])
@pytest.mark.parametrize("change", CHANGED.values(), ids=CHANGED)
def test_columns_of_a_store_are_recognised_after_a_change(
    change: Callable[[np.ndarray], np.ndarray],
    block: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(known_rows, "SCORED_BYTES", block)
    store = open_labelled(tmp_path, SORTED)
    (origin,) = known_rows.find_origins(change(store.read()).astype(np.float32), SORTED)
    assert origin.store.path == store.path.absolute()
    assert origin.rows.tolist() == list(range(ROWS))
    assert [names[0] for names in origin.names] == NAMES
    with refuses(PrivacyError, store.path.parent, "who", "unit='patient'"):
        make_head().fit(change(store.read()), SORTED)


@pytest.mark.parametrize("change", MIXED.values(), ids=MIXED)
def test_columns_that_were_mixed_are_warned_of(
    change: Callable[[np.ndarray], np.ndarray], tmp_path: Path
) -> None:
    store = open_labelled(tmp_path, SORTED)
    with pytest.warns(UserWarning, match=EQUAL_LABELS):
        make_head().fit(change(store.read()), SORTED)


def test_columns_that_follow_the_labels_do_not_identify_a_store(tmp_path: Path) -> None:
    features = separable(LABELS, DIMENSION, seed=0, apart=1e4).astype(np.float32)
    path = tmp_path / "features/clinic/pixels/train"
    write_split(path, features, LABELS, promise=PromiseFacts())
    read_features(tmp_path, "clinic", "pixels")
    followers = separable(LABELS, 3, seed=1, apart=1e4).astype(np.float32)
    assert abs(np.corrcoef(features[:, 0], followers[:, 0])[0, 1]) > 0.9999
    assert known_rows.find_origins(followers, LABELS) == []


def test_columns_are_not_compared_if_there_are_few_rows_per_class(tmp_path: Path) -> None:
    """With one free row beyond the classes, any two columns correlate perfectly."""
    labels = np.append(np.arange(20), 0)
    features = separable(labels, 20, seed=0).astype(np.float32)
    classes = tuple(map(str, range(20)))
    path = tmp_path / "features/clinic/pixels/train"
    write_split(path, features, labels, class_names=classes, promise=PromiseFacts())
    read_features(tmp_path, "clinic", "pixels")
    assert known_rows.find_origins(scatter(labels, 21), labels) == []


def test_more_images_than_the_public_limit_are_refused(tmp_path: Path) -> None:
    """The rows are given twice, so each patient exceeds the limit of images."""
    store = open_store(tmp_path, replace(OF_PATIENTS, images_per_patient=EACH))
    rows, labels = np.tile(store.read(), (2, 1)), np.tile(store.labels, 2)
    with pytest.raises(PrivacyError, match="max_images_per_patient is 6 .* has more rows here"):
        make_head(unit="image").fit(rows, labels)


def test_an_added_ledger_counts(tmp_path: Path) -> None:
    """A fit on a dataset that shares people is booked, if the other ledger can be added."""
    store = open_store(tmp_path, PromiseFacts(same_units_as="films"))
    data = tmp_path / "data"
    elsewhere = make_head(budget=make_budget(tmp_path / "away/clinic", max_epsilon=3.0))
    with pytest.raises(PrivacyError, match="same_units_as: films: write the name of another"):
        elsewhere.fit(store, store.labels)
    films = make_budget(data / "films", max_epsilon=3.0)
    others = LABELS[::-1]
    rows = separable(others, DIMENSION, seed=4).astype(np.float32)
    make_head(budget=films).fit(rows, others)
    clinic = make_budget(data / "clinic", max_epsilon=3.0)
    make_head(budget=clinic).fit(store, store.labels)
    alone = make_budget(max_epsilon=3.0)
    for _ in range(2):
        make_head(budget=alone).fit(rows, others)
    both = alone.compute_spent().epsilon
    assert clinic.compute_spent().epsilon == films.compute_spent().epsilon == both > 1.2


def test_rows_of_two_datasets_that_share_people_are_refused(tmp_path: Path) -> None:
    clinic = open_store(tmp_path, PromiseFacts(same_units_as="films"))
    films = open_store(tmp_path, PromiseFacts(), dataset="films", seed=1)
    rows = np.concatenate([clinic.read(), films.read()])
    head = make_head(budget=make_budget(tmp_path / "data/clinic"))
    with pytest.raises(PrivacyError, match="rows of 2 datasets, and one has units of films too"):
        head.fit(rows, np.tile(LABELS, 2))


def test_parts_and_wholes_are_distinguished(tmp_path: Path) -> None:
    """All rows of the whole belong to the whole; rows that are also in a part may belong to it."""
    whole = open_store(tmp_path, PromiseFacts())
    kept = np.flatnonzero(LABELS != 2)[:60]
    write_split(
        tmp_path / "features/part/pixels/train",
        whole.read()[kept],
        LABELS[kept],
        promise=PromiseFacts(subsample_fault="fractions chooses rows by class"),
    )
    part = read_features(tmp_path, "part", "pixels")
    make_head().fit(whole.read(), LABELS)
    with pytest.raises(PrivacyError, match="fractions chooses"):
        make_head().fit(part.read(), part.labels)
    with pytest.raises(PrivacyError, match="fractions chooses"):
        make_head().fit(whole.read()[kept[:50]], LABELS[kept[:50]])


def test_a_picture_of_two_patients_may_be_in_either_group(tmp_path: Path) -> None:
    features = separable(LABELS, DIMENSION, seed=0).astype(np.float32)
    features[EACH] = features[0]  # the first image of p1 is one of p0
    write_split(
        tmp_path / "features/clinic/pixels/train",
        features,
        LABELS,
        units=NAMES,
        promise=OF_PATIENTS,
    )
    store = read_features(tmp_path, "clinic", "pixels")
    rows, labels = store.read()[: ROWS - 1], LABELS[: ROWS - 1]
    with pytest.warns(UserWarning, match="repeat a row of another group"):
        make_head(unit="group").fit(rows, labels, NAMES[:-1])
    strays = ["of nobody", *NAMES[1:-1]]
    with pytest.raises(PrivacyError, match="are in several groups"):
        make_head(unit="group").fit(rows, labels, strays)


def test_features_without_facts_are_refused(tmp_path: Path) -> None:
    """Manifests of older versions do not name the units."""
    store = open_store(tmp_path, None)
    for door in ("store", "array", "slice", "pipeline"):
        with pytest.raises(StoreError, match="does not say who the dataset's units are"):
            DOORS[door](make_head(), store, None)


def test_unknown_rows_are_accepted(tmp_path: Path) -> None:
    """Other rows of the same dimension pass, and so do benchmarks, which protect nobody."""
    store = open_store(tmp_path, OF_PATIENTS)
    make_head().fit(STRANGERS, np.arange(30) % 3)
    PrivateClassifier(head=FAST, delta=DELTA, benchmark=True, random_state=1).fit(
        store.read(), store.labels
    )
    assert known_rows.read_raw(["a", "b"]) is None
    assert known_rows.join_facts([], "row") is None
    assert known_rows.find_origins(STRANGERS, np.arange(30) % 3) == []


def test_rows_are_recognised_from_another_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    store = open_store(Path("results"), OF_PATIENTS)
    rows, labels = store.read()[::-1], store.labels[::-1]
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(PrivacyError, match="whose dataset names a patient"):
        make_head().fit(rows, labels)


def test_a_store_that_cannot_be_compared_is_reported(tmp_path: Path) -> None:
    """A damaged store may contain the fit's rows; only deleted stores are ignored."""
    open_store(tmp_path, OF_PATIENTS)
    (shard,) = tmp_path.rglob("shard-*.h5")
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(StoreError, match=r"shard-.*bytes instead of"):
        make_head().fit(STRANGERS, np.arange(30) % 3)


@pytest.mark.parametrize("fitted_before", [False, True])
def test_a_store_that_is_deleted_hinders_no_later_fit(tmp_path: Path, fitted_before: bool) -> None:
    """Rows of a deleted store are still recognised if an earlier fit compared them."""
    store = open_store(tmp_path, OF_PATIENTS)
    rows, labels = store.read()[::-1], store.labels[::-1]
    if fitted_before:
        make_head().fit(STRANGERS, np.arange(30) % 3)
    shutil.rmtree(tmp_path / "features")
    make_head().fit(STRANGERS, np.arange(30) % 3)
    if fitted_before:
        with pytest.raises(PrivacyError, match="whose dataset names a patient"):
            make_head().fit(rows, labels)


def test_features_that_were_extracted_again_are_compared_by_their_new_rows(tmp_path: Path) -> None:
    open_store(tmp_path, OF_PATIENTS)
    assert known_rows.find_origins(STRANGERS, np.arange(30) % 3) == []
    shutil.rmtree(tmp_path / "features")
    again = open_store(tmp_path, OF_PATIENTS, seed=5)
    (origin,) = known_rows.find_origins(again.read()[::-1], again.labels[::-1])
    assert origin.rows.tolist() == list(range(ROWS))
