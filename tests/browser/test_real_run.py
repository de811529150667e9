"""MLflow's pages and the report of a real run work in a browser."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.browser.chromium import (
    assert_quiet,
    await_text,
    await_that,
    needed,
    open_page,
    screen,
    text_of,
)
from tests.support.mlflow_server import serve
from tests.workflow.conftest import SMALL, Workspace, _warm_python  # noqa: F401

from dpprobe.files.json_files import read_json

pytestmark = needed

STUDY: dict[str, Any] = copy.deepcopy(SMALL) | {
    "study": "real",
    "methods": {
        "sgd": {"head": "sgd", "batch_size": 64, "epochs": 4},
        "full": {"head": "sgd", "batch_size": "full", "steps": 20, "learning_rate": 0.5},
        "nonprivate": {"head": "nonprivate"},
    },
    "epsilons": [0.5, 2, 8],
    "tsne": {"points": 100},
}


@pytest.fixture(scope="module")
def results(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the results folder of a study that has run."""
    workspace = Workspace(repository=repository, directory=tmp_path_factory.mktemp("real"))
    workspace.run(STUDY, "tracking", "html_report")
    return workspace.directory / "results"


@pytest.fixture(scope="module")
def server(results: Path) -> Iterator[str]:
    with serve(results) as address:
        yield address


@pytest.fixture(autouse=True)
def _desk(browser: Any) -> None:
    screen(browser, width=1500)
    browser.get_log("browser")
    browser.get_log("performance")


def receipt(results: Path, name: str = "digits") -> dict[str, Any]:
    found: dict[str, Any] = read_json(results / f"tracking/{name}.json")
    return found


def accuracy(results: Path, method: str, epsilon: str) -> float:
    cell = read_json(results / f"cells/digits/pixels/{method}/eps-{epsilon}/metrics.json")
    return float(cell["summary"]["accuracy"]["mean"])


def run_address(results: Path, page: str, run: str, name: str = "digits") -> str:
    record = receipt(results, name)
    experiment = record["pages"][page].split("/")[2]
    return f"#/experiments/{experiment}/runs/{record['runs'][run]}"


