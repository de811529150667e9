"""Options for vectors from files: which vectors and tables fit together, and what is refused."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpprobe.data.dataset_sizes import count_used_rows
from dpprobe.data.registry import dataset_options
from dpprobe.errors import ConfigError
from tests.support.sources import write_parquet

# 20 cats and 10 dogs
KINDS = [("cat", "dog")[number % 3 == 0] for number in range(30)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Writes two kinds of vectors with 30 rows, and tables of 30, 7 and 5 lines."""
    monkeypatch.chdir(tmp_path)
    lines = [f"{kind},{('train', 'test', 'none')[n % 3]}" for n, kind in enumerate(KINDS)]
    for name, rows in (("a", 30), ("b", 7), ("short", 5)):
        Path(f"{name}.csv").write_text("\n".join(["kind,fold", *lines[:rows]]))
    vectors = np.arange(60, dtype=np.float32).reshape(30, 2)
    np.savez("v.npz", v=vectors, w=vectors[:, :1], kind=KINDS)
    np.savez("seven.npz", v=vectors[:7], w=vectors[:7, :1])
    np.savez("one.npz", v=vectors[:, :1], w=vectors[:, :1])
    np.savez("odd.npz", v=vectors.astype(bool))
    for name in ("p0", "p1"):
        write_parquet(Path(f"{name}.parquet"), [0] * 30, v=vectors.tolist(), kind=KINDS)
    return tmp_path


def of(**changed: Any) -> Any:
    base = {
        "source": "embeddings",
        "train": "v.npz",
        "table": "a.csv",
        "vectors": {"one": "v"},
        "label_column": "kind",
        "class_names": ["cat", "dog"],
    }
    return dataset_options(base | changed)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"vectors": {"x": "no"}}, r"v\.npz: no vectors 'no', only v, w"),
        ({"vectors": {}}, r"v\.npz: no vectors, only v, w; name arrays"),
        ({"train": "a.csv"}, r"train: a\.csv: not the name of a file of vectors.*\.npz"),
        ({"train": "none.npy"}, r"train: no file none\.npy; correct the path"),
        ({"test": "none.npy", "test_table": "b.csv"}, r"test: no file none\.npy"),
        ({"train": "odd.npz"}, r"odd\.npz: vectors 'v' are of type bool; save them as float32"),
        ({"test": "odd.npz", "test_table": "b.csv"}, r"odd\.npz: vectors 'v' are of type bool"),
        (
            {"test": "one.npz", "test_table": "a.csv"},
            r"one\.npz: vectors 'one' have 2 numbers in training rows but 1 in test rows",
        ),
        (
            # only the second kind of vectors is wrong
            {"vectors": {"w": "w", "v": "v"}, "test": "one.npz", "test_table": "a.csv"},
            r"one\.npz: vectors 'v' have 2 numbers in training rows but 1 in test rows",
        ),
        ({"label_column": "sort"}, r"label_column: a\.csv: no column 'sort'; it has kind, fold"),
        ({"unit_column": "who"}, r"unit_column: a\.csv: no column 'who'"),
        ({"test": "seven.npz", "test_table": "none.csv"}, r"no file none\.csv"),
    ],
)
def test_an_error_names_the_option_or_file_that_does_not_fit(
    changed: dict[str, Any], said: str
) -> None:
    of().check_files()
    with pytest.raises(ConfigError, match=said):
        of(**changed).check_files()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"test": "v.npz"}, "test_table: missing; .*name a table for `test` too"),
        ({"test_table": "a.csv"}, "test_table: works only together with test and table; remove"),
        ({"table": None, "test": "v.npz", "test_table": "a.csv"}, "test_table: works only"),
        ({"table": None, "test_table": "a.csv"}, "test_table: works only"),
        ({"prompts": ["a {c}"]}, "prompts: vectors have no text encoder; remove prompts"),
        ({"prompt_names": {"cat": "tabby"}}, "prompt_names: vectors have no text encoder"),
        ({"train": ""}, "train: "),
        ({"vectors": {"a b/c": "v"}}, "vectors"),
    ],
)
def test_options_that_contradict_each_other_are_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        of(**changed)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"table": "short.csv"}, r"^short\.csv: 5 rows, but 30 vectors 'one' in v\.npz; store one"),
        (
            {"test": "seven.npz", "test_table": "short.csv"},
            r"^short\.csv: 5 rows, but 7 vectors 'one' in seven\.npz",
        ),
        (
            {"test": "seven.npz", "test_table": "a.csv"},
            r"^a\.csv: 30 rows, but 7 vectors 'one' in seven\.npz",
        ),
        ({"train": "p*.parquet"}, r"^a\.csv: 30 rows, but 60 vectors 'one' in p\*\.parquet"),
    ],
)
def test_a_table_has_one_line_per_vector(changed: dict[str, Any], said: str) -> None:
    options = of(**changed)
    options.check_files()
    for count in (options.count_rows, partial(count_used_rows, options), options.class_rows):
        with pytest.raises(ConfigError, match=said):
            count()


