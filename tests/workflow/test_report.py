"""A real run makes dpprobe's report and Snakemake's own report."""

from __future__ import annotations

import html
import json
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from typing import Any

import pytest

from dpprobe.files.json_files import read_json
from dpprobe.privacy.statement_words import explain_statement
from tests.support.programs import run_program

from .conftest import SMALL, TIMEOUT, Template, WarmPython, Workspace

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def finished(module_workspace: Callable[[str], Workspace], template: Template) -> Workspace:
    workspace = module_workspace("report")
    template(workspace, SMALL, "heads")
    workspace.run(SMALL, "html_report")
    return workspace


@pytest.fixture(scope="module")
def page(finished: Workspace) -> str:
    return (finished.directory / "results/report.html").read_text(encoding="utf-8")


def test_the_report_shows_what_was_measured(finished: Workspace, page: str) -> None:
    record = read_json(finished.cell("sgd", "2") / "metrics.json")
    words = " ".join(re.sub(r"<[^>]+>", "", page).split())
    assert f"{100 * record['summary']['accuracy']['mean']:.1f}%" in words
    statement = read_json(finished.cell("sgd", "2") / "privacy.json")
    said = explain_statement(statement)
    for text in (said.promise, said.attacks, said.mode, *said.not_covered, *said.public):
        assert text in html.unescape(words)
    manifest = "results/features/digits/pixels/train/manifest.json"
    assert read_json(finished.directory / manifest)["features_sha256"] in page
    assert read_json(finished.directory / "data/digits/dataset.json")["fingerprint"] in page


def find_commands(page: str) -> list[list[str]]:
    """Returns the words of each command that runs the study, with `dpprobe run` outside a clone."""
    lines = map(html.unescape, re.findall(r"<code>([^<]*dpprobe run [^<]*)</code>", page))
    return [["dpprobe", *shlex.split(line)[1:]] for line in lines]


def test_a_cell_is_made_again_by_its_command(finished: Workspace, page: str) -> None:
    cell = finished.cell("sgd", "2")
    before = read_json(cell / "metrics.json")
    (command,) = [own for own in find_commands(page) if "/sgd/eps-2/metrics.json" in own[2]]
    shutil.rmtree(cell)
    run_program(
        WarmPython.asked([sys.executable, "-m", *command, "--profile", "none"]),
        cwd=finished.directory,
        timeout=TIMEOUT,
    )
    after = read_json(cell / "metrics.json")
    assert {**after, "seconds": None} == {**before, "seconds": None}


def test_snakemakes_own_report_has_every_figure_and_table(finished: Workspace) -> None:
    finished.run(SMALL, "figures", "tables", "--report", "snakemake.html")
    text = (finished.directory / "snakemake.html").read_text(encoding="utf-8")
    categories = _embedded(text, "categories")
    listed = {path for group in categories.values() for paths in group.values() for path in paths}
    results = finished.directory / "results"
    shown = [*results.glob("figures/**/*.png"), *results.glob("tables/*.csv")]
    assert shown
    assert {path.relative_to(finished.directory).as_posix() for path in shown} <= listed
    assert "Other" not in categories, "a figure or table without a category"
    captions = {name: own["caption"] for name, own in _embedded(text, "results").items()}
    assert [name for name in listed if not captions[name]] == []
    assert re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="https?:', text) == []


def _embedded(text: str, name: str) -> Any:
    """Returns a value that Snakemake's report contains as JavaScript."""
    found = re.search(rf"var {name} = (\{{.*?\}});\s*</script>", text, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_printed_commands_repeat_changes_of_the_command_line(finished: Workspace) -> None:
    finished.run(SMALL, "html_report", "--config", "epsilons=[1]", "seeds=1")
    page = (finished.directory / "results/report.html").read_text(encoding="utf-8")
    (command, *_) = [own for own in find_commands(page) if "eps-1/metrics.json" in own[2]]
    assert command[-3:] == ["--config", 'epsilons=["1"]', "seeds=1"]
    done = run_program(
        WarmPython.asked([sys.executable, "-m", *command, "--profile", "none", "-n"]),
        cwd=finished.directory,
        timeout=TIMEOUT,
    )
    assert "Nothing to be done" in done.stdout + done.stderr
