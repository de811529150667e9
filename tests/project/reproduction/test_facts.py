"""What is known of published numbers: each in one entry, each rate with its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dpprobe.errors import ConfigError
from dpprobe.study import catalog
from reproduction import facts
from tests.support.reproduction import known, printed

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def raw() -> Any:
    return yaml.safe_load(facts.PATH.read_text(encoding="utf-8"))


def test_a_new_published_row_without_an_entry_is_refused() -> None:
    new = printed({"row": "first", "values": {"a": 1}}, {"row": "new", "values": {"a": 2}})
    with pytest.raises(ConfigError, match="a_2020, 1, new, a: in no entry"):
        known().by_number(new)


def test_a_number_in_two_entries_is_refused() -> None:
    with pytest.raises(ConfigError, match="a_2020, 1, first, a: in 2 entries"):
        known({}, {"columns": ["a"]}).by_number(printed())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": ["first", "gone"]}, "no published row 'gone'"),
        ({"columns": ["a", "b"]}, "no column 'b'"),
    ],
)
def test_rows_and_columns_that_are_not_published_are_refused(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        known(change).by_number(printed())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": "gone"}, "no weights 'gone'"),
        ({"study": None}, "without a study say why nothing runs it"),
    ],
)
def test_entries_name_what_is_there(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        known(change)


def test_private_weights_match_no_backbone() -> None:
    private = {"title": "JFT", "access": "private", "backbone": {"family": "timm"}}
    with pytest.raises(ConfigError, match="weights that are not public match none"):
        known(weights={"pixels": private})


def test_studies_and_pages_that_are_named_are_there() -> None:
    read = facts.read()
    files = [entry.study for entry in read.entries if entry.study]
    assert [file for file in files if not (ROOT / file).is_file()] == []
    assert files
    assert all(w.nearest in catalog.backbone_entries() for w in read.weights.values() if w.nearest)


def test_kept_results_are_those_of_their_pages() -> None:
    kept = facts.read().kept
    assert kept
    for item in kept:
        page = (ROOT / item.page).read_text(encoding="utf-8")
        assert f"{item.mean} ± {item.deviation} ({item.seeds} seeds)" in page


def test_weights_of_a_catalog_backbone_are_the_catalogs() -> None:
    options = [entry["options"] for entry in catalog.backbone_entries().values()]
    for weights in facts.read().weights.values():
        if weights.access == "public":
            assert weights.backbone in options


def test_unknown_keys_are_refused(raw: Any) -> None:
    raw["entries"][0]["note"] = "x"
    with pytest.raises(ConfigError, match="note"):
        facts.parse(raw)
