"""The command that compares two bundles on private test units: `dpprobe compare`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from dpprobe.shown_text import join_lines
from dpprobe.study.run_command import add_study_files


def add_command(commands: Any) -> None:
    summary = "find out with a noisy count which of two bundles is better on the test images"
    compare: argparse.ArgumentParser = commands.add_parser(
        "compare",
        help=summary,
        description=summary,
        epilog="Test images (or patients) pay epsilon, and the dataset's ledger records it before "
        "noise is drawn. Running an equal comparison again prints the stored result and spends "
        "nothing.",
    )
    compare.set_defaults(run=_run_compare)
    compare.add_argument("first", type=Path, metavar="A", help="folder of a release")
    compare.add_argument("second", type=Path, metavar="B", help="folder of another release")
    words = "epsilon that each test image (or patient) pays"
    compare.add_argument("--epsilon", type=float, required=True, help=words)
    add_study_files(compare)
    words = "dataset of the study with the test images; default: the dataset of both bundles"
    compare.add_argument("--dataset", metavar="NAME", help=words)
    words = "name of the comparison; default: A's name, _vs_, and B's name"
    compare.add_argument("--name", help=words)
    compare.add_argument(
        "--metric",
        choices=("accuracy", "macro_accuracy"),
        default="accuracy",
        help="macro_accuracy counts all classes equally, by the class frequencies that the bundles "
        "state; default: accuracy",
    )
    words = "print cost, noise and power, and spend nothing"
    compare.add_argument("--plan", action="store_true", help=words)
    words = "compare even if only a difference above 20 points would be found"
    compare.add_argument("--anyway", action="store_true", help=words)


def _run_compare(arguments: argparse.Namespace) -> int:
    # slow to import, and `dpprobe --help` must be fast
    from dpprobe.release.compare import ComparisonTask
    from dpprobe.study.check_command import read_study

    task = ComparisonTask.open_bundles(
        read_study(arguments.configfile),
        arguments.first,
        arguments.second,
        epsilon=arguments.epsilon,
        dataset=arguments.dataset,
        name=arguments.name,
        macro=arguments.metric == "macro_accuracy",
        call=("--configfile", *map(str, arguments.configfile)),
    )
    if (record := task.find_earlier()) is not None:
        print("This comparison was made before. Nothing is spent.")
        print(join_lines(task.describe_result(record)))
        return 0
    print(join_lines(task.describe_plan()), flush=True)
    task.check_before(anyway=arguments.anyway or arguments.plan)
    if not arguments.plan:
        print(join_lines(task.describe_result(task.run())))
    return 0
