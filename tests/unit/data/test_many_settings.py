"""What sources answer before images are read, over many settings, held against stored answers."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpprobe import resources
from dpprobe.data import (
    addresses,
    alike_names,
    embeddings,
    group_columns,
    huggingface,
    option_paths,
    path_template,
    person_names,
    prompts,
    usual_columns,
    webdataset_rows,
)
from dpprobe.data.copy_counts import CopyCounter
from dpprobe.data.dataset_checks import label_words, rare_words
from dpprobe.data.group_columns import Group
from dpprobe.data.options import Headline, compute_imbalance, headline_metric
from dpprobe.data.parquet_columns import describe_kind
from dpprobe.data.registry import dataset_options
from dpprobe.data.subsample import Subsample
from dpprobe.errors import DpprobeError
from tests.support.shards import CLASSES, pack, png, samples
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


def join(**changed: Any) -> dict[str, Any]:
    return {"joins": [{"file": "j.csv", "by": "who", "columns": ["site"]} | changed]}


def of_url(file: Any = None, **layout: Any) -> dict[str, Any]:
    return {"source": "url", "files": [FILES[0] | (file or {})], "layout": layout}


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
    "parquet": (
        {"source": "parquet", "train": "p0.parquet"},
        [
            *ALL,
            *SPLIT,
            *PATIENTS,
            {"train": ["p0.parquet", "p1.parquet"]},
            {"train": "p*.parquet", "limit": {"train": 3}},
            {"train": ["several.parquet", "p1.parquet", "p*.parquet"]},
            {"train": ["p0.parquet", "none.parquet"]},
            {"test": "p1.parquet"},
            {
                "test": "p1.parquet",
                "limit": {"train": 9, "test": 40},
                "expect": {"train": 30, "test": 30},
            },
            {"limit": {"test": 3}},
            {"class_names": ["x", "y"]},
            {"limit": {"train": 99}},
            {"train": ["p0.parquet", "turned.parquet"]},
            {"train": ["p0.parquet", "several.parquet"]},
            *({"class_names": names} for names in (CLASSES, CLASSES[::-1])),
            {"accepted_labels": {"file": "r.json"}},
            *(
                {"test": "p1.parquet", "accepted_labels": {"file": f"{n}.json"}}
                for n in ("r", "none")
            ),
            *places(
                *(f"{name}.parquet" for name in ("several", "lists", "unnamed", "text", "none"))
            ),
            {"test": "several.parquet"},
            {"train": "unnamed.parquet", "class_names": ["x", "y", "z"]},
            {"label_column": "age"},
            {"label_column": "who"},
            {"image_column": "label"},
        ],
    ),
    "hub": (
        {"source": "huggingface", "repo": "a/b", "revision": "0" * 40, "train": "*.parquet"},
        [
            *ALL,
            *SPLIT,
            *PATIENTS,
            {"revision": "1" * 40},
            {"test": "t.parquet"},
            {"class_names": ["a", "b", "c"]},
            {"several_labels": True},
            {"limit": {"train": 5}},
            {"expect": {"train": 9, "test": 3}, "limit": {"train": 50, "test": 2}, "test": "t"},
            {"limit": {"test": 5}},
            {"accepted_labels": FILES[0]},
            {"repo": "a"},
            {"accepted_labels": FILES[0], "test": "t.parquet"},
            *({"revision": each} for each in ("main", "", "0" * 12, "A" * 40, "0" * 41)),
        ],
    ),
    "digits": ({"source": "sklearn", "name": "digits"}, [*ALL, *SPLIT, {"name": "faces"}]),
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
    "url": (
        of_url(**CSV),
        [
            *ALL,
            *(of_url(**CSV | {"unit_column": "who", "split_by": by}) for by in ("id", "class")),
            of_url(**CSV, test="b.csv"),
            of_url(**FOLDER),
            of_url(**BOTH),
            of_url(**FOLDER | {"split_by": "id"}),
            of_url(**CSV | BOTH | {"group_columns": ["age"]}),
            of_url(**CSV, filters={"a": [1]}, unit_column="who", max_images_per_patient=2),
            {"files": [FILES[0] | {"url": "http://h/y", "sha256": "1" * 64}, FILES[0]]},
            *(
                {"files": [FILES[0], FILES[0] | {"url": f"http://h/{name}"}]}
                for name in ("b/x.zip", "x.tar.gz", "x", "X.zip", ".zip")
            ),
            *(
                of_url(file, **FOLDER)
                for file in (
                    {"url": "file:///x.zip"},
                    {"url": "http://me:hidden@h/x.zip"},
                    {"url": "http://h/"},
                    {"url": "https:///x.zip"},
                    {"name": "../x.zip"},
                    {"name": ".x.zip"},
                    {"name": "a\\b"},
                    {"name": "receipt.json"},
                    {"url": "http://h/%2e%2e%2fx.zip"},
                    {"sha256": "abc"},
                    {"url": "http://h/a%20b.TAR.GZ?x=1"},
                    {"sha256": "A" * 64},
                    {"name": "y.tgz"},
                )
            ),
            *(
                of_url(**layout)
                for layout in (
                    {"source": "sklearn"},
                    {},
                    FOLDER | {"path": "/data"},
                    FOLDER | {"path": "x/../y"},
                    FOLDER | {"path": "~/x"},
                    *(CSV | {name: "../b"} for name in ("train", "test", "root")),
                    CSV | {"root": "~"},
                    CSV | join(file="../b"),
                    FOLDER | {"pth": "x"},
                    FOLDER | {"delta": 1e-5, "expect": {}},
                )
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


# What files hold.


COLUMNS: list[dict[str, Any]] = [
    {},
    {"label": [0.0, 1.0]},
    {"label": pa.array([0, 1], pa.timestamp("s"))},
    {"image": [b"x"] * 2},
    {"label": pa.array(["cat", "dog"]).dictionary_encode()},
    {"label": [[0, 1], [1, 0]]},
    *(
        {"image": [{"bytes": data, "path": path}] * 2}
        for data, path in (
            ("x", None),
            (1, None),
            (b"x", 3),
            (b"x", b"x"),
            ([1], None),
            (b"x", "a.png"),
        )
    ),
    *(
        {"label": pa.array([[0, 1], [1, 0]], kind)}
        for kind in (pa.large_list(pa.int8()), pa.list_(pa.int64(), 2), pa.list_(pa.float32()))
    ),
    {"label": pa.array([0, 1], pa.uint8())},
    {
        "image": pa.array(
            [{"bytes": b"x", "path": "a"}] * 2,
            pa.struct([("bytes", pa.large_binary()), ("path", pa.large_string())]),
        )
    },
    {"sex": [["f"], ["m"]]},
    {"sex": None},
    {"Label": [0, 1]},
    {"sex": [1, 2]},
    {"more": [1, 2]},
    {
        "image": pa.array(
            [{"bytes": b"x", "path": "a"}] * 2,
            pa.struct([("bytes", pa.binary_view()), ("path", pa.string_view())]),
        )
    },
]


METADATA: list[dict[str, str] | None] = [
    None,
    {"huggingface": "{"},
    {"huggingface": "[]"},
    {"dpprobe": '{"class_names": ["a", "b"]}'},
    {"dpprobe": '{"class_names": ["a", 2]}'},
    {"dpprobe": "{}"},
    {"dpprobe": "3"},
    *(
        {"huggingface": f'{{"info": {{"features": {{"label": {label}}}}}}}', "dpprobe": "[]"}
        for label in (
            "3",
            '{"names": []}',
            '{"names": "ab"}',
            '{"names": ["a", null]}',
            '{"names": ["a", "b", "c"]}',
            '{"feature": {"_type": "ClassLabel"}}',
            '{"feature": {"_type": "Value"}}',
            '{"feature": {}}',
        )
    ),
    {"huggingface": '{"info": {"features": []}}', "dpprobe": '{"class_names": ["a", "b", "c"]}'},
]
KINDS = [
    pa.int8(),
    pa.uint64(),
    pa.float16(),
    pa.float64(),
    pa.string(),
    pa.large_string(),
    pa.string_view(),
    pa.binary(),
    pa.bool_(),
    pa.timestamp("s"),
    pa.decimal128(9, 1),
    pa.dictionary(pa.int8(), pa.string()),
    pa.list_(pa.int64()),
    pa.large_list(pa.float32()),
    pa.list_(pa.float64(), 3),
    pa.list_(pa.string()),
    pa.list_(pa.list_(pa.int8())),
    pa.list_(pa.bool_()),
    pa.struct([("a", pa.int8())]),
    pa.date32(),
]


def test_each_parquet_file_has_the_columns(tmp_path: Path) -> None:
    """Also where the first of several files has them."""
    images = pa.array([{"bytes": png(row), "path": None} for row in (1, 2)])
    good, answers = {"image": images, "label": [0, 1], "sex": ["f", "m"]}, []
    for changed in COLUMNS:
        for pair in ((good | changed, good), (good, good | changed)):
            for number, columns in enumerate(pair):
                kept = {name: part for name, part in columns.items() if part is not None}
                table = pa.table(kept).rename_columns([name.lower() for name in kept])
                pq.write_table(table, tmp_path / f"x-{number}.parquet")
            for option in ("group_columns", "id_column", "unit_column")[
                : 3 if "sex" in changed else 1
            ]:
                named = ["sex"] if option == "group_columns" else "sex"
                options = dataset_options(
                    {
                        "source": "parquet",
                        "train": str(tmp_path / "x-*.parquet"),
                        "class_names": ["cat", "dog"],
                        option: named,
                    }
                )
                answers.append([*changed, option, answer_of(options.check_files)])
    path = tmp_path / "named.parquet"
    read: Any = dataset_options({"source": "parquet", "train": str(path)})
    for metadata, labels in itertools.product(METADATA, ([0, 1], [[0, 1], [1, 0]], [1, None])):
        pq.write_table(pa.table(good | {"label": labels}).replace_schema_metadata(metadata), path)
        asked = (read.check_files, read.count_classes, read.multi_label, read.count_class_units)
        answers.append([ascii(metadata), labels, *map(answer_of, (*asked, read.count_rows))])
    kinds = {str(kind): describe_kind(kind) for kind in KINDS}
    check_values("data_parquet_columns", public([answers, kinds], tmp_path))


SPELLINGS = (
    "cat",
    "Cat",
    "cat ",
    " c at",
    "c\u200bat",
    "ｃat",
    "café",
    "cafe\u0301",
    "STRASSE",
    "straße",
    "1",
    "1.0",
    "01",
    "+1",
    "-1",
    "1.5",
    "1.50",
    "-0",
    "0",
    "1e3",
    "1e+3",
    "1000",
    "1.23E+12",
    "2",
    "40",
    "inf",
    "-1e999",
    "1e16",
    "nan",
    "N/A",
    "#REF!",
    "unknown",
    "?",
    "",
    " ",
    "0012",
    "12.",
    ".5",
    "0.5",
    "9" * 30,
    "p1",
    "P1",
    "a;b",
    "cat|dog",
    "cat, dog",
    "['cat', 'dog']",
    "[1, 5]",
    "[1, 2, 3]",
    "{'a'}",
    "[3]",
    "[sic]",
    "-15",
    "-1x",
    "12x",
    "1.2.3",
    "1.2E+12x",
    "[3] x",
)


def read_group(bins: tuple[float, ...], ignore_case: bool) -> list[Any]:
    faults: list[list[tuple[str, str]]] = [[] for _ in SPELLINGS]
    group, told = Group(column="age", bins=bins, ignore_case=ignore_case), list[Any]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group_columns, "warn_of_code", lambda *words: told.append(words))
        return [group.read_values(list(SPELLINGS), faults), [*filter(None, faults)], told]


def test_names_are_read_alike_everywhere() -> None:
    names = ["cat", "dog", "1"]
    check_values(
        "data_names",
        {
            "each": {
                repr(name): [
                    alike_names.fold_name(name),
                    alike_names.hint_class(name, names),
                    alike_names.joined_labels([name], names),
                    alike_names.joined_labels([name]),
                    alike_names.find_name_fault([name, "x"]),
                    person_names.person_name(name),
                    person_names.list_spellings(name),
                    group_columns.MISSING_CODE.fullmatch(name) is not None,
                    answer_of(group_columns.bin_name, name, (0.0, 1.0, 12.5, 1000.0)),
                    [
                        webdataset_rows._class_number(known, "label", name)
                        for known in (names, ["a", "b"])
                    ],
                ]
                for name in SPELLINGS
            },
            "ranges": {
                text: group_columns.bin_name(text, (18.0, 40.0))
                for text in ("17.9", "18", "39.9", "40", "4e1", " 41")
            },
            "alike": alike_names.find_alike(SPELLINGS),
            "groups": [
                read_group(*each)
                for each in (
                    ((), False),
                    ((), True),
                    ((0, 12.5), False),
                    ((1, 2, 1000.0), True),
                    ((-1, 1), False),
                )
            ],
            "numbers": person_names.find_equal_numbers(SPELLINGS),
            "people": [
                person_names.name_warnings(these) for these in (["p"], ["p", "P"], SPELLINGS)
            ],
            "faults": [
                alike_names.find_name_fault(these) for these in ([], ["a"], ["a", "a"], ["a", "A"])
            ],
            "texts": [
                alike_names.text_of(value) for value in (None, float("nan"), 1, 1.0, b"a\xff", True)
            ],
            "people of other kinds": [
                person_names.person_name(value)
                for value in (None, float("nan"), 12, 12.0, b" a\xff", True, 1e16)
            ],
            "file names": [
                alike_names.is_text(name)
                for name in ("a", "é", "caf\udce9", "\ud7ff\ue000", "\ud800", "\udfff")
            ],
            "wildcards": [option_paths.is_wildcard(name) for name in ("a", "{x}", "<x>", "x>")],
            "vectors": [
                embeddings.vector_names({"source": each, "vectors": chosen})
                for each in ("csv", "embeddings")
                for chosen in ({}, {"b": "x", "a": "y"})
            ],
            "columns": [
                [*usual_columns.find_usual(SPELLINGS, each)] for each in (["P_1", "cat"], [])
            ],
            "fields": [
                label_words(value, names) for value in (0, 2, 3, 7, -1, None, [1, 0, 1], [0, 0, 0])
            ],
            "rare": [
                rare_words(list("abcdef"), *counts)
                for counts in (
                    ([5] * 6, [5] * 6),
                    ([4, 1, 0, 5, 9, 9], [9, 9, 1, 4, 0, 9]),
                    ([1] * 6, [1] * 6),
                    ([4] + [9] * 5, [9] * 6),
                )
            ],
            "templates": [
                answer_of(path_template.template_parts, each)
                for each in ("{a}", "x{a:.2}/{b c:>3}", "{{}}", "{a.b}{c[0]}", "", "{a!s}", "}")
            ],
            "addresses": [
                addresses.public_addresses(value)
                for value in (
                    "http://me:pw@h:8/a/b?t=1#x",
                    "https://h",
                    "/home/me/a.csv",
                    "a/b",
                    "/a|b",
                    "ftp://u@h/x",
                    {"a": ["/x/y", {"b": ("http://h/?q", 3)}], "c": None},
                    "/",
                    "http://h/a@b",
                )
            ],
        },
    )


PROMPTS: tuple[Any, ...] = (
    "simple",
    "mnist",
    "satellite",
    "xray",
    "photo",
    "simpel",
    "a photo of {c}",
    (),
    ("a photo",),
    ("a {c:d}",),
    ("{c}, a {c:.3}",),
    ("{c!r}",),
    ("{c} in {place}",),
    ("{c} {}",),
    ("{c} {",),
    ("{a} {c} {{drawn}}", "{c}, {c}"),
)
WORDS = (
    "airplane",
    "Owl",
    "cat",
    "hourglass",
    "house",
    "unicycle",
    "umbrella",
    "European",
    "",
    "honour",
    "unidentified",
    "uninhabited",
    "unicorn",
    "onerous",
    "one-way street",
    "utility pole",
    "usual",
    "heirloom",
    "honest",
    "ewe",
    "ukulele",
    "unimportant",
    "unimodal",
    "universe",
    "8",
    "X-ray",
)


def test_prompts_are_sentences_about_classes() -> None:
    ids = [f"n{number:08d}" for number in range(1000)]
    named: list[tuple[list[str], Any]] = [
        (["AnnualCrop", "River"], {"AnnualCrop": "annual crop land"}),
        (["aquarium_fish"], {}),
        (["a", "_"], {}),
        (["a", "b"], {"b": "\u200b "}),
        (["AnnualCrop", "River"], dict.fromkeys(("Sea", "Rivers", "Tree", "Wood"), "x")),
        (["cat", *ids[:0:-1]], "imagenet"),
        ([*ids[:0:-1], f"{ids[0]}x"], "imagenet"),
        (["a", "b"], {"q": "x"}),
        (["a"], "imagenet"),
        (ids, "imagenet"),
        (ids[::-1], "imagenet"),
        ([f"c{number}" for number in range(1000)][::-1], "imagenet"),
    ]

    def write(chosen: Any) -> list[list[str]]:
        return prompts.make_sentences(prompts.read_templates(chosen), ["ox", "{c} of {a}"])

    check_values(
        "data_prompts",
        {
            "sets": {
                str(each): [answer_of(prompts.check_prompts, each), answer_of(write, each)]
                for each in (*PROMPTS, *resources.read_yaml("prompts.yaml"))
            },
            "articles": {word: prompts.choose_article(word) for word in WORDS},
            "names": [str(answer_of(prompts.name_classes, *each))[:300] for each in named],
        },
    )


def test_numbers_of_classes_choose_metrics_and_rows() -> None:
    counts = ((300, 150), (301, 150), (301, 200, 150), (300, 200, 0), (300, 0), (2, 1), (9, 1), ())
    metrics: list[Headline | None] = [None, "accuracy", "auc", "macro_accuracy"]
    copies = CopyCounter()
    seen = [[copies.by_row, copies.by_unit]]
    for content, unit in (
        (b"a", "p"),
        (b"a", "q"),
        (b"b", "p"),
        (b"a", "q"),
        (b"a", "r"),
        *((b"b", unit) for unit in "pstuv"),
    ):
        copies.add_copy(content, unit, first_unit="p")
        seen.append([copies.by_row, copies.by_unit])
    labels = [number % 3 for number in range(40)]
    units = [f"u{number % 17}" for number in range(40)]
    parts: list[dict[str, Any]] = [
        {"per_class": 1},
        {"per_class": 4},
        {"per_class": 13},
        {"per_class": 14},
        {"fraction": 0.4},
        {"fraction": 0.4, "seed": 2},
        {"fractions": {"a": 0.5, "c": 1}},
        {"fractions": {"a": 1e-9}},
        {"fractions": {"d": 0.5}},
        {"per_class": 4, "seed": 1},
        {"fraction": 1},
    ]

    def keep(part: dict[str, Any]) -> np.ndarray:
        return np.flatnonzero(Subsample(**part).choose_rows(labels, units, ["a", "b", "c"]))

    check_values(
        "data_metrics_and_parts",
        {
            "metrics": [
                answer_of(
                    headline_metric,
                    metric,
                    num_classes=classes,
                    multi_label=several,
                    test_counts=count,
                )
                for metric in metrics
                for classes in (None, 2, 3)
                for several in (False, True)
                for count in counts
            ],
            "imbalance": [compute_imbalance(count) for count in counts],
            "copies": seen,
            "parts": [answer_of(keep, part) for part in parts],
            "faults": [
                Subsample(**part).list_faults({str(n): n for n in range(12)}) for part in parts
            ],
        },
    )


def test_patterns_choose_files_of_a_repository() -> None:
    tables = [f"data/train-{number}.parquet" for number in range(11)]
    patterns = ("data/train-*.parquet", "*1.parquet", ("*-2.*", "*-1.*"), "test*", "README.md")
    options: Any = dataset_options(SETTINGS["hub"][0])
    check_values(
        "data_hub_patterns",
        [
            answer_of(huggingface._match_files, pattern, names, options)
            for pattern in patterns
            for names in (
                [*tables[::-1], "README.md"],
                ["b.csv", "a.csv"],
                [],
                tables[:6],
                tables[:5],
            )
        ],
    )


def test_clips_own_templates_are_the_library_s() -> None:
    for name, library in (
        ("imagenet80", open_clip.OPENAI_IMAGENET_TEMPLATES),
        ("ensemble7", open_clip.SIMPLE_IMAGENET_TEMPLATES),
    ):
        (of_class,) = prompts.make_sentences(prompts.read_templates(name), ["owl"])
        assert of_class == [template("owl") for template in library]
    assert len(prompts.read_templates("imagenet80")) == 80
    assert len(prompts.read_templates("ensemble7")) == 7
