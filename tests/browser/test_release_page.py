"""A release's page opens offline in a real browser, without errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.browser.chromium import assert_quiet, needed, open_page
from tests.support import releases

from dpprobe.release.documents.page import make_page

pytestmark = needed

KINDS = ("plain", "measured", "calibrated", "long", "hostile")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Returns the page of each kind of release."""
    root = tmp_path_factory.mktemp("pages")
    facts, statement = releases.example(root / "bundle")
    measured = {**statement, "evaluation": releases.measured()}
    whole = measured | {
        "calibration": releases.calibrated(),
        "monitor": releases.watched(),
        "cohort": releases.following(),
    }
    long = releases.long_release((facts, statement))
    names = {"class_names": releases.HOSTILE * 100, "name": "x" * 200}
    hostile = long[0].model_copy(update=names)
    made: dict[str, releases.Release] = {
        "plain": (facts, statement),
        "measured": (facts, measured),
        "calibrated": (facts, whole),
        "long": long,
        "hostile": (hostile, long[1]),
    }
    for kind, release in made.items():
        page = make_page(release[0], releases.with_tested(release[1]))
        (root / f"{kind}.html").write_text(page, encoding="utf-8")
    return {kind: root / f"{kind}.html" for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_opens_offline_without_errors(
    pages: dict[str, Path], browser: Any, kind: str
) -> None:
    text = open_page(browser, pages[kind].as_uri(), "The best possible attack")
    assert "sha256sum --check SHA256SUMS" in text
    assert_quiet(browser)
    points = browser.execute_script(
        "return [...document.querySelector('.curve').points].map((p) => [p.x, p.y])"
    )
    assert points == sorted(points, key=lambda point: (point[0], -point[1]))
    assert browser.execute_script("return document.scripts.length") == 0
    assert browser.execute_script("return getComputedStyle(document.body).maxWidth") == "992px"
