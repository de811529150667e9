"""Pictures of the default study in README and docs/tracking.md: its report and views in MLflow.

Run as `make screenshots`, after a change of what they show.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from tests.browser.chromium import MISSING, await_that, launch, open_page, screen
from tests.support.mlflow_server import serve

from dpprobe.artifacts import read_json

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs" / "images"
DATASET = "digits"
FIGURE = f"figures/{DATASET}/accuracy.png"  # copied unchanged
REPORT = "report.png"
REPORT_SIZE = (1280, 1000)
# Each picture of MLflow with the record of addresses and the name of the page in it.
README_VIEWS = {
    "mlflow_runs.png": (f"{DATASET}.json", "cells"),
    "mlflow_charts.png": (f"{DATASET}.json", "charts"),
}
OTHER_VIEWS = {
    "mlflow_private.png": (f"{DATASET}.json", "private"),
    "mlflow_studies.png": ("_study.json", "studies"),
}
# The view of baselines exists only if a study has some, so a second, smaller study makes it.
FEW_SHOT_VIEWS = {"mlflow_baselines.png": (f"{DATASET}.json", "baseline_charts")}
FEW_SHOT = ROOT / "build" / "few_shot"
MLFLOW_SIZE = (1600, 800)
NAMES = (f"{DATASET}_accuracy.png", REPORT, *README_VIEWS)
TRACKING_NAMES = (*README_VIEWS, *OTHER_VIEWS, *FEW_SHOT_VIEWS)
COLOURS = 256
LARGEST = 300_000  # bytes of a picture
INSTALL = "sh tests/install_system_packages.sh browser"
PLOTTED = ".js-plotly-plot .scatterlayer path, .js-plotly-plot .barlayer path"
# What a mouse elsewhere does not show: Plotly's buttons, always there in a browser without one.
PLOTLY_BUTTONS = ".modebar { display: none !important; }"


def main() -> None:
    """Runs the default study where it has not been run, and writes its pictures."""
    if MISSING:
        sys.exit(f"screenshots: chromium or chromedriver is missing; install them: {INSTALL}")
    run_default_study()
    run_few_shot_study()
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name, picture in take(ROOT / "results", few_shot=FEW_SHOT / "results"):
        content = optimised(picture)
        if len(content) > LARGEST:
            sys.exit(f"screenshots: {name} has {len(content):,} bytes, over {LARGEST:,}; show less")
        (PICTURES / name).write_bytes(content)
        print(f"{(PICTURES / name).relative_to(ROOT)}: {len(content) / 1000:.0f} kB")


def run_default_study() -> None:
    """Runs what is missing of it; minutes the first time."""
    _run_snakemake()


def run_few_shot_study() -> None:
    """Runs the default study at one epsilon beside few-shot probes, in a folder of its own."""
    _run_snakemake(
        "--until", "track", "--config", "study=digits_few_shot",
        f"results_dir={(FEW_SHOT / 'results').relative_to(ROOT)}",
        f"data_dir={(FEW_SHOT / 'data').relative_to(ROOT)}",
        "epsilons=[1]",
        "few_shot={backbones: [scattering, pixels], shots: [1, 4, 16]}",
    )  # fmt: skip


def _run_snakemake(*words: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "snakemake", "--cores", str(os.cpu_count() or 1),
         "--rerun-incomplete", "--quiet", "progress", "rules", *words],
        cwd=ROOT, check=True,
    )  # fmt: skip


def take(results: Path, *, few_shot: Path) -> Iterator[tuple[str, bytes]]:
    """Yields each picture's name and content, as PNG."""
    yield f"{DATASET}_accuracy.png", (results / FIGURE).read_bytes()
    with a_browser() as browser:
        width, height = REPORT_SIZE
        screen(browser, width=width, height=height)
        browser.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
        open_page(browser, (results / "report.html").as_uri(), "How it is computed")
        yield REPORT, browser.get_screenshot_as_png()
        browser.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": False})
        yield from _take_views(browser, results, README_VIEWS | OTHER_VIEWS)
        yield from _take_views(browser, few_shot, FEW_SHOT_VIEWS)


def _take_views(
    browser: Any, results: Path, views: Mapping[str, tuple[str, str]]
) -> Iterator[tuple[str, bytes]]:
    with tempfile.TemporaryDirectory() as scratch:
        store = f"sqlite:///{results.resolve()}/mlflow.db"
        with serve(Path(scratch), backend=store) as server:
            for name, (record, page) in views.items():
                pages = read_json(results / "tracking" / record)["pages"]
                yield name, _mlflow_page(browser, f"{server}/{pages[page]}")


@contextmanager
def a_browser() -> Iterator[Any]:
    """Starts Chromium with a profile of its own, and ends it."""
    with tempfile.TemporaryDirectory() as profile:
        browser = launch(Path(profile))
        try:
            yield browser
        finally:
            browser.quit()


def close_assistant(browser: Any) -> bool:
    """Closes the panel that MLflow opens at the first visit of a local page.

    Returns:
      True if there was one.
    """
    crosses = browser.find_elements("css selector", '[data-component-id$="chat_panel.close"]')
    for cross in crosses:
        cross.click()
    return bool(crosses)


def _mlflow_page(browser: Any, address: str) -> bytes:
    width, height = MLFLOW_SIZE
    screen(browser, width=width, height=height)
    open_page(browser, address, "matching run")
    if close_assistant(browser):
        open_page(browser, address, "matching run")  # laid out anew in the room that is free
    browser.execute_script(
        "document.head.appendChild(document.createElement('style')).textContent = arguments[0]",
        PLOTLY_BUTTONS,
    )
    if "CHART" in address:
        await_that(
            lambda: browser.find_elements("css selector", PLOTTED),
            lambda: f"no chart is drawn on {address}",
        )
    return bytes(browser.get_screenshot_as_png())


def optimised(picture: bytes) -> bytes:
    """Returns a PNG in a palette, as small as Pillow makes it."""
    with Image.open(io.BytesIO(picture)) as image:
        flat = image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    stream = io.BytesIO()
    flat.save(stream, "PNG", optimize=True)
    return stream.getvalue()


if __name__ == "__main__":
    main()
