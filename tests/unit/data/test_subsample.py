"""Subsamples per class are nested and by unit; fractions do not depend on other rows."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dpprobe.data import dataset_preparation, table, table_writer
from dpprobe.data.dataset_sizes import count_used_rows
from dpprobe.data.options import DatasetOptions
from dpprobe.data.promise_facts import promise_facts
from dpprobe.data.registry import dataset_options
from dpprobe.data.subsample import Subsample, without_subsample
from dpprobe.data.subsampled_tables import write_subsampled
from dpprobe.data.table import SplitTable, read_info
from dpprobe.errors import DataError
from dpprobe.files.json_files import read_json
from tests.support.shards import png
from tests.support.split_tables import write_tables

CLASSES = ("cat", "dog")
ROWS = st.lists(st.tuples(st.integers(0, 1), st.sampled_from("abcdefghijkl")), max_size=40)
DIGITS = {"source": "sklearn", "name": "digits"}


def chosen(options: dict[str, Any], rows: Sequence[tuple[int, str]]) -> set[int]:
    """Returns the indices of the rows in the subsample."""
    kept = Subsample(**options).choose_rows(
        [label for label, _ in rows], [name for _, name in rows], CLASSES
    )
    return {place for place, keep in enumerate(kept) if keep}


def faults_of(dataset: DatasetOptions) -> str:
    """Returns the reasons why images of the dataset cannot be units of a release."""
    return "; ".join(promise_facts(dataset).list_promise_faults("image"))


def place(name: str, seed: int = 0) -> Fraction:
    """Computes a name's rank in another way: its digest as a number in [0, 1)."""
    digest = hashlib.sha256(f"subsample\n{seed}\n{name}".encode()).hexdigest()
    return Fraction(int(digest, 16), 2**256)


@given(rows=ROWS, fraction=st.floats(0.01, 1.0), seed=st.integers(0, 3))
def test_a_fraction_keeps_the_rows_whose_number_is_below_it(
    rows: list[tuple[int, str]], fraction: float, seed: int
) -> None:
    expected = {
        row
        for row, (label, name) in enumerate(rows)
        if label == 0 or place(name, seed) < Fraction(fraction)
    }
    options = {"fractions": {"dog": fraction}, "seed": seed}
    if any(label for label, _ in rows) and not any(rows[row][0] for row in expected):
        with pytest.raises(DataError, match="selects none of the .* of class dog"):
            chosen(options, rows)
    else:
        assert chosen(options, rows) == expected


@given(rows=ROWS, moved=st.integers(0, 39), label=st.integers(0, 1))
def test_no_unit_moves_another_by_a_fraction(
    rows: list[tuple[int, str]], moved: int, label: int
) -> None:
    """Removing or relabelling the rows of one unit does not change which other rows are chosen."""
    anchors = list(enumerate(sorted((f"x{at}" for at in range(9)), key=place)[:2]))
    if not rows:
        return
    name = rows[moved % len(rows)][1]
    rows = [*anchors, *rows]  # these rows are chosen, so no class is empty
    others = [row for row in rows if row[1] != name]
    relabelled = [(label if row[1] == name else row[0], row[1]) for row in rows]
    options = {"fractions": {"cat": 0.6, "dog": 0.6}}

    def kept(among: list[tuple[int, str]]) -> list[tuple[int, str]]:
        places = chosen(options, among)
        return [row for at, row in enumerate(among) if at in places and row[1] != name]

    assert kept(rows) == kept(others) == kept(relabelled)


def test_less_is_a_part_of_more_and_all_parts_go_by_one_order() -> None:
    rows = [(at % 2, f"row-{at}") for at in range(400)]
    fractions = [chosen({"fractions": {"dog": part}}, rows) for part in (0.05, 0.2, 0.5, 1.0)]
    numbers = [chosen({"per_class": number}, rows) for number in (1, 20, 100, 200)]
    for sets in (fractions, numbers):
        assert all(less <= more for less, more in pairwise(sets))
    dogs = {at for at in fractions[1] if at % 2}
    assert {at for at in chosen({"per_class": len(dogs)}, rows) if at % 2} == dogs
    assert len(fractions[3]) == len(rows)
    assert len(chosen({"per_class": 30}, rows)) == 60
    other = chosen({"per_class": 20, "seed": 1}, rows)
    assert other != numbers[1]
    assert len(other) == 40


def test_a_release_refuses_per_class_subsampling_because_units_affect_each_other() -> None:
    rows = [(at % 2, f"row-{at}") for at in range(20)]
    kept = chosen({"per_class": 3}, rows)
    first = min(kept)
    fewer = [row for at, row in enumerate(rows) if at != first]
    assert len(chosen({"per_class": 3}, fewer)) == 6  # another unit takes its position
    part = {"per_class": 3}
    fault = faults_of(dataset_options({**DIGITS, "split_by": "id", "subsample": part}))
    assert "can decide whether another is kept; write fraction, one number" in fault
    by_hash = {**DIGITS, "split_by": "id", "subsample": {"fraction": 0.5}}
    assert not faults_of(dataset_options(by_hash))
    by_class = {**DIGITS, "subsample": {"fraction": 0.5}}
    assert "split_by" in str(faults_of(dataset_options(by_class)))


