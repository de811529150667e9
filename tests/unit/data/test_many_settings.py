"""What sources answer before images are read, over many settings, held against stored answers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpprobe.data.registry import dataset_options
from dpprobe.errors import DpprobeError
from tests.support.shards import CLASSES, pack, samples
from tests.support.sources import write_parquet
from tests.support.stored_records import answer_of, check_values, to_plain

NAMES = {"label_column": "kind", "class_names": ["cat", "dog"]}
BOTH = {"label_column": None, "class_names": None, "label_columns": ["a", "b"]}
CSV: dict[str, Any] = {"source": "csv", "train": "a.csv"} | NAMES
FILES: Any = [{"url": "http://h/x.zip?token=secret", "sha256": "0" * 64}]
FOLDER = {"source": "imagefolder", "path": "x"}


def public(answers: Any, folder: Path) -> Any:
    """Leaves out the folder, and words of libraries that change with their versions."""
    text = json.dumps(to_plain(answers)).replace(str(folder), "FOLDER")
    return json.loads(
        re.sub(r"\((Parquet|missing|expected|Unknown|Expecting|Error|Not a)[^;]*\)", "(...)", text)
    )


# The options of each source, and changes of them.

SPLIT: list[dict[str, Any]] = [
    {"split_by": "id"},
    {"split_by": "id", "split_seed": 3},
    {"test_fraction": 0.25},
    {"split_by": "id", "test_fraction": 0.5, "subsample": {"fraction": 0.5}},
]
PATIENTS: list[dict[str, Any]] = [
    {"unit_column": "who"},
    {"unit_column": "who", "unit": "image", "max_images_per_patient": 2},
    {"unit_column": "who", "split_by": "id"},
    {"id_column": "who", "split_by": "id"},
    {"unit": "patient"},
    {"unit": "image"},
    {"max_images_per_patient": 3},
    {"unit_column": "who", "max_images_per_patient": 0},
    {"unit_column": "who", "unit": "family"},
    {"unit_column": "who", "subsample": {"per_class": 9}},
    {"unit_column": "nobody"},
    {"group_columns": ["age"]},
    {"group_columns": {"years": "age"}},
    {"group_columns": ["a/b"]},
    {"group_columns": ["a", "group_a"]},
    {"group_columns": ["nothing"]},
    {"group_columns": {"a": {"column": "age", "bins": [2, 1]}}},
    *({"group_columns": {"a": {"column": "age", "bins": bins}}} for bins in ([2, 2], [2, 4, 3])),
    {"group_columns": {"": "age"}},
    {"group_columns": {"a": "age", "group_b": "who", "b": "age"}},
]
ALL: list[dict[str, Any]] = [
    {},
    {"delta": 1e-6},
    {"verify": "hash", "duplicates": "warn", "missing_classes": "warn"},
    *({"metric": metric} for metric in ("accuracy", "auc", "macro_accuracy")),
    {"expect": {"train": 9, "test": 3, "classes": 2}},
    {"expect": {"train": 9}},
    {"expect": {"train": 9, "test": 3}, "subsample": {"per_class": 1}},
    {"subsample": {"per_class": 200}},
    {"subsample": {"fractions": {"cat": 0.5, "3": 0.5}}},
    {"subsample": {"fraction": 0.5, "per_class": 3}},
    {"subsample": {"fraction": 1.5}},
    {"subsample": {"seed": 1}},
    {"prompts": ["a {c}"], "prompt_names": {"cat": "tabby"}},
]


def places(*names: str) -> list[dict[str, Any]]:
    return [{"train": name} for name in names]


SETTINGS: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "vectors": (
        CSV | {"source": "embeddings", "train": "v.npz", "table": "a.csv", "vectors": {"one": "v"}},
        [
            *ALL,
            *SPLIT,
            *PATIENTS,
            {"vectors": {"one": "v", "two": "w"}},
            {"vectors": {"x": "no"}},
            {"vectors": {}},
            {"table": None, "label_column": "kind"},
            {"table": "short.csv"},
            {"test": "v.npz"},
            {"test": "v.npz", "test_table": "a.csv"},
            {"test_table": "a.csv"},
            {"split_column": "fold"},
            {"test": "odd.npz", "test_table": "b.csv"},
            {"test": "w.npz", "test_table": "a.csv"},
            {"train": "a.csv"},
            {"train": "none.npy"},
            {"train": "odd.npz"},
            {"train": "p*.parquet"},
        ],
    ),
    "torchvision": (
        {"source": "torchvision", "name": "EuroSAT"},
        [
            *ALL,
            *SPLIT,
            {"path": "x"},
            *(
                {"name": name, "path": path}
                for path in (None, "vision")
                for name in ("MNIST", "CIFAR10", "CIFAR100", "Places365", "EuroSAT", "SVHN")
            ),
        ],
    ),
}
ASKED = (
    "list_warnings",
    "download_params",
    "preparation_params",
    "image_params",
    "input_files",
    "image_files",
    "image_folders",
    "text_params",
    "has_test",
    "public_split",
    "expected_counts",
    "expected_rows",
    "count_classes",
    "needs_every_class",
    "multi_label",
    "vector_names",
    "group_names",
    "named_unit",
    "names_units",
    "unit_name",
    "images_per_patient",
)
COUNTED = ("count_rows", "used_rows", "class_rows", "count_class_units", "count_units")


def columns(rows: int) -> dict[str, Any]:
    numbers = range(rows)
    return {
        "who": [f"p{number // 2}" for number in numbers],
        "age": [float(number) for number in numbers],
        "v": [[1.0, float(n)] for n in numbers],
        "kind": [("cat", "dog")[number % 2] for number in numbers],
    }


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with small files of all sources."""
    monkeypatch.chdir(tmp_path)
    rows = [("cat", "dog")[n % 3 == 0] for n in range(30)]
    lines = [
        f"{n}.png,{kind},p{n % 11},{n % 4},{(3, 40, '')[n % 3]},{n % 2},{-1 if n == 5 else 1}"
        for n, kind in enumerate(rows)
    ]
    header = "path,kind,who,fold,age,a,b"
    for name, kept in (("a.csv", lines), ("b.csv", lines[:7]), ("short.csv", lines[:5])):
        (tmp_path / name).write_text("\n".join([header, *kept]))
    (tmp_path / "j.csv").write_text("who,site,age,name,empty\np1,x,3,p,\np2,y,40,p2,\np2,z,3,p3,\n")
    vectors = np.arange(60, dtype=np.float32).reshape(30, 2)
    np.savez(tmp_path / "v.npz", v=vectors, w=vectors[:, :1], kind=rows)
    np.savez(tmp_path / "odd.npz", v=vectors.astype(bool))
    np.savez(tmp_path / "w.npz", v=vectors[:, :1])
    for name, labels, names in (
        ("p0", [n % 3 % 2 for n in range(30)], CLASSES),
        ("several", [[1, 0], [1, 1]], None),
        ("p1", [n % 3 % 2 for n in range(30)], CLASSES),
        ("unnamed", [0, 1], None),
        ("lists", [[0], [0, 1]], CLASSES),
        ("turned", [0, 1], CLASSES[::-1]),
    ):
        write_parquet(tmp_path / f"{name}.parquet", labels, names, **columns(len(labels)))
    for name in ("t.tar", "mixed/a.tar", "deep/a.tar", "deep/more/b.tar", "noted/a.tar"):
        pack(tmp_path / name, samples(0, 4))
    (tmp_path / "noted/b.tar").mkdir()
    for name, text in (
        ("text.parquet", "a"),
        ("r.json", "[[0]]"),
        ("blank.tar", ""),
        ("noted/b.tar/x.txt", ""),
    ):
        (tmp_path / name).write_text(text)
    shards = ["t.tar.gz", "mixed/b.tgz", "empty/._a.tar", "hidden/a.tar", "hidden/.b.tar"]
    for name in (*shards, *(f"many/{n}.tar" for n in range(11))):
        pack(tmp_path / name, samples(0, 2))
    for name, kind in (("zipped", "gz"), ("bz2", "bz2"), ("xz", "xz")):
        pack(tmp_path / f"{name}.tar", samples(0, 4), mode=f"w:{kind}")
    images = [
        f"{name}/{number}.png"
        for name, count in (("cat", 12), ("dog", 3), ("owl", 2))
        for number in range(count)
    ]
    halves = [f"halves/{part}/{name}" for part in ("Training", "val") for name in images[::2]]
    inner = ["y/bus/0.png", "y/car/deep/er/0.png", "y/test/0.png", "y/car/.cache/0.png"]
    touch(tmp_path, *(f"x/{each}" for each in images), *halves, *inner)
    return tmp_path


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def ask(values: Mapping[str, Any]) -> Any:
    """Returns the answers of a source's options, or why the options or their files are refused."""
    try:
        options = dataset_options(values)
    except DpprobeError as error:
        return to_plain(error)
    fault = answer_of(options.check_files)
    counts = {name: answer_of(getattr(options, name)) for name in COUNTED} if fault is None else {}
    return to_plain(
        {"fault": fault} | {name: answer_of(getattr(options, name)) for name in ASKED} | counts
    )


def differences(first: Any, second: Any) -> Any:
    """Returns what `second` has that `first` has not."""
    if isinstance(first, dict) and isinstance(second, dict):
        changed = {
            key: differences(first.get(key), value)
            for key, value in second.items()
            if key not in first or value != first[key]
        }
        return changed | {key: "gone" for key in first if key not in second}
    return second


@pytest.mark.parametrize("source", SETTINGS)
def test_options_answer_before_images_are_read(source: str, folder: Path) -> None:
    base, changes = SETTINGS[source]
    plain = ask(base)
    answers = {"": plain}
    for change in changes[1:]:
        answers[str(change)] = differences(plain, ask(base | change))
    check_values(f"options_{source}", public(answers, folder))
