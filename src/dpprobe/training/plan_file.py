"""Writes and reads the file of plans: calibrated noise for all methods at one epsilon."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpprobe.errors import DpprobeError, PrivacyError
from dpprobe.files.json_files import check_not_newer, read_json, write_json
from dpprobe.heads.facts import DataFacts
from dpprobe.heads.options import MethodOptions, check_counts
from dpprobe.json_values import hash_value
from dpprobe.privacy.limits import PRICE_TOLERANCE, delta_warning, round_up, to_json
from dpprobe.privacy.noise_calibration import (
    calibrate,
    price_of_fits,
    price_of_group,
    price_plan,
    second_opinions,
)
from dpprobe.privacy.plan import Patients, Plan
from dpprobe.privacy.risk import list_risk_faults
from dpprobe.privacy.statement import describe_attacks
from dpprobe.privacy.target import Target
from dpprobe.progress import Progress
from dpprobe.shown_text import join_lines

logger = logging.getLogger("dpprobe")

FORMAT = "dpprobe-plans"
FORMAT_VERSION = 5
_WITHOUT_ATTACKS = 4  # an earlier format, which lacks `allows`
_ROUND_OFF = 1e-9
_NOBODY = Patients(images=None)


@dataclass(frozen=True)
class Plans:
    """The result of noise calibration, by method: a plan, or the reason for its absence.

    `together` has each method's epsilon, at an equal delta, for publishing the heads of all seeds.
    `allows` has bounds on attacks (`describe_attacks`), so that training jobs need no accountant;
    files of earlier versions lack them.
    """

    plans: Mapping[str, Plan]
    failures: Mapping[str, str]
    together: Mapping[str, float]
    allows: Mapping[str, Mapping[str, Any]]


def write_plans(
    methods: Mapping[str, MethodOptions], target: Target, *, output: Path, cache: Path, seeds: int
) -> None:
    """Calibrates the noise of each method to a target; raises PrivacyError if no method meets it.

    If a method misses the target, the file has the reason, and the other methods are calibrated.
    `auto` methods are resolved later, by jobs that read features (`decide_methods`).

    Args:
      cache: the folder of noise multipliers, shared by all datasets and methods.
      seeds: number of heads per method; the file has the epsilon of publishing all heads.
    """
    if warning := delta_warning(target.delta, target.n, unit=target.unit):
        logger.warning("%s", warning)
    decided = {name: options for name, options in methods.items() if not options.is_undecided}
    made = make_plans(decided, target, cache=cache, seeds=seeds)
    if made.failures and len(made.failures) == len(methods):
        raise PrivacyError(join_lines(f"{name}: {why}" for name, why in made.failures.items()))
    record = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "seeds": seeds,
        "methods": {name: _make_entry(name, made) for name in decided},
    }
    write_json(output, {**record, "sha256": hash_value(record)})


def make_plans(
    methods: Mapping[str, MethodOptions], target: Target, *, cache: Path, seeds: int
) -> Plans:
    """Calibrates each method's noise, and computes epsilon for all its heads; see `write_plans`."""
    plans: dict[str, Plan] = {}
    failures: dict[str, str] = {}
    together: dict[str, float] = {}
    allows: dict[str, Mapping[str, Any]] = {}
    progress = Progress(len(methods), label=f"noise of {target}", unit="methods", last_line=False)
    for name, options in methods.items():
        try:
            plan = plan_method(options, target, cache=cache)
            together[name] = _price_together(plan, seeds)
            allows[name] = describe_attacks(plan, seeds, together[name])
            plans[name] = plan
        except DpprobeError as error:
            failures[name] = str(error)
        progress.advance_by(1)
    return Plans(plans=plans, failures=failures, together=together, allows=allows)


def _make_entry(name: str, made: Plans) -> dict[str, Any]:
    if name in made.failures:
        return {"error": made.failures[name]}
    return {
        "plan": made.plans[name].to_dict(),
        "together": to_json(made.together[name]),
        "allows": made.allows[name],
    }


def plan_method(
    options: MethodOptions, target: Target, *, cache: Path, checked: bool = True
) -> Plan:
    """Calibrates one method's noise; raises DpprobeError if it cannot meet the target.

    `checked` False omits epsilons by other accountants, which only privacy statements need.
    """
    mechanisms = options.list_mechanisms(target.n)
    check_counts(mechanisms)
    selection = options.priced_selection(target.n)
    plan = calibrate(mechanisms, target, cache=cache, selection=selection, checked=checked)
    return replace(plan, patients=_price_patients(plan, target.patients))


