"""Verifies and shows which sites have trained a head, and what that assumes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpprobe.privacy.plan import Plan
from dpprobe.release.parts.part import PartReader, Stated, Words
from dpprobe.release.parts.sites.site_part import describe_sites
from dpprobe.release.stated_values import (
    Values,
    is_hash,
    read_block,
    read_real,
    read_whole,
    require_same,
    require_true,
)
from dpprobe.release.verification.checks import Checks

SITES_KEYS = {
    "names", "packed_by", "aggregator", "colluders", "agreement", "smallest_share", "coordinates",
    "log10_penalty", "words",
}  # fmt: skip


def check_sites(values: Values, plan: Plan) -> tuple[str, bool]:
    """Derives the block `sites` again from its names, its mode and its smallest share of noise."""
    block = read_block("sites", values["sites"], SITES_KEYS)
    names, aggregator = block["names"], block["aggregator"]
    require_true(
        isinstance(names, list) and all(isinstance(name, str) for name in names)
        and len(names) == len(set(names)) >= 2 and names == sorted(names),
        "names: not those of two or more sites, in their order",
    )  # fmt: skip
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


class Reader(PartReader):
    """Derives the block again."""

    def verify(self, checks: Checks, stated: Stated) -> bool | None:
        if not stated.has_block(self.name):
            return True
        return checks.run_check(self.name, check_sites, stated.values, stated.plan)

    def show(self, statement: Mapping[str, Any], words: Words) -> dict[str, Any]:
        block = statement.get("sites")
        return {"sites": block and words(block["words"])}


READER = Reader("sites")
