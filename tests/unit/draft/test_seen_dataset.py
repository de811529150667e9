"""Facts about a dataset that `init` has read, and the names that `init` derives from it."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from dpprobe.draft.seen_dataset import name_of, study_name
from tests.unit.draft.conftest import Desk


def test_studies_are_named_after_their_data(desk: Desk) -> None:
    """Names of dpprobe's own folders are avoided."""
    desk.monkeypatch.setenv("HOME", str(desk.folder))
    desk.images("lesions/images", "2024/Data", "a.b", "results", count=1)
    names = {
        "lesions/images": "lesions",
        "2024/Data": "2024",
        "a.b": "a_b",
        "Größe.csv": "groe",
        "___/train.csv.gz": "train",
        "日本.csv": "study",
        "x/Metadata.v2.tsv": "x",
        "lesions/list.csv": "list",
        "img/../lesions": "lesions",
        "results": "results",
        "Cells": "cells_images",
        "downloads": "downloads_images",
        "tables": "tables_images",
        "releases.parquet": "releases_images",
        "~/index": desk.folder.name.lower(),
    }
    assert {name: study_name(Path(name)) for name in names} == names


@given(st.lists(st.text(max_size=9), max_size=3))
def test_a_name_has_small_letters_digits_and_single_underscores(words: list[str]) -> None:
    """Normalising a name twice changes nothing."""
    name = name_of(words)
    assert re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+)*", name)
    assert name_of([name]) == name
    assert name == "study" or any(
        name.removesuffix("_images") == name_of([word]).removesuffix("_images") for word in words
    )
