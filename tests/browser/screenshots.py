"""Takes pictures of real runs: the report and MLflow views of the default study, and the tutorial.

`make screenshots` runs this after `tools/pages/pictures.py`, which draws pictures that need no run.
Each picture contains its texts, which tests compare with the texts that the program writes today.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.browser.chromium import MISSING, await_that, launch, open_page, screen
from tests.support.mlflow_server import serve
from tests.support.script_modules import load_script

from dpprobe.files.json_files import read_json

ROOT = Path(__file__).resolve().parents[2]
DATASET = "digits"
FIGURE = f"figures/{DATASET}/accuracy.png"
REPORT = "report.png"
REPORT_SIZE = (1280, 1000)
# For each picture of MLflow: the file that lists page addresses, and the name of the page in it.
VIEWS = {
    "mlflow_runs.png": (f"{DATASET}.json", "cells"),
    "mlflow_charts.png": (f"{DATASET}.json", "charts"),
    "mlflow_private.png": (f"{DATASET}.json", "private"),
    "mlflow_studies.png": ("_study.json", "studies"),
}
MLFLOW_SIZE = (1600, 800)
NAMES = (f"{DATASET}_accuracy.png", REPORT, *VIEWS)
INSTALL = "sh tests/install_system_packages.sh browser"
PLOTTED = ".js-plotly-plot .scatterlayer path, .js-plotly-plot .barlayer path"
# Plotly shows these buttons only under the mouse, but always in a browser without a mouse.
PLOTLY_BUTTONS = ".modebar { display: none !important; }"
# Texts of all elements that are entirely inside the window.
TEXTS_IN_SIGHT = """
return [...document.querySelectorAll("body *")].filter((own) => {
  const box = own.getBoundingClientRect();
  return [...own.childNodes].some((node) => node.nodeType === 3 && node.data.trim())
    && box.width && box.top >= 0 && box.bottom <= innerHeight && own.checkVisibility();
}).map((own) => own.innerText ?? own.textContent);
"""
# Top edge of the first element that the window cuts off.
FIRST_CUT = """
return Math.min(innerHeight, ...[...document.querySelectorAll("main *, body > *")].filter((own) => {
  const box = own.getBoundingClientRect();
  return [...own.childNodes].some((node) => node.nodeType === 3 && node.data.trim())
    && box.top < innerHeight && box.bottom > innerHeight;
}).map((own) => own.getBoundingClientRect().top));
"""
# On a busy machine MLflow makes all columns equally wide: double clicks fit them to their content.
WIDEN_COLUMNS = """
document.querySelectorAll(".ag-header-cell-resize").forEach((own) =>
  own.dispatchEvent(new MouseEvent("dblclick", { bubbles: true })));
"""
# The tutorial runs in its own folder, with links to the files that its commands name.
TUTORIAL = ROOT / "build" / "tutorial"
TUTORIAL_PAGE = ROOT / "docs" / "tutorial.md"
LINKED = ("Snakefile", "bench", "profiles", "resources", "src", "workflow")
TUTORIAL_PICTURES = {
    name: source
    for source, name in re.findall(
        r"<!-- from (\S+) -->\n\n!\[.*?\]\(images/(\S+)\)",
        TUTORIAL_PAGE.read_text(encoding="utf-8"),
    )
}
Picture = tuple[str, bytes, list[str]]  # name, content as PNG, texts


def main() -> None:
    """Runs the studies that have not run yet, and writes their pictures."""
    if MISSING:
        sys.exit(f"screenshots: chromium or chromedriver is missing; install them: {INSTALL}")
    pictures = load_script(ROOT / "bench" / "pictures.py")
    run_default_study()
    run_tutorial()
    for name, picture, texts in take(ROOT / "results"):
        pictures.write_picture(name, picture, texts)
    for name, source in TUTORIAL_PICTURES.items():
        pictures.write_picture(
            name, (TUTORIAL / source).read_bytes(), figure_texts(TUTORIAL / source)
        )


def figure_texts(picture: Path) -> list[str]:
    """Returns the texts of a study's figure, from its SVG file; [] for other pictures."""
    svg = picture.with_suffix(".svg")
    read = load_script(ROOT / "bench" / "pictures.py").read_svg_texts
    return list(read(svg.read_text(encoding="utf-8"))) if svg.exists() else []


