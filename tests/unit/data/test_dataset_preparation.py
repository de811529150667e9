"""The sources: options are checked cheaply, tables hold what the source holds."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpprobe.data import dataset_preparation
from dpprobe.data.option_paths import match_files
from dpprobe.data.options import DatasetOptions
from dpprobe.data.registry import dataset_options
from dpprobe.data.table import SplitTable, decode_image, read_info
from dpprobe.errors import ConfigError, DataError
from tests.support.shards import png


def prepare(directory: Path, **values: Any) -> tuple[SplitTable, SplitTable]:
    """Prepares a dataset and holds it against what was counted beforehand."""
    options = dataset_options(values)
    options.check_files()
    dataset_preparation.prepare_dataset(options, directory)
    info = read_info(directory / "dataset.json")
    assert (info.train_rows, info.test_rows) == options.count_rows()
    assert info.multi_label == options.multi_label()
    return SplitTable(directory / "train.parquet"), SplitTable(directory / "test.parquet")


def options_of(**values: Any) -> DatasetOptions:
    return dataset_options(values)


# scikit-learn


def test_digits_are_scikit_learns(tmp_path: Path) -> None:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    train, test = prepare(tmp_path, source="sklearn", name="digits")
    assert (train.rows, test.rows) == (1438, 359)
    assert train.class_names == tuple("0123456789")
    seen = set()
    for part in (train, test):
        for image, label in zip(part.read_images(0, part.rows), part.read_labels(), strict=True):
            row = int(image.id.removeprefix("digits-"))
            pixels = np.asarray(decode_image(image, split=part.split))
            assert pixels.dtype == np.uint8
            np.testing.assert_array_equal(pixels, np.rint(images[row].reshape(8, 8) * 255 / 16))
            assert label == labels[row]
            seen.add(row)
    assert len(seen) == 1797


# parquet

HUGGING_FACE = {
    "huggingface": json.dumps(
        {"info": {"features": {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}}
    )
}


@pytest.fixture
def write_parquet(tmp_path: Path) -> Callable[..., str]:
    def write(
        name: str,
        labels: Sequence[Any],
        *,
        metadata: Any = HUGGING_FACE,
        first: int = 0,
        **columns: Any,
    ) -> str:
        numbers = range(first, first + len(labels))
        images = [{"bytes": png(number), "path": f"{number}.png"} for number in numbers]
        table = pa.table({"image": images, "label": labels} | columns)
        path = tmp_path / name
        pq.write_table(table.replace_schema_metadata(metadata), path, row_group_size=5)
        return str(path)

    return write


WriteParquet = Callable[..., str]


def test_a_parquet_file_is_named_once(write_parquet: WriteParquet) -> None:
    """Rows are numbered by their places, so that nobody else would see that they stand twice."""
    path = write_parquet("train-0.parquet", [0, 1] * 3)
    pattern = str(Path(path).with_name("train-*.parquet"))
    for train in ([path, path], [pattern, path]):
        options = dataset_options({"source": "parquet", "train": train})
        with pytest.raises(ConfigError, match=r"train: .*train-0.parquet is named twice; remove"):
            options.check_files()


def test_parquet_limit_takes_the_first_rows(tmp_path: Path, write_parquet: WriteParquet) -> None:
    files = [write_parquet("a.parquet", [0, 1] * 4), write_parquet("b.parquet", [1] * 6, first=20)]
    options: dict[str, Any] = {"source": "parquet", "train": files, "split_by": "id"}
    train, test = prepare(
        tmp_path / "out", **options, test=write_parquet("c.parquet", [1, 0, 0], first=100),
        limit={"train": 11, "test": 2},
    )  # fmt: skip
    assert train.read_labels().tolist() == [0, 1] * 4 + [1] * 3
    assert test.rows == 2
    options |= {"limit": {"train": 11}, "test_fraction": 0.4}
    parts = prepare(tmp_path / "split", **options)
    ids = [f"row-{row:08d}" for row in range(11)]
    assert sorted(name for part in parts for name in part.read_ids()) == ids
    assert options_of(**options).count_rows() == tuple(part.rows for part in parts)


def test_our_own_tables_are_an_input(tmp_path: Path, write_parquet: WriteParquet) -> None:
    source = {
        "train": write_parquet("a.parquet", [0, 1] * 4),
        "test": write_parquet("b", [1, 0], first=100),
    }
    first = prepare(tmp_path / "one", source="parquet", **source)
    second = prepare(
        tmp_path / "two",
        source="parquet",
        train=str(first[0].path),
        test=str(first[1].path),
        id_column="id",
    )
    assert second[0].fingerprint == first[0].fingerprint


@pytest.mark.parametrize("labels", [[0, 2, 1], [[0, 1], [1, 0], [1, 1]]])
def test_classes_are_never_read_off_the_labels(
    tmp_path: Path, write_parquet: WriteParquet, labels: list[Any]
) -> None:
    options = options_of(
        source="parquet", train=write_parquet("a.parquet", labels * 3, metadata=None)
    )
    for call in (
        options.check_files,
        lambda: dataset_preparation.prepare_dataset(options, tmp_path / "out"),
    ):
        with pytest.raises(ConfigError, match=r"class_names: .*a.parquet .*write class_names") as e:
            call()
        assert "\n" not in str(e.value)


IN_LISTS = {"feature": {"_type": "ClassLabel", "names": ["a", "b"]}, "_type": "Sequence"}


@pytest.mark.parametrize(
    ("key", "changed"),
    [
        ("train: .*no/such.parquet", {"train": "no/such.parquet"}),
        ("a.parquet: no column 'fine'; .*image, label, sex", {"label_column": "fine"}),
        ("a.parquet: column 'label' is int64", {"image_column": "label"}),
        ("a.parquet: labels are string", {"label_column": "sex"}),
        ("a.parquet: no column 'who'", {"id_column": "who"}),
        ("a.parquet: no column 'who'", {"unit_column": "who"}),
        ("a.parquet: no column 'age'", {"group_columns": ["age"]}),
        ("limit.test", {"limit": {"test": 3}}),
        ("class_names: .*cat, dog", {"class_names": ["x", "y"]}),
        ("other.parquet: labels", {"test": "other.parquet"}),
        ("lists.parquet: labels", {"train": "lists.parquet"}),
        ("text.parquet: not a readable", {"train": "text.parquet"}),
    ],
)
def test_wrong_parquet_options(
    tmp_path: Path, write_parquet: WriteParquet, monkeypatch: pytest.MonkeyPatch, key: str,
    changed: dict[str, Any],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    write_parquet("other.parquet", [0, 1], metadata=None)
    features = {"huggingface": json.dumps({"info": {"features": {"label": IN_LISTS}}})}
    write_parquet("lists.parquet", [[0], [0, 1]], metadata=features)
    (tmp_path / "text.parquet").write_text("image,label")
    values = {"train": write_parquet("a.parquet", [0, 1], sex=["f", "m"])} | changed
    with pytest.raises(ConfigError, match=key):
        options_of(source="parquet", **values).check_files()


@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize(
    ("key", "changed"),
    [
        ("labels are double", {"label": [0.0, 1.0]}),
        ("labels are timestamp", {"label": pa.array([0, 1], pa.timestamp("s"))}),
        ("labels are dictionary", {"label": pa.array(["cat", "dog"]).dictionary_encode()}),
        ("column 'image' is struct", {"image": [{"bytes": "x", "path": None}] * 2}),
        ("column 'image' is struct", {"image": [{"bytes": 1, "path": None}] * 2}),
        ("column 'image' is struct", {"image": [{"bytes": b"x", "path": 3}] * 2}),
        ("column 'image' is struct", {"image": [{"bytes": b"x", "path": b"x"}] * 2}),
        ("column 'image' is struct", {"image": [{"bytes": [1], "path": None}] * 2}),
        ("column 'image' is binary", {"image": [b"x"] * 2}),
        ("column 'sex' is list", {"sex": [["f"], ["m"]]}),
        ("no column 'sex'", {"sex": None}),
        ("two columns are named 'label'", {"Label": [0, 1]}),
    ],
)
def test_each_parquet_file_has_the_columns(
    tmp_path: Path, key: str, changed: dict[str, Any], second: bool
) -> None:
    """Also where the first of several files has them."""
    images = pa.array([{"bytes": png(row), "path": None} for row in (1, 2)])
    good = {"image": images, "label": [0, 1], "sex": ["f", "m"]}
    for number, columns in enumerate((good, good | changed)[second ^ 1 :]):
        columns = {name: part for name, part in columns.items() if part is not None}
        table = pa.table(columns).rename_columns([name.lower() for name in columns])
        pq.write_table(table, tmp_path / f"x-{number}.parquet")
    options = options_of(
        source="parquet", train=str(tmp_path / "x-*.parquet"), class_names=["cat", "dog"],
        group_columns=["sex"],
    )  # fmt: skip
    with pytest.raises(ConfigError, match=f"x-{int(second)}.parquet: {key}"):
        options.check_files()


@pytest.mark.parametrize(
    "values", [[b"\xff"] * 2, pa.array([0, 1], pa.timestamp("s", "Nowhere/Town"))]
)
def test_groups_that_are_no_texts(tmp_path: Path, write_parquet: WriteParquet, values: Any) -> None:
    path = write_parquet("train.parquet", [0, 1], who=values)
    options = options_of(source="parquet", train=path, group_columns=["who"])
    with pytest.raises(DataError, match="group_who: cannot be read as text"):
        dataset_preparation.prepare_dataset(options, tmp_path / "out")


@pytest.mark.parametrize("option", ["id_column", "unit_column", "group_columns"])
def test_a_column_of_lists_names_nobody(write_parquet: WriteParquet, option: str) -> None:
    path = write_parquet("train.parquet", [0, 1], who=[["p1", "p2"], ["p1"]])
    written = {option: ["who"] if option == "group_columns" else "who"}
    with pytest.raises(ConfigError, match=r"column 'who' is list.*a text or a number per row"):
        dataset_options({"source": "parquet", "train": path, **written}).check_files()


def test_row_without_id_is_named(tmp_path: Path, write_parquet: WriteParquet) -> None:
    path = write_parquet("a.parquet", [0, 1], who=["x", None])
    with pytest.raises(DataError, match="train row 1: no who"):
        dataset_preparation.prepare_dataset(
            options_of(source="parquet", train=path, id_column="who"), tmp_path / "out"
        )


# image folder


def make_folder(root: Path, files: dict[str, int]) -> str:
    for name, value in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(value))
    return str(root)


def test_folder_with_both_splits(tmp_path: Path) -> None:
    files = {"train/dog/b.png": 1, "train/cat/a.PNG": 2, "train/cat/deep/c.png": 3,
             "test/dog/d.png": 4, "val/dog/e.png": 5}  # fmt: skip
    root = make_folder(tmp_path / "images", files)
    with pytest.raises(DataError, match="test: no row of class cat"):
        prepare(tmp_path / "out", source="imagefolder", path=root)
    train, test = prepare(tmp_path / "out", source="imagefolder", path=root, missing_classes="warn")
    assert json.loads((tmp_path / "out/dataset.json").read_text())["classes_without_test_rows"] == [
        "cat"
    ]
    assert train.class_names == ("cat", "dog")
    assert train.read_ids() == ["train/cat/a.PNG", "train/cat/deep/c.png", "train/dog/b.png"]
    assert train.read_labels().tolist() == [0, 0, 1]
    assert test.read_ids() == ["test/dog/d.png"]
    image = next(train.read_images(2, 3))
    assert image.data is None
    assert decode_image(image, split="train").getpixel((0, 0)) == 1


def test_folder_of_classes_is_split(tmp_path: Path) -> None:
    names = [f"{kind}/{row}.png" for kind in ("cat", "dog") for row in range(10)]
    files = {name: number for number, name in enumerate(names)}
    root = make_folder(tmp_path / "images", files)
    train, _ = prepare(
        tmp_path / "out", source="imagefolder", path=root, test_fraction=0.3, embed=True
    )
    for image in train.read_images(0, 14):
        assert image.data == png(files[image.id])
    linked = prepare(tmp_path / "linked", source="imagefolder", path=root, test_fraction=0.3)
    assert linked[0].fingerprint == train.fingerprint


def test_every_folder_that_is_searched_is_watched(tmp_path: Path) -> None:
    files = dict.fromkeys(("train/a/x/y/1.png", "train/b/1.png", "test/a/1.png", "val/a/1.png"), 0)
    root = make_folder(tmp_path / "images", files | {"train/b/.cache/1.png": 0})
    flat = make_folder(tmp_path / "flat", {"a/deep/1.png": 0, "b/1.png": 0})
    split = ["test", "test/a", "train", "train/a", "train/a/x", "train/a/x/y", "train/b"]
    for path, folders in ((root, split), (flat, [".", "a", "a/deep", "b"])):
        for excluded in ("", "a", "b"):
            options = options_of(
                source="imagefolder", path=path, exclude=[excluded] * bool(excluded)
            )
            names = [Path(each).relative_to(path).as_posix() for each in options.input_files()]
            assert names == [each for each in folders if excluded not in each.split("/")]


# Options of a source, and the files and folders that decide its tables.
LOCAL_SOURCES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "imagefolder": ({"path": "x"}, ["x/train/a/deep/1.png", "x/test/b/2.png"]),
    "csv": (
        {
            "root": "x", "train": "a.csv", "test": "b.tsv", "label_column": "y",
            "class_names": ["p", "q"],
            "joins": [{"file": "sub/j.csv", "by": "y", "columns": ["z"]}],
        },
        ["x/a.csv", "x/b.tsv", "x/sub/j.csv"],
    ),
    "parquet": (
        {"train": "x/[0-9].parquet", "test": "x/t.parquet", "accepted_labels": {"file": "r.json"}},
        ["x/0.parquet", "x/1.parquet", "x/t.parquet", "r.json"],
    ),
    "webdataset": (
        {"train": "x", "test": ["t/a.tar", "t/b*.tar"], "class_names": ["p", "q"]},
        ["x/0.tar", "x/1.tar", "t/a.tar", "t/b0.tar"],
    ),
    "embeddings": (
        {"train": "v*.parquet", "test": "t", "label_column": "y", "class_names": ["p", "q"]},
        ["v0.parquet", "v1.parquet", "t"],
    ),
    "torchvision": ({"name": "EuroSAT", "path": "x"}, ["x/eurosat/2750/River/River_1.jpg"]),
}  # fmt: skip


@pytest.mark.parametrize("source", LOCAL_SOURCES)
def test_each_file_of_a_source_that_is_replaced_changes_its_state(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Backups, `cp -p` and archives restore older times: any other time or size counts."""
    monkeypatch.chdir(tmp_path)
    values, files = LOCAL_SOURCES[source]
    for file in files:
        make_folder(tmp_path, {file: 1})
        os.utime(file, ns=(0, 10**18))
    options = options_of(source=source, **values)
    first = options.source_state()
    assert first == options_of(source=source, **values).source_state()
    states = {first}
    for file in files:
        data = Path(file).read_bytes()
        for content, time in ((data, 10**18 - 1), (data, 10**18 + 1), (data + b" ", 10**18)):
            Path(file).write_bytes(content)
            os.utime(file, ns=(0, time))
            states.add(options.source_state())
        Path(file).unlink()
        Path(file).symlink_to("nowhere")
        with pytest.raises(ConfigError, match=Path(file).name):
            options.source_state()
        Path(file).unlink()
        Path(file).write_bytes(data)
        os.utime(file, ns=(0, 10**18))
        assert options.source_state() == first
    assert len(states) == 1 + 3 * len(files)


