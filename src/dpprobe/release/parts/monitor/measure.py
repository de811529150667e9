"""Releases noisy tables of private test units, with which `predict` compares new images.

See the module `evaluation.measure` for units, weights and null rows. The mechanism `monitor_counts`
releases all t tables of `image_monitor` at once. A row adds its weight to one entry of each table,
so a row adds a vector of norm sqrt(t) times the weight. A unit's weights sum to at most 1, so a
unit adds a vector of norm at most sqrt(t): the sensitivity. A null row has scores that are not
finite, and is not counted. Typical directions and calibration may be any earlier releases, because
composition is adaptive. Limits of ranges are public.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dpprobe.errors import PrivacyError
from dpprobe.heads import feature_covariance, least_squares
from dpprobe.heads import normalisation as kinds
from dpprobe.heads.fitted import TYPICAL, Heads
from dpprobe.heads.normalisation import Normalisation
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.scoring import Link, apply_link
from dpprobe.privacy.grid import GridSum
from dpprobe.privacy.plan import Mechanism, Plan, full_batch, state_together
from dpprobe.privacy.unit_words import UnitWords, words_of_statement
from dpprobe.release import image_monitor as monitor
from dpprobe.release.bundle import BundleFacts
from dpprobe.release.counted_units import (
    compose_test_price,
    count_steps,
    find_usable,
    open_releases,
    priced_values,
    score_test_rows,
    weights_of_rows,
)
from dpprobe.release.described_backbone import describe_backbone
from dpprobe.release.parts.part import Facts, PartReader, PartSteps
from dpprobe.release.probabilities import Calibration
from dpprobe.release.stated_plans import (
    agree,
    check_together,
    explain_price,
    list_tested,
    read_tested,
)
from dpprobe.release.stated_values import Values, read_block, read_real, require_same, require_true
from dpprobe.release.transport import Block, Draw
from dpprobe.training.job_features import JobFeatures

COUNTS = "monitor_counts"
# Mechanisms that release second moments of rows, from the least to the most whitened rows.
MOMENTS = (least_squares.GRAM, feature_covariance.COVARIANCE, kinds.SECOND_MOMENT)
# Fewest test units, in standard deviations of a count's noise. With fewer units, chance alone
# exceeds `image_monitor.TELLING` in tables of ranges, for any number of compared images.
FEWEST = 20.0


def moment_name(plan: Plan) -> str | None:
    """Returns the released second moment that gives typical directions; None without a moment.

    Moments of a search are not used: each trial releases one, and epsilon covers only the best.
    """
    named = {item.name for item in plan.mechanisms if plan.selection is None}
    return next((name for name in reversed(MOMENTS) if name in named), None)


def count_typical(plan: Plan, normalize: Normalisation, dimension: int) -> int:
    """Returns the number of typical directions that a head publishes, from plan and options."""
    centred = int(isinstance(normalize, kinds.AroundCentre))
    return centred + (monitor.count_directions(dimension) if moment_name(plan) else 0)


def monitor_mechanisms(*, unusual: bool) -> tuple[Mechanism, ...]:
    """Returns the mechanism of the monitor's tables; `unusual` is True with typical directions."""
    more, tables = (" and unusualness", 4) if unusual else ("", 3)
    words = f"test rows per predicted class, and per range of largest value, feature norm{more}"
    return (full_batch(COUNTS, words, math.sqrt(tables)),)


def check_monitor_size(plan: Plan) -> None:
    """Raises PrivacyError, by public numbers, if the noise would hide every change."""
    fewest = math.ceil(FEWEST * plan.mechanisms[0].noise_scale)
    if plan.n < fewest:
        raise PrivacyError(
            f"monitor: {plan.n} test units are too few: epsilon {plan.epsilon:g} needs {fewest}; "
            "set a larger epsilon, use more test units, or remove monitor"
        )


