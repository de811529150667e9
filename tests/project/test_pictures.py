"""The pictures of README and docs: there, small, shown; those of the README made by a script."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.browser import screenshots

PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")


def shown(repository: Path) -> dict[Path, str]:
    """Returns the alternative text of each picture that README or docs show."""
    pages = [repository / "README.md", *sorted((repository / "docs").rglob("*.md"))]
    return {
        (page.parent / address).resolve(): text
        for page in pages
        for text, address in PICTURE.findall(page.read_text(encoding="utf-8"))
    }


def test_pictures_are_there_and_small_and_have_a_text(repository: Path) -> None:
    pictures = shown(repository)
    assert len(pictures) > 10
    for path, text in pictures.items():
        assert path.read_bytes()[:4] == b"\x89PNG", path
        assert path.stat().st_size <= screenshots.LARGEST, path
        assert len(text) > 20, f"{path.name}: the text does not say what is to be seen"


def test_every_picture_is_shown(repository: Path) -> None:
    kept = {path.resolve() for path in (repository / "docs" / "images").rglob("*.png")}
    assert kept - set(shown(repository)) == set()


def test_the_readmes_pictures_are_those_that_make_screenshots_makes(repository: Path) -> None:
    text = (repository / "README.md").read_text(encoding="utf-8")
    names = [Path(address).name for _, address in PICTURE.findall(text)]
    assert sorted(names) == sorted(screenshots.NAMES)
    assert "python -m tests.browser.screenshots" in (repository / "Makefile").read_text()


def test_the_page_on_mlflow_shows_each_view_that_make_screenshots_makes(repository: Path) -> None:
    text = (repository / "docs/tracking.md").read_text(encoding="utf-8")
    names = [Path(address).name for _, address in PICTURE.findall(text)]
    assert sorted(names) == sorted(screenshots.TRACKING_NAMES)
    assert len(names) == len(re.findall(r"^### \d\. ", text, flags=re.MULTILINE))


def test_without_a_browser_it_says_what_to_install(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screenshots, "MISSING", True)
    for study in ("run_default_study", "run_few_shot_study"):
        monkeypatch.setattr(screenshots, study, lambda: pytest.fail("too early"))
    with pytest.raises(SystemExit, match=screenshots.INSTALL):
        screenshots.main()
    assert (repository / screenshots.INSTALL.split()[1]).exists()
