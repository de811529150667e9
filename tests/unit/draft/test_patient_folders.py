"""Class folders with one folder per patient become a study with patients as units."""

from __future__ import annotations

from itertools import chain, count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.draft.conftest import Desk, slowly

numbered = count()
CLASSES = ["benign", "Naevus 2", "yes", "1", "é"]
images = st.lists(st.integers(1, 4), min_size=6, max_size=12)


def write(desk: Desk, place: str, patients: dict[str, list[int]]) -> None:
    """Writes the images of the patients of each class; patients of all classes are numbered."""
    number = 0
    for name, counts in patients.items():
        for several in counts:
            desk.images(f"{place}/{name}/P {number:03}", count=several)
            number += 1


@slowly
@given(patients=st.dictionaries(st.sampled_from(CLASSES), images, min_size=2))
def test_folders_in_class_folders_are_taken_for_patients(
    desk: Desk, patients: dict[str, list[int]]
) -> None:
    write(desk, place := f"images/x{next(numbered)}", patients)
    drafted = desk.draft(place)
    total = sum(map(len, patients.values()))
    every = sum(map(sum, patients.values()))
    assert drafted.said.startswith(
        f"{place}: {every} images of {total} patients, {len(patients)} classes\n"
    )
    assert "(unit of privacy: patient)" in drafted.said
    assert sum(drafted.dataset.count_rows()) == every
    assert {name: seen for name, (seen, *_) in drafted.counted.items()} == {
        name: sum(counts) for name, counts in patients.items()
    }
    index = drafted.dataset.read_index()
    units = [who for split in index.units.values() for who in split]
    assert len({*units}) == total
    assert {who: units.count(who) for who in units} == {
        f"P {number:03}": several for number, several in enumerate(chain(*patients.values()))
    }
    assert "takes these folders for patients" in drafted.notes()[0]
    assert (drafted.keys["test_fraction"], drafted.keys["split_by"]) == (0.2, "id")


def test_a_patient_in_two_classes_is_one_patient(desk: Desk) -> None:
    for number in range(10):
        desk.images(f"images/x/a/p{number}", f"images/x/b/p{number + 4}", count=2)
    drafted = desk.draft("images/x")
    assert drafted.said.startswith("images/x: 40 images of 14 patients, 2 classes\n")


def test_patients_of_an_own_split_stay_in_their_part(desk: Desk) -> None:
    for name in ("a", "b"):
        for number in range(9):
            desk.images(f"images/x/Training/{name}/{name}{number}", count=3)
            desk.images(f"images/x/val/{name}/{name}{number + 20}", count=1)
    drafted = desk.draft("images/x")
    assert drafted.dataset.count_rows() == (54, 18)
    assert drafted.dataset.count_units() == 18
    assert not {"test_fraction", "split_by"} & {*drafted.keys}
    assert {*drafted.dataset.read_index().units["test"]} == {
        f"{name}{number}" for name in "ab" for number in range(20, 29)
    }


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"a/site1": 20, "a/site2": 20, "b/site1": 20}, 0),  # few folders
        ({**{f"a/{n}": 1 for n in range(20)}, "b/all": 20}, 0),  # one is a half
        ({**{f"a/{n}": 3 for n in range(12)}, "b": 9}, 0),  # images of b are in no folder
        ({f"{'ab'[n % 2]}/{n}": 3 for n in range(10)}, 1),
        ({f"{'ab'[n % 2]}/{n}": 3 for n in range(9)}, 0),
        ({f"{kind}/{kind}{n}/study": 2 for n in range(6) for kind in "ab"}, 1),
    ],
)
def test_other_folders_in_class_folders_are_not_patients(
    desk: Desk, files: dict[str, int], named: int
) -> None:
    for path, several in files.items():
        desk.images(f"images/x/{path}", count=several)
    drafted = desk.draft("images/x")
    assert drafted.keys["source"] == ("csv" if named else "imagefolder")
    assert ("the folder names no patients" in " ".join(drafted.notes())) == (not named)


def test_masks_of_patients_are_left_out(desk: Desk) -> None:
    for name in ("a", "b"):
        for number in range(9):
            desk.file(f"images/x/{name}/{name}{number}/view.png")
            desk.file(f"images/x/{name}/{name}{number}/view_mask.png")
    drafted = desk.draft("images/x")
    assert drafted.keys["companions"] == ["mask"]
    assert sum(drafted.dataset.count_rows()) == 18


def test_a_draft_that_does_not_protect_patients_says_so(desk: Desk) -> None:
    """Only a folder as a whole is a manifest, so the folder of masks must move."""
    for name in ("a", "b"):
        for number in range(9):
            desk.file(f"images/x/{name}/{name}{number}/{name}{number}.jpg")
            desk.file(f"images/x/masks/{name}{number}.jpg")
    drafted = desk.draft("images/x")
    assert drafted.keys["exclude"] == ["masks"]
    (told,) = (note for note in drafted.notes() if "if folders such as a/a0/ are patients" in note)
    assert "move the left out folders elsewhere" in told


def test_numbered_classes_may_be_patients(desk: Desk) -> None:
    for number in range(12):
        desk.images(f"images/x/P{number:03}", f"images/y/{number}", count=12)
    (told,) = (note for note in desk.draft("images/x").notes() if "numbered" in note)
    assert told.startswith("the classes are numbered, such as P000: if each folder is a patient")
    assert not [note for note in desk.draft("images/y").notes() if "numbered" in note]
