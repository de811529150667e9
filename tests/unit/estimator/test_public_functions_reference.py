"""docs/python-reference.md: generated, complete, and without what callers cannot use."""

from __future__ import annotations

import re
from pathlib import Path

import dpprobe
from tests.support.script_modules import load_script


def test_the_page_is_that_of_the_docstrings(repository: Path) -> None:
    page = load_script(repository / "bench/reference_page.py").reference_page()
    assert (repository / "docs/python-reference.md").read_text() == page, "run `make schema`"


def test_the_page_has_every_public_name(repository: Path) -> None:
    page = (repository / "docs/python-reference.md").read_text()
    assert set(re.findall(r"^## (\w+)$", page, flags=re.MULTILINE)) == set(dpprobe.__all__)
    members = re.findall(r"^### (\S+)$", page, flags=re.MULTILINE)
    assert {"PrivateClassifier.fit", "PrivateClassifier.privacy_", "Budget.compute_spent"} <= set(
        members
    )
    assert not [name for name in members if "._" in name or name.endswith("_fit")]
    assert " at 0x" not in page


def test_every_documented_argument_is_one(repository: Path) -> None:
    """The sections come from docstrings, the signatures from the code: each name is in both."""
    page = (repository / "docs/python-reference.md").read_text()
    for section in re.split(r"^##+ ", page, flags=re.MULTILINE)[1:]:
        signature = re.search(r"```python\n(.*?)```", section, flags=re.DOTALL)
        listed = re.search(r"\*\*Arguments\*\*\n\n(.*?)(\n\n|$)", section, flags=re.DOTALL)
        for name in re.findall(r"^- `(\w+)`", listed[1] if listed else "", flags=re.MULTILINE):
            assert signature is not None
            assert re.search(rf"\b{name}\b", signature[1]), (section.splitlines()[0], name)
