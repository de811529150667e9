"""Layouts of image folders: some are read as splits and classes, others are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpprobe.data.file_states import hash_file_states
from dpprobe.data.registry import dataset_options
from dpprobe.data.sources import imagefolder
from dpprobe.errors import ConfigError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def touch(*names: str, root: str = "x") -> None:
    """Makes empty files; names without an extension get .png."""
    for name in names:
        path = Path(root) / (name if "." in name.rpartition("/")[2] else f"{name}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def of(*names: str, **changed: Any) -> Any:
    Path("x").mkdir(exist_ok=True)
    touch(*names)
    return dataset_options({"source": "imagefolder", "path": "x"} | changed)


def listed(options: Any) -> dict[str, list[str]]:
    """Returns the files of each split without `.png`."""
    files = imagefolder.list_images(options).files
    return {
        split: [file.removesuffix(".png") for part in classes.values() for file in part]
        for split, classes in files.items()
    }


@pytest.mark.parametrize(
    ("names", "classes", "train", "test"),
    [
        ("a/1 b/1 b/2", "a b", "", None),
        ("b/in/side/2 a/1 b/1", "a b", "", None),
        ("train/a/1 train/b/1 test/b/2", "a b", "train", "test"),
        ("Train/a/1 Train/b/1 Test/a/1", "a b", "Train", "Test"),
        ("Training/a/1 Training/b/1 val/a/1", "a b", "Training", "val"),
        ("train/a/1 train/b/1 val/a/1 test/a/2", "a b", "train", "test"),
        ("train/train/1 train/bus/1 test/train/1 test/bus/1", "bus train", "train", "test"),
        ("train/train/1 train/van/1 test/train/1 test/van/1", "train van", "train", "test"),
        ("train/train/a/1 train/train/b/1 test/a/1", "a b", "train/train", "test"),
        ("valid/1 invalid/1", "invalid valid", "", None),
        ("train_station/1 train_interior/1", "train_interior train_station", "", None),
        ("a/1 b/1 .x/1 b/.hidden.png", "a b", "", None),
    ],
)
def test_layouts_that_are_read(names: str, classes: str, train: str, test: str | None) -> None:
    """`train` and `test` are the folders of the splits; all their images must be listed."""
    options = of(*names.split())
    options.check_files()
    assert imagefolder.list_images(options).class_names == tuple(classes.split())
    shown = sorted(name for name in names.split() if "." not in name)
    parts = {"train": train} | ({} if test is None else {"test": test})
    wanted = {split: [name for name in shown if name.startswith(at)] for split, at in parts.items()}
    assert listed(options) == wanted
    assert options.has_test() == (test is not None)
    assert not any("repeats" in line for line in options.list_warnings())
    assert options.count_classes() == len(classes.split())
    if test is not None:
        assert options.count_rows() == (len(wanted["train"]), len(wanted["test"]))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("", r"path: x has fewer than two class folders \(none\); add the other class folders$"),
        ("a/1", r"fewer than two class folders \(a\); .*write `path: x/a` if it contains"),
        ("train/a/1 test/a/1", r"x/train has fewer than two .*move the folders in a/ up, in both"),
        ("train/a/1 train/b/1", r"x has train/ but no test/; add test/, or put the class folders"),
        ("Testing/a/1", r"x has Testing/ but no train/; add train/, or"),
        ("train/train/a/1 train/test/a/1", r"write `path: x/train`"),
        (
            "bus/1 car/1 train/1",
            r"train/ has the name of a part, but is next to bus/.*train_class;"
            r".*put the classes into train/ and test/, or write `exclude: \[\"train\"\]`",
        ),
        ("train/a/1 val/a/1 dev/a/1", r"'dev' and 'train' and 'val' have names of parts; keep one"),
        ("train/a/1 Train/b/1 test/a/1", r"'Train' and 'test' and 'train' have names of parts"),
        (
            "train/1 test/1",
            r"2 files are not images in .*: test/1.png \(next to the class folders\), train/1",
        ),
        (
            "train/a/1 train/b/1 test/a/1 test/d/1 test/c/1",
            r"classes in test/ but not in train/: c, d; add training images of these classes",
        ),
        ("a/1 b/notes.txt", r"1 file is not an image in a class folder: b/notes.txt; move"),
        ("a/1 b/1 c.png", r"1 file is not an image .*: c.png \(next to the class folders\)"),
        ("A/1 a/1 B/1 b/1", r"'A' and 'a' are spellings of one name(.|\n)*'B' and 'b'"),
        ("train/a/1 train/b/1 test/A/1 test/b/1", r"'A' and 'a' are spellings of one name"),
        (
            "A/m/1 A/n/1 B/m/1 B/n/1",
            r"all folders in x \('A' and 'B'\) contain the folders 'm' "
            r"and 'n', so the inner folders seem to be the classes",
        ),
        ("cats/Train/1 cats/Test/1 dogs/Train/1 dogs/Test/1", r"path: (.|\n)*'cats'|parts|Train"),
        ("a/1 b/.keep", r"x/b contains no image; add .*, or write `exclude: \[\"b\"\]`"),
        (
            "train/dev/1 test/dev/1",
            r"x/train/dev has the name of a part inside train; move(.|\n)*x/test/dev has",
        ),
        (
            "train/b/1 train/a/dev/1 test/a/1 test/b/1",
            r"x/train/a contains 'dev'; put the class folders",
        ),
        ("A/m/1 A/n/1 B/m/1 B/n/1 C/n/1", r"'A' and 'B' and 'C'.* contain the folders 'm' and 'n'"),
    ],
)
def test_layouts_that_are_refused(names: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        of(*names.split()).check_files()


def test_a_folder_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="path: no folder none; correct the path"):
        of(path="none").check_files()


def test_excluded_classes_are_left_out_of_everything() -> None:
    names = ["train/a/1", "train/b/in/1", "train/c/1", "test/a/1", "test/b/1"]
    options = of(*names, exclude=["b"])
    assert listed(options) == {"train": ["train/a/1", "train/c/1"], "test": ["test/a/1"]}
    assert not any("/b" in each for each in options.input_files())
    assert options.count_class_units().train == {"a": 1, "c": 1}
    assert options.count_class_units().test == {"a": 1, "c": 0}
    with pytest.raises(ConfigError, match="exclude: x has no class folder d; remove d from"):
        of(exclude=["d"]).check_files()
    with pytest.raises(ConfigError, match="fewer than two class folders"):
        of(exclude=["a", "b"]).check_files()
    # an excluded class folder is not mixed with a part; an excluded part no longer counts as one
    touch("bus/1", "train/a/1", root="z")
    with pytest.raises(ConfigError, match="z has train/ but no test/"):
        of(path="z", exclude=["bus"]).check_files()
    touch("bus/1", "car/1", "train/1", root="y")
    assert imagefolder.list_images(of(path="y", exclude=["train"])).class_names == ("bus", "car")


names = st.sampled_from(["a", "b", "c", "d"])


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_files_are_the_pictures_of_the_folders(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """The ids are the paths that the shell lists; each is in exactly one split."""
    root = tmp_path_factory.mktemp("images")
    files = data.draw(st.sets(st.tuples(names, st.integers(0, 9)), min_size=2, max_size=30))
    if len({name for name, _ in files}) < 2:
        return
    touch(*(f"{name}/{number}" for name, number in files), root=str(root))
    options: Any = dataset_options({"source": "imagefolder", "path": str(root)})
    found = imagefolder.list_images(options)
    wanted = sorted(path.relative_to(root).as_posix() for path in root.glob("*/*.png"))
    assert sorted(file for part in found.files["train"].values() for file in part) == wanted
    assert sum(options.count_rows()) == len(wanted)
    rows = imagefolder.split_rows(options, found)
    assert sorted(file for part in rows.values() for file, _ in part) == wanted
    for part in rows.values():
        assert all(file.split("/")[0] == found.class_names[label] for file, label in part)


def test_every_folder_decides_the_tables(folder: Path) -> None:
    options = of("a/1", "b/deep/er/2")
    assert options.input_files() == ("x", "x/a", "x/b", "x/b/deep", "x/b/deep/er")
    assert options.image_folders() == ("x",)
    assert [name for name, _ in sorted(options.list_source_files())] == [
        "a/1.png",
        "b/deep/er/2.png",
    ]
    before = hash_file_states(options.list_source_files())
    touch("b/deep/3")
    assert hash_file_states(options.list_source_files()) != before
    assert options.image_params()["path"] == str(folder / "x")
