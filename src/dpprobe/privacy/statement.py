"""The privacy statement of a cell or a release: facts for repeating the privacy accounting.

A statement contains numbers, hashes, names from closed lists, and texts of the study. It has no
sentences by dpprobe: `statement_words` writes the sentences when somebody reads a statement.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpprobe.errors import PrivacyError
from dpprobe.privacy.accountants import exactly_priced
from dpprobe.privacy.limits import above_in_words, to_json
from dpprobe.privacy.plan import Mechanism, Plan
from dpprobe.privacy.risk import describe_target
from dpprobe.privacy.stated_facts import of_vectors
from dpprobe.privacy.trade_off import Allowed, allow_everything, bound_attacks

FORMAT = "dpprobe-privacy"
FORMAT_VERSION = 5

MODES = ("benchmark", "release")
# Names under `not_covered` in every statement of a mode; docs/formats.md describes each.
NOT_COVERED = {
    "benchmark": (
        "features",
        "training_curves",
        "test_rows",
        "split",
        "other_cells",
        "cells_without_privacy",
        "choice",
        "seeds_and_hashes",
        "failures",
        "running_time",
    ),
    "release": (
        "unpublished_files",
        "other_releases",
        "choice_of_release",
        "checks",
        "collection",
        "computer",
    ),
}
# False-positive rates (units that were not trained on) at which the statement explains epsilon.
FALSE_POSITIVE_RATES = {"0.001": 0.001, "0.01": 0.01}


@dataclass(frozen=True, kw_only=True)
class Declared:
    """The files, declared public, that a head used in addition to the private examples.

    Attributes:
      study: the name of the study that declares them.
      files: the path of each declared file, as the study writes it, by option.
    """

    study: str
    files: Mapping[str, str]
    hashes: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Statement:
    """The facts in a privacy statement.

    Attributes:
      mode: "benchmark", or "release", whose statement names no seed.
      seeds: one per head; for a release only the length matters.
      public_data: facts about the backbone. `public_data["trained"]` is True if the backbone was
        pretrained. `near_duplicate_check` has the counts of `find_near_duplicates`, or is
        `stated_facts.NOT_RUN` or `NOT_PUBLISHED`. `subsample` has the `fraction` and the
        `public_seed` that chose the rows of a release.
      epsilon_all_heads: the epsilon, at the plan's delta, of publishing the heads of all seeds.
      private_choices: the name of the option that the head chose from private examples, without
        noise.
      priced_normalisation: True if the head's normalisation released statistics of the rows.
      engine_limits: the name of the engine, if its releases are not exact; else None.
      released_priors: True if the head released the frequencies of its classes.
      released_gain: True if the head released the gain of a student on public images.
      declared: the public files that the head started from or used.
      network: True if a part of the backbone was trained with the head.
      chosen_from: the `rule` that chose `head` and options, if any, with the public facts used.
      allows: the result of `describe_attacks`, if already computed; None to compute it.
      copies: the number of `rows` that repeat an image of another unit, the largest number of units
        with one image (`most`), and how images were compared (`by`); None if nobody counted copies.
      test_units: facts about the test units, if test results are released with the head: `n`, the
        rule of the `split`, and how images of both splits were `compared`; else None.

    Raises PrivacyError for an unknown mode, and for a release with a delta above 1 / n.
    """

    plan: Plan
    method: str
    options: Mapping[str, Any]
    mode: str
    seeds: Sequence[int]
    public_data: Mapping[str, Any]
    epsilon_all_heads: float
    private_choices: str | None
    priced_normalisation: bool
    engine_limits: str | None
    released_priors: bool = False
    released_gain: bool = False
    declared: Declared | None = None
    network: bool = False
    chosen_from: Mapping[str, Any] | None = None
    allows: Mapping[str, Any] | None = None
    copies: Mapping[str, int | str] | None = None
    test_units: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise PrivacyError(
                f"privacy statement: mode {self.mode!r}; choose one of {', '.join(MODES)}"
            )
        if self.above and self.mode == "release":
            raise PrivacyError(f"{self.above}; set a smaller delta")

    @property
    def above(self) -> str:
        """Explains a delta above 1 / n; empty for other deltas."""
        plan = self.plan
        return above_in_words(plan.delta, plan.n, unit=plan.unit) if plan.private else ""

    @property
    def promised(self) -> bool:
        return self.plan.private and self.private_choices is None

    @property
    def limits(self) -> str | None:
        return self.engine_limits if self.plan.private else None

    @property
    def repeated(self) -> Mapping[str, int | str] | None:
        """The counts in `copies`; None if there are no copies."""
        return self.copies if self.copies and self.copies["rows"] else None

    @property
    def files(self) -> Declared | None:
        return self.declared if self.declared and self.declared.files else None

    def to_dict(self) -> dict[str, Any]:
        """States the guarantee, its unit, its mechanisms and its limits; JSON-compatible."""
        plan, promised, files = self.plan, self.promised, self.files
        uncounted = self.copies is None and self.mode == "release"
        everything = self.epsilon_all_heads if promised else math.inf
        seeds = {"seeds": [f"{seed:032x}" for seed in self.seeds]}
        declared = {"by": files.study, "options": dict(files.files)} if files else {}
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "mode": self.mode,
            "private": promised,
            "outputs": self._list_outputs(),
            "unit": plan.unit,
            "relation": plan.RELATION,
            "n": plan.n,
            "epsilon_target": to_json(plan.epsilon),
            **describe_target(plan),
            "epsilon_realised": to_json(plan.realised_epsilon if promised else math.inf),
            "epsilon_all_heads": to_json(everything),
            "delta": plan.delta if promised else None,
            **({"delta_above_one_over_n": True} if self.above and promised else {}),
            "patients": self._describe_patients(),
            **({"test_units": self.test_units} if self.mode == "release" else {}),
            "allows": self._describe_attacks(),
            "accountant": plan.priced_by,
            "checks": {name: to_json(value) for name, value in plan.checks.items()},
            "mechanisms": [mechanism_values(mechanism, plan) for mechanism in plan.mechanisms],
            "selection": plan.selection
            and {"trials": plan.selection.DISTRIBUTION, **plan.selection.to_dict()},
            "method": self.method,
            "options": dict(self.options),
            **({"chosen_from": dict(self.chosen_from)} if self.chosen_from else {}),
            **(seeds if self.mode == "benchmark" else {}),
            **({} if uncounted else {"copies": self.copies and dict(self.copies)}),
            "engine_limits": self.limits,
            "unpriced": self.private_choices,
            "public": self._list_public(),
            "public_files": dict(files.hashes) if files else {},
            **({"declared_public": declared} if declared else {}),
            "public_data": dict(self.public_data),
            "not_covered": self._list_not_covered(),
        }

    def _list_outputs(self) -> list[str]:
        """Names the outputs of the fit that the guarantee covers."""
        outputs = ["network" if self.network else "weights"]
        outputs += ["normalisation"] * self.priced_normalisation
        outputs += ["class_frequencies"] * self.released_priors
        outputs += ["student_gain"] * self.released_gain
        return outputs + ["best_trial"] * bool(self.plan.selection)

    def _list_not_covered(self) -> list[str]:
        plan, grouped = self.plan, self.plan.unit in self.plan.GROUPS
        found = isinstance(self.public_data["near_duplicate_check"], Mapping)
        conditional = {
            "network_files": self.network,
            "left_out_units": bool(self.public_data.get("subsample")),
            "rows_per_unit": grouped,
            "other_names": grouped,
            "copies_of_units" if grouped else "copies_of_items": True,
            "copy_counts": bool(self.repeated),
            **self._list_tested(grouped=grouped),
            "low_bits": bool(self.limits),
            "trials": bool(plan.selection),
            "near_duplicates": found,
        }
        return [
            *(["dependent_vectors"] if of_vectors(self.public_data) else []),
            *([self.private_choices] if self.private_choices else []),
            *NOT_COVERED[self.mode],
            *(name for name, holds in conditional.items() if holds),
        ]

    def _list_tested(self, *, grouped: bool) -> dict[str, bool]:
        """Maps each limitation of the test results' guarantee to whether it applies."""
        tested = self.test_units is not None
        compared = self.test_units["compared"] if self.test_units else ()
        return {
            "tested_copies_of_units" if grouped else "tested_copies_of_items": tested,
            "tested_patients": tested and self.plan.patients is not None,
            "both_sides": tested and "pixels" not in (compared or ()),
        }

    def _list_public(self) -> list[str]:
        """Names the facts that the guarantee assumes to be public."""
        priced = self.private_choices is None
        conditional = {
            "n": True,
            "units": self.plan.unit in self.plan.GROUPS,
            "n_test": self.test_units is not None,
            "drawn_units": bool(self.public_data.get("subsample")),
            "classes": True,
            "options": priced,
            "search_space": priced and bool(self.plan.selection),
            "rule": bool(self.chosen_from),
            "network": self.network,
            "files": bool(self.files),
        }
        return [name for name, holds in conditional.items() if holds]

    def _describe_attacks(self) -> dict[str, Any]:
        if self.private_choices:
            nothing = _describe_bounds(allow_everything(list(FALSE_POSITIVE_RATES.values())))
            several = nothing if len(self.seeds) > 1 else None
            patient = nothing if self.plan.patients else None
            return {**nothing, "all_heads": several, "patient": patient}
        if self.allows is not None:
            return dict(self.allows)
        return describe_attacks(self.plan, len(self.seeds), self.epsilon_all_heads)

    def _describe_patients(self) -> dict[str, Any] | None:
        patients = self.plan.patients
        if patients is None:
            return None
        epsilon = patients.epsilon if patients.epsilon is None or self.promised else math.inf
        return {"images": patients.images, "epsilon": to_json(epsilon)}


