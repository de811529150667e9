"""Parts of pages that load no external files."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from dpprobe.exhibits import html_page


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def test_a_policy_allows_the_given_style_and_script_alone() -> None:
    policy = dict(part.split(" ", 1) for part in html_page.content_policy("s", "x").split("; "))
    assert policy.pop("style-src") == f"'sha256-{_digest('s')}'"
    assert policy.pop("script-src") == f"'sha256-{_digest('x')}'"
    assert policy.pop("img-src") == "data:"
    assert set(policy.values()) == {"'none'"}
    assert "default-src" in policy
    assert "script-src 'none'" in html_page.content_policy("s", None)


def test_pictures_are_in_the_page_and_addresses_relative_to_it() -> None:
    assert html_page.embed_picture(b"abc") == "data:image/svg+xml;base64,YWJj"
    assert html_page.embed_picture(b"abc", "png") == "data:image/png;base64,YWJj"
    assert html_page.relative_path(Path("r/a/b"), Path("r/c")) == "../a/b"
