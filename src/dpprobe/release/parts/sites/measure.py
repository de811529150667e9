"""The steps of a release by several sites, and the check of the statement block `sites`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from dpprobe.heads.facts import DataFacts
from dpprobe.privacy.unit_words import UnitWords
from dpprobe.release.parts.part import Facts, PartReader, PartSteps
from dpprobe.release.parts.sites import SitesOptions
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

if TYPE_CHECKING:
    from dpprobe.release.asked_release import AskedRelease


class Steps(PartSteps):
    @staticmethod
    def open_transport(release: AskedRelease, asked: SitesOptions) -> SeveralSites:
        return SeveralSites(release, asked)

    def count_useful(self) -> DataFacts:
        """Returns facts of all sites for the planner; benchmarks have only this site's rows."""
        return self.planned.facts


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
}


def check_sites(values: Values) -> tuple[str, bool]:
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
    )
    require_same("sites", expected, block)
    trusted = f"{aggregator} is trusted" if aggregator else f"{colluders} may collude"
    return f"{len(names)} sites, of which {trusted}", True


def explain_sites(block: Facts | None, unit: UnitWords, _: Facts) -> dict[str, Any]:
    """States which sites trained a head together, and whom the guarantee trusts."""
    if block is None:
        return {"sites": None}
    names, aggregator, colluders = block["names"], block["aggregator"], block["colluders"]
    words = (
        f"The sites {', '.join(names[:-1])} and {names[-1]} trained this head together. By the "
        f"protocol, no site sends any {unit.item}, a feature or an exact sum: each sends sums "
        "under masks, which vanish in the total. "
    )
    if aggregator is not None:
        of_one = ", which is that of one site" if len(names) == 2 else ""
        words += (
            f"{aggregator} added all the noise, so {aggregator} could compute the exact sum of the "
            f"other sites' sums{of_one}. The guarantee holds against everyone else. "
        )
    else:
        others = "one other site" if colluders == 1 else f"{colluders} other sites"
        words += (
            f"Each site added noise of its own. The guarantee to a site's {unit.many} holds even "
            f"if {others} and everyone else pool all they know. "
        )
    if (penalty := block["log10_penalty"]) is not None:
        least = max(math.ceil(penalty), -1000)
        words += f"Noise in shares costs at most 10^{least} more epsilon than stated. "
    words += (
        "It assumes that the sites follow the protocol, and that nobody breaks X25519, Ed25519, "
        "HKDF-SHA256 or AES-256. "
        f"The sites know how many {unit.many} each has. One {unit.one} at two sites counts as two "
        f"{unit.many}. The ledger is that of {block['packed_by']}; each site keeps its own."
    )
    return {"sites": words}


READER = PartReader("sites", check_sites, ("values",), values=explain_sites)
