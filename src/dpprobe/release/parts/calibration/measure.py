"""Calibrates a released head's probabilities by noisy counts of test units, which spend epsilon.

See the module `evaluation.measure` for units, weights and null rows. The weights of a unit's rows
sum to at most 1. A null row has scores that are not finite, and is not counted.

Calibrated probabilities need one label per row. If the test result is the AUC of two classes, the
calibration reuses its `score_counts` at no cost. Without `score_counts`, mechanisms of sensitivity
1 read the test units:

- `temperature`, six times: the sum over rows of the largest probability at a temperature, minus 1
  if the prediction is right. A row's term is in [-1, 1], so a unit changes the sum by at most 1.
  Each temperature depends on earlier noisy sums (bisection; Luo et al. 2020, arXiv 2008.09643);
- for two classes, `probability_counts`: the weight of rows of each class, per fixed range of the
  second class's probability;
- for more classes, `top_counts`: the weight of rows with right and with wrong predictions, per
  fixed range of the largest probability; and `label_counts`: the weight of rows per fixed range of
  their label's probability. An operating point needs a third table (`operating_point`).

A row adds its weight to one number of each table of counts.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import logit, softmax

from dpprobe.errors import ConfigError, PrivacyError
from dpprobe.privacy.grid import GridSum
from dpprobe.privacy.plan import Mechanism, Plan, full_batch, split_budget, state_together
from dpprobe.privacy.releases import Releases
from dpprobe.privacy.unit_words import UnitWords
from dpprobe.release.bundle import BundleFacts
from dpprobe.release.counted_units import (
    SCORE_COUNTS,
    bin_middles,
    compose_test_price,
    count_steps,
    find_usable,
    label_counts,
    open_releases,
    priced_values,
    score_test_rows,
    weights_of_rows,
)
from dpprobe.release.parts.calibration import noisy_counts
from dpprobe.release.parts.calibration.operating_point import (
    POINT_COUNTS,
    WantedPoint,
    fewest_of_class,
    find_operating_point,
    orient_table,
)
from dpprobe.release.parts.part import Facts, PartReader, PartSteps
from dpprobe.release.probabilities import TOP_EDGES
from dpprobe.release.stated_plans import (
    agree,
    check_together,
    explain_price,
    make_tested_plan,
    read_tested,
)
from dpprobe.release.stated_values import Values, read_block, require_same, require_true
from dpprobe.release.transport import Block, Draw

logger = logging.getLogger("dpprobe")

Floats = npt.NDArray[np.float64]

TEMPERATURE, PROBABILITY_COUNTS = "temperature", "probability_counts"
TOP_COUNTS, LABEL_COUNTS = "top_counts", "label_counts"
# Fewest test units for calibration by an AUC's counts, in standard deviations of a count's noise.
# With fewer units, noisy bin edges would make probabilities worse than without calibration.
FEWEST_OF_AUC = 100.0
TEMPERATURE_SHARE = 0.2


def calibration_mechanisms(
    *, classes: int, multi_label: bool, with_point: bool = False
) -> tuple[Mechanism, ...]:
    """Returns the mechanisms of a calibration, with noise multipliers up to a common factor.

    Args:
      with_point: True for an operating point, whose table is separate for more than two classes.

    Raises ConfigError for several labels per row.
    """
    if multi_label:
        raise ConfigError(
            "calibrate: needs one label per row, but these rows have several; leave calibrate out"
        )
    temperature = full_batch(
        TEMPERATURE,
        "sum over test rows, of the largest probability minus 1 if right",
        1.0,
        noisy_counts.QUERIES,
    )
    if classes == 2:
        table = full_batch(
            PROBABILITY_COUNTS,
            "test rows of each class, per range of the second class's probability",
            1.0,
        )
        return split_budget(
            [(TEMPERATURE_SHARE, (temperature,)), (1 - TEMPERATURE_SHARE, (table,))]
        )
    top = full_batch(
        TOP_COUNTS,
        "right and wrong answers, per range of the largest probability",
        1.0,
    )
    label = full_batch(LABEL_COUNTS, "test rows, per range of the label's probability", 1.0)
    point = full_batch(
        POINT_COUNTS, "test rows of one class and all others, per range of its probability", 1.0
    )
    tables = (point, top, label) if with_point else (top, label)
    rest = (1 - TEMPERATURE_SHARE) / len(tables)
    return split_budget(
        [(TEMPERATURE_SHARE, (temperature,)), *((rest, (each,)) for each in tables)]
    )


def check_calibration_size(plan: Plan) -> None:
    """Raises PrivacyError, by public numbers, if the noise would leave no useful sets."""
    counts = plan.mechanisms[-1]
    deviation = counts.noise_scale
    fewest = noisy_counts.fewest_units(deviation)
    if counts.name == SCORE_COUNTS:
        fewest = max(fewest, math.ceil(FEWEST_OF_AUC * deviation))
    if plan.n < fewest:
        raise PrivacyError(
            f"calibrate: {plan.n} test units are too few: 90% sets need {fewest} at epsilon "
            f"{plan.epsilon:g}; set a larger epsilon, use more test units, or remove calibrate"
        )


def check_point_size(plan: Plan, wanted: WantedPoint) -> int:
    """Returns the minimum number of test units of the class of an operating point.

    Raises PrivacyError if even all test units would be too few.
    """
    fewest = fewest_of_class(wanted.sensitivity, plan.mechanisms[-1].noise_scale)
    if plan.n < fewest:
        raise PrivacyError(
            f"calibrate.operating_point: a sensitivity of {wanted.sensitivity:g} needs {fewest} "
            f"test units of {wanted.positive_class} at epsilon {plan.epsilon:g}, but there are "
            f"{plan.n} test units in total; set a larger epsilon or a smaller sensitivity, use "
            "more test units, or remove operating_point"
        )
    return fewest


def calibrate_head(
    draw: Draw, plan: Plan, *, together: float | None, point: WantedPoint | None = None
) -> dict[str, Any]:
    """Calibrates one released head on the test units; returns a statement's block `calibration`.

    Args:
      plan: has the noise of `calibration_mechanisms` on n = test units.
      together: the epsilon of calibration plus test result; None without a test result.
      point: the operating point to find, if any.
    """
    features = draw.features
    wanted = calibration_mechanisms(
        classes=len(features.class_names),
        multi_label=features.multi_label,
        with_point=point is not None,
    )
    releases = open_releases(draw, plan, wanted)
    scores, weights = score_test_rows(draw.heads, features), weights_of_rows(features, plan)
    noisy = release_tables(scores, features.test_labels, weights, releases, point)
    releases.check_counts()
    return {
        **describe_calibration(noisy, plan.mechanisms, plan.n, point),
        **noisy,
        **priced_values(plan),
        "together": together,
    }


def calibrate_from_counts(
    evaluation: Mapping[str, Any], plan: Plan, *, point: WantedPoint | None = None
) -> dict[str, Any]:
    """Calibrates a head of two classes with the counts of its AUC, at no additional epsilon.

    `plan` is the plan of the test result, whose block is `evaluation`.
    """
    return {
        **describe_calibration(evaluation, plan.mechanisms, plan.n, point),
        "n": plan.n,
        "epsilon": None,
    }


def describe_calibration(
    noisy: Mapping[str, Any],
    mechanisms: tuple[Mechanism, ...],
    n: int,
    point: WantedPoint | None = None,
) -> dict[str, Any]:
    """Derives a calibration's published numbers from noisy sums and counts, by mechanism name."""
    counts = mechanisms[-1]
    deviation = counts.noise_scale
    if SCORE_COUNTS in noisy:
        edges, table = (np.array(noisy[SCORE_COUNTS][name], float) for name in ("edges", "counts"))
        return _describe_two(edges, bin_middles(edges), table, n, deviation, point)
    temperature = 2.0 ** noisy_counts.search_temperature(noisy[TEMPERATURE])
    if PROBABILITY_COUNTS in noisy:
        ends = np.array(noisy_counts.PROBABILITY_EDGES)
        edges, places = (
            temperature * logit(np.clip(each, 1e-9, 1 - 1e-9))
            for each in (ends, (ends[:-1] + ends[1:]) / 2)
        )
        table = np.array(noisy[PROBABILITY_COUNTS], float)
        return _describe_two(edges, places, table, n, deviation, point)
    top, label = (np.array(noisy[name], float) for name in (TOP_COUNTS, LABEL_COUNTS))
    derived = noisy_counts.describe_classes(top, label, n=n, deviation=deviation)
    if point is not None:
        ends, counts_of = np.array(noisy_counts.PROBABILITY_EDGES), np.array(noisy[POINT_COUNTS])
        derived["operating_point"] = find_operating_point(
            ends, *counts_of, wanted=point, deviation=deviation
        )
    return {"scale": 1 / temperature, "offset": 0.0, **derived}


