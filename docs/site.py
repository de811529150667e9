"""Gathers what the docs site is made of; `mkdocs build` calls it.

Pages link each other, studies and code as they lie in a clone, also from outside docs/. So the site
has the clone's layout: every page, and every file that a page links.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SOURCE = Path("build", "docs")
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "CHANGELOG.md")
SCRIPT = Path("docs", "iframe-worker.js")  # searches in a site that is opened as a file
_LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)")
_FENCE = re.compile(r"^ {0,3}(```|~~~)")
_ITEM = re.compile(r"^ *([-*+]|\d+\.) ")


def on_config(config: Any) -> Any:
    """Copies the files into the build folder, which mkdocs then reads."""
    root = Path(config["config_file_path"]).resolve().parent
    source = root / SOURCE
    shutil.rmtree(source, ignore_errors=True)
    for path in [*linked(root), SCRIPT]:
        target = source / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / path, target)
    config["docs_dir"] = str(source)
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Puts an empty line before each list, which code hosts do not need and Markdown does."""
    return "\n".join(_with_gaps(markdown.splitlines()))


def linked(root: Path) -> list[Path]:
    """Lists the pages of the site and the files they link, pages of other folders among them."""
    pages = [*(root / name for name in PAGES), *sorted((root / "docs").rglob("*.md"))]
    files = set(pages)
    while pages:
        page = pages.pop()
        for target in _targets(page.read_text(encoding="utf-8"), page.parent):
            if target.is_file() and target.is_relative_to(root) and target not in files:
                files.add(target)
                pages += [target] if target.suffix == ".md" else []
    return sorted(path.relative_to(root) for path in files)


def _targets(text: str, folder: Path) -> Iterator[Path]:
    for match in _LINK.finditer(text):
        if "://" not in match[1]:
            yield (folder / match[1]).resolve()


def _with_gaps(lines: list[str]) -> Iterator[str]:
    fenced = within = False
    before = ""
    for line in lines:
        if _FENCE.match(line):
            fenced = not fenced
        item = not fenced and _ITEM.match(line) and not line.startswith("    ")
        if item and before.strip() and not within:
            yield ""
        # the lines of an item that follow its first begin with spaces
        within = bool(item) or (within and line.startswith(" "))
        yield line
        before = line
