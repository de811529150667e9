"""Three sites with three folders make one release; whatever else they are sent is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpprobe.errors import WaitingError
from dpprobe.release import bundle
from dpprobe.release.verification.verify import verify_bundle
from tests.support.site_study import Site, make_sites


def take_turns(sites: list[Site], **changes: Any) -> int:
    """Lets each site do what it can, until all have their bundle; returns the number of turns."""
    for turn in range(1, 30):
        waiting = 0
        for site in sites:
            try:
                site.task(**changes).run()
            except WaitingError:
                waiting += 1
        if not waiting:
            return turn
    raise AssertionError("the sites wait for each other")


@pytest.mark.parametrize(
    ("options", "rounds"),
    [
        ({"method": "covariance"}, 3),
        ({"method": "covariance", "sites": {"aggregator": "north"}}, 3),
        (
            {
                "method": "covariance",
                "evaluate": {"epsilon": 2},
                "calibrate": {"epsilon": 2},
                "monitor": {"epsilon": 2},
            },
            13,
        ),
    ],
)
def test_three_sites_make_one_verified_release(
    tmp_path: Path, options: dict[str, Any], rounds: int
) -> None:
    sites = make_sites(tmp_path, **options)
    for site in sites:
        site.task().make_offer()
    take_turns(sites)
    bundles = [bundle.read_bundle(site.task().output) for site in sites]
    first = bundles[0]
    for read in bundles:
        assert read.weights.tobytes() == first.weights.tobytes()
        report = verify_bundle(read.folder)
        assert report.passed, [check for check in report.checks if check.passed is False]
    said = first.statement["sites"]
    assert (said["names"], said["packed_by"]) == (["east", "north", "south"], "east")
    assert first.statement["n"] == 300
    messages = list((tmp_path / "exchange/first").glob("sums-*"))
    assert len(messages) == rounds * len(sites)
    for site in sites:
        (entry,) = site.ledger.read_entries()
        assert entry.state == "closed"
        assert not (site.private / "secret.json").exists()
        before = (site.task().output / "head.safetensors").read_bytes()
        site.task().run()
        assert (site.task().output / "head.safetensors").read_bytes() == before
