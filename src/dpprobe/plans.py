"""The calibrated plans of all methods at one epsilon, as a file between two jobs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dpprobe.artifacts import read_json, write_json
from dpprobe.config import MethodOptions
from dpprobe.errors import DpprobeError, PrivacyError
from dpprobe.privacy.calibration import calibrate
from dpprobe.privacy.plan import Plan

FORMAT = "dpprobe-plans"
FORMAT_VERSION = 1


def write_plans(
    methods: Mapping[str, MethodOptions],
    *,
    output: Path,
    cache: Path,
    n: int,
    epsilon: float,
    delta: float,
    accountant: str,
) -> None:
    """Calibrates each method's mechanisms to (epsilon, delta) on n rows.

    Args:
      methods: by name.
      output: the file to write.
      cache: the folder of noise multipliers, shared by all datasets and methods.

    Raises:
      PrivacyError: naming each method that cannot meet the target.
    """
    plans, failures = {}, []
    for name, options in methods.items():
        try:
            plan = calibrate(
                options.mechanisms(n),
                n=n,
                epsilon=epsilon,
                delta=delta,
                accountant=accountant,
                cache=cache,
            )
            plans[name] = plan.to_dict()
        except DpprobeError as error:
            failures.append(f"{name}: {error}")
    if failures:
        raise PrivacyError("\n".join(failures))
    write_json(output, {"format": FORMAT, "format_version": FORMAT_VERSION, "methods": plans})


def read_plans(path: Path) -> dict[str, Plan]:
    """The plans that `write_plans` wrote.

    Raises:
      PrivacyError: when the file is not one of its.
    """
    try:
        values = read_json(path)
        if (values["format"], values["format_version"]) != (FORMAT, FORMAT_VERSION):
            raise ValueError(f"format {values['format']!r} {values['format_version']!r}")
        return {name: Plan.from_dict(plan) for name, plan in values["methods"].items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PrivacyError(f"{path}: unreadable ({error!r}); delete it and run again") from error
