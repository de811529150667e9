"""Weights, counts, plans and prices, which all release parts that measure test units share."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dpprobe.errors import PrivacyError
from dpprobe.heads.fitted import Heads
from dpprobe.heads.scoring import score_rows
from dpprobe.privacy.grid import Grid
from dpprobe.privacy.noise_calibration import price_plan
from dpprobe.privacy.plan import Mechanism, Plan, check_mechanisms
from dpprobe.privacy.releases import Releases
from dpprobe.privacy.statement import mechanism_values
from dpprobe.release.transport import Draw
from dpprobe.results.unit_counts import count_units, row_weights
from dpprobe.training.job_features import JobFeatures

Floats = npt.NDArray[np.float64]

# Names the counts of test units by score and label, for an AUC and a two-class calibration.
SCORE_COUNTS = "score_counts"
# Bins of scores s have equal widths in asinh(s / SCORE_UNIT).
SCORE_UNIT = 0.01


def open_releases(draw: Draw, plan: Plan, wanted: Sequence[Mechanism]) -> Releases:
    """Opens the noisy releases of one head's counts.

    Raises PrivacyError unless the plan has the wanted mechanisms, and there is only one head.
    """
    check_mechanisms(plan, wanted)
    seeds, entropy = draw.heads.seeds, draw.open_entropy()
    if len(seeds) != 1:
        raise PrivacyError(f"{wanted[0].name}: {len(seeds)} heads share one epsilon; pass one head")
    return Releases(plan, seeds, torch.device("cpu"), entropy=entropy, shared=draw.shared)


def compose_test_price(*plans: Plan | None) -> Plan | None:
    """Merges plans that read the test units into one plan with its epsilon; None without plans."""
    read = [plan for plan in plans if plan is not None]
    if len(read) < 2:
        return read[0] if read else None
    together = replace(
        read[0],
        mechanisms=tuple(itertools.chain.from_iterable(plan.mechanisms for plan in read)),
        epsilon=sum(plan.epsilon for plan in read),
        accountant="pld",  # exact for mechanisms without sampling
    )
    return replace(together, realised_epsilon=price_plan(together))


def priced_values(plan: Plan) -> dict[str, Any]:
    """Returns the values of a statement block that state its privacy cost to test units."""
    return {
        "n": plan.n,
        "epsilon": plan.realised_epsilon,
        "epsilon_target": plan.epsilon,
        "delta": plan.delta,
        "mechanisms": [mechanism_values(item, plan) for item in plan.mechanisms],
    }


def score_test_rows(heads: Heads, features: JobFeatures) -> npt.NDArray[np.float32]:
    """Returns the scores of the first head, [rows, classes]."""
    return np.concatenate([score_rows(heads, block)[0] for _, block in features.test_blocks()])


def weights_of_rows(features: JobFeatures, plan: Plan) -> Floats:
    """Returns test examples' weights in their units; raises PrivacyError unless n fits the plan."""
    rows, public_n = len(features.test_labels), features.public_test_n
    return weigh_rows(features.test_units, rows, plan, public_n=public_n)


def weigh_rows(
    codes: npt.NDArray[np.int64] | None, rows: int, plan: Plan, *, public_n: int | None = None
) -> Floats:
    """Returns rows' weights in the units that `codes` number: 1 / m in a unit of m rows.

    `public_n` is the public number of units if the rows belong to only a part of them. Raises
    PrivacyError unless the number of units is the plan's n.
    """
    of_images = plan.unit == "image"
    units = public_n or (rows if of_images else count_units(codes))
    if units != plan.n:
        raise PrivacyError(
            f"the plan is for n = {plan.n} test units of kind {plan.unit}, but the test split has "
            f"{units or 'none of that kind'}; calibrate for the test split"
        )
    weights = None if of_images else row_weights(codes)
    return np.ones(rows) if weights is None else weights


def find_usable(scores: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Returns a mask that is False for null rows, whose scores are not all finite."""
    return np.asarray(np.isfinite(scores).all(axis=1))


def count_steps(values: Floats, n: int) -> tuple[Floats, float]:
    """Converts numbers in [0, 1] to whole steps of a grid for sums over n units; with the step."""
    grid = Grid.make_grid(1.0, n, whole=True)
    return grid.round_to_steps(torch.from_numpy(values)).numpy(), grid.step


def bin_middles(edges: Floats) -> Floats:
    """Returns one score per bin: the bin's middle in asinh, or an outermost bin's inner edge."""
    places = np.arcsinh(edges / SCORE_UNIT)
    inner = (places[:-1] + places[1:]) / 2
    inner[0], inner[-1] = places[1], places[-2]
    return np.asarray(SCORE_UNIT * np.sinh(inner))


def label_counts(
    places: Floats,
    present: npt.NDArray[np.bool_] | None,
    units: Floats,
    edges: Sequence[Floats],
) -> Floats:
    """Counts rows by label and bin: [labels, bins], or [labels, 2 bins], rows with the label first.

    Args:
      places: positions [rows, labels]; a position beyond the edges counts in the outermost bin.
      present: [rows, labels], True for rows with the label; None to count all rows together.
      units: [rows], the weights in whole steps; 0 for null rows.
      edges: the edges of each label's bins.
    """
    counts = []
    for label, limits in enumerate(edges):
        bins = len(limits) - 1
        index = np.searchsorted(limits[1:-1], places[:, label], side="right")
        if present is not None:
            index = index + bins * ~present[:, label]
            bins *= 2
        counts.append(np.bincount(index, weights=units, minlength=bins))
    return np.asarray(counts, dtype=np.float64)
