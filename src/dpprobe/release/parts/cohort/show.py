"""Verifies and shows a release's place in its chain of cohorts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpprobe.privacy.plan import Plan
from dpprobe.release.parts.cohort.measure import describe_cohort
from dpprobe.release.parts.part import PartReader, Stated, Words
from dpprobe.release.stated_values import Values, read_block, read_whole, require_same, require_true
from dpprobe.release.verification.checks import Checks

COHORT_KEYS = {"name", "place", "horizon", "units", "noise_growth", "earlier", "words"}


def check_cohort(values: Values, plan: Plan) -> tuple[str, bool]:
    """Derives the block `cohort` again from its names, its horizon and the numbers of units."""
    block = read_block("cohort", values["cohort"], COHORT_KEYS)
    for place, one in enumerate(block["earlier"]):
        read_block(f"cohort.earlier.{place}", one, {"release", "cohort", "n"})
        read_whole(f"cohort.earlier.{place}.n", one["n"])
        require_true(
            all(isinstance(one[key], str) for key in ("release", "cohort")), "cohort: not a name"
        )
    expected = describe_cohort(
        block["name"], block["earlier"], horizon=block["horizon"], n=plan.n, unit=plan.unit
    )
    require_same("cohort", expected, block)
    before = values.get("predecessor") or {"name": None}
    last = block["earlier"][-1]["release"] if block["earlier"] else before["name"]
    require_true(
        before["name"] == last,
        f"cohort: the sums are those of {last}, which is not the predecessor",
    )
    return f"number {block['place']} of its chain, {block['units']:,} {plan.unit}s", True


class Reader(PartReader):
    """Derives the block again."""

    def verify(self, checks: Checks, stated: Stated) -> bool | None:
        if not stated.has_block(self.name):
            return True
        return checks.run_check(self.name, check_cohort, stated.values, stated.plan)

    def show(self, statement: Mapping[str, Any], words: Words) -> dict[str, Any]:
        block = statement.get("cohort")
        return {"cohort": block and words(block["words"])}


READER = Reader("cohort")
