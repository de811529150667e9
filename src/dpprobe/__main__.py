"""`python -m dpprobe schema` prints a study's JSON schema, `... results FILES` its accuracies."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from dpprobe import config


def main() -> None:
    parser = argparse.ArgumentParser(prog="dpprobe", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("schema", help="print the JSON schema of a study")
    results = commands.add_parser("results", help="print the accuracies of finished datasets")
    results.add_argument("summaries", nargs="+", type=Path, metavar="SUMMARY.parquet")
    arguments = parser.parse_args()
    if arguments.command == "schema":
        print(json.dumps(config.json_schema(), indent=2))
    else:
        from dpprobe.tables import format_console

        print(format_console(arguments.summaries))


if __name__ == "__main__":
    main()
