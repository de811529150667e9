"""The command that predicts accuracy before any work: `dpprobe plan`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from dpprobe.files.output_paths import check_output_path


def add_command(commands: Any) -> None:
    summary = "predict accuracy from images, classes and budget, with public learning curves"
    parser: argparse.ArgumentParser = commands.add_parser("plan", help=summary)
    parser.set_defaults(run=_run_plan)
    words = "number of training images, or of patients with --unit patient"
    parser.add_argument("--n", type=int, required=True, help=words)
    words = "unit of privacy that --n counts; default %(default)s"
    parser.add_argument("--unit", choices=("image", "patient"), default="image", help=words)
    parser.add_argument("--classes", type=int, required=True, help="number of classes")
    budget = parser.add_mutually_exclusive_group(required=True)
    budget.add_argument("--epsilon", type=float)
    words = "permitted risk instead of epsilon: advantage of any attack on one unit, such as 0.1"
    budget.add_argument("--advantage", type=float, help=words)
    words = "permitted risk: true-positive rate at the false-positive rate --at, such as 0.01"
    budget.add_argument("--true-positives", type=float, help=words)
    words = "false-positive rate of --true-positives, such as 0.001"
    parser.add_argument("--at", type=float, help=words)
    parser.add_argument("--delta", type=float, default=1e-5, help="default %(default)s")
    parser.add_argument(
        "--d", type=int, help="number of features of the backbone, such as 1280 for MobileNetV2"
    )
    parser.add_argument(
        "--ceiling", type=float, help="non-private accuracy, measured or estimated, such as 0.82"
    )
    words = (
        "share of the largest class (with --unit patient the mean of the patients' shares); "
        "default 1 / classes"
    )
    parser.add_argument("--majority", type=float, help=words)
    words = "also predict the accuracy of each month, with --n new images or patients per month"
    parser.add_argument("--months", type=int, metavar="T", help=words)
    parser.add_argument("--json", action="store_true", help="print JSON")
    words = "draw accuracy against the number of images into this .svg or .png file"
    parser.add_argument("--figure", type=Path, metavar="FILE", help=words)


def _run_plan(arguments: argparse.Namespace) -> int:
    # imported late: `dpprobe --help` must be fast, and only a figure needs Matplotlib
    from dpprobe.planner.accuracy_plan import make_plan
    from dpprobe.planner.plan_text import plan_in_words
    from dpprobe.planner.predicted_accuracy import Setting

    if arguments.figure:
        check_output_path(arguments.figure, "--figure")
    setting = Setting(
        n=arguments.n,
        classes=arguments.classes,
        epsilon=_read_epsilon(arguments),
        delta=arguments.delta,
        dimension=arguments.d,
    )
    plan = make_plan(
        setting, ceiling=arguments.ceiling, majority=arguments.majority, unit=arguments.unit
    )
    if arguments.figure:
        from dpprobe.reporting.figures.planner import write_plan_figure  # heavy: matplotlib

        write_plan_figure(arguments.figure, setting, plan.scale, unit=arguments.unit)
    values, words = plan.as_json(), plan_in_words(plan)
    if arguments.months is not None:
        # heavy: NumPy
        from dpprobe.planner.month_plan import months_as_json, months_in_words, plan_months

        months = plan_months(setting, arguments.months)
        values["months"] = months_as_json(months)
        table = months_in_words(months, plan.scale, epsilon=setting.epsilon, unit=arguments.unit)
        words = f"{words}\n\n{table}"
    print(json.dumps(values, indent=2) if arguments.json else words)
    return 0


def _read_epsilon(arguments: argparse.Namespace) -> float:
    """Returns epsilon; for a permitted risk, its epsilon with Gaussian noise on all examples.

    Raises PrivacyError for an incomplete risk, or a risk for which no noise can be calibrated.
    """
    names = ("advantage", "true_positives", "at")
    values = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    if arguments.epsilon is not None and not values:
        return float(arguments.epsilon)
    from dpprobe.privacy.risk import Risk, RiskEpsilon  # heavy: SciPy

    risk = Risk.from_dict(values)
    return RiskEpsilon(risk.to_epsilon(arguments.delta), risk.token, arguments.delta)