def decide_methods(
    methods: Mapping[str, MethodOptions],
    calibrated: Plans,
    facts: DataFacts,
    target: Target,
    *,
    cache: Path,
    seeds: int,
) -> tuple[dict[str, MethodOptions], Plans]:
    """Resolves `auto` methods from public facts of features, and adds their plans to the others.

    Other methods keep their options and the plans of `calibrated`, which the plan file has.
    """
    decided = {
        name: options.resolve_choice(facts)
        for name, options in methods.items()
        if options.is_undecided
    }
    if not decided:
        return dict(methods), calibrated
    for name, options in decided.items():
        logger.info("%s: head %s, chosen from public facts", name, options.trained_head.head)
    made = make_plans(decided, target, cache=cache, seeds=seeds)
    plans = replace(
        calibrated,
        plans={**calibrated.plans, **made.plans},
        failures={**calibrated.failures, **made.failures},
        together={**calibrated.together, **made.together},
        allows={**calibrated.allows, **made.allows},
    )
    return {name: decided.get(name, options) for name, options in methods.items()}, plans


def read_plans(path: Path) -> Plans:
    """Reads a file of `write_plans`; raises PrivacyError if edited, DataError if too new."""
    try:
        record = read_json(path)
        check_not_newer(path, record, kind=FORMAT, version=FORMAT_VERSION)
        written = record.pop("sha256")
        if record["format"] != FORMAT or record["format_version"] < _WITHOUT_ATTACKS:
            raise ValueError(f"format {record['format']!r} {record['format_version']!r}")
        if written != hash_value(record):
            raise ValueError("edited after dpprobe wrote it")
        entries: dict[str, dict[str, Any]] = record["methods"]
        good = {name: entry for name, entry in entries.items() if "error" not in entry}
        return Plans(
            plans={name: Plan.from_dict(entry["plan"]) for name, entry in good.items()},
            failures={name: entry["error"] for name, entry in entries.items() if "error" in entry},
            together={name: float(entry["together"]) for name, entry in good.items()},
            allows={name: entry["allows"] for name, entry in good.items() if "allows" in entry},
        )
    except PrivacyError as error:
        raise PrivacyError(f"{path}: {error}; delete it and run again") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PrivacyError(f"{path}: unreadable ({error!r}); delete it and run again") from error


def check_price(plan: Plan) -> None:
    """Recomputes the epsilons of a plan, by all accountants, before a release spends them.

    The hash of a cached answer reveals damage, but not an edit by a person who also updated the
    hash. The check takes at most a second per set of equal mechanisms. Raises
    PrivacyError if the plan's epsilon exceeds its target, or the plan states another epsilon.
    """
    for fault in _list_faults(plan):
        raise PrivacyError(f"{fault}; delete the folder of calibrations and run again")


def _list_faults(plan: Plan) -> Iterator[str]:
    """Yields the faults of a plan's epsilons; the cheapest check comes first."""
    says = f"says epsilon {{}} at delta {plan.delta:g}{{}}, but {{}}"
    cost = price_plan(plan)
    if plan.private and not cost <= plan.epsilon * (1 + _ROUND_OFF):
        yield says.format(f"{plan.epsilon:g}", "", f"its mechanisms cost {cost:.9g} or more")
    yield from list_risk_faults(plan)
    priced_by, checks, notes = second_opinions(plan)
    for what, noted, right in (
        ("priced by", plan.priced_by, priced_by),
        ("checked by", sorted(plan.checks), sorted(checks)),
        ("notes", dict(plan.check_notes), notes),
    ):
        if noted != right:
            yield f"{what} {noted!r}, which here is {right!r}"
    patients, priced = plan.patients or _NOBODY, _price_patients(plan, plan.patients) or _NOBODY
    for what, said, computed in (
        ("", plan.realised_epsilon, cost),
        (f" to a patient of {priced.images} images", patients.epsilon, priced.epsilon),
        *((f" by {name}", plan.checks.get(name), value) for name, value in checks.items()),
    ):
        if not _prices_agree(said, computed):
            yield says.format(_format_number(said), what, f"it is {_format_number(computed)}")


def _price_patients(plan: Plan, patients: Patients | None) -> Patients | None:
    """Returns `patients` with the plan's epsilon per patient."""
    if patients is None or patients.images is None or not plan.private:
        return patients and replace(patients, epsilon=None)
    return replace(patients, epsilon=round_up(price_of_group(plan, patients.images)))


def _prices_agree(said: float | None, cost: float | None) -> bool:
    if said is None or cost is None:
        return said is cost
    return said == cost or math.isclose(said, cost, rel_tol=PRICE_TOLERANCE)


def _format_number(epsilon: float | None) -> str:
    return "none" if epsilon is None else f"{epsilon:.6g}"


def _price_together(plan: Plan, seeds: int) -> float:
    """Computes the epsilon of publishing `seeds` independent heads, at the plan's delta."""
    if not plan.private:
        return math.inf
    if seeds == 1:
        return plan.realised_epsilon
    return round_up(price_of_fits(plan, seeds))