def _describe_two(
    edges: Floats,
    places: Floats,
    table: Floats,
    n: int,
    deviation: float,
    point: WantedPoint | None,
) -> dict[str, Any]:
    scale, offset = noisy_counts.fit_logistic(places, *table, n=n, deviation=deviation)
    derived = noisy_counts.describe_two(
        edges, places, table, scale=scale, offset=offset, n=n, deviation=deviation
    )
    if point is not None:
        ends = noisy_counts.probability_ends(edges, scale, offset)
        derived["operating_point"] = find_operating_point(
            *orient_table(ends, table[0], table[1], point.position),
            wanted=point,
            deviation=deviation,
            ranked=scale > 0,
        )
    return {"scale": scale, "offset": offset, **derived}


def release_tables(
    scores: npt.NDArray[Any],
    labels: npt.NDArray[Any],
    weights: Floats,
    releases: Releases,
    point: WantedPoint | None = None,
) -> dict[str, Any]:
    """Releases the temperatures' sums and the noisy counts that describe a calibration."""
    n, usable = releases.plan.n, find_usable(scores)
    logits = np.where(usable[:, None], scores, 0.0).astype(np.float64)
    right = logits.argmax(axis=1) == labels
    shares = weights * usable
    answers: list[float] = []
    while len(answers) < noisy_counts.QUERIES:
        surest = _probabilities(logits, answers).max(axis=1)
        units, step = count_steps((surest - right) * shares, n)
        total = GridSum(torch.tensor([[units.sum()]], dtype=torch.float64), step)
        answers.append(float(releases.release_gaussian(TEMPERATURE, total)[0, 0]))
    values = _probabilities(logits, answers)
    units, step = count_steps(shares, n)

    def release_counts(
        name: str, places: Floats, present: npt.NDArray[np.bool_] | None, edges: tuple[float, ...]
    ) -> Floats:
        flags = None if present is None else present[:, None]
        table = label_counts(places[:, None], flags, units, [np.array(edges)])
        noisy = releases.release_gaussian(name, GridSum(torch.from_numpy(table)[None], step))
        return np.asarray(noisy[0, 0])

    if values.shape[1] == 2:
        edges = noisy_counts.PROBABILITY_EDGES
        table = release_counts(PROBABILITY_COUNTS, values[:, 1], labels == 1, edges)
        return {TEMPERATURE: answers, PROBABILITY_COUNTS: table.reshape(2, -1).tolist()}
    tables: dict[str, Any] = {}
    if point is not None:
        edges, of_class = noisy_counts.PROBABILITY_EDGES, labels == point.position
        table = release_counts(POINT_COUNTS, values[:, point.position], of_class, edges)
        tables[POINT_COUNTS] = table.reshape(2, -1).tolist()
    top = release_counts(TOP_COUNTS, values.max(axis=1), right, TOP_EDGES)
    of_labels = values[np.arange(len(labels)), labels]
    label = release_counts(LABEL_COUNTS, of_labels, None, noisy_counts.LABEL_EDGES)
    return {
        TEMPERATURE: answers,
        **tables,
        TOP_COUNTS: top.reshape(2, -1).T.tolist(),
        LABEL_COUNTS: label.tolist(),
    }


