"""Paths in options: patterns, repeated files, and changed paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpprobe.data import option_paths
from dpprobe.errors import ConfigError


def test_paths_in_which_snakemake_would_replace_a_part() -> None:
    paths = ["a", "{x}", "<x>", "x>", "x}", "a{"]
    assert [*filter(option_paths.is_wildcard, paths)] == ["{x}", "<x>", "a{"]


@pytest.mark.parametrize("folder", ["{x}", "<x>", "a[1]", "a*b", "what?", "[!a]", "[open"])
def test_patterns_name_files_in_order_and_folders_literally(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(folder).mkdir()
    for name in ("b.csv", "a.csv", "a[2].csv", "a2.csv"):
        (Path(folder) / name).touch()
    for place in (Path(folder), tmp_path / folder):

        def names(pattern: str, place: Path = place) -> list[str]:
            found = option_paths.match_files(place / pattern)
            assert {path.parent for path in found} <= {place}
            return [path.name for path in found]

        assert names("*.csv") == ["a.csv", "a2.csv", "a[2].csv", "b.csv"]
        assert names("a[2].csv") == ["a[2].csv"]  # the name of a file, not a pattern
        assert names("[ab].csv") == ["a.csv", "b.csv"]
        assert names("c*") == names("none.csv") == []
        assert option_paths.match_files(place.with_name("none") / "*.csv") == []
    assert option_paths.match_files(Path("*/a2.csv")) == [Path(folder) / "a2.csv"]
    assert option_paths.list_patterns("a") == ("a",)
    assert option_paths.list_patterns(("a", "b")) == ("a", "b")


def test_a_file_is_named_once() -> None:
    files = [Path("a"), Path("b"), Path("a")]
    assert option_paths.each_once("train", files[:2]) == files[:2]
    with pytest.raises(ConfigError, match="train: a is named twice; remove one"):
        option_paths.each_once("train", files)


def test_every_path_is_changed_with_its_key() -> None:
    values = {
        "root": "r",
        "train": ["x", "y"],
        "test": None,
        "n": 3,
        "label": "l",
        "joins": [{"file": "j", "by": "k"}, {"file": "m", "by": "k"}],
    }
    paths = ("root", "train", "test", "joins.*.file")
    changed = option_paths.with_paths(values, paths, lambda path, key: f"{key}={path}")
    assert changed == values | {
        "root": "root=r",
        "train": ["train=x", "train=y"],
        "joins": [{"file": "joins.0.file=j", "by": "k"}, {"file": "joins.1.file=m", "by": "k"}],
    }
    assert values["root"] == "r"