def test_a_release_refuses_fractions_per_class_because_n_reveals_labels() -> None:
    """Whoever knows all rows but one label can derive it from n, which a release publishes."""
    names = [f"row-{at}" for at in range(79)]

    def told(part: dict[str, Any]) -> int:
        """Counts the units whose label n reveals."""
        options, told = Subsample.model_validate(part), 0
        for at in range(len(names)):
            sizes = set()
            for label in (0, 1):
                labels = [other % 2 for other in range(len(names))]
                labels[at] = label
                sizes.add(sum(options.choose_rows(labels, names, ["cat", "dog"])))
            told += len(sizes) > 1
        return told

    assert told({"fractions": {"dog": 0.4}}) > 40
    assert told({"fraction": 0.4}) == 0
    part = {"fractions": {"1": 0.5}}
    fault = faults_of(dataset_options({**DIGITS, "split_by": "id", "subsample": part}))
    assert "fractions chooses rows by class" in str(fault)


def test_one_fraction_takes_every_row_or_patient_alike() -> None:
    rows = [(at % 2, f"u{at % 40}") for at in range(400)]
    kept = chosen({"fraction": 0.4}, rows)
    names = {rows[at][1] for at in kept}
    assert 0.2 < len(names) / 40 < 0.6
    assert kept == {at for at in range(400) if rows[at][1] in names}
    assert chosen({"fraction": 0.2}, rows) <= kept


def test_the_choice_is_another_one_than_that_of_test_rows() -> None:
    """Training rows of a split by id have large split numbers; a small fraction must find some."""
    options = dataset_options(
        {**DIGITS, "split_by": "id", "subsample": {"fractions": {"3": 0.1}, "seed": 0}}
    )
    ids = [f"digits-{row:04d}" for row in range(1797)]
    tested = options.choose_test(ids, [3] * len(ids))  # type: ignore[attr-defined]
    train = [name for name, test in zip(ids, tested, strict=True) if not test]
    assert options.subsample is not None
    kept = options.subsample.choose_rows([3] * len(train), train, [str(k) for k in range(10)])
    assert 0.07 < kept.count(True) / len(train) < 0.13


def test_a_part_made_alone_is_the_one_made_from_the_whole(tmp_path: Path) -> None:
    options = dataset_options({**DIGITS, "subsample": {"per_class": 6}})
    dataset_preparation.prepare_dataset(without_subsample(options), tmp_path / "digits")
    dataset_preparation.prepare_dataset(options, tmp_path / "alone")
    dataset_preparation.prepare_dataset(options, tmp_path / "part", whole=tmp_path / "digits")
    alone, part, whole = (
        read_info(tmp_path / name / "dataset.json") for name in ("alone", "part", "digits")
    )
    assert alone == part
    assert part.splits["train"].per_class[3] == 6
    assert (part.train_rows, part.test_rows) == count_used_rows(options)
    assert part.splits["test"].fingerprint == whole.splits["test"].fingerprint
    assert not (tmp_path / "alone" / "whole").exists()
    ids = {
        name: SplitTable(tmp_path / name / "train.parquet").read_ids()
        for name in ("part", "digits")
    }
    kept = set(ids["part"])
    assert [each for each in ids["digits"] if each in kept] == ids["part"]


def test_expected_sizes_equal_those_of_the_whole(tmp_path: Path) -> None:
    sizes = {"train": 1438, "test": 359, "classes": 10}
    part = dataset_options({**DIGITS, "expect": sizes, "subsample": {"per_class": 9}})
    dataset_preparation.prepare_dataset(part, tmp_path / "part")
    assert read_info(tmp_path / "part" / "dataset.json").train_rows == 90
    wrong = dataset_options({**DIGITS, "expect": {"train": 90}, "subsample": {"per_class": 9}})
    with pytest.raises(DataError, match="1438 rows, 90 expected"):
        dataset_preparation.prepare_dataset(wrong, tmp_path / "wrong")


def several_labels(directory: Path) -> Path:
    """Writes a dataset in which rows may have both labels."""
    images = [png(value) for value in range(4)]
    batches = [
        (
            name,
            table_writer.make_batch(
                ids=[f"{name}{at}" for at in range(2)],
                labels=[[1, 0], [1, 1]],
                images=images[2 * part : 2 * part + 2],
                paths=[None, None],
            ),
        )
        for part, name in enumerate(table.SPLITS)
    ]
    table_writer.write_dataset(
        directory,
        iter(batches),
        options=dataset_options(DIGITS),
        class_names=list(CLASSES),
        multi_label=True,
        rows=4,
        revision="v1",
    )
    return directory