@pytest.mark.parametrize("folder", ["{x}", "<x>", "a[1]", "a*b", "what?", "[!a]", "[open"])
def test_patterns_in_names_of_folders_are_names(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = [f"{folder}/{name}" for name in ("0.npy", "1.npy", "[1].npy")]
    make_folder(tmp_path, dict.fromkeys(files, 0))
    for place in (Path(folder), tmp_path / folder):
        every = [place / Path(file).name for file in files]
        assert match_files(place / "*.npy") == every
        assert match_files(place / "[01].npy") == every[:2]
        assert match_files(place / "[1].npy") == every[2:]
        assert match_files(place.with_name("none") / "*.npy") == []
    assert [str(file) for file in match_files(Path("*/0.npy"))] == files[:1]


def test_a_name_that_is_no_utf8_is_a_line(tmp_path: Path) -> None:
    for name in (b"a/caf\xe9.png", b"caf\xe9/1.png", b"a/deep\xe9/1.png"):
        root = make_folder(tmp_path / name.hex(), {os.fsdecode(name): 0, "b/2.png": 1})
        with pytest.raises(
            ConfigError, match=r"path: .* the name b'.*\\xe9.*' is not UTF-8; rename"
        ):
            options_of(source="imagefolder", path=root).count_rows()


@pytest.mark.parametrize(
    ("train", "test", "other"),
    [
        ("train", "test", "val"),
        ("Training", "Testing", None),
        ("train", "Test", "Valid"),
        ("TRAIN", "TEST", "dev"),
        ("train_images", "test_images", "validation_images"),
        ("Train Set", "Test Set", "Eval Set"),
        ("TrainingSet", "TestSet", None),
        ("01_train", "02_test", None),
        ("seg_train", "seg_test", "seg_pred"),
        ("asl_alphabet_train", "asl_alphabet_test", "asl_alphabet_val"),
        ("mnist-training", "mnist-testing", "notes"),
        ("images.train", "images.val", None),
        ("train2017", "val2017", None),
        ("trainval", "hold-out", None),
        ("seg_train/seg_train", "seg_test/seg_test", None),
        ("train/train/train", "Test", None),
    ],
)
def test_folders_with_usual_names_of_parts_are_the_split(
    train: str, test: str, other: str | None, tmp_path: Path
) -> None:
    parts = {train: 6, test: 4} | ({other: 2} if other else {})
    names = [
        f"{part}/{k}/{n}.png" for part, rows in parts.items() for k in "ab" for n in range(rows)
    ]
    root = make_folder(tmp_path / "images", {name: number for number, name in enumerate(names)})
    options = options_of(source="imagefolder", path=root)
    options.check_files()
    assert options.has_test()
    assert (options.count_rows(), options.count_classes()) == ((12, 8), 2)
    said = "\n".join(options.list_warnings())
    assert ("is read as" in said) == ((train, test) != ("train", "test"))
    assert not other or f"not used: {other}" in said
    trained, tested = prepare(tmp_path / "out", source="imagefolder", path=root)
    assert trained.read_ids() == names[:12]
    assert tested.read_ids() == names[12:20]


def test_a_class_may_have_the_name_of_a_part_if_both_parts_have_this_class(tmp_path: Path) -> None:
    names = [f"{part}/{k}/0.png" for part in ("Train", "test") for k in ("bus", "train")]
    root = make_folder(tmp_path / "images", {name: number for number, name in enumerate(names)})
    units = options_of(source="imagefolder", path=root).count_class_units()
    assert units is not None
    assert units.test["train"] == 1
    # words in names of classes
    for classes in (("train_station", "train_interior"), ("valid", "invalid"), ("Trains", "tests")):
        names = [f"{k}/0.png" for k in classes]
        root = make_folder(tmp_path / classes[0], {name: n for n, name in enumerate(names)})
        assert options_of(source="imagefolder", path=root).count_classes() == 2
    flat = make_folder(
        tmp_path / "flat", dict.fromkeys(("bus/0.png", "car/0.png", "test/0.png"), 0)
    )
    options = options_of(source="imagefolder", path=flat, exclude=["test"])
    options.check_files()
    assert options.count_classes() == 2


@pytest.mark.parametrize(
    ("key", "files"),
    [
        ("no folder", []),
        ("no test/", ["train/a/1.png", "train/b/1.png"]),
        ("Testing/ but no train/", ["Testing/a/1.png"]),
        ("2 files are not images in a class folder: test/1.png", ["train/1.png", "test/1.png"]),
        ("train/ has the name of a part", ["bus/1.png", "car/1.png", "train/1.png"]),
        ("test/ has the name of a part", ["cats/1.png", "dogs/1.png", "test/1.png"]),
        ("Validation/ has the name of a part", ["cats/1.png", "Validation/1.png"]),
        ("'Train' and 'test' and 'train'", ["train/a/1.png", "Train/b/1.png", "test/a/1.png"]),
        ("'train1' and 'train2'", ["train1/a/1.png", "train2/a/1.png", "test/a/1.png"]),
        ("'dev' and 'train' and 'val'", ["train/a/1.png", "val/a/1.png", "dev/a/1.png"]),
        ("'trainB'", [f"{part}{k}/1.png" for part in ("train", "test") for k in "AB"]),
        (
            "train/train has the name",
            [f"{p}/{k}/1.png" for p in ("train", "test") for k in "ab"] + ["train/train/1.png"],
        ),
        ("train/Training has the name", ["train/Training/a/1.png", "test/Testing/a/1.png"]),
        (
            "cats contains 'Test' and 'Train'",
            [f"{k}/{p}/1.png" for k in ("cats", "dogs") for p in ("Train", "Test")],
        ),
        ("cats contains 'val' and 'x'", ["cats/val/1.png", "cats/x/1.png", "dogs/1.png"]),
        ("all folders .* contain", [f"{site}/{k}/1.png" for site in ("A", "B") for k in "mn"]),
        ("all folders .* contain", [f"{p}/{k}/1.png" for p in ("treino", "teste") for k in "mn"]),
        (
            "all folders .* contain",
            ["A/m/1.png", "A/n/1.png", "B/n/1.png", "B/m/1.png", "C/n/1.png"],
        ),
        ("write `path: .*/images/train`", ["train/train/a/1.png", "train/test/a/1.png"]),
        ("write `path: .*/images/x`", ["x/train/a/1.png", "x/test/a/1.png"]),
        ("test/ .*: c;", ["train/a/1.png", "train/b/1.png", "test/c/1.png"]),
        ("two class folders", ["a/1.png"]),
        ("b/notes.txt", ["a/1.png", "b/notes.txt"]),
        ("b contains no image", ["a/1.png", "b/.hidden.png"]),
        ("b contains no image", ["a/1.png", "b/.hidden/1.png"]),
        ("c.png", ["a/1.png", "b/1.png", "c.png"]),
        ("'A' and 'a'", ["train/a/1.png", "train/b/1.png", "test/A/2.png", "test/b/2.png"]),
    ],
)
def test_wrong_folders(tmp_path: Path, key: str, files: list[str]) -> None:
    root = make_folder(tmp_path / "images", dict.fromkeys(files, 0))
    options = options_of(source="imagefolder", path=root)
    for call in (options.check_files, options.count_rows):
        with pytest.raises(ConfigError, match=f"path: .*{key}"):
            call()


def test_what_is_wrong_with_a_folder_is_told_at_once(tmp_path: Path) -> None:
    files = ["Benign/1.png", "benign/2.png", "mole/3.png", "empty/.keep", "README", "mole/a.txt"]
    root = make_folder(tmp_path / "images", dict.fromkeys(files, 0))
    for name in ("Thumbs.db", "desktop.ini", ".DS_Store", "mole/Thumbs.db"):
        (tmp_path / "images" / name).write_bytes(b"")
    with pytest.raises(ConfigError) as caught:
        options_of(source="imagefolder", path=root).check_files()
    lines = str(caught.value).splitlines()
    keys = ("2 files", "empty contains", "'Benign' and 'benign'")
    assert all(key in line for key, line in zip(keys, lines, strict=True))