def _probabilities(logits: Floats, answers: list[float]) -> Floats:
    return np.asarray(softmax(logits * 2.0 ** -noisy_counts.search_temperature(answers), axis=1))


class Steps(PartSteps):
    def plan_test_units(self) -> Plan | None:
        if self.asked.epsilon is None:
            return None
        store = self.release.stores[1]
        mechanisms = calibration_mechanisms(
            classes=store.num_classes,
            multi_label=store.multi_label,
            with_point=self.asked.operating_point is not None,
        )
        return self.planned.plan_test(mechanisms, self.asked.epsilon)

    @property
    def point(self) -> WantedPoint | None:
        """The requested operating point; None if the release requests none."""
        if (asked := self.asked.operating_point) is None:
            return None
        position = self.release.stores[1].class_names.index(asked.positive_class)
        return WantedPoint(
            positive_class=asked.positive_class, position=position, sensitivity=asked.sensitivity
        )

    def check(self) -> None:
        plans = self.planned.plans
        plan = plans.get("calibration") or plans["evaluation"]
        check_calibration_size(plan)
        if (point := self.point) is not None:
            logger.warning(
                "release %s: with fewer than %d of the %d test units in class %s, or with a weak "
                "head, no threshold surely has a sensitivity of %g, and the bundle will say so",
                self.release.name,
                check_point_size(plan, point),
                plan.n,
                point.positive_class,
                point.sensitivity,
            )

    def needs(self) -> tuple[str, ...]:
        return () if "calibration" in self.planned.plans else ("evaluation",)

    def measure(self, draw: Draw) -> Block:
        plans = self.planned.plans
        if plan := plans.get("calibration"):
            together = self.planned.compose_price("evaluation", "calibration")
            stated = state_together(plan, together)
            return calibrate_head(draw, plan, together=stated, point=self.point)
        evaluation = draw.blocks["evaluation"]
        assert evaluation is not None
        return calibrate_from_counts(evaluation, plans["evaluation"], point=self.point)


