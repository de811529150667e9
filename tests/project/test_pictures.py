"""Pictures of README and docs exist, are small, shown, reproducible and up to date.

`tests/workflow/test_default_study.py` compares the pictures of the default study with a run.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from dpprobe.analysis_registry import load_analyses
from dpprobe.exhibits import style
from dpprobe.reporting.figures import curves
from dpprobe.reporting.registry import EXHIBITS
from tests.browser import screenshots
from tests.support.cell_files import summarise, write_study
from tests.support.picture_texts import find_stale, load_pictures, read_texts
from tests.support.programs import run_program
from tests.support.script_modules import load_script

PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")


def shown(repository: Path) -> dict[Path, str]:
    """Returns the alternative text of each picture that the README or the docs show."""
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
        assert path.stat().st_size <= load_pictures().LARGEST, path
        assert len(text) > 20, f"{path.name}: the text does not say what is to be seen"


def test_every_picture_is_shown(repository: Path) -> None:
    kept = {path.resolve() for path in (repository / "docs" / "images").rglob("*.*")}
    assert kept - set(shown(repository)) == set()


def test_pages_show_what_make_screenshots_makes(repository: Path) -> None:
    figure, report, *views = screenshots.NAMES
    wanted = {"README.md": [figure], "docs/report.md": [report], "docs/tracking.md": views}
    for page, names in wanted.items():
        text = (repository / page).read_text(encoding="utf-8")
        found = [Path(address).name for _, address in PICTURE.findall(text) if "svg" not in address]
        assert sorted(found) == sorted(names)
    # each view of MLflow has a heading; the default study has no baselines view
    assert len(found) == len(re.findall(r"^### \d\. ", text, flags=re.MULTILINE)) - 1


def test_a_command_makes_every_picture(repository: Path) -> None:
    made = {*load_pictures().DRAWN, *screenshots.NAMES}
    made |= {*screenshots.TUTORIAL_PICTURES, "pipeline.svg"}
    folder = repository / "docs/images"
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*.*")} == made
    for name in made - {"pipeline.svg"}:
        read_texts(name)
    recipe = (repository / "Makefile").read_text().partition("\nscreenshots:")[2].split("\n\n")[0]
    assert all(
        f"python {words}" in recipe for words in ("tools/pages/pictures.py", "-m tests.browser.")
    )


@pytest.mark.parametrize("name", sorted(load_pictures().DRAWN))
def test_a_drawn_picture_has_the_texts_of_today(name: str) -> None:
    pictures = load_pictures()
    _, texts = pictures.DRAWN[name]()
    assert read_texts(name) == pictures.clean(texts), "run `make screenshots`"


def test_the_tutorial_s_figure_has_the_texts_of_today(tmp_path: Path) -> None:
    cells = write_study(
        tmp_path,
        dataset="lesions",
        backbones=["scattering"],
        methods=["auto", "nonprivate"],
        headline="macro_accuracy",
        class_names=["benign", "malignant"],
        patients=50,
        seeds=5,
    )
    with style.use_settings():
        figure = curves.epsilon_accuracy(summarise(tmp_path / "summary.parquet", *cells))
        drawn = load_pictures().read_svg_texts(style.draw_svg(figure).decode())
    assert find_stale(read_texts("tutorial_accuracy.png"), "\n".join(drawn)) == []


def test_a_text_that_is_not_written_any_more_is_found() -> None:
    today = "mean of 3 seeds; bands: 95% CI over seeds. At ε = 0.5, 2, inf: 97.0%"
    assert find_stale(["mean of 5 seeds;", "95% CI over seeds", "At ε = 1: 99.1%"], today) == []
    assert find_stale(["bands: 95 %, t over seeds", "means of 5 seeds"], today) == [
        "bands: 95 %, t over seeds",
        "means of 5 seeds",
    ]


def test_the_pipeline_is_drawn_from_the_rules(repository: Path) -> None:
    script = load_script(repository / "tools/pages/pipeline_picture.py")
    picture = script.draw_stages(script.condense_graph(script.read_graph()))
    assert picture == script.PICTURE.read_text(encoding="utf-8"), "run `make schema`"


def test_every_rule_has_a_description(repository: Path, tmp_path: Path) -> None:
    words = ["--list", "--snakefile", repository / "Snakefile"]
    words += ["--configfile", repository / "config/scatternet_mnist.yaml"]
    listed = run_program(
        [sys.executable, "-m", "snakemake", *map(str, words)], cwd=tmp_path
    ).stdout.splitlines()
    assert all(re.fullmatch(r"\w+ \(.+\)", line) for line in listed), listed
    names = {line.partition(" ")[0] for line in listed}
    assert names >= {exhibit.name for exhibit in EXHIBITS}
    measured = [analysis.measurement for analysis in load_analyses() if analysis.measurement]
    assert names >= {measurement.rule for measurement in measured}
    # A rule without a `rule` line is in the table of loops, so that a search finds the rule.
    files = [repository / "Snakefile", *(repository / "workflow").rglob("*.smk")]
    spelt = {
        name
        for file in files
        for name in re.findall(
            r"^ *(?:use )?rule (?:\w+ as )?(\w+)(?: with)?:$", file.read_text(), re.M
        )
    }
    page = (repository / "docs/workflow.md").read_text(encoding="utf-8")
    script = load_script(repository / "tools/pages/rules_page.py")
    assert page == script.rewrite_page(page), "run `make schema`"
    table = {name.replace("<dataset>", "mnist") for name in re.findall(r"`rule (\S+)`", page)}
    assert names - spelt <= table
    assert table.isdisjoint(spelt)
    assert "fairness" in table