def describe_attacks(plan: Plan, heads: int, together: float) -> dict[str, Any]:
    """Bounds the best attack on a unit with one head or all heads, and on a patient.

    Args:
      heads: the number of heads, each a fit of `plan`.
      together: the epsilon of publishing all heads, at the plan's delta.
    """
    one = _bound_attacks(plan, plan.realised_epsilon)
    several = _bound_attacks(plan, together, times=heads) if heads > 1 else None
    patient = None
    if plan.patients:
        patient = _bound_attacks(plan, plan.patients.epsilon, size=plan.patients.images or 1)
    return {
        **_describe_bounds(one),
        "all_heads": several and _describe_bounds(several),
        "patient": patient and _describe_bounds(patient),
    }


def _bound_attacks(plan: Plan, epsilon: float | None, *, times: int = 1, size: int = 1) -> Allowed:
    """Bounds every attack on a unit or group by somebody who sees `times` heads of this plan."""
    rates = list(FALSE_POSITIVE_RATES.values())
    if not plan.private or epsilon is None or math.isinf(epsilon):
        return allow_everything(rates)
    mechanisms = [mechanism.repeat_count(times) for mechanism in plan.mechanisms]
    return bound_attacks(
        mechanisms, rates, plan.selection, delta=plan.delta, epsilon=epsilon, size=size
    )