def run_tutorial() -> None:
    """Runs the commands of docs/tutorial.md until the study's results exist."""
    TUTORIAL.mkdir(parents=True, exist_ok=True)
    for name in LINKED:
        if not (TUTORIAL / name).exists():
            (TUTORIAL / name).symlink_to(ROOT / name)
    page = TUTORIAL_PAGE.read_text(encoding="utf-8").partition("## The report")[0]
    commands = [
        line.strip()
        for block in re.findall(r"<!-- run -->\n\n((?:    .*\n)+)", page)
        for line in block.splitlines()
        if not (" init " in line and (TUTORIAL / "lesions.yaml").exists())
    ]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for command in commands:
        subprocess.run(
            command, shell=True, check=True, cwd=TUTORIAL, env={**os.environ, "PATH": path}
        )


def run_default_study() -> None:
    """Runs the jobs of the default study that are missing; takes minutes the first time."""
    cores = str(os.cpu_count() or 1)
    command = [sys.executable, "-m", "snakemake", "--cores", cores, "--rerun-incomplete"]
    subprocess.run([*command, "--quiet", "progress", "rules"], cwd=ROOT, check=True)


def take(results: Path) -> Iterator[Picture]:
    """Yields the pictures of the default study."""
    figure = results / FIGURE
    yield f"{DATASET}_accuracy.png", figure.read_bytes(), figure_texts(figure)
    with a_browser() as browser:
        width, height = REPORT_SIZE
        screen(browser, width=width, height=height)
        browser.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
        open_page(browser, (results / "report.html").as_uri(), "How it is computed")
        screen(browser, width=width, height=int(browser.execute_script(FIRST_CUT)))
        yield REPORT, *take_page(browser)
        browser.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": False})
        yield from _take_views(browser, results, VIEWS)


def _take_views(
    browser: Any, results: Path, views: Mapping[str, tuple[str, str]]
) -> Iterator[Picture]:
    with tempfile.TemporaryDirectory() as scratch:
        store = f"sqlite:///{results.resolve()}/mlflow.db"
        with serve(Path(scratch), backend=store) as server:
            for name, (record, page) in views.items():
                pages = read_json(results / "tracking" / record)["pages"]
                yield name, *_mlflow_page(browser, f"{server}/{pages[page]}")


@contextmanager
def a_browser() -> Iterator[Any]:
    """Starts Chromium with its own profile, and ends it."""
    with tempfile.TemporaryDirectory() as profile:
        browser = launch(Path(profile))
        try:
            yield browser
        finally:
            browser.quit()


def close_assistant(browser: Any) -> bool:
    """Closes the panel that MLflow opens at a page's first visit; returns True if there was one."""
    crosses = browser.find_elements("css selector", '[data-component-id$="chat_panel.close"]')
    for cross in crosses:
        cross.click()
    return bool(crosses)


def take_page(browser: Any) -> tuple[bytes, list[str]]:
    """Returns a picture of the window and the texts in it."""
    return browser.get_screenshot_as_png(), browser.execute_script(TEXTS_IN_SIGHT)


def _mlflow_page(browser: Any, address: str) -> tuple[bytes, list[str]]:
    width, height = MLFLOW_SIZE
    screen(browser, width=width, height=height)
    open_page(browser, address, "matching run")
    if close_assistant(browser):
        open_page(browser, address, "matching run")  # the closed panel leaves more room
    browser.execute_script(
        "document.head.appendChild(document.createElement('style')).textContent = arguments[0]",
        PLOTLY_BUTTONS,
    )
    if "CHART" in address:
        await_that(
            lambda: browser.find_elements("css selector", PLOTTED),
            lambda: f"no chart is drawn on {address}",
        )
    browser.execute_script(WIDEN_COLUMNS)
    time.sleep(1.0)
    return take_page(browser)


if __name__ == "__main__":
    main()
