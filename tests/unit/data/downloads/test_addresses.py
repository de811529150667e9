"""Addresses and paths are printed without parts that may be secret."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.data.downloads.addresses import public_addresses, public_url


@pytest.mark.parametrize(
    ("value", "public"),
    [
        ("http://me:pw@h:8/a/b?t=1#x", "http://h:8/a/b?..."),
        ("https://h", "https://h"),
        ("http://h/?q", "http://h/?..."),
        ("http://h/a@b", "http://h/a@b"),
        ("/home/me/a.csv", "…/a.csv"),
        ("a/b", "a/b"),
        ("ftp://u@h/x", "ftp://u@h/x"),
        ("/a|b", "/a|b"),  # a pattern, not a path
        ("/", "/"),
        (3, 3),
        (None, None),
        (
            {"a": ["/x/y", {"b": ("http://h/?q", 3)}], "c": None},
            {"a": ["…/y", {"b": ["http://h/?...", 3]}], "c": None},
        ),
    ],
)
def test_secrets_are_left_out(value: Any, public: Any) -> None:
    assert public_addresses(value) == public


word = st.text("abcXYZ09", min_size=1, max_size=8)


@given(word, word, word, word)
def test_no_login_or_query_stays(user: str, password: str, path: str, query: str) -> None:
    found = public_url(f"https://{user}:{password}@host.org/{path}?key={query}")
    assert found == f"https://host.org/{path}?..."
    assert public_addresses(public_url(f"https://host.org/{path}")) == f"https://host.org/{path}"
