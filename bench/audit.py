"""The test that refutes each control of the audit, for seven methods, and the cost of audits.

    python bench/audit.py              # writes both tables to bench/results/audit.md
    python bench/audit.py --costs      # prints only the costs

The tables replace the text between the two marks of the file. Each commit's audit has
its own controls: to measure another commit, put that commit's package first on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpprobe.analyses.audit.white_box import audit_plan
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.registry import HEADS
from dpprobe.privacy.plan import Plan

RESULTS = Path(__file__).resolve().parent / "results" / "audit.md"
MARKS = "<!-- begin: written by bench/audit.py -->", "<!-- end -->"
NOISE, DELTA = 3.0, 1e-5
# Heads trained in steps use their default clipping norm.
STEPS: dict[str, Any] = {
    "batch_size": "full",
    "steps": 3,
    "init": "zero",
    "engine": "exact",
    "learning_rate": 0.1,
    "normalize": "l2",
}
METHODS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("sgd", "momentum", "adam", "lamb"), STEPS),
    "sgd": STEPS | {"batch_size": 60, "steps": 12},
    "least_squares": {"normalize": "l2"},
    "newton": {"normalize": "l2", "steps": 2},
    "feature_covariance": {"normalize": "l2", "steps": 2},
}
# Number of units, unit of privacy, features, classes. All controls apply to WIDE.
WIDE = 180, "patient", 170, 12
SIZES = {"small": (300, "image", 8, 3), "realistic": (2000, "image", 64, 10)}
COSTLY: dict[str, dict[str, Any]] = {
    "momentum": {"engine": "exact"},
    "sgd": {"engine": "exact", "batch_size": 256, "epochs": 5},
    "least_squares": {},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--costs", action="store_true", help="print the costs alone")
    costs_alone = parser.parse_args().costs
    lines = list(list_costs())
    if not costs_alone:
        lines = [*list_controls(), "", *lines]
        before, _, rest = RESULTS.read_text(encoding="utf-8").partition(MARKS[0])
        end = rest.partition(MARKS[1])[2]
        text = "\n".join([MARKS[0], "", *lines, "", MARKS[1]])
        RESULTS.write_text(before + text + end, encoding="utf-8")
    print("\n".join(lines))


def make_method(name: str, options: dict[str, Any]) -> MethodOptions:
    method: MethodOptions = importlib.import_module(HEADS[name]).Options(head=name, **options)
    return method


def run_audit(
    method: MethodOptions, size: tuple[int, str, int, int], *, runs: int, controls: bool
) -> dict[str, Any]:
    n, unit, dimension, classes = size
    plan = Plan(
        mechanisms=tuple(item.scale_noise(NOISE) for item in method.list_mechanisms(n)),
        n=n,
        epsilon=1.0,
        delta=DELTA,
        accountant="pld",
        realised_epsilon=1.0,
    )
    record, _ = audit_plan(
        method,
        replace(plan, unit=unit),
        dimension=dimension,
        num_classes=classes,
        multi_label=False,
        runs=runs,
        confidence=0.95,
        seed=5,
        controls=controls,
        progress_label=method.head,
    )
    return record


def list_controls() -> Iterator[str]:
    """Yields the table of controls, with the test that refutes each control."""
    records = {
        name: run_audit(make_method(name, options), WIDE, runs=40, controls=True)
        for name, options in METHODS.items()
    }
    yield from write_row("control", *records)
    yield from write_row(*["---"] * (len(records) + 1))
    held = ("holds" if each["white_box"]["holds"] else "REFUTED" for each in records.values())
    yield from write_row("none", *held)
    for cells in zip(*(each["controls"] for each in records.values()), strict=True):
        yield from write_row(f"`{cells[0]['name']}`", *map(name_refuting, cells))


def name_refuting(control: dict[str, Any]) -> str:
    if "not_applicable" in control:
        return "does not apply"
    runs = "" if control["runs"] == 10 else f" ({control['runs']} runs)"
    return f"{control['refuted_by'][0]}{runs}" if control["caught"] else "MISSED"


def list_costs() -> Iterator[str]:
    """Yields the table of costs in CPU seconds of all threads, which load hardly changes."""
    yield from write_row("method", "size", "audit (CPU s)", "with controls (CPU s)", "controls")
    yield from write_row(*["---"] * 5)
    for name, options in COSTLY.items():
        method = make_method(name, options)
        run_audit(method, SIZES["small"], runs=4, controls=False)  # compiles
        for size, numbers in SIZES.items():
            seconds = []
            for controls in (False, True):
                started = time.process_time()
                record = run_audit(method, numbers, runs=200, controls=controls)
                seconds.append(time.process_time() - started)
                assert record["white_box"]["holds"]
            tried = [each for each in record["controls"] if "caught" in each]
            missed = [each["name"] for each in tried if not each["caught"]]
            words = f"{len(tried)}, missed: {', '.join(missed) or 'none'}"
            yield from write_row(name, size, *(f"{each:.0f}" for each in seconds), words)


def write_row(*cells: str) -> Iterator[str]:
    print(*cells, sep=" | ", file=sys.stderr, flush=True)
    yield f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
