"""Compares the texts inside pictures of README and docs with the texts that the program writes."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.conftest import REPOSITORY
from tests.support.script_modules import load_script

PICTURES = REPOSITORY / "docs/images"
# A time, a number with sign and exponent, infinity or NaN.
_NUMBER = re.compile(r"[-+±−]?(?:\d\d:\d\d|\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?|\binf\b|\bnan\b)")


def load_pictures() -> Any:
    return load_script(REPOSITORY / "tools/pages/pictures.py")


def read_texts(name: str) -> list[str]:
    """Returns the texts of a picture in docs/images."""
    texts = load_pictures().read_texts(PICTURES / name)
    assert texts is not None, f"{name} carries no texts: make it by `make screenshots`"
    return list(texts)


def shape(text: str) -> str:
    """Replaces numbers, which differ between runs, by `#`, and removes spaces."""
    return re.sub(r"#(,?#)+", "#", re.sub(r"\s+", "", _NUMBER.sub("#", text)))


def page_text(page: Path) -> str:
    """Returns all texts of an HTML page, including its SVG figures."""
    content = page.read_text(encoding="utf-8")
    body = re.sub(r"<(script|style)\b.*?</\1>", "", content, flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]*>", "", body))


def find_stale(texts: Iterable[str], written: str) -> list[str]:
    """Returns the texts of a picture that the program no longer writes."""
    today = shape(written)
    return [text for text in texts if shape(text).strip("#") not in today]
