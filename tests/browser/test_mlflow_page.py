"""MLflow's page over a store made by `ingest`, in a real browser."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.cell_files import write_cell, write_dataset_info, write_study
from tests.mlflow_server import serve

from dpprobe.artifacts import read_json

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which("chromium") and shutil.which("chromedriver")),
        reason="chromium or chromedriver is missing; see tests/install_system_packages.sh",
    ),
]

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--window-size=1500,900",
)  # fmt: skip
# MLflow's page asks who is logged in, and a server without logins answers 404.
OWN_ERROR = "/ajax-api/2.0/mlflow/users/current"
# A layout that took two frames on a busy machine, says the standard: nothing is lost.
LATE_LAYOUT = "ResizeObserver loop completed with undelivered notifications"
WAIT_SECONDS = 60.0


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an MLflow store of a small made-up study, which has lost a method since."""
    from dpprobe.figures import epsilon_accuracy
    from dpprobe.summary import summarise_cells
    from dpprobe.tables import accuracy_table
    from dpprobe.tracking import ingest

    root = tmp_path_factory.mktemp("mlflow")
    cells = write_study(root / "results")
    summary = root / "summary.parquet"
    summarise_cells(cells, summary, study="study")
    svg, png = root / "accuracy.svg", root / "accuracy.png"
    epsilon_accuracy(summary, svg=svg, png=png)
    csv, markdown = root / "accuracy.csv", root / "accuracy.md"
    accuracy_table([summary], csv=csv, markdown=markdown)
    info = write_dataset_info(root / "dataset.json")
    dropped = write_cell(root / "results", method="dropped")
    for metrics_files in ([*cells, dropped], cells):
        ingest(
            uri=f"sqlite:///{root}/mlflow.db",
            study="study",
            dataset="digits",
            metrics_files=metrics_files,
            dataset_info=info,
            figures=[svg, png],
            embeddings={},
            tables=[csv, markdown],
            artifact_root=root / "mlartifacts",
            receipt=root / "receipt.json",
            lock=root / "lock",
        )
    return root


@pytest.fixture(scope="module")
def server(store: Path) -> Iterator[str]:
    """The address of an MLflow server over the store."""
    with serve(store) as address:
        yield address


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A headless Chromium that records its console and its requests."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    try:
        yield driver
    finally:
        driver.quit()


def test_cells_page_lists_the_runs_with_their_accuracy(
    store: Path, server: str, browser: Any
) -> None:
    page = read_json(store / "receipt.json")["pages"]["cells"]
    text = _open(browser, f"{server}/{page}", "sgd ε0.5 scattering")
    assert "nonprivate ε∞ pixels" in text
    for column in ("backbone", "method", "epsilon", "test/accuracy", "test/accuracy_std"):
        assert column in text, f"the ready-made view does not show {column}"
    assert "dropped" not in text, "the ready-made view shows a cell that left the study"
    _assert_quiet(browser, server)


def test_summary_page_shows_accuracy_at_each_epsilon(
    store: Path, server: str, browser: Any
) -> None:
    page = read_json(store / "receipt.json")["pages"]["summary"]
    text = _open(browser, f"{server}/{page}", "sgd_full scattering")
    assert "accuracy/eps_0.5" in text
    assert "dropped" not in text
    _assert_quiet(browser, server)


def test_cells_that_left_the_study_are_there_without_the_filter(
    store: Path, server: str, browser: Any
) -> None:
    experiment = read_json(store / "receipt.json")["pages"]["cells"].split("/")[2]
    address = f"{server}/#/experiments/{experiment}/runs?workflowType=machine_learning"
    assert "sgd ε0.5 scattering" in _open(browser, address, "dropped ε1 pixels")


def test_run_page_shows_metrics_and_artifacts(store: Path, server: str, browser: Any) -> None:
    receipt = read_json(store / "receipt.json")
    experiment = receipt["pages"]["cells"].split("/")[2]
    run = receipt["runs"]["study/digits/scattering/sgd/eps-1"]
    text = _open(
        browser, f"{server}/#/experiments/{experiment}/runs/{run}", "privacy/epsilon_realised"
    )
    assert "0.996" in text
    assert "(1, 1e-05)-DP" in text
    _open(browser, f"{server}/#/experiments/{experiment}/runs/{run}/artifacts", "privacy.json")
    _assert_quiet(browser, server)


def _open(browser: Any, address: str, awaited: str) -> str:
    """Opens a page and returns its text once `awaited` is in it."""
    browser.get("about:blank")
    browser.get(address)
    limit = time.monotonic() + WAIT_SECONDS
    text = ""
    while time.monotonic() < limit:
        text = browser.execute_script("return document.body.innerText") or ""
        if awaited in text:
            time.sleep(1.0)
            return str(browser.execute_script("return document.body.innerText"))
        time.sleep(0.2)
    pytest.fail(f"{awaited!r} is not on {address}, which shows: {text[:2000]}")


def _assert_quiet(browser: Any, server: str) -> None:
    """No error on the console, and no request to another host."""
    console = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    messages = [entry["message"] for entry in console]
    expected = (OWN_ERROR, LATE_LAYOUT)
    assert [text for text in messages if not any(known in text for known in expected)] == []
    hosts = set()
    for entry in browser.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            parts = urlsplit(message["params"]["request"]["url"])
            if parts.scheme in ("http", "https", "ws", "wss"):
                hosts.add(parts.netloc)
    assert hosts == {urlsplit(server).netloc}
