"""Runs every command of docs/tutorial.md and puts what it prints, and the pictures, into the page.

    .venv/bin/python bench/tutorial.py

The page marks what is run, each mark a comment on a line of its own, before an indented block:
`<!-- run -->` before commands, `<!-- prints -->` before the output of the last of them, or of it
`<!-- prints: last 8 -->` lines, and `<!-- from FILE -->` before a picture that a run made. Commands
run in one folder, build/tutorial, in which the parts of the checkout that a study needs are links.
Nothing is kept of an earlier call.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/tutorial.md"
FOLDER = ROOT / "build/tutorial"
LINKS = ("Snakefile", "bench", "config", "docs", "profiles", "resources", "scripts", "src",
         "workflow")  # fmt: skip
MARK = re.compile(r"<!-- (run|prints|from)(?:: last (\d+))? ?(\S*) ?-->\n\n?")
PICTURE = re.compile(r"!\[[^\]]*\]\((\S+)\)")
INDENT = "    "
WIDEST = 1000  # pixels of a picture


def main() -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    for name in LINKS:
        (FOLDER / name).symlink_to(ROOT / name)
    PAGE.write_text(renew(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def renew(page: str) -> str:
    """Returns the page with today's outputs."""
    parts, end, printed = [], 0, ""
    for mark in MARK.finditer(page):
        kind, last, file = mark.groups()
        parts.append(page[end : mark.end()])
        end = mark.end()
        if kind == "from":
            _copy(FOLDER / file, ROOT / "docs" / _picture(page, end))
            continue
        block = _block(page, end)
        if kind == "run":
            for command in commands(block):
                printed = run(command)
        else:
            end += len(block)
            lines = printed.rstrip().splitlines()[-int(last or 0) :]
            parts.append("".join(f"{INDENT}{line}".rstrip() + "\n" for line in lines))
    return "".join([*parts, page[end:]])


def commands(block: str) -> list[str]:
    """Returns the commands of a block, without its indent."""
    joined = block.replace("\\\n", " ")
    return [line.strip() for line in joined.splitlines() if line.strip()]


def run(command: str) -> str:
    """Runs a command as a reader would, and returns what it prints; a failure ends all."""
    print(f"$ {command}", flush=True)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        command, shell=True, cwd=FOLDER, env={**os.environ, "PATH": path, "COLUMNS": "120"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"{done.stdout}\n{command}: ended with {done.returncode}")
    return done.stdout.replace(f"{FOLDER}/", "").replace(f"{ROOT}/", "")


def _block(page: str, start: int) -> str:
    """Returns the indented lines from a place on, with the blank ones within."""
    lines = []
    for line in page[start:].splitlines(keepends=True):
        if line.strip() and not line.startswith(INDENT):
            break
        lines.append(line)
    while lines and not lines[-1].strip():
        lines.pop()
    return "".join(lines)


def _picture(page: str, start: int) -> str:
    match = PICTURE.match(page, start)
    if match is None:
        sys.exit(f"{PAGE}: no picture after a mark `from`, at {page[start : start + 60]!r}")
    return match[1]


def _copy(file: Path, picture: Path) -> None:
    """Copies a picture, no wider than a page, with few colours."""
    with Image.open(file) as image:
        image.thumbnail((WIDEST, WIDEST))
        image.convert("RGB").quantize(128).save(picture, optimize=True)
    print(f"{picture.relative_to(ROOT)}: {picture.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
