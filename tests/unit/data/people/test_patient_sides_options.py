"""Options for patients: splits by patient, limits of images per patient, and unit of privacy."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.data.people import patient_sides
from dpprobe.data.people.patient_sides import RowIndex, assign_sides
from dpprobe.data.registry import dataset_options
from dpprobe.errors import ConfigError
from dpprobe.study.study_checks import check_study
from dpprobe.study.study_file import load_study
from tests.support.shards import CLASSES
from tests.support.small_study import STUDY
from tests.support.sources import prepare, write_manifest, write_parquet

# Patient p has p images, and every third patient belongs to the second class.
PATIENTS = [f"p{number}" for number in range(1, 13) for _ in range(number)]


@given(names=st.lists(st.sampled_from("abc")), most=st.integers(1, 4), new=st.sampled_from("abcd"))
def test_the_images_of_one_patient_never_decide_which_of_another_are_kept(
    names: list[str], most: int, new: str
) -> None:
    """So the rule is public: a patient's null rows only change which of its own rows count."""
    before = patient_sides.first_of_each(names, most)
    assert Counter(itertools.compress(names, before)) == {
        name: min(number, most) for name, number in Counter(names).items()
    }
    after = patient_sides.first_of_each([new, *names], most)[1:]
    changed = {name for name, a, b in zip(names, before, after, strict=True) if a != b}
    assert changed <= {new}


def test_similar_patient_names_within_one_split_are_not_faults() -> None:
    """A name is only reported if the other split has a similar one."""
    train, test = ["P1", "p1", "q2", "x"], ["P1", "Q2", "12.0", "y", "12"]
    assert patient_sides.find_mistaken({"train": train, "test": test}) == {
        "P1": "has images in both splits",
        "p1": "looks like 'P1' in the other split",
        "q2": "looks like 'Q2' in the other split",
        "Q2": "looks like 'q2' in the other split",
        "12.0": "is '12' in other rows",
    }
    assert patient_sides.find_mistaken({"train": train}) == {}
    twice = ["P1", "p1"]
    faults = patient_sides.find_mistaken({"train": twice, "test": twice})
    assert faults == dict.fromkeys(twice, "has images in both splits")


def test_a_fault_that_is_added_to_a_row_is_only_of_this_row() -> None:
    """Sources add faults of a row's groups and image to its patient's faults."""
    twice = ("patient", "patient 'p' is in both splits")
    rows = patient_sides.list_faults(["p", "p", "q"], {"p": "is in both splits"}, "who")
    rows[0].append(("group", "age is blank"))
    assert rows == [[twice, ("group", "age is blank")], [twice], []]


@pytest.mark.parametrize(
    ("options", "read"),
    [
        ({"test": "b.csv"}, ()),
        ({"split_by": "id"}, ("ids",)),
        ({"unit_column": "patient"}, ("labels", "units")),
    ],
)
def test_only_what_decides_is_read(options: dict[str, Any], read: tuple[str, ...]) -> None:
    """Datasets have millions of ids and labels, so they are only read if an option needs them."""

    def fail(*_: object) -> Any:
        raise AssertionError("nothing asks for it")

    known = {"ids": lambda _: ["a", "b", "c"], "labels": lambda _: [0, 1, 1]}
    index = RowIndex(
        rows={"train": 3},
        units={"train": ["p", "p", "q"]} if "units" in read else None,
        **{name: each if name in read else fail for name, each in known.items()},  # type: ignore[arg-type]
    )
    manifest = {"source": "csv", "train": "a.csv", "label_column": "kind", "class_names": CLASSES}
    assign_sides(dataset_options(manifest | options), index)  # type: ignore[arg-type]


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_an_id_of_both_splits_is_a_warning_of_check_and_preparation(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: str,
    named: bool,
) -> None:
    """The pictures differ, so no other check notices; each split has 3 of 12 ids of the other."""
    monkeypatch.chdir(tmp_path)
    ids = {"train": [f"s{n}" for n in range(12)], "test": [f"s{n}" for n in range(9, 21)]}
    labels = [n % 2 for n in range(12)]
    dataset: dict[str, Any] = {"id_column": "slide" if named else None}
    if kind == "parquet":
        dataset |= {"source": "parquet", "train": "train.parquet", "test": "test.parquet"}
        for number, (split, names) in enumerate(ids.items()):
            write_parquet(f"{split}.parquet", labels, first=50 * number, slide=names)
    else:
        rows = [
            {"path": f"{split}{n}.png", "kind": CLASSES[label], "slide": name, "part": split}
            for split, names in ids.items()
            for n, (label, name) in enumerate(zip(labels, names, strict=True))
        ]
        dataset = write_manifest(tmp_path, rows, split_column="part") | dataset
    said = "id_column: slide: 3 ids in train and in test, such as 's10': keep each item in one"
    study = load_study(
        STUDY | {"datasets": {"slides": dataset}, "methods": {"squares": {"head": "least_squares"}}}
    )
    assert sum(said in line for line in check_study(study)) == named
    with caplog.at_level(logging.WARNING):
        prepare(tmp_path / "out", **dataset)
    assert sum(said in record.getMessage() for record in caplog.records) == named


