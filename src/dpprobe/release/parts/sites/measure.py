"""The steps of a release by several sites, and the check of the statement block `sites`."""

from __future__ import annotations

from functools import cached_property

from dpprobe.heads.facts import DataFacts
from dpprobe.privacy.plan import Plan
from dpprobe.release.parts.part import PartReader, PartSteps
from dpprobe.release.parts.sites.several_sites import SeveralSites, describe_sites
from dpprobe.release.stated_values import (
    Values,
    is_hash,
    read_block,
    read_real,
    read_whole,
    require_same,
    require_true,
)


class Steps(PartSteps):
    @cached_property
    def transport(self) -> SeveralSites:
        return SeveralSites(self.task, self.asked)

    def open_transport(self) -> SeveralSites:
        return self.transport

    def check(self) -> None:
        self.transport.check()

    def count_useful(self) -> DataFacts:
        """Returns facts of all sites for the planner; benchmarks have this site's rows only."""
        return self.task.facts

    def describe_booking(self) -> dict[str, str | None]:
        return {"sites": self.transport.promise}


# verification and words

SITES_KEYS = {
    "names",
    "packed_by",
    "aggregator",
    "colluders",
    "agreement",
    "smallest_share",
    "coordinates",
    "log10_penalty",
    "words",
}


def check_sites(values: Values, plan: Plan) -> tuple[str, bool]:
    block = read_block("sites", values["sites"], SITES_KEYS)
    names, aggregator = block["names"], block["aggregator"]
    require_true(
        isinstance(names, list)
        and all(isinstance(name, str) for name in names)
        and len(names) == len(set(names)) >= 2
        and names == sorted(names),
        "names: must be two or more different names of sites in alphabetical order",
    )
    for key in ("packed_by", "aggregator"):
        named = block[key] in names or (key == "aggregator" and block[key] is None)
        require_true(named, f"{key}: not one of the sites")
    require_true(is_hash(block["agreement"]), "agreement: not a SHA-256")
    colluders = read_whole("colluders", block["colluders"], largest=len(names) - 1)
    share = None if aggregator else read_real("smallest_share", block["smallest_share"])
    expected = describe_sites(
        names,
        packed_by=block["packed_by"],
        aggregator=aggregator,
        colluders=colluders,
        agreement=block["agreement"],
        smallest_share=share,
        coordinates=read_whole("coordinates", block["coordinates"], largest=2**50),
        unit=plan.unit,
    )
    require_same("sites", expected, block)
    trusted = f"{aggregator} is trusted" if aggregator else f"{colluders} may collude"
    return f"{len(names)} sites, of which {trusted}", True


READER = PartReader(
    "sites", check_sites, values=lambda block, words: {"sites": block and words(block["words"])}
)
