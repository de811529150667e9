"""Finds companions of images by name, and images that the words of a study leave out."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.data.people.companion_names import (
    find_based,
    find_companions,
    find_left_out,
    find_mask_folders,
    find_named_folders,
    kind_of,
)

BASES = [f"scan ({number})" for number in range(1, 6)]
ENDS = {
    "mask": ["_mask", "_mask_1", "-Masks", "_2_mask", ".png.mask"],
    "gt": ["_gt"],
    "segmentation": ["_segmentation"],
    "label": ["_labels"],
    "annotated": ["_annotated"],
    "overlay": ["_lesion_overlay"],
    "thumb": ["_thumb"],
    "#x#": ["-150x150"],
    "flip": ["_flip", "_L_flip"],
    "rot": ["_rot90"],
    "aug": ["_aug_1", "_aug_3f2_9"],
    "transformed": ["_transformed_0_"],
    "copy": [" - Copy", " (copy)"],
    "(#)": [" (1)"],
}
PARTS = {part: word for word, parts in ENDS.items() for part in parts}
COPIES = {"flip", "rot", "aug", "transformed", "copy", "(#)"}


def words(names: list[str], outer: int = 0) -> dict[str, int]:
    return {each.word: len(each.pairs) for each in find_companions(names, outer=outer)}


@pytest.mark.parametrize(("part", "word"), PARTS.items())
def test_another_name_with_a_known_word_is_a_companion(part: str, word: str) -> None:
    names = [f"a/{base}.png" for base in BASES] + [f"a/{base}{part}.PNG" for base in BASES]
    (found,) = find_companions(names, outer=1)
    assert (found.word, found.kind) == (word, "copy" if word in COPIES else "mask")
    assert [*found.pairs] == [(number + 5, number) for number in range(5)]
    assert find_left_out(names, [word], outer=1)[5:] == [True] * 5


@pytest.mark.parametrize(
    "names",
    [
        [f"{base}_{side}" for base in BASES for side in "LR"],
        [f"{base}{side}" for base in BASES for side in ("", "_L", "_R", "_left", "-OD")],
        [f"{base}{view}" for base in BASES for view in ("", "_1", "_2", "-003", ".4")],
        [f"IM-{number:04}" for number in range(9)] + [f"IM-{n:04}-0002" for n in range(9)],
        [f"202401{day}" for day in range(10, 20)] + [f"202401{d}_120000" for d in range(10, 20)],
        ["a", "a b", "c", "c d", "e", "e f"],
        [f"x{number}" for number in range(9)] + [f"visit_x{number}" for number in range(9)],
        [f"x{number}" for number in range(9)] + [f"x{n}mask" for n in range(9)],
        [f"{number}_mask" for number in range(9)],
        ["x", "y", "x_mask", "y_mask"],
    ],
    ids=["eyes", "sides", "count", "series", "times", "chance", "before", "joined", "alone", "few"],
)
def test_other_images_of_a_person_are_not_taken_for_companions(names: list[str]) -> None:
    assert words([f"{name}.dcm" for name in names]) == {}


@pytest.mark.parametrize(
    ("pairs", "outer"),
    [
        ([("{}.jpg", "annotated/{}_annotated.jpg")], 0),
        ([("c/{}.jpg", "c/annotated/{}_annotated.jpg")], 1),
        ([("images/{}.jpg", "masks/{}.png")], 0),
        ([("images/{}.jpg", "Masks_2/{}.png")], 0),
        ([("images/{}.jpg", "mask01/{}.png")], 0),
        ([("images/1/{}.jpg", "Segmentation/1/{}.png")], 0),
        ([("c/{}.jpg", "c/masks/{}.png"), ("d/{}.jpg", "d/masks/{}.png")], 1),
        ([("{}/image.jpg", "{}/mask.png")], 0),
        ([("{}.jpg", "mask_{}.jpg")], 0),
        ([("{}.jpg", "Copy of {}.jpg")], 0),
        ([("{}.jpg", "mask1_{}.jpg")], 0),
        ([("_{}.jpg", "_{}_mask.jpg")], 0),
    ],
)
def test_companions_in_other_folders_and_before_the_name(
    pairs: list[tuple[str, str]], outer: int
) -> None:
    numbers = range(10, 15)
    names = [each.format(n) for pair in pairs for n in numbers for each in pair]
    (found,) = find_companions(names, outer=outer)
    assert [*found.pairs] == [(at + 1, at) for at in range(0, len(names), 2)]
    expected = [bool(at % 2) for at in range(len(names))]
    assert find_left_out(names, [found.word], outer=outer) == expected
    assert find_based(names, outer=outer) == expected


def test_a_copy_is_paired_with_the_picture_in_the_nearest_folder() -> None:
    """Patients have pictures of equal names; each copy is of the patient in whose folder it is."""
    people = ["p1", "p2", "p3"]
    names = [f"{who}/raw/{n}.png" for who in people for n in range(4)]
    names += [f"{who}/more/{n} - Copy.png" for who in people for n in range(4)]
    (found,) = find_companions(names)
    assert [*found.pairs] == [(at + 12, at) for at in range(12)]


def test_companions_are_found_if_only_some_names_have_an_outer_folder() -> None:
    """Some datasets mix folders named by class with other folders."""
    plain = [each.format(n) for n in range(5) for each in ("images/{}.jpg", "masks/{}.png")]
    names = [*plain, *(f"c/{name}" for name in plain)]
    found = find_companions(names, outer=[0] * 10 + [1] * 10)
    assert sorted(pair for each in found for pair in each.pairs) == [
        (at + 1, at) for at in range(0, 20, 2)
    ]


def test_classes_named_mask_are_not_treated_as_companion_folders() -> None:
    classes = {name: [f"{name}/{n}.png" for n in range(9)] for name in ("mask", "no_mask")}
    assert words([*chain(*classes.values())]) == {}
    assert words([*chain(*reversed(classes.values()))]) == {}
    assert find_mask_folders(classes) == {}
    assert not any(find_left_out(classes["mask"], ["mask"], outer=1))
    classes = {name: [f"{name}/{n}.png" for n in range(9)] for name in ("benign", "masks")}
    assert find_mask_folders(classes) == {"masks": ("masks/0.png", "benign/0.png")}


def test_an_unknown_companion_word_must_occur_in_a_tenth_of_all_names() -> None:
    names = [f"x{number}.png" for number in range(27)]
    few = [*names, *(f"x{number}_nbi.png" for number in range(3))]
    assert words(few) == {"nbi": 3}
    assert words([*few, "y.png"]) == {}
    assert kind_of("nbi") == "other"


TEXT = st.text(st.sampled_from("ab1 _-.()LxM\u00e9"), min_size=1, max_size=6)


@given(st.lists(TEXT, min_size=3, max_size=20, unique=True), TEXT, st.sampled_from("_- ."))
def test_every_companion_is_left_out_by_its_word(
    bases: list[str], part: str, separator: str
) -> None:
    names = [f"{base}.png" for base in bases]
    names += [f"{base}{separator}{part}.png" for base in bases]
    for each in find_companions(names):
        assert each.pairs
        left_out = find_left_out(names, [each.word])
        for companion, base in each.pairs:
            assert companion != base
            assert left_out[companion], (each.word, names[companion])


@given(
    st.lists(TEXT, min_size=1, max_size=12, unique=True),
    st.lists(st.sampled_from(["mask", "flip", "a b", "#x#", "(#)"]), min_size=1),
    st.data(),
)
def test_leaving_out_a_name_does_not_depend_on_other_names(
    names: list[str], chosen: list[str], data: st.DataObject
) -> None:
    """Privacy needs this: no image may move another image into or out of the training rows."""
    files = [f"{name}{data.draw(st.sampled_from(['', '_mask', '_flip1']))}.png" for name in names]
    alone = [find_left_out([file], chosen)[0] for file in files]
    assert find_left_out(files, chosen) == alone


def test_numbers_after_a_dot_are_not_treated_as_a_file_extension() -> None:
    """Many DICOM files have a UID as their whole name."""
    names = [f"1.2.840.{number}" for number in range(5)]
    assert words([*names, *(f"{name}_mask" for name in names)]) == {"mask": 5}


def test_a_name_with_a_zero_character_is_a_name() -> None:
    names = [f"a{number}{end}" for number in range(3) for end in ("", "\0", "_mask", "\0_mask")]
    assert words(names) == {"mask": 6}


def test_images_in_folders_of_masks_are_named() -> None:
    pictures = [f"images/IMG_{number}.png" for number in range(5)]
    masks = [f"masks/{number:04}.png" for number in range(3)]
    assert find_named_folders([*pictures, *masks]) == {"mask": [5, 6, 7]}
    assert find_named_folders([*pictures, *masks[:2]]) == {}
    assert find_named_folders(masks) == {}
    assert find_named_folders([*pictures, *masks], outer=1) == {}
    for site in ("site", "masks_2020"):
        within = [f"{site}/{name}" for name in [*pictures, *masks]]
        assert find_named_folders(within, outer=1) == {"mask": [5, 6, 7]}
    for others in ("no_mask", "No_Mask"):
        beside = [f"{others}/{number}.png" for number in range(5)]
        assert find_named_folders([*masks, *beside]) == {}