def test_rows_of_several_labels_have_no_class_to_keep(tmp_path: Path) -> None:
    options = dataset_options({**DIGITS, "subsample": {"fractions": {"cat": 0.5}}})
    whole = several_labels(tmp_path / "both")
    with pytest.raises(DataError, match="subsample: fractions and per_class need one label"):
        write_subsampled(whole, tmp_path / "part", options)
    options = dataset_options({**DIGITS, "subsample": {"fraction": 0.99}})
    write_subsampled(whole, tmp_path / "part", options)
    assert read_info(tmp_path / "part/dataset.json").multi_label
    assert read_json(tmp_path / "part/dataset.json")["revision"] == "v1"


def test_a_part_draws_patients(tmp_path: Path) -> None:
    names = {split: [f"{split}{at // 2}" for at in range(40)] for split in table.SPLITS}
    images = {split: [f"{split} {at}" for at in range(40)] for split in table.SPLITS}
    write_tables(tmp_path / "whole", images, units=names)
    options = dataset_options({**DIGITS, "subsample": {"fraction": 0.5, "seed": 1}})
    write_subsampled(tmp_path / "whole", tmp_path / "part", options)
    part = SplitTable(tmp_path / "part/train.parquet")
    kept = [at for at in range(40) if place(names["train"][at], 1) < Fraction(1, 2)]
    assert part.read_ids() == [f"train-{at}" for at in kept]
    assert part.read_units() == [names["train"][at] for at in kept]


def test_copies_of_pixels_are_counted_in_a_part_too(tmp_path: Path) -> None:
    files = {f"{name}/{number}": 40 * number for name in CLASSES for number in range(6)}
    for at, (file, value) in enumerate(files.items()):
        for split in ("train", "test"):
            path = tmp_path / "images" / split / f"{file}.{'bmp' if at == 2 else 'png'}"
            path.parent.mkdir(parents=True, exist_ok=True)
            colour = (value, 7 * (split == "test"), at // 6)
            # cat/2 and cat/3 have the same pixels in different file formats
            Image.new("RGB", (4, 4), (80, *colour[1:]) if at == 3 else colour).save(path)
    values = {"source": "imagefolder", "path": str(tmp_path / "images")}
    dataset_preparation.prepare_dataset(dataset_options(values), tmp_path / "whole")
    whole = read_info(tmp_path / "whole/dataset.json")
    assert whole.train_copies == {"image": {"rows": 1, "most": 2, "by": "bytes and pixels"}}
    part = dataset_options(values | {"subsample": {"fractions": {"dog": 0.5}}})
    write_subsampled(tmp_path / "whole", tmp_path / "part", part)
    info = read_info(tmp_path / "part/dataset.json")
    assert info.train_rows < whole.train_rows
    assert info.train_copies == whole.train_copies
    problems = (tmp_path / "part/problems.csv").read_text().splitlines()
    assert sum("the same pixels as" in line for line in problems if line[:6] == "train,") == 1


def test_faults_name_the_class_and_a_smaller_number() -> None:
    rows = {str(number): number for number in range(12)}
    assert Subsample(per_class=3).list_faults(rows) == [
        "3 of class 0, but there are 0; add images of this class",
        "3 of class 1, but there are 1; use 1 or fewer",
        "3 of class 2, but there are 2; use 2 or fewer",
    ]
    assert Subsample(fraction=0.1).list_faults(rows) == []
    assert Subsample(fractions={"0": 0.5}).list_faults(rows) == []
    (fault,) = Subsample(fractions={"0": 0.5, "x": 1.0}).list_faults(rows)
    assert fault == (
        "'x' is not a class of the dataset; choose from 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ..."
    )
    assert "..." not in Subsample(fractions={"x": 1.0}).list_faults({"a": 1, "b": 2})[0]


def test_parts_that_cannot_be_chosen() -> None:
    labels, names = [0, 0, 1, 1, 1], [f"u{number}" for number in range(5)]
    for part, message in (
        (Subsample(per_class=3), "subsample: 3 of class a, but there are 2; use 2 or fewer"),
        (Subsample(fractions={"b": 1e-9}), "fraction 1e-09 selects none of the 3 rows of class b"),
        (Subsample(fractions={"c": 0.5}), "subsample: 'c' is not a class"),
    ):
        with pytest.raises(DataError, match=message):
            part.choose_rows(labels, names, ["a", "b"])
    # patients are counted, and each is chosen with all images of the class
    kept = Subsample(per_class=1).choose_rows(labels, ["p", "p", "p", "q", "q"], ["a", "b"])
    assert kept in ([True, True, True, False, False], [True, True, False, True, True])
    assert Subsample(fractions={"b": 1.0}).choose_rows(labels, names, ["a", "b"]) == [True] * 5
