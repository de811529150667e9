"""Keys and texts that look private are found; texts of publishable facts are not."""

from __future__ import annotations

from typing import Any

import pytest

from dpprobe.errors import DataError
from dpprobe.release.leak_check import check_keys, check_published, check_text
from tests.support.refusals import refuses

PATH, TIME, SEED = "a path", "a time", "a number of 128 bits, like a seed"


@pytest.mark.parametrize(
    ("text", "what", "quoted"),
    [
        ("/home/anna", PATH, "/home/"),
        ("in /data/", PATH, "/data/"),
        ("'/private/x'", PATH, "/private/"),
        (r"C:\Users", PATH, None),
        (r"D:\\Data", PATH, None),
        ("file://x", PATH, "file://"),
        ("~/x", PATH, "~/"),
        ("made 2026-01-31 10:00", TIME, "2026-01-31 10:00"),
        ("2026-01-31T23:59:01Z", TIME, "2026-01-31T23:59"),
        ("1999-12-31 23:59", TIME, "1999-12-31 23:59"),
        ("0" * 32, SEED, "0" * 32),
        ("x" + "ab" * 16, SEED, "ab" * 16),
    ],
)
def test_a_private_text_is_named_with_its_place(text: str, what: str, quoted: str | None) -> None:
    with refuses(DataError, "card", what, *[repr(quoted)] * (quoted is not None)):
        check_text(text, where="card")


@pytest.mark.parametrize(
    "text",
    [
        "x/home/anna",  # part of a longer name
        "</data/x",  # closes a tag
        " /data",
        "https://example.org/data/x",
        "a~/x",
        "2026-01-31",  # the date of an audit
        "1899-01-31 10:00",
        "0" * 31,
        "0" * 33,
        "ab" * 32,  # a SHA-256
        "AB" * 16,
    ],
)
def test_other_texts_are_published(text: str) -> None:
    check_text(text, where="card")


NESTED = [
    lambda key: {key: 1},
    lambda key: [{"a": {key: 1}}],
    lambda key: {"a": [[{key: 1}]]},
    lambda key: {"a": 1, "b": {"c": [1, {key: None}]}},
]


@pytest.mark.parametrize("nested", NESTED)
@pytest.mark.parametrize(
    "key",
    [
        "seed",
        "seeds",
        "my_seed",
        "Time",
        "timestamp",
        "date",
        "git_commit",
        "gitcommit",
        "history",
        "histories",
        "prediction",
        "predictions",
        "test_ids",
        "hostname",
        "host",
        "username",
        "path",
        "folder",
        "created",
        "started",
        "duration",
        "seconds",
        "identity",
        "near_duplicates",
        "fingerprint",
    ],
)
def test_a_private_key_is_found_at_any_depth(key: str, nested: Any) -> None:
    with refuses(DataError, "f", key):
        check_keys(nested(key), where="f")


@pytest.mark.parametrize("key", ["public_seed", "crop_seed", "seedy", "times", "seconds_more"])
def test_other_keys_and_values_are_published(key: str) -> None:
    for nested in NESTED:
        check_keys(nested(key), where="f")
    check_keys(["seed", {"a": "seed"}], where="f")


def test_all_private_keys_are_named_in_order() -> None:
    with refuses(DataError, "f", "date, my_seed"):
        check_keys({"my_seed": 1, "b": {"date": 2}, "public_seed": 3}, where="f")


def test_a_block_is_searched_for_both_before_it_is_published() -> None:
    for block, what in (({"a": "~/x"}, PATH), ({"date": 1}, "date"), (["/tmp/x"], PATH)):
        with refuses(DataError, "block", what):
            check_published({"fine": {"a": 1}, "block": block})
    check_published({"one": {"a": 1}, "two": None})