# verification and words

DERIVED_KEYS = {"scale", "offset", "sets", "reliability", "abstention"}
TWO_CLASS_KEYS = {"cut_offs", "net_benefit"}
_TABLE_SHAPES = {
    TOP_COUNTS: (len(TOP_EDGES) - 1, 2),
    LABEL_COUNTS: (len(noisy_counts.LABEL_EDGES) - 1,),
}


def check_calibration(values: Values, plan: Plan, facts: BundleFacts) -> tuple[str, bool]:
    """Recomputes all published numbers of a calibration from its noisy counts, and its epsilon."""
    stated, result, classes = values["calibration"], values["evaluation"], len(facts.class_names)
    noisy, price = stated, "no further epsilon"
    wanted = list_wanted(stated, facts)
    keys = DERIVED_KEYS | (TWO_CLASS_KEYS if classes == 2 else set())
    point = None
    if "operating_point" in stated:
        keys |= {"operating_point"}
        point = WantedPoint.from_block(stated["operating_point"], facts.class_names)
    if stated["epsilon"] is None:
        noisy = result
        tested = make_tested_plan(result, plan)
        read_block("calibration", stated, keys | {"n", "epsilon"})
    else:
        tables = {mechanism.name for mechanism in wanted}
        keys |= tables | {"together"}
        _, tested, cost = read_tested("calibration", stated, keys, plan, wanted)
        for name in tables & _TABLE_SHAPES.keys():
            shape = _TABLE_SHAPES[name]
            require_true(np.shape(stated[name]) == shape, f"{name}: not a table of {shape} numbers")
        require_same("delta", plan.delta, stated["delta"])
        together = compose_test_price(result and make_tested_plan(result, plan), tested)
        check_together(tested, together, stated["together"])
        price = f"epsilon {cost:.6g}"
    for block in filter(None, (noisy, result)):
        require_same("n", block["n"], stated["n"])
    derived = describe_calibration(noisy, tested.mechanisms, tested.n, point)
    for name, value in derived.items():
        require_true(agree(value, stated[name]), f"{name}: does not follow from the noisy counts")
    said = f"probabilities and sets follow from noisy counts, {price} on {tested.n} test units"
    return said, True


def show_calibration(block: Facts | None, unit: UnitWords, _: Facts) -> dict[str, Any]:
    """Returns a calibration's values for documents, with a sentence on its cost."""
    if block is None:
        return {"calibration": None, "sure": None}
    sure = "Calibration uses the counts of the AUC, so it costs nothing more."
    if block["epsilon"] is not None:
        sure = explain_price(block, unit, "Calibration", "Together with the test result it")
    return {"calibration": block, "sure": sure}


def list_wanted(block: Facts, facts: BundleFacts) -> tuple[Mechanism, ...]:
    return calibration_mechanisms(
        classes=len(facts.class_names),
        multi_label=facts.multi_label,
        with_point="operating_point" in block,
    )


READER = PartReader(
    "calibration",
    check_calibration,
    ("values", "plan", "facts"),
    values=show_calibration,
    wanted=list_wanted,
)
