"""The pictures of README and docs: there, small, shown; those of the README made by a script."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from dpprobe.analysis_registry import load_analyses
from dpprobe.reporting.registry import EXHIBITS
from tests.browser import screenshots
from tests.support.script_modules import load_script

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
        assert path.read_bytes()[:4] in (b"\x89PNG", b"<svg"), path
        assert path.stat().st_size <= screenshots.LARGEST, path
        assert len(text) > 20, f"{path.name}: the text does not say what is to be seen"


def test_every_picture_is_shown(repository: Path) -> None:
    kept = {path.resolve() for path in (repository / "docs" / "images").rglob("*.*")}
    assert kept - set(shown(repository)) == set()


def test_pages_show_what_make_screenshots_makes(repository: Path) -> None:
    wanted = {"README.md": screenshots.NAMES, "docs/tracking.md": screenshots.TRACKING_NAMES}
    for page, names in wanted.items():
        text = (repository / page).read_text(encoding="utf-8")
        found = [Path(address).name for _, address in PICTURE.findall(text) if "svg" not in address]
        assert sorted(found) == sorted(names)
    # each view of MLflow has a heading
    assert len(found) == len(re.findall(r"^### \d\. ", text, flags=re.MULTILINE))
    assert "python -m tests.browser.screenshots" in (repository / "Makefile").read_text()


def test_the_pipeline_is_drawn_from_the_rules(repository: Path) -> None:
    script = load_script(repository / "bench/pipeline_picture.py")
    picture = script.draw_stages(script.condense_graph(script.read_graph()))
    assert picture == script.PICTURE.read_text(encoding="utf-8"), "run `make schema`"


def test_snakemake_lists_every_rule_with_what_it_makes(repository: Path, tmp_path: Path) -> None:
    words = ["--list", "--snakefile", repository / "Snakefile"]
    words += ["--configfile", repository / "config/scatternet_mnist.yaml"]
    listed = subprocess.run(
        [sys.executable, "-m", "snakemake", *map(str, words)],
        cwd=tmp_path, check=True, capture_output=True, text=True,
    ).stdout.splitlines()  # fmt: skip
    assert all(re.fullmatch(r"\w+ \(.+\)", line) for line in listed), listed
    names = {line.partition(" ")[0] for line in listed}
    assert names >= {exhibit.name for exhibit in EXHIBITS}
    measured = [analysis.measurement for analysis in load_analyses() if analysis.measurement]
    assert names >= {measurement.rule for measurement in measured}
