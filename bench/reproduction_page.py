"""Records results of studies and writes docs/reproduction.md: every published number, with ours.

    python bench/reproduction_page.py results/foundation_features

Without a folder, the page is written from the record and the results of bench/throughput.py. The
README's section of published numbers is written too, unless --output names another page.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from dpprobe.errors import ConfigError, DataError, DpprobeError
from dpprobe.exhibits import published
from dpprobe.files.atomic_writes import write_text
from dpprobe.project_files import project_root
from dpprobe.results.summary import read_summaries
from dpprobe.study.run_command import run_command
from dpprobe.study.study_file import load_study
from reproduction import facts, record
from reproduction.page import compare_record, readme_paragraph, reproduction_page

REPOSITORY = Path(__file__).resolve().parents[1]
CONFIG = project_root() / "config"
PAGE = REPOSITORY / "docs" / "reproduction.md"
README = REPOSITORY / "README.md"
HEADING = "\n## Published numbers\n\n"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "folders", nargs="*", type=Path, metavar="RESULTS_DIR", help="results folder of a study"
    )
    parser.add_argument("--output", type=Path, default=PAGE, help="the page; %(default)s")
    parser.add_argument(
        "--record", type=Path, default=record.FILE, help="the recorded results; %(default)s"
    )
    parser.add_argument(
        "--study",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="the study of a folder, if it is not under config/; may be given several times",
    )
    parser.add_argument(
        "--copies", type=Path, help="the file of copies with which the folders' studies were run"
    )
    try:
        write_page(parser.parse_args(words))
    except DpprobeError as error:
        sys.exit(str(error))


def write_page(arguments: argparse.Namespace) -> None:
    """Adds the folders' results to the record and writes the page."""
    before = record.read_reproduced(arguments.record)
    kept = before
    for folder in arguments.folders:
        file, values = find_study(folder, arguments.study)
        if arguments.copies is not None:
            values |= yaml.safe_load(arguments.copies.read_text(encoding="utf-8"))
        known = file.resolve().is_relative_to(CONFIG)
        name = f"config/{file.name}" if known else None
        kept = kept.with_parts(record.record_study(load_study(values), folder, file=name))
    read = published.read_published(), facts.read(), kept
    page = reproduction_page(*read)
    if kept != before:
        kept.write(arguments.record)
    write_text(arguments.output, page)
    if arguments.output == PAGE:
        start, _, end = README.read_text(encoding="utf-8").partition(HEADING)
        counted = readme_paragraph(read[0], compare_record(*read))
        rest = end[end.index("\n\n## ") :]
        write_text(README, "".join([start, HEADING, counted, rest]))
    print(f"page:    {arguments.output}")


def find_study(folder: Path, files: Sequence[Path]) -> tuple[Path, Any]:
    """Finds the file of the study whose results are in a folder, by the study's name in summaries.

    Raises:
      DataError: if the folder has no finished dataset.
      ConfigError: if no file has a study with the summaries' name.
    """
    summaries = sorted(folder.glob("summary/*.parquet"))
    names = set(read_summaries(summaries)["study"].to_pylist())
    if len(names) != 1:
        known = ", ".join(sorted(names)) or f"no finished dataset; run `{run_command()}` first"
        raise DataError(f"{folder}: {known}; a folder of one study is needed")
    name = names.pop()
    for file in [*files, *sorted(CONFIG.glob("*.yaml"))]:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
        if isinstance(values, dict) and values.get("study") == name:
            return file, values
    raise ConfigError(f"{folder}: no file of study {name!r} under {CONFIG}; name it by --study")


if __name__ == "__main__":
    main()
