"""The docs site opens from its folder, without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.browser.chromium import await_that, needed, open_page, text_of
from tests.project.test_site import MKDOCS, write_small_site
from tests.support.programs import run_program

pytestmark = [
    *needed,
    pytest.mark.skipif(not MKDOCS.exists(), reason="`make docs` was not run here"),
]


def test_a_search_finds_a_page_of_a_site_that_is_opened_as_a_file(
    browser: Any, tmp_path: Path
) -> None:
    write_small_site(tmp_path, "The word quagga is on this page alone.")
    run_program([MKDOCS.with_name("python"), "-m", "mkdocs", "build", "--quiet"], cwd=tmp_path)
    open_page(browser, (tmp_path / "build/site/docs/page.html").as_uri(), "Page")
    box = browser.find_element("css selector", "input.md-search__input")
    box.click()
    box.send_keys("quagga")
    links = await_that(
        lambda: browser.find_elements("css selector", ".md-search-result__link"),
        lambda: f"nothing is found: {text_of(browser)[:2000]}",
    )
    assert [str(link.get_attribute("href")).partition("?")[0] for link in links] == [
        (tmp_path / "build/site/index.html").as_uri()
    ]