def _describe_bounds(bounds: Allowed) -> dict[str, Any]:
    return {
        "balanced_accuracy": bounds.balanced_accuracy,
        "true_positives": dict(zip(FALSE_POSITIVE_RATES, bounds.true_positives, strict=True)),
        "exact": bounds.exact,
    }


def mechanism_values(mechanism: Mechanism, plan: Plan) -> dict[str, Any]:
    silent = mechanism.noise_multiplier == 0
    return {
        "name": mechanism.name,
        "noise": "none" if silent else "Gaussian",
        "sensitivity": None if silent else mechanism.sensitivity,
        "noise_multiplier": mechanism.noise_multiplier,
        "noise_standard_deviation": mechanism.noise_scale,
        "sample_rate": mechanism.sample_rate,
        "count": mechanism.count,
        "repeated": plan.selection is not None and mechanism.name in plan.selection.repeated,
        "budget_share": _share_of_mechanism(mechanism, plan),
    }


def _share_of_mechanism(mechanism: Mechanism, plan: Plan) -> float | None:
    """Returns a mechanism's share of mu^2; None unless all mechanisms use all rows."""
    if not plan.private or not exactly_priced(plan.mechanisms, plan.selection):
        return None
    costs = {item.name: item.count / item.noise_multiplier**2 for item in plan.mechanisms}
    return round(costs[mechanism.name] / math.fsum(costs.values()), 6)
