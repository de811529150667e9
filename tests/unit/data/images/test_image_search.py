"""Names of images that lack a folder or a suffix."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpprobe.data.images.image_search import ImagePaths, list_roots, names_image, search_images

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
        # the usual suffixes come first, and the folder itself before its folders
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


def test_names_of_images_have_their_suffix_in_any_case() -> None:
    good = ["a.png", "A.JPG", "x/b.Jpeg", "c.tif", "d.dcm", "e.bmp", "a.b.png"]
    bad = ["png", "a", "x.png/a", "f.txt", ".png", "a.png.txt"]
    assert [*map(names_image, good + bad)] == [True] * len(good) + [False] * len(bad)


def test_paths_of_a_table_start_beside_it_here_or_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in/deep").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert list_roots(Path("in/deep/a.csv")) == [Path("in/deep"), Path(), Path("in/deep/..")]
    # each folder once
    assert list_roots(Path("in/a.csv")) == [Path("in"), Path()]
