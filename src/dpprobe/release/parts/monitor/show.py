"""Verifies and shows a monitor's tables of test images, and the head's typical directions."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from dpprobe.heads import normalisation as kinds
from dpprobe.heads.fitted import TYPICAL
from dpprobe.heads.options import MethodOptions
from dpprobe.privacy.plan import Plan
from dpprobe.release.bundle import BundleFacts
from dpprobe.release.counted_units import compose_test_price
from dpprobe.release.parts.monitor.compare_images import list_edges
from dpprobe.release.parts.monitor.measure import (
    count_typical,
    monitor_mechanisms,
    monitor_words,
    table_sizes,
)
from dpprobe.release.parts.part import PartReader
from dpprobe.release.stated_values import Values, read_block, read_real, require_same, require_true
from dpprobe.release.verification.tested_plans import agree, list_tested, read_tested

# Number of standard deviations that noise never exceeds in practice.
_RARE = 8.0


def check_monitor(
    values: Values, plan: Plan, facts: BundleFacts, options: MethodOptions
) -> tuple[str, bool]:
    unusual = count_typical(plan, options.normalize, facts.dimension) > 0
    wanted = monitor_mechanisms(unusual=unusual)
    block, tested, cost = read_tested(
        "monitor", values["monitor"], {"tables", "edges"}, plan, wanted
    )
    require_same("delta", plan.delta, block["delta"])
    for other in list_tested(values, plan):
        require_same("n", other.n, block["n"])
    together = compose_test_price(*list_tested(values, plan)) or tested
    require_same("composition", monitor_words(tested, together), block["composition"])
    edges = list_edges(facts.backbone.probe["norm"], unusual=unusual)
    require_true(agree(edges, block["edges"]), "edges: not the public edges")
    sizes = table_sizes(len(facts.class_names), edges)
    tables = read_block("tables", block["tables"], set(sizes))
    _check_totals(tables, sizes, tested)
    return f"new images can be compared with {tested.n} test units, epsilon {cost:.6g}", True


def _check_totals(tables: Values, sizes: Mapping[str, int], tested: Plan) -> None:
    """Checks that all tables count equally many rows, apart from noise."""
    (item,) = tested.mechanisms
    deviation, totals = item.noise_scale, {}
    for name, size in sizes.items():
        counts = [read_real(name, each) for each in tables[name]]
        require_true(len(counts) == size, f"{name}: {len(counts)} cells instead of {size}")
        totals[name] = (math.fsum(counts), size)
    for name, (total, size) in totals.items():
        # n may exceed all totals, because null rows are not counted
        bounds = [(float(tested.n), size), *((each, size + of) for each, of in totals.values())]
        require_true(
            all(total <= most + _RARE * deviation * math.sqrt(cells) for most, cells in bounds),
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


READER = Reader(
    "monitor",
    check_monitor,
    "values",
    "plan",
    "facts",
    "options",
    show=lambda block, words: {
        "monitor": block,
        "watched": block and words(block["composition"]),
    },
)
