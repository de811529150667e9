"""States the ledger's total epsilon, which is computed after booking the release."""

from __future__ import annotations

from dpprobe.privacy.accountants import exactly_priced
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.statement_words import format_epsilon, format_small
from dpprobe.privacy.unit_words import UnitWords
from dpprobe.release.counted_units import compose_test_price
from dpprobe.release.ledger.ledger_file import Entry
from dpprobe.release.parts.part import Facts, PartReader, PartSteps
from dpprobe.release.stated_plans import list_tested
from dpprobe.release.stated_values import (
    Values,
    read_block,
    read_real,
    read_whole,
    require_same,
    require_true,
)
from dpprobe.release.transport import Block


class Steps(PartSteps):
    def state(self, entry: Entry) -> Block:
        delta = self.release.delta
        spent = self.release.ledger.compute_spent(delta)
        return spent.to_block(entry=entry.number, unit=self.release.unit, delta=delta)


# verification and words

LEDGER_TOLERANCE = 1e-4
LEDGER_KEYS = {"entry", "releases", "unit", "delta", "epsilon", "exact"}


def check_ledger(values: Values, plan: Plan) -> tuple[str, bool]:
    """Checks that the total of all releases is at least the cost of this release."""
    block = read_block("ledger", values["ledger"], LEDGER_KEYS)
    entry, count = (read_whole(name, block[name]) for name in ("entry", "releases"))
    require_same("unit", plan.unit, block["unit"])
    require_same("delta", plan.delta, block["delta"])
    require_true(isinstance(block["exact"], bool), "exact: neither true nor false")
    total = read_real("epsilon", block["epsilon"])
    tested = values["evaluation"]
    sides = [plan.realised_epsilon]
    if tested and tested["delta"] == plan.delta:
        sides.append(read_real("evaluation.epsilon", tested["epsilon"]))
    if len(plans := list_tested(values, plan)) > bool(tested):
        together = compose_test_price(*plans)
        sides += [] if together is None else [together.realised_epsilon]
    least = max(sides)
    known = exactly_priced(plan.mechanisms, plan.selection) or least > plan.realised_epsilon
    require_true(
        known or not block["exact"],
        "exact: true, but with samples or repeats epsilon is only a bound",
    )
    require_true(
        total >= least * (1 - LEDGER_TOLERANCE),
        f"epsilon {total:g}: less than this release alone costs, {least:g}",
    )
    if count == 1 and block["exact"]:
        require_true(
            total <= least * (1 + LEDGER_TOLERANCE),
            f"epsilon {total:g}: only one release, which costs {least:g}",
        )
    more = "exactly" if block["exact"] else "at most"
    releases = "1 release costs" if count == 1 else f"{count} releases together cost"
    return f"entry {entry}; {releases} {more} epsilon {total:g}, as the ledger said", True


def state_spent(ledger: Facts, unit: UnitWords, statement: Facts) -> str:
    """States the ledger's total, which cannot include releases outside the ledger."""
    one, bound = unit.one, "" if ledger["exact"] else "at most "
    price = f"epsilon {format_epsilon(ledger['epsilon'])} at delta {format_small(ledger['delta'])}"
    if ledger["releases"] == 1:
        said = (
            "When this bundle was made, the ledger counted no other release of this dataset, or of "
            f"one that was declared to share its units. This release costs one {one} {bound}"
            f"{price}."
        )
    else:
        said = (
            f"When this bundle was made, the ledger counted {ledger['releases']} releases of this "
            "dataset and of those that were declared to share its units, this one included. "
            f"Together they cost one {one} {bound}{price}."
        )
    if sites := statement.get("sites"):
        said += (
            f" This is the ledger of {sites['packed_by']}: the ledgers of other sites may count "
            f"more releases of their {unit.many}."
        )
    return said


READER = PartReader(
    "ledger",
    check_ledger,
    always=True,
    values=lambda block, unit, statement: {"spent": state_spent(block, unit, statement)},
)