def test_runs_are_found_by_a_filter(results: Path, server: str, browser: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    text = open_page(browser, f"{server}/{receipt(results)['pages']['all']}", "sgd ε2 pixels")
    assert "7 matching runs" in " ".join(text.split())
    (box,) = [
        e
        for e in browser.find_elements("css selector", "input")
        if "tags.current" in (e.get_attribute("value") or "")
    ]
    box.send_keys(Keys.CONTROL, "a")
    box.send_keys('tags.method = "sgd" and tags.private = "true" and tags.epsilon = "2"')
    box.send_keys(Keys.ENTER)
    await_that(
        lambda: "1 matching run" in " ".join(text_of(browser).split()),
        lambda: f"the filter does not work: {text_of(browser)[:2000]}",
    )
    assert "sgd ε2 pixels" in text_of(browser)
    assert "nonprivate ε∞ pixels" not in text_of(browser)
    assert_quiet(browser, server)


def test_the_private_view_leaves_the_ceiling_out(results: Path, server: str, browser: Any) -> None:
    page = receipt(results)["pages"]["private"]
    text = open_page(browser, f"{server}/{page}", "sgd ε2 pixels")
    assert "6 matching runs" in " ".join(text.split())
    assert "nonprivate" not in text


def test_the_first_chart_is_the_metric_against_epsilon(
    results: Path, server: str, browser: Any
) -> None:
    page = receipt(results)["pages"]["charts"]
    open_page(browser, f"{server}/{page}", "sgd pixels")
    lines = await_that(
        lambda: browser.execute_script(
            "const first = document.querySelector('.js-plotly-plot');"
            "return first && first.data.filter((own) => own.x && own.x.length === 3)"
            ".map((own) => [own.name, [...own.x], own.type, [...own.y]]);"
        ),
        lambda: f"no chart: {text_of(browser)[:2000]}",
    )
    assert {name for name, _, _, _ in lines} >= {"sgd pixels", "full pixels"}
    assert all(steps == [50, 200, 800] for _, steps, _, _ in lines)
    for method in ("sgd", "full"):
        logged = [accuracy(results, method, epsilon) for epsilon in ("0.5", "2", "8")]
        drawn = [values for name, _, _, values in lines if name == f"{method} pixels"]
        assert drawn, f"no line of {method}"
        for values in drawn:  # MLflow draws unsmoothed curves twice
            assert values == pytest.approx(logged, rel=1e-3), "MLflow draws a smoothed curve"
    assert_quiet(browser, server)


@contextmanager
def open_frame(browser: Any) -> Iterator[None]:
    """Switches to the frame of an artifact that is a page."""
    frame = await_that(
        lambda: browser.find_elements("css selector", "iframe"), lambda: "the page is not shown"
    )[0]
    browser.switch_to.frame(frame)
    try:
        yield
    finally:
        browser.switch_to.default_content()


def test_a_run_shows_its_promise_curves_and_confusion_matrix(
    results: Path, server: str, browser: Any
) -> None:
    run = run_address(results, "cells", "real/digits/pixels/sgd/eps-2")
    text = open_page(browser, f"{server}/{run}", "privacy/epsilon_realised")
    assert "(2, 1e-5)-differentially private" in text
    open_page(browser, f"{server}/{run}/model-metrics", "train_loss")
    await_that(
        lambda: browser.find_elements("css selector", ".js-plotly-plot .scatterlayer path.js-line"),
        lambda: "no learning curve is drawn",
    )
    open_page(browser, f"{server}/{run}/artifacts/confusion/matrix.html", "counts.csv")
    with open_frame(browser):
        await_text(browser, "percent of the images of each true class")
    assert_quiet(browser, server)


def test_the_study_has_a_run_with_its_report(results: Path, server: str, browser: Any) -> None:
    page = receipt(results, "_study")["pages"]["studies"]
    assert "digits/best_private_eps_2" in open_page(browser, f"{server}/{page}", "real")
    run = run_address(results, "studies", "real", "_study")
    open_page(browser, f"{server}/{run}/artifacts/report.html", "report.html")
    with open_frame(browser):
        await_text(browser, "Benchmark mode: not for release.")
    assert_quiet(browser, server)


def test_the_report_loads_no_remote_resources_in_a_browser(results: Path, browser: Any) -> None:
    text = open_page(browser, (results / "report.html").as_uri(), "How it is computed")
    grid = [
        read_json(path)["summary"]["accuracy"]["mean"]
        for path in results.glob("cells/digits/pixels/*/eps-2/metrics.json")
    ]
    assert "How accurate is a private classifier on" in text
    assert "At ε = 0.5 the best private head reaches" in text
    assert f"{100 * max(grid):.1f}" in text
    assert browser.execute_script(
        "return [...document.images].every((own) => own.complete && own.naturalWidth > 100)"
    )
    assert_quiet(browser)


def test_the_reports_tables_sort(results: Path, browser: Any) -> None:
    open_page(browser, (results / "report.html").as_uri(), "How it is computed")

    def column() -> list[str]:
        cells = browser.find_elements("css selector", "#best tbody tr td:nth-child(1)")
        return [cell.text for cell in cells]

    assert column() == ["0.5", "2", "8"]
    (head,) = browser.find_elements("css selector", "#best thead th:nth-child(1)")
    head.find_element("css selector", "button").click()
    assert column() == ["8", "2", "0.5"]
    assert head.get_attribute("aria-sort") == "descending"
    head.find_element("css selector", "button").click()
    assert column() == ["0.5", "2", "8"]
    assert_quiet(browser)


def test_the_cells_are_filtered_and_lead_to_their_statements(results: Path, browser: Any) -> None:
    open_page(browser, (results / "report.html").as_uri(), "How it is computed")
    browser.find_element("css selector", "details.cells > summary").click()
    box = browser.find_element("css selector", "input[data-filter]")

    def shown(words: str) -> list[Any]:
        box.clear()
        box.send_keys(words)
        rows = browser.find_elements("css selector", "#cells-digits tbody tr")
        return [row for row in rows if row.is_displayed()]

    promises = {
        words: [row.find_element("css selector", "td a").text for row in shown(words)]
        for words in ("private", "not-private")
    }
    assert set(promises["private"]) == {"private"}
    assert set(promises["not-private"]) == {"not private"}
    assert sum(map(len, promises.values())) == 7
    rows = shown("sgd ε=2")
    assert len(rows) == 1
    assert "1 of 7" in text_of(browser)
    link = rows[0].find_element("css selector", "td a")
    anchor = link.get_attribute("href").partition("#")[2]
    link.click()
    statement = browser.find_element("id", anchor)
    await_that(lambda: statement.get_attribute("open"), lambda: "the statement stays closed")
    assert "(2, 1e-5)-differentially private" in statement.text
    assert_quiet(browser)


@pytest.mark.parametrize("dark", [False, True])
def test_the_report_is_readable_on_a_phone_and_in_the_dark(
    results: Path, browser: Any, dark: bool
) -> None:
    screen(browser, width=390, dark=dark)
    open_page(browser, (results / "report.html").as_uri(), "How it is computed")
    browser.execute_script("document.querySelectorAll('details').forEach((d) => { d.open = true })")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
    low = browser.execute_script(CONTRAST)
    assert low == [], "text that is hard to read"


# Texts whose contrast with their background is below 4.5 (WCAG 2, level AA).
CONTRAST = """
const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
  .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, k) => sum + v * [0.2126, 0.7152, 0.0722][k], 0);
const behind = (own) => {
  for (; own; own = own.parentElement) {
    const colour = parse(getComputedStyle(own).backgroundColor);
    if (colour.length === 3 || colour[3] > 0) return colour;
  }
  return [255, 255, 255];
};
const low = [];
for (const own of document.querySelectorAll("body *")) {
  if (![...own.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())) continue;
  if (!own.checkVisibility() || own.closest("script, style, .skip")) continue;
  const [a, b] = [light(parse(getComputedStyle(own).color)), light(behind(own))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < 4.5) low.push([own.textContent.trim().slice(0, 40), ratio]);
}
return low;
"""
