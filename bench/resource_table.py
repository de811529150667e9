"""The table of docs/gpu.md: what the jobs of each rule ask for, as dry runs say.

    python bench/resource_table.py CPU=cpu.txt "one GPU=gpu.txt" "Slurm with gres=slurm.txt"

Each file holds the output of `snakemake -n`, of one study or of several. Of a rule's jobs the most
of each number is shown.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

COLUMNS = ("threads", "mem_mb", "runtime", "gpu")
JOB = re.compile(r"^(\w+): (threads=.*)$", re.MULTILINE)


def read_requests(text: str) -> dict[str, dict[str, int]]:
    """Returns the most that the jobs of each rule ask for."""
    most: dict[str, dict[str, int]] = {}
    for rule, asked in JOB.findall(text):
        numbers = dict(part.split("=", 1) for part in asked.split(", "))
        of_rule = most.setdefault(rule, dict.fromkeys(COLUMNS, 0))
        for name in COLUMNS:
            value = numbers.get(name, "0")
            if value.isdigit():
                of_rule[name] = max(of_rule[name], int(value))
    return most


def write_table(runs: dict[str, dict[str, dict[str, int]]]) -> str:
    """Returns the table, with the rules that ask for a GPU first."""
    rules = {rule for run in runs.values() for rule in run}
    asking = {rule for rule in rules if any(run[rule]["gpu"] for run in runs.values())}
    lines = [
        f"| rule | {' | '.join(runs)} |",
        f"|---|{'---|' * len(runs)}",
    ]
    for rule in sorted(rules, key=lambda rule: (rule not in asking, rule)):
        cells = [
            " · ".join(f"{run[rule][name]:,}" for name in COLUMNS) if rule in run else ""
            for run in runs.values()
        ]
        lines.append(f"| `{rule}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> None:
    named = [argument.partition("=") for argument in arguments]
    print(write_table({name: read_requests(Path(file).read_text()) for name, _, file in named}))


if __name__ == "__main__":
    main(sys.argv[1:])