def monitor_head(
    draw: Draw,
    plan: Plan,
    *,
    probe_norm: float,
    calibration: Calibration | None,
    link: Link,
    together: float | None,
) -> dict[str, Any]:
    """Counts test units by a released head's outputs; returns a statement's block `monitor`.

    Args:
      plan: has the noise of `monitor_mechanisms` on n = test units.
      probe_norm: L2 norm of the backbone's features of the public test image.
      link: converts scores to probabilities, after the calibration if there is one.
      together: the epsilon of all measurements on test units; None if there are no others.
    """
    features, unusual = draw.features, draw.heads.typical is not None
    releases = open_releases(draw, plan, monitor_mechanisms(unusual=unusual))
    edges = monitor.list_edges(probe_norm, unusual=unusual)
    table = count_bins(
        draw.heads,
        features,
        weights_of_rows(features, plan),
        n=plan.n,
        edges=edges,
        calibration=calibration,
        link=link,
    )
    noisy = releases.release_gaussian(COUNTS, table)[0].numpy()
    releases.check_counts()
    sizes = table_sizes(len(features.class_names), edges)
    parts = np.split(noisy, np.cumsum([*sizes.values()])[:-1])
    return {
        "tables": {name: part.tolist() for name, part in zip(sizes, parts, strict=True)},
        "edges": edges,
        **priced_values(plan),
        "together": together,
    }


def table_sizes(classes: int, edges: dict[str, list[float]]) -> dict[str, int]:
    """Returns the number of bins of each table, in the order of their release."""
    return {monitor.CLASSES: classes, **{name: len(each) + 1 for name, each in edges.items()}}


def count_bins(
    heads: Heads,
    features: JobFeatures,
    weights: npt.NDArray[np.float64],
    *,
    n: int,
    edges: dict[str, list[float]],
    calibration: Calibration | None,
    link: Link,
) -> GridSum:
    """Returns the weight of test rows in each bin, tables in the order of release: [1, bins]."""
    scores = torch.from_numpy(score_test_rows(heads, features)).double()
    usable = find_usable(scores.numpy())
    scores[~torch.from_numpy(usable)] = 0.0
    values = apply_link(calibration.rescale(scores) if calibration else scores, link).numpy()
    counted = weights * usable
    units, step = count_steps(counted, n)
    sizes = table_sizes(values.shape[1], edges)
    total, transform = np.zeros(sum(sizes.values())), heads.transforms[0]
    for start, block in features.test_blocks():
        rows, part = block.cpu().numpy(), slice(start, start + len(block))
        unusual = None
        if heads.typical is not None:
            unusual = monitor.measure_unusualness(rows, transform, heads.typical[0])
        norms = monitor.measure_norms(rows)
        bins, first = monitor.place_rows(values[part], norms, unusual, edges), 0
        for name, size in sizes.items():
            index = np.where(usable[part], bins[name], 0)
            total[first : first + size] += np.bincount(index, units[part], minlength=size)
            first += size
    return GridSum(torch.from_numpy(total)[None], step)


class Steps(PartSteps):
    def plan_test_units(self) -> Plan:
        dimension = self.release.stores[0].dimension
        typical = count_typical(self.planned.plan, self.planned.method.normalize, dimension)
        return self.planned.plan_test(monitor_mechanisms(unusual=typical > 0), self.asked.epsilon)

    def check(self) -> None:
        check_monitor_size(self.planned.plans["monitor"])

    def extend_head(self, heads: Heads, moments: Mapping[str, torch.Tensor]) -> Heads:
        """Adds typical directions, which are computed from released moments at no privacy cost."""
        centre, name = heads.transforms[0].arrays.get(kinds.CENTRE), moment_name(self.planned.plan)
        typical = monitor.find_directions(
            None if centre is None else centre.cpu().numpy(),
            moments[name] if name else None,
            dimension=self.release.stores[0].dimension,
        )
        return heads if typical is None else replace(heads, typical=typical[None])

    def needs(self) -> tuple[str, ...]:
        return ("evaluation", "calibration")

    def measure(self, draw: Draw) -> Block:
        plan, calibrated = self.planned.plans["monitor"], draw.blocks.get("calibration")
        link = self.planned.method.link_on(draw.features.multi_label)
        return monitor_head(
            draw,
            plan,
            probe_norm=describe_backbone(self.release).probe["norm"],
            calibration=Calibration.from_block(calibrated) if calibrated else None,
            link="softmax" if calibrated else link,
            together=state_together(plan, self.planned.test_price),
        )


