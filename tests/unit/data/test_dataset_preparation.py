"""The sources: options are checked cheaply, tables hold what the source holds."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from dpprobe.data import dataset_preparation
from dpprobe.data.options import DatasetOptions
from dpprobe.data.registry import dataset_options
from dpprobe.data.table import SplitTable, decode_image, read_info
from dpprobe.errors import ConfigError, DataError


def png(value: int) -> bytes:
    stream = io.BytesIO()
    Image.new("L", (4, 4), value).save(stream, format="PNG")
    return stream.getvalue()


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


def test_checking_a_study_imports_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from dpprobe import data, backbones, features, options\n"
        "from dpprobe.backbones import loading\n"
        "from dpprobe.backbones.registry import FAMILIES\n"
        "from dpprobe.data import addresses, dataset_preparation\n"
        "from dpprobe.data.registry import SOURCES\n"
        "from dpprobe.data.registry import dataset_options\n"
        "for registry in (SOURCES, FAMILIES):\n"
        "    for name in registry: options.options_class(registry, name)\n"
        "dataset = dataset_options({'source': 'sklearn', 'name': 'digits'})\n"
        "dataset.check_files(); dataset.count_rows()\n"
        "heavy = {'torch', 'numpy', 'pandas', 'pyarrow', 'sklearn', 'timm', 'PIL', 'h5py'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert output.stdout.decode().strip() == "[]"


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


def test_parquet_with_both_splits(tmp_path: Path, write_parquet: WriteParquet) -> None:
    train, test = prepare(
        tmp_path / "out",
        source="parquet",
        train=write_parquet("a.parquet", [0, 1] * 10, sex=["f", None] * 10),
        test=write_parquet("b.parquet", [1, 0, 0], sex=["m"] * 3, first=100),
        group_columns=["sex"],
    )
    assert train.class_names == ("cat", "dog")
    assert train.read_labels().tolist() == [0, 1] * 10
    assert test.read_labels().tolist() == [1, 0, 0]
    assert train.read_ids()[:2] == ["train-00000000", "train-00000001"]
    assert train.read_groups() == {"group_sex": ["f", ""] * 10}
    assert [image.data for image in train.read_images(0, 20)] == [png(row) for row in range(20)]
    assert next(train.read_images(7, 8)).path == "7.png"


def test_parquet_shards_by_pattern_and_by_list(tmp_path: Path, write_parquet: WriteParquet) -> None:
    one = write_parquet("train-0.parquet", [0, 0])
    two = write_parquet("train-1.parquet", [1, 1, 0])
    test = write_parquet("test.parquet", [0, 1], first=100)
    for number, written in enumerate((str(tmp_path / "train-*.parquet"), [one, two])):
        train, _ = prepare(tmp_path / str(number), source="parquet", train=written, test=test)
        assert train.read_labels().tolist() == [0, 0, 1, 1, 0]
    train, _ = prepare(tmp_path / "turned", source="parquet", train=[two, one], test=test)
    assert train.read_labels().tolist() == [1, 1, 0, 0, 0]


def test_a_parquet_file_is_named_once(write_parquet: WriteParquet) -> None:
    """Rows are numbered by their places, so that nobody else would see that they stand twice."""
    path = write_parquet("train-0.parquet", [0, 1] * 3)
    pattern = str(Path(path).with_name("train-*.parquet"))
    for train in ([path, path], [pattern, path]):
        options = dataset_options({"source": "parquet", "train": train})
        with pytest.raises(ConfigError, match=r"train: .*train-0.parquet is named twice; remove"):
            options.check_files()


def test_parquet_limit_takes_the_first_rows(tmp_path: Path, write_parquet: WriteParquet) -> None:
    train, test = prepare(
        tmp_path / "out",
        source="parquet",
        train=[write_parquet("a.parquet", [0, 1] * 4), write_parquet("b.parquet", [1] * 6)],
        test=write_parquet("c.parquet", [1, 0, 0], first=100),
        limit={"train": 11, "test": 2},
    )
    assert train.read_labels().tolist() == [0, 1] * 4 + [1] * 3
    assert test.rows == 2


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


def test_parquet_class_names(tmp_path: Path, write_parquet: WriteParquet) -> None:
    path = write_parquet("a.parquet", [0, 2, 1] * 3, metadata=None)
    train, _ = prepare(tmp_path / "named", source="parquet", train=path, class_names=list("abc"))
    assert train.class_names == ("a", "b", "c")


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


def test_real_cifar10(tmp_path: Path, shared_data: Path) -> None:
    train, test = prepare(
        tmp_path,
        source="parquet",
        train=str(shared_data / "cifar10" / "train.parquet"),
        test=str(shared_data / "cifar10" / "test.parquet"),
        limit={"train": 300, "test": 100},
    )
    assert train.class_names[:3] == ("airplane", "automobile", "bird")
    assert decode_image(next(test.read_images(99, 100)), split="test").size == (32, 32)


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
    train, test = prepare(
        tmp_path / "out", source="imagefolder", path=root, test_fraction=0.3, embed=True
    )
    assert (train.rows, test.rows) == (14, 6)
    assert sorted(train.read_ids() + test.read_ids()) == sorted(files)
    for image in train.read_images(0, 14):
        assert image.data == png(files[image.id])
    linked = prepare(tmp_path / "linked", source="imagefolder", path=root, test_fraction=0.3)
    assert linked[0].fingerprint == train.fingerprint


def test_every_folder_that_is_searched_is_watched(tmp_path: Path) -> None:
    files = dict.fromkeys(("train/a/x/y/1.png", "train/b/1.png", "test/a/1.png", "val/a/1.png"), 0)
    root = make_folder(tmp_path / "images", files | {"train/b/.cache/1.png": 0})
    watched = options_of(source="imagefolder", path=root).input_files()
    names = [Path(folder).relative_to(root).as_posix() for folder in watched]
    assert names == ["test", "test/a", "train", "train/a", "train/a/x", "train/a/x/y", "train/b"]
    flat = make_folder(tmp_path / "flat", {"a/deep/1.png": 0, "b/1.png": 0})
    assert options_of(source="imagefolder", path=flat).input_files() == (
        flat, f"{flat}/a", f"{flat}/a/deep", f"{flat}/b",
    )  # fmt: skip


def test_an_image_replaced_in_place_changes_the_source_state(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "images", {"a/deep/1.png": 0, "a/2.png": 1, "b/1.png": 2})
    options = options_of(source="imagefolder", path=root)
    path = Path(root) / "a/deep/1.png"
    states = [options.source_state()]
    assert options.source_state() == states[0]
    status = path.stat()
    path.write_bytes(path.read_bytes()[::-1])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    states.append(options.source_state())
    path.write_bytes(b"longer" + path.read_bytes())
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    states.append(options.source_state())
    path.rename(path.with_name("3.png"))
    states.append(options.source_state())
    assert len(set(states)) == 4
    path.with_name("dangling.png").symlink_to("nowhere")
    for call in (options.source_state, options.check_files):
        with pytest.raises(ConfigError, match=r"dangling\.png"):
            call()


def test_the_source_state_looks_at_each_file_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = make_folder(tmp_path / "images", {f"{k}/{n}.png": n for k in "ab" for n in range(4)})
    options = options_of(source="imagefolder", path=root)
    scanned: list[str] = []
    real = os.scandir

    def scandir(path: Any) -> Any:
        scanned.append(str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    options.source_state()
    assert sorted(scanned) == [root, f"{root}/a", f"{root}/b"]


@pytest.mark.parametrize(
    ("key", "files"),
    [
        ("no folder", []),
        ("no test/", ["train/a/1.png", "train/b/1.png"]),
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
