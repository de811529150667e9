"""Plans a fit from public facts, and runs a private fit, which is booked before noise is drawn."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpprobe.data.promise_facts import PromiseFacts
from dpprobe.errors import BudgetError, ConfigError, PrivacyError
from dpprobe.estimator.array_inputs import number_groups
from dpprobe.estimator.budget import Budget
from dpprobe.estimator.calibration_folder import calibration_folder
from dpprobe.estimator.fitted_head import hash_heads
from dpprobe.estimator.given_values import list_classes, read_number, read_target
from dpprobe.estimator.known_rows import Origin, join_facts
from dpprobe.estimator.parameters import Parameters, read_method
from dpprobe.heads.facts import DataFacts
from dpprobe.heads.fit import check_inputs, fit_heads
from dpprobe.heads.fitted import Heads
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.registry import method_options
from dpprobe.heads.training_set import TrainingSet
from dpprobe.json_values import hash_value
from dpprobe.privacy.entropy import SystemEntropy
from dpprobe.privacy.limits import choose_delta, delta_fault, delta_warning
from dpprobe.privacy.plan import Patients, Plan
from dpprobe.privacy.risk import Risk
from dpprobe.privacy.target import Target
from dpprobe.release.bundle import ESTIMATOR
from dpprobe.release.ledger.ledger_file import Booking, Part, tell_of_entry
from dpprobe.training.plan_file import check_price, plan_method

_HEAD = 0  # index of a private fit's only head; seeds nothing


@dataclass(frozen=True, kw_only=True)
class PlannedFit:
    """The public facts and the plan of a fit, before the fit reads its rows.

    `promise` has the facts of a known dataset; None for rows of unknown origin.
    """

    classes: list[Any]
    units: Units | None
    facts: DataFacts
    method: MethodOptions
    plan: Plan
    promise: PromiseFacts | None

    def list_delta_warnings(self, budget: Budget | None) -> list[str]:
        """Returns the warnings for the delta of the fit, and of the budget that limits all fits."""
        facts = self.facts
        deltas = [facts.delta] if self.plan.private else []
        if budget is not None and budget.delta != facts.delta:
            deltas.append(budget.delta)
        told = (delta_warning(delta, facts.n, unit=facts.unit) for delta in deltas)
        return [warning for warning in told if warning]

    def make_booking(self, budget: Budget) -> Booking:
        plan = self.plan
        same_units_as = None if self.promise is None else self.promise.same_units_as
        return Booking(
            release="fit",  # the budget makes this name unique
            study=ESTIMATOR,
            unit=self.facts.unit,
            split="all rows",
            parts=(Part.from_plan("train", plan),),
            identity=hash_value([self.method.identity_options(), plan.n, plan.epsilon, plan.delta]),
            column=budget.column if self.facts.unit in Plan.GROUPS else None,
            same_units_as=budget.join_declared(same_units_as),
        )


def plan_fit(
    classifier: Parameters,
    rows: int,
    dimension: int,
    groups: Any,
    labels: npt.NDArray[Any] | None = None,
    origins: Sequence[Origin] = (),
) -> PlannedFit:
    """Decides the method and calibrates its noise, from public facts and the groups' names.

    Benchmark mode may read the classes from the labels, because it protects nobody. Private fits
    use, state or refuse each fact about the datasets of `origins`, the stores that have the rows.
    """
    promise = join_facts(origins, classifier.unit)
    # sorted, because scikit-learn expects column k of scores to be the k-th class in order
    unnamed = classifier.classes is None
    classes = list_classes(np.unique(labels) if unnamed else classifier.classes)  # type: ignore[arg-type]
    units = _number_units(classifier, groups, rows)
    for origin in origins:
        origin.check_units(classifier.unit, units)
    n = rows if units is None else units.count
    facts = _describe_facts(classifier, n=n, dimension=dimension, classes=len(classes))
    method = _decide_method(classifier, facts)
    plan = _make_plan(classifier, method, facts, _find_patients(classifier, promise))
    return PlannedFit(
        classes=classes, units=units, facts=facts, method=method, plan=plan, promise=promise
    )


def _find_patients(classifier: Parameters, promise: PromiseFacts | None) -> Patients | None:
    """Returns patients, for the statement, if each of their images is a separate unit."""
    if promise is None or promise.unit_column is None or classifier.unit in Plan.GROUPS:
        return None
    return Patients(images=promise.images_per_patient)


def _number_units(classifier: Parameters, groups: Any, rows: int) -> Units | None:
    if classifier.unit in Plan.GROUPS:
        if groups is None:
            raise PrivacyError(
                f"groups: the unit of privacy is a {classifier.unit}, but the fit has no groups; "
                "pass fit(X, y, groups=...), in cross_val_score params={'groups': ...}"
            )
        return number_groups(groups, rows)
    if groups is not None and not classifier.benchmark:
        raise PrivacyError(
            f"groups: the fit has groups, but the unit of privacy is one {classifier.unit}, so "
            "people with several rows would be less protected. Set unit='group', or pass no groups"
        )
    return None


def _describe_facts(classifier: Parameters, *, n: int, dimension: int, classes: int) -> DataFacts:
    budget = classifier.budget
    if classifier.delta is not None:
        delta = read_number("delta", classifier.delta)
    else:
        delta = choose_delta(n) if budget is None else budget.delta
    if budget is not None and (fault := delta_fault(budget.delta, n, unit=classifier.unit)):
        raise PrivacyError(fault)  # the delta of the fit is checked by `Target`
    target = read_target(classifier.epsilon)
    return DataFacts(
        n=n,
        dimension=dimension,
        classes=classes,
        multi_label=False,
        epsilon=target.to_epsilon(delta) if isinstance(target, Risk) else target,
        delta=delta,
        unit=classifier.unit,
    )


def _decide_method(classifier: Parameters, facts: DataFacts) -> MethodOptions:
    asked = read_method(classifier)
    if asked.tunes_network:
        raise ConfigError(
            f"head {asked.head}: it trains a part of a network and needs images; use a study "
            "instead"
        )
    method = asked.resolve_choice(facts, exact=not classifier.benchmark)
    if classifier.benchmark:
        return method
    if not method.private:
        raise PrivacyError(
            f"head {method.head}: this head is not private; choose another head, or pass "
            "benchmark=True"
        )
    released = _make_exact(method)
    if not released.is_exact:
        raise PrivacyError(
            f"head {released.head}: with these options its sums are not exact, so low bits may "
            "reveal who was in the data; set engine='exact', or choose another head"
        )
    return released


def _make_plan(
    classifier: Parameters, method: MethodOptions, facts: DataFacts, patients: Patients | None
) -> Plan:
    target = Target(
        n=facts.n,
        unit=facts.unit,
        epsilon=read_target(classifier.epsilon) if method.private else math.inf,
        delta=facts.delta,
        patients=patients,
        above=True if classifier.benchmark else None,
    )
    plan = plan_method(method, target, cache=calibration_folder())
    if method.private:
        check_price(plan)
    return plan


def fit_privately(
    budget: Budget, planned: PlannedFit, data: TrainingSet
) -> tuple[Heads, dict[str, Any]]:
    """Returns the heads, and the fit's entry in the budget."""
    check_inputs(planned.method, data, planned.plan, [_HEAD])
    with explain_searches():
        entry = budget.book_fit(planned.make_booking(budget))
    with tell_of_entry(f"{entry} of the budget"):
        heads = fit_heads(planned.method, data, planned.plan, [_HEAD], entropy=SystemEntropy())
    digest = hash_heads(heads)
    budget.close_fit(entry, digest)
    spent = budget.compute_spent(planned.plan.delta)
    return heads, {"entry": entry, "budget": budget, "spent": spent, "digest": digest}


@contextmanager
def explain_searches() -> Iterator[None]:
    """Adds a remedy for searches and cross-validation to the error of an exceeded budget."""
    try:
        yield
    except BudgetError as error:
        raise BudgetError(
            f"{error}. Every fit spends budget, including each fit of a grid search or a "
            "cross-validation; head='tuned' searches options within one epsilon"
        ) from None


def _make_exact(method: MethodOptions) -> MethodOptions:
    """Sets `engine: exact` (in the base of `tuned`), unless the user chose an engine.

    An engine changes only the arithmetic, not the mechanisms or their epsilon.
    """
    if method.is_exact:
        return method
    base = getattr(method, "base", None)
    of = method if base is None else base
    if "engine" not in type(of).model_fields or "engine" in of.model_fields_set:
        return method
    values = method.model_dump(mode="json", exclude_unset=True)
    (values if base is None else values["base"])["engine"] = "exact"
    return method_options(values)