# verification and words

# Number of standard deviations that noise never exceeds in practice.
_RARE = 8.0


def check_monitor(
    values: Values, plan: Plan, facts: BundleFacts, options: MethodOptions
) -> tuple[str, bool]:
    unusual = count_typical(plan, options.normalize, facts.dimension) > 0
    wanted = monitor_mechanisms(unusual=unusual)
    block, tested, cost = read_tested(
        "monitor", values["monitor"], {"tables", "edges", "together"}, plan, wanted
    )
    require_same("delta", plan.delta, block["delta"])
    for other in list_tested(values, plan):
        require_same("n", other.n, block["n"])
    check_together(tested, compose_test_price(*list_tested(values, plan)), block["together"])
    edges = monitor.list_edges(facts.backbone.probe["norm"], unusual=unusual)
    require_true(agree(edges, block["edges"]), "edges: not the public edges")
    sizes = table_sizes(len(facts.class_names), edges)
    tables = read_block("tables", block["tables"], set(sizes))
    check_totals(tables, sizes, tested)
    unit = words_of_statement(values)
    said = f"new {unit.items} can be compared with {tested.n} test {unit.many}"
    return f"{said}, epsilon {cost:.6g}", True


def check_totals(tables: Values, sizes: Mapping[str, int], tested: Plan) -> None:
    """Checks that all tables have the same total number of rows, apart from noise."""
    (item,) = tested.mechanisms
    deviation, totals = item.noise_scale, {}
    for name, size in sizes.items():
        counts = [read_real(name, each) for each in tables[name]]
        require_true(len(counts) == size, f"{name}: {len(counts)} bins instead of {size}")
        totals[name] = (math.fsum(counts), size)
    for name, (total, size) in totals.items():
        # n may exceed all totals, because null rows are not counted
        bounds = [(float(tested.n), size), *((each, size + of) for each, of in totals.values())]
        require_true(
            all(total <= most + _RARE * deviation * math.sqrt(bins) for most, bins in bounds),
            f"{name}: {total:.0f} test units, more than n or another table has",
        )


class Reader(PartReader):
    def list_arrays(
        self, values: Values, plan: Plan, options: MethodOptions, facts: BundleFacts
    ) -> dict[str, tuple[int, ...]]:
        watched = "monitor" in values
        typical = count_typical(plan, options.normalize, facts.dimension) if watched else 0
        return {TYPICAL: (typical, facts.dimension)} if typical else {}

    def check_arrays(self, arrays: Mapping[str, npt.NDArray[np.float32]]) -> None:
        if TYPICAL not in arrays:
            return
        rows = arrays[TYPICAL].astype(np.float64)
        require_true(
            np.allclose(rows @ rows.T, np.eye(len(rows)), atol=1e-4), f"{TYPICAL}: not orthonormal"
        )
        centre = arrays.get(kinds.CENTRE, rows[0])
        inside, length = np.linalg.norm(rows @ centre), np.linalg.norm(centre)
        require_true(
            math.isclose(inside, length, rel_tol=1e-4), f"{TYPICAL}: without {kinds.CENTRE}"
        )


def show_monitor(block: Facts | None, unit: UnitWords, _: Facts) -> dict[str, Any]:
    """Returns a monitor's values for documents, with a sentence on its cost."""
    if block is None:
        return {"monitor": None, "watched": None}
    all_parts = f"Everything that this release measured on test {unit.many} together"
    watched = explain_price(block, unit, "Monitoring", all_parts)
    return {"monitor": block, "watched": watched}


READER = Reader(
    "monitor",
    check_monitor,
    ("values", "plan", "facts", "options"),
    values=show_monitor,
    wanted=lambda block, _: monitor_mechanisms(unusual=monitor.UNUSUAL in block["tables"]),
)
