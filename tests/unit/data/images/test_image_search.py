"""Finds images that are named without a folder or a suffix."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpprobe.data.images.image_search import ImagePaths, list_roots, search_images
from dpprobe.errors import ConfigError

FILES = "a.JPG b.png m/b.png m/c.jpeg c.tif n/d.PNG m/d.png .h/e.png m/f.dcm f.txt h.bmp h.jpg"


@pytest.fixture
def images(tmp_path: Path) -> Path:
    for name in FILES.split():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("names", "before", "after"),
    [
        ("b.png", "", ""),
        ("m/b.png", "", ""),
        ("a", "", ".JPG"),
        ("none a", "", ".JPG"),
        # the usual suffixes are tried first, and the folder itself before its subfolders
        ("h", "", ".jpg"),
        ("b", "", ".png"),
        ("c", "", ".tif"),
        ("d", "m/", ".png"),
        ("c.jpeg", "m/", ""),
        ("f", "m/", ".dcm"),
        ("f.txt", "", ""),
    ],
)
def test_a_name_is_completed_to_a_file(images: Path, names: str, before: str, after: str) -> None:
    found = search_images(names.split(), [images])
    assert found == ImagePaths(root=images, before=before, after=after)
    assert found.path_of(names.split()[-1]).is_file()


@pytest.mark.parametrize("name", ["none", "e", "e.png", "b.jpg"])
def test_what_is_not_there_or_hidden_is_not_found(images: Path, name: str) -> None:
    assert search_images([name], [images]) is None


def test_folders_are_searched_in_order_and_only_the_first_deeper(images: Path) -> None:
    inner = images / "m"
    assert search_images(["b"], [inner, images]) == ImagePaths(root=inner, after=".png")
    assert search_images(["b"], [images, inner]) == ImagePaths(root=images, after=".png")
    assert search_images(["c.jpeg"], [images / "n", images]) is None
    assert search_images(["a"], [images / "no", images]) == ImagePaths(root=images, after=".JPG")


@pytest.mark.parametrize(
    ("folders", "pattern"),
    [
        ({"HAM_part_1": "ab", "HAM_part_2": "cd"}, "HAM_part_*/"),
        ({"HAM_part_1": "ab", "HAM_part_2": "c", "HAM_part_3": "d", "notes": ""}, "HAM_part_*/"),
        ({"a": "ab", "ab": "cd"}, "a*/"),
        ({"x": "ab", "y": "d"}, "*/"),  # no folder has c
        ({"x": "abcd", "y": "cd"}, "x/"),  # y may hold previews
        ({"x1": "ab", "x2": "cd", "y": "a"}, "x*/"),
        ({"x1": "ab", "x2": "bcd"}, None),
        ({"x1": "ab", "x2": "cd", "x3": "a"}, None),
    ],
)
def test_images_that_are_spread_over_folders_are_found_by_a_pattern(
    tmp_path: Path, folders: dict[str, str], pattern: str | None
) -> None:
    for folder, names in folders.items():
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / f"{name}.jpg").touch()
    found = search_images(["a"], [tmp_path])
    assert found is not None
    if pattern is None:
        with pytest.raises(ConfigError, match=r"[ab]\.jpg is in x1/ and in x[23]/; keep one file"):
            found.spread("abcd")
        return
    spread = found.spread("abcd")
    assert spread.pattern == pattern
    for name in "abcd":
        holders = [folder for folder, names in folders.items() if name in names] or ["x"]
        assert spread.path_of(name) == tmp_path / holders[0] / f"{name}.jpg"


def test_paths_of_a_table_start_next_to_it_here_or_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in/deep").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert list_roots(Path("in/deep/a.csv")) == [Path("in/deep"), Path(), Path("in/deep/..")]
    # each folder is listed once
    assert list_roots(Path("in/a.csv")) == [Path("in"), Path()]
