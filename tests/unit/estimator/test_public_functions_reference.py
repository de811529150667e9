"""docs/python-reference.md: generated, complete, and without what callers cannot use."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.script_modules import load_script


def test_the_page_is_that_of_the_docstrings(repository: Path) -> None:
    page = load_script(repository / "bench/reference_page.py").reference_page()
    assert (repository / "docs/python-reference.md").read_text() == page, "run `make schema`"


def test_every_documented_argument_is_one(repository: Path) -> None:
    """The sections come from docstrings, the signatures from the code: each name is in both."""
    page = (repository / "docs/python-reference.md").read_text()
    for section in re.split(r"^##+ ", page, flags=re.MULTILINE)[1:]:
        signature = re.search(r"```python\n(.*?)```", section, flags=re.DOTALL)
        listed = re.search(r"\*\*Arguments\*\*\n\n(.*?)(\n\n|$)", section, flags=re.DOTALL)
        for name in re.findall(r"^- `(\w+)`", listed[1] if listed else "", flags=re.MULTILINE):
            assert signature is not None
            assert re.search(rf"\b{name}\b", signature[1]), (section.splitlines()[0], name)
