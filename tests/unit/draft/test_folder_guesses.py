"""A drafted study has its folder's files, classes and split."""

from __future__ import annotations

from collections import Counter
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.draft.conftest import Desk, slowly

numbered = count()
CLASSES = ["benign", "Naevus 2", "yes", "1", "é", "# x", "b: c", "c7", "c8", "c9", "null", "~", "z"]
classes = st.dictionaries(st.sampled_from(CLASSES[1:]), st.integers(1, 32), min_size=1, max_size=9)
few = st.dictionaries(st.sampled_from(CLASSES), st.integers(1, 12), min_size=2, max_size=4)


def folder(desk: Desk, counts: dict[str, int]) -> str:
    place = f"images/x{next(numbered)}"
    for path, number in counts.items():
        desk.images(f"{place}/{path}", count=number)
    return place


@slowly
@given(counts=classes)
def test_the_study_has_the_folder_s_files_and_classes(desk: Desk, counts: dict[str, int]) -> None:
    """Hidden files and other files are ignored; the test split is drawn by name."""
    counts = counts | {"benign": 32}
    place = folder(desk, counts | {".thumbs/x": 5})
    drafted = desk.draft(place)
    assert drafted.said.startswith(
        f"{place}: {sum(counts.values())} images, {len(counts)} classes\n"
    )
    assert drafted.dataset.count_classes() == len(counts)
    assert sum(drafted.dataset.count_rows()) == sum(counts.values())
    assert f"training:    {drafted.dataset.count_rows()[0]} images" in drafted.said
    order = sorted(counts, key=lambda name: (-counts[name], name))
    printed = [(name, images) for name, (images, *_) in drafted.counted.items()]
    assert printed == [(name, counts[name]) for name in order]
    assert all(images == train + test for images, train, test in drafted.counted.values())
    least = [line.split("  ")[1] for line in drafted.said.splitlines() if "(the smallest)" in line]
    assert least == ([order[-1]] if counts[order[-1]] < counts[order[0]] else [])
    unequal = max(counts.values()) > 2 * min(counts.values())
    assert drafted.keys.get("metric") == ("macro_accuracy" if unequal else None)
    assert (drafted.keys["test_fraction"], drafted.keys["split_by"]) == (0.2, "id")
    share = 100 * max(counts.values()) / sum(counts.values())
    assert (f"an accuracy of {share:.1f}%\n" in drafted.said) == unequal
    assert drafted.notes()[0].startswith("the folder names no patients")


@slowly
@given(
    parts=st.lists(few, min_size=2, max_size=2),
    names=st.sampled_from(["train test", "Training Test", "train_set val", "seg_train seg_test"]),
)
def test_folders_of_a_split_are_the_split(
    desk: Desk, parts: list[dict[str, int]], names: str
) -> None:
    """Counts cover both folders, and no new split is drawn. The first folder needs all classes."""
    train, test = parts[0] | dict.fromkeys(parts[1], 7), parts[1]
    first, second = names.split()
    place = folder(
        desk,
        {f"{first}/{name}": number for name, number in train.items()}
        | {f"{second}/{name}": number for name, number in test.items()},
    )
    drafted = desk.draft(place)
    assert drafted.dataset.count_rows() == (sum(train.values()), sum(test.values()))
    assert not {"test_fraction", "split_by"} & {*drafted.keys}
    together = Counter(train) + Counter(test)
    for name, printed in drafted.counted.items():
        assert printed == (together[name], train[name], test.get(name, 0)), name
    assert f"in {first}/<class>/ and {second}/<class>/." in " ".join(
        drafted.text.replace("#", "").split()
    )


REFUSED = {
    # files; words in the error, after the folder
    "": ["no image (.bmp, ", "name a folder that has one folder per class"],
    "a/notes.txt b/notes.txt": ["no image (.bmp, ", "one folder per class"],
    "0.jpg 1.jpg": ["2 images but no class folder", "put each image into a folder", "a CSV"],
    "0.jpg a/1.jpg b/2.jpg": ["1 image next to the class folders, such as 0.jpg", "move each"],
    "0.jpg a/1.jpg": ["1 image next to the class folders"],
    "in/a/1.jpg in/b/1.jpg": ["only one folder, in, which contains 2 folders", "init {x}/in`"],
    "a/1.jpg b/1.jpg list.csv": ["it contains list.csv", "init {x}/list.csv`", "move it elsewhere"],
    "a/1.jpg list.TSV.gz": ["it contains list.TSV.gz"],
    "a/1.jpg rows.parquet": ["it contains rows.parquet"],
    "train/a/1.jpg train/b/1.jpg": ["has train/ but no test/", "add test/"],
    "train/0.tar": ["no image, but train/0.tar", "`source: webdataset`", "unpack"],
    "deep/train/0.TAR": ["no image, but deep/train/0.TAR", "`source: webdataset`"],
    "a/1.jpg a/2.jpg": ["fewer than two class folders (a)", "add the other class folders"],
    "in/a/1.jpg": ["fewer than two class folders (in)", "`path: {x}/in`"],
    "a/0.jpg b/caf\udce9.jpg": ["{x}/b: the name b'caf\\xe9.jpg' is not UTF-8", "rename it"],
    "train/0.jpg test/0.jpg": ["2 files are not images in a class folder", "move images"],
}


@pytest.mark.parametrize("files", REFUSED, ids=ascii)
def test_a_folder_that_no_study_can_read_is_refused(desk: Desk, files: str) -> None:
    (desk.folder / "images/x").mkdir(parents=True)
    for file in files.split():
        desk.file(f"images/x/{file}")
    said = desk.refuse("images/x")
    assert said.startswith("images/x")
    facts = [fact.format(x="images/x") for fact in REFUSED[files]]
    assert [fact for fact in facts if fact not in said] == [], said
