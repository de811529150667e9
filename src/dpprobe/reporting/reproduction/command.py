"""The command that records what was run and writes the reproduction page."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpprobe.artifacts import write_text
from dpprobe.errors import ConfigError, DataError
from dpprobe.resources import project_root
from dpprobe.study.run_command import run_command

CONFIG = project_root() / "config"
PAGE = Path("docs", "reproduction.md")
RATES = Path("bench", "results", "rates.json")


def add_command(commands: Any) -> None:
    """Adds `reproduction` to a parser's commands."""
    summary = "write the page of published numbers and ours"
    parser: argparse.ArgumentParser = commands.add_parser(
        "reproduction",
        help=summary,
        epilog="Without a folder the page is written anew from the record.",
    )
    parser.set_defaults(run=_run)
    parser.add_argument(
        "folders", nargs="*", type=Path, metavar="RESULTS_DIR", help="results folder of a study"
    )
    parser.add_argument("--output", type=Path, default=PAGE, help="the page; %(default)s")
    parser.add_argument(
        "--record", type=Path, help="what is kept of results; resources/reproduced.json"
    )
    parser.add_argument(
        "--study",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="of a folder whose study is not under config/; may stand several times",
    )
    parser.add_argument(
        "--rates", type=Path, default=RATES, help="measured by bench/rates.py; %(default)s"
    )


def _run(arguments: argparse.Namespace) -> int:
    # heavy, and `dpprobe --help` is to be quick
    from dpprobe.reporting import published
    from dpprobe.reporting.reproduction import facts, record
    from dpprobe.reporting.reproduction.page import reproduction_page

    path = arguments.record or record.FILE
    kept = record.read_reproduced(path)
    for folder in arguments.folders:
        file, values = _study_of(folder, arguments.study)
        kept = kept.with_parts(_recorded(folder, file, values))
    if arguments.folders and arguments.rates.exists():
        kept = kept.with_parts(record.Record(rates=record.read_rates(arguments.rates)))
    page = reproduction_page(published.read(), facts.read(), kept)
    if arguments.folders:
        kept.write(path)
    write_text(arguments.output, page)
    print(f"page:    {arguments.output}")
    return 0


def _recorded(folder: Path, file: Path, values: Any) -> Any:
    from dpprobe.reporting.reproduction.record import record_study  # heavy, as above
    from dpprobe.study.load import load_study

    known = file.resolve().is_relative_to(CONFIG)
    return record_study(load_study(values), folder, file=f"config/{file.name}" if known else None)


def _study_of(folder: Path, files: Sequence[Path]) -> tuple[Path, Any]:
    """Finds the file of the study whose results lie in a folder, by the name in its summaries.

    Raises:
      DataError: when the folder has no finished dataset.
      ConfigError: when no file is of a study of that name.
    """
    import yaml

    from dpprobe.results.summary import read_summaries  # heavy, as above

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
