"""`python -m dpprobe schema` prints a study's JSON schema, `... results [DIR]` what it found."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from dpprobe import config
from dpprobe.artifacts import read_json
from dpprobe.errors import DataError, DpprobeError


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m dpprobe", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("schema", help="print the JSON schema of a study")
    results = commands.add_parser("results", help="print accuracies, and where to look further")
    results.add_argument("folder", nargs="?", type=Path, default=Path("results"))
    arguments = parser.parse_args()
    try:
        if arguments.command == "schema":
            print(json.dumps(config.json_schema(), indent=2))
        else:
            print(describe_results(arguments.folder))
    except DpprobeError as error:
        sys.exit(f"dpprobe: {error}")


def describe_results(folder: Path) -> str:
    """The accuracies of a results folder, its figures, and the command that opens MLflow.

    Raises:
      DataError: when the folder holds no finished dataset.
    """
    from dpprobe.tables import format_console

    summaries = sorted(folder.glob("summary/*.parquet"))
    if not summaries:
        raise DataError(f"{folder}: no finished dataset; run `snakemake` first")
    lines = [format_console(summaries), ""]
    lines += [f"figure:  {path}" for path in sorted(folder.glob("figures/*/accuracy.png"))]
    for receipt in map(read_json, sorted(folder.glob("tracking/*.json"))):
        lines += _browse(receipt)
    return "\n".join(lines)


def _browse(receipt: dict[str, object]) -> list[str]:
    """How to open MLflow on the runs that a receipt lists."""
    pages = receipt["pages"]
    assert isinstance(pages, dict)
    uri = str(receipt["uri"])
    if uri.startswith("http"):
        return [f"runs:    {uri.rstrip('/')}/{pages['cells']}"]
    mlflow = Path(sys.executable).with_name("mlflow")
    shown = mlflow.relative_to(Path.cwd()) if mlflow.is_relative_to(Path.cwd()) else mlflow
    return [
        f"browse:  {shown} server --backend-store-uri {uri} --port 5000",
        f"runs:    http://127.0.0.1:5000/{pages['cells']}",
        f"summary: http://127.0.0.1:5000/{pages['summary']}",
    ]


if __name__ == "__main__":
    main()
