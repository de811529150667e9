"""MLflow's page over a store made by `ingest`, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.browser.chromium import assert_quiet, needed, open_page, screen
from tests.support.baseline_records import write_few_shot, write_zero_shot
from tests.support.cell_files import write_cell, write_dataset_info, write_study
from tests.support.mlflow_server import serve

from dpprobe.artifacts import read_json

pytestmark = needed


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an MLflow store of a small made-up study, which has lost a method since."""
    from tests.support.figures import save_bytes
    from tests.support.tracked_study import Study

    from dpprobe.exhibits.tables import save_table
    from dpprobe.reporting.accuracy_table import make_accuracy_table
    from dpprobe.reporting.figures.curves import epsilon_accuracy
    from dpprobe.results.summary import summarise_cells

    root = tmp_path_factory.mktemp("mlflow")
    cells = write_study(root)
    summary = root / "summary.parquet"
    summarise_cells(cells, summary, study="study")
    svg, png = root / "accuracy.svg", root / "accuracy.png"
    save_bytes(epsilon_accuracy(summary), root / "accuracy")
    csv, markdown = root / "accuracy.csv", root / "accuracy.md"
    for path in (csv, markdown):
        save_table(make_accuracy_table([summary]), path)
    write_dataset_info(root / "dataset.json")
    dropped = write_cell(root, method="dropped")
    for metrics_files in ([*cells, dropped], cells):
        Study(root).ingest(
            metrics_files=metrics_files,
            figures=[svg, png],
            embeddings={},
            tables=[csv, markdown],
            zero_shot=[write_zero_shot(root, accuracy=0.71)],
            few_shot=[write_few_shot(root, {1: 0.42, 16: 0.88, None: 0.96})],
        )
    scans = [
        write_cell(
            root / "scans",
            dataset="scans",
            backbone="a_backbone_with_a_long_name_" * 2,
            method="a_method_with_a_long_name_" * 2,
            epsilon=epsilon,
            multi_label=True,
        )
        for epsilon in ("0.5", "1", "2")
    ]
    Study(root).ingest(
        dataset="scans",
        metrics_files=scans,
        figures=[],
        embeddings={},
        tables=[],
        receipt=root / "scans.json",
    )
    return root


@pytest.fixture(scope="module")
def server(store: Path) -> Iterator[str]:
    """The address of an MLflow server over the store."""
    with serve(store) as address:
        yield address


def test_cells_page_lists_the_runs_with_their_accuracy(
    store: Path, server: str, browser: Any
) -> None:
    screen(browser, width=2600)  # MLflow writes no columns that lie outside of the window
    page = read_json(store / "receipt.json")["pages"]["cells"]
    text = open_page(browser, f"{server}/{page}", "sgd ε1 scattering")
    assert "4 matching runs" in " ".join(text.split())
    assert "ε0.5" not in text, "the page opens on more than one epsilon"
    assert "cells at epsilon 1" in text, "the menu of views does not tell the epsilon"
    for column in ("backbone", "method", "epsilon", "test/accuracy", "test/accuracy_std"):
        assert column in text, f"the ready-made view does not show {column}"
    assert "dropped" not in text, "the ready-made view shows a cell that left the study"
    assert_quiet(browser, server)


def test_all_cells_are_grouped_by_epsilon(store: Path, server: str, browser: Any) -> None:
    screen(browser, width=1500)
    page = read_json(store / "receipt.json")["pages"]["all"]
    text = open_page(browser, f"{server}/{page}", "Group: inf")
    for group in ("Group: 0.5", "Group: 1", "Group: 2"):
        assert group in text
    assert "nonprivate ε∞ pixels" in text
    assert "22 matching runs" in " ".join(text.split())
    assert_quiet(browser, server)


def test_baselines_stand_beside_private_heads_in_one_table_and_one_chart(
    store: Path, server: str, browser: Any
) -> None:
    screen(browser, width=1600)
    pages = read_json(store / "receipt.json")["pages"]
    text = open_page(browser, f"{server}/{pages['baselines']}", "few-shot-16 pixels")
    shown = [text.index(name) for name in ("few-shot-full pixels", "zero-shot pixels")]
    assert shown == sorted(shown), "the best is not first"
    assert "sgd ε1 pixels" in text
    assert "ε0.5" not in text
    text = open_page(browser, f"{server}/{pages['baseline_charts']}", "zero-shot pixels")
    titles = [title for title, _ in browser.execute_script(TITLES)]
    assert titles[0] == "test/accuracy"
    for name in ("few-shot-1 pixels", "few-shot-full pixels", "sgd ε1 pixels"):
        assert name in text
    assert_quiet(browser, server)


def test_auc_and_the_epsilon_of_charts_can_be_read_beside_the_assistant(
    store: Path, server: str, browser: Any
) -> None:
    screen(browser, width=1600)
    pages = read_json(store / "scans.json")["pages"]
    open_page(browser, f"{server}/{pages['cells']}", "test/auc")
    shown = browser.execute_script(IN_SIGHT, '.ag-cell[col-id="metrics.`test/auc`"]')
    assert len(shown) == 1
    assert all(shown), "the AUC lies outside of the table's part that shows"
    open_page(browser, f"{server}/{pages['charts']}", "auc/eps_2")
    titles = browser.execute_script(TITLES)
    wanted = ["auc/by_100_eps", "auc/eps_0.5", "auc/eps_1", "auc/eps_2"]
    assert [title for title, _ in titles if title in wanted] == wanted
    assert [title for title, cut in titles if title in wanted and cut] == []
    assert_quiet(browser, server)


def test_summary_page_shows_accuracy_at_each_epsilon(
    store: Path, server: str, browser: Any
) -> None:
    page = read_json(store / "receipt.json")["pages"]["summary"]
    text = open_page(browser, f"{server}/{page}", "sgd_full scattering")
    assert "accuracy/eps_0.5" in text
    assert "dropped" not in text
    assert_quiet(browser, server)


def test_cells_that_left_the_study_are_there_without_the_filter(
    store: Path, server: str, browser: Any
) -> None:
    experiment = read_json(store / "receipt.json")["pages"]["cells"].split("/")[2]
    address = f"{server}/#/experiments/{experiment}/runs?workflowType=machine_learning"
    assert "sgd ε0.5 scattering" in open_page(browser, address, "dropped ε1 pixels")


def test_run_page_shows_metrics_and_artifacts(store: Path, server: str, browser: Any) -> None:
    receipt = read_json(store / "receipt.json")
    experiment = receipt["pages"]["cells"].split("/")[2]
    run = receipt["runs"]["study/digits/scattering/sgd/eps-1"]
    address = f"{server}/#/experiments/{experiment}/runs/{run}"
    text = open_page(browser, address, "privacy/epsilon_realised")
    assert "0.996" in text
    assert "(1, 1e-05)-DP" in text
    open_page(browser, f"{address}/artifacts", "privacy.json")
    assert_quiet(browser, server)


# True for each element that nothing hides: at its middle lies the element itself.
IN_SIGHT = """
return [...document.querySelectorAll(arguments[0])].map((own) => {
  const box = own.getBoundingClientRect();
  const top = document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2);
  return top !== null && (own.contains(top) || top.contains(own));
});
"""
# The texts that look like a metric, and whether each is cut to its box.
TITLES = """
return [...document.querySelectorAll("[data-testid='experiment-view-compare-runs-card'] *")]
  .filter((own) => own.childElementCount === 0 && /^[a-z_]+\\/[a-z]/.test(own.textContent))
  .map((own) => [own.textContent.trim(), own.scrollWidth > own.clientWidth + 1]);
"""
