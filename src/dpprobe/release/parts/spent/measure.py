"""Adds up the ledger once the release is booked."""

from __future__ import annotations

from dpprobe.release.ledger import Entry
from dpprobe.release.parts.part import Block, PartSteps


class Steps(PartSteps):
    """States the sum of the ledger, this release included."""

    def state(self, entry: Entry) -> Block:
        delta = self.task.delta
        spent = self.task.ledger.compute_spent(delta)
        return spent.to_block(entry=entry.number, unit=self.task.unit, delta=delta)