def study_of(folder: Path, *, privacy: dict[str, Any] | None = None, **options: Any) -> Any:
    rows = [
        {"path": f"{n}.png", "kind": CLASSES[int(who[1:]) % 3 == 0], "who": who}
        for n, who in enumerate(PATIENTS)
    ]
    lesions = write_manifest(folder, rows, unit_column="who") | options
    datasets = {"lesions": lesions, **STUDY["datasets"]}
    methods = {"sgd": {"head": "sgd", "batch_size": "full"}}
    return load_study(
        STUDY | {"datasets": datasets, "methods": methods, "delta": 5e-5, "privacy": privacy or {}}
    )


def test_a_dataset_s_unit_is_its_patients_where_it_names_them(tmp_path: Path) -> None:
    study = study_of(tmp_path)
    assert [study.dataset_unit(name) for name in study.datasets] == ["patient", "image"]
    assert study.dataset_patients("lesions") is None
    image = study_of(tmp_path, privacy={"unit": "image"}, max_images_per_patient=12)
    assert image.dataset_unit("lesions") == "image"
    assert image.dataset_patients("lesions") == {"images": 12}
    assert image.dataset_patients("digits") is None
    told = study_of(tmp_path, privacy={"unit": "image"}, unit="patient")
    assert told.dataset_unit("lesions") == "patient"
    with pytest.raises(ConfigError, match=r"privacy.unit: patient, but datasets.digits does not"):
        study_of(tmp_path, privacy={"unit": "patient"})


def warnings_of(study: Any) -> list[str]:
    """Returns the study's warnings except the expected one about few test patients."""
    warnings = check_study(study)
    few = [line for line in warnings if "2 classes have fewer than 5 test patients" in line]
    assert len(few) == 1
    return [line for line in warnings if line not in few]


def test_images_as_units_of_patients_are_warned_of_with_the_price(tmp_path: Path) -> None:
    assert warnings_of(study_of(tmp_path)) == []
    (bounded,) = warnings_of(study_of(tmp_path, unit="image", max_images_per_patient=5))
    assert "datasets.lesions: unit: image, and patients may have several" in bounded
    assert "for a patient with 5 images the epsilon is" in bounded
    assert "in place of 0.5, " in bounded
    assert "in place of 1 " in bounded
    (open_ended,) = warnings_of(study_of(tmp_path, unit="image"))
    assert "patients have no guarantee" in open_ended


def test_delta_is_held_against_the_number_of_patients(tmp_path: Path) -> None:
    study = study_of(tmp_path)
    n = study.datasets["lesions"].count_units()
    assert n is not None
    assert n < 12
    with pytest.raises(ConfigError, match=rf"n = {n} training patients"):
        check_study(study_of(tmp_path, delta=1.01 / n))
    told = warnings_of(study_of(tmp_path, delta=0.09 / n))
    assert [each for each in told if each.startswith("datasets.lesions")] == []


@pytest.mark.parametrize("name", ["chexpert", "eyepacs", "mimic_cxr"])
def test_hospital_entries_of_the_catalog_take_the_patient(name: str) -> None:
    datasets = {name: {"catalog": name, "root": "/nowhere"}}
    study = load_study(STUDY | {"datasets": datasets})
    assert study.dataset_unit(name) == "patient"


KINDS = ["cat", "dog", "owl"]
# (patient, class, second label): few owls, and patients of two classes.
PAIRS = [(f"p{n % 23}", 2 if n % 23 in (1, 5) else n % 2, int(n % 7 == 0)) for n in range(80)]


def write_rows(folder: Path, *, labels: bool = False) -> dict[str, Any]:
    rows = [
        {
            "path": f"{n}.png",
            "kind": KINDS[kind],
            "who": who,
            "striped": int(kind == 2),
            "tall": tall,
        }
        for n, (who, kind, tall) in enumerate(PAIRS)
    ]
    several = {"label_column": None, "class_names": None, "label_columns": ["striped", "tall"]}
    named: dict[str, Any] = several if labels else {"class_names": KINDS}
    return write_manifest(folder, rows, unit_column="who", **named)


SPLITS = [{"split_by": by, "split_seed": 3, "missing_classes": "warn"} for by in ("id", "class")]


@pytest.mark.parametrize("split", SPLITS, ids=["id", "class"])
@pytest.mark.parametrize("labels", [False, True], ids=["classes", "labels"])
def test_larger_fractions_are_proposed_for_rare_classes(
    labels: bool, split: dict[str, Any], tmp_path: Path
) -> None:
    options = dataset_options(write_rows(tmp_path, labels=labels) | split)
    counts = options.count_class_units()
    assert counts is not None
    assert set(counts.test_at) == {0.3, 0.4, 0.5}
    for fraction, test in counts.test_at.items():
        other = options.model_copy(update={"test_fraction": fraction}).count_class_units()
        assert other is not None
        assert test == other.test
        assert split["split_by"] == "class" or all(
            test[name] >= count for name, count in counts.test.items()
        ), "a larger fraction has the test units of a smaller one"