def test_a_test_file_has_its_own_table() -> None:
    options = of(test="seven.npz", test_table="b.csv")
    options.check_files()
    assert options.has_test()
    assert options.count_rows() == (30, 7)
    assert options.class_rows() == {"cat": 20, "dog": 10}
    # rows 0, 3 and 6 are dogs
    assert options.count_class_units().test == {"cat": 4, "dog": 3}
    assert options.image_files() == ("v.npz", "seven.npz")
    assert options.input_files() == ("v.npz", "seven.npz", "a.csv", "b.csv")
    assert of(test="v.npz", test_table="a.csv").input_files() == ("v.npz", "a.csv")
    public = options.public_split()
    assert (public.rule, public.fault) == ("source", None)


def test_a_column_may_tell_the_splits() -> None:
    """Row n is in train, test or neither by n % 3; every third row from the first is a dog."""
    options = of(split_column="fold", missing_classes="warn")
    options.check_files()
    assert options.has_test()
    assert options.count_rows() == (10, 10)
    assert options.count_class_units().train["dog"] == 10
    assert options.count_class_units().test["cat"] == 10
    assert options.image_files() == ("v.npz",)
    with pytest.raises(ConfigError, match="train_values: .* 'fold' has no value 1; .*none, test"):
        of(split_column="fold", train_values=["1"]).count_rows()


def test_labels_may_be_next_to_the_vectors() -> None:
    options = of(table=None)
    options.check_files()
    assert options.input_files() == ("v.npz",)
    assert options.class_rows() == {"cat": 16, "dog": 8}
    both = of(train="p*.parquet", table=None)
    both.check_files()
    assert both.input_files() == both.image_files() == ("p0.parquet", "p1.parquet")
    assert both.count_rows() == (48, 12)


def test_a_row_may_have_several_vectors() -> None:
    two = of(vectors={"one": "v", "two": "w"})
    two.check_files()
    assert two.vector_names() == ("one", "two")
    assert two.locate_vectors("train") == {"one": "v", "two": "w"}
    assert of(vectors={}).vector_names() == ("vectors",)
    assert of().download_params() is None
    assert of().holds_vectors


def test_tables_are_stale_if_any_file_changes() -> None:
    choices: list[dict[str, Any]] = [
        {},
        {"train": "one.npz"},
        {"table": "b.csv"},
        {"table": None},
        {"vectors": {"one": "w"}},
        {"vectors": {"one": "v", "two": "w"}},
        {"test": "v.npz", "test_table": "a.csv"},
        {"test": "v.npz", "test_table": "b.csv"},
        {"test": "one.npz", "test_table": "a.csv"},
    ]
    for read in ("preparation_params", "image_params"):
        answers = [getattr(of(**each), read)() for each in choices]
        assert all(answers.count(each) == 1 for each in answers), read
    keys = {of(**each).public_split().key for each in choices if "vectors" not in each}
    assert len(keys) == len(choices) - 2
