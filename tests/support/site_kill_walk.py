"""Kills one of three sites before each kind of step of its part, and prints the next run's results.

    python -m tests.support.site_kill_walk FOLDER

The two other sites have sent their sums, so one run of the third site books, sends, and closes.
Prints one line of JSON per step; `kill_walk` defines steps.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from dpprobe.errors import WaitingError
from dpprobe.release.parts.choice import measure as choice
from tests.support.compiled_templates import keep_templates
from tests.support.kill_walk import in_child, priced_once, run_until
from tests.support.site_study import Site, make_sites


def main(folder: Path) -> None:
    os.environ["KILL_WALK_SAID"] = str(folder / "said")
    keep_templates(pytest.MonkeyPatch())
    choice.choice_block = priced_once(choice.choice_block)
    ready = folder / "ready"
    sites = make_sites(ready, method="sums")
    for site in sites:
        site.task().make_offer()
    for site in sites[1:]:
        with contextlib.suppress(WaitingError):
            site.task().run()
    # This run's imports and results are shared by each process that is forked from this one.
    move(sites[0], ready, folder / "first").task().run()
    gc.freeze()
    names = folder / "whole.steps"
    assert run(move(sites[0], ready, folder / "whole"), steps=names) == 0
    steps = names.read_text().splitlines()
    # `kill_walk` tests the steps that write the bundle
    documents = next(place for place, name in enumerate(steps) if "entry-1.partial" in name)
    kept = [*enumerate(steps[:documents]), (len(steps) - 1, steps[-1])]
    chosen = {name: place for place, name in reversed(kept)}
    print(json.dumps({"step": None, "steps": steps, **describe(folder / "whole")}))
    for name, place in sorted(chosen.items(), key=lambda item: item[1]):
        site = move(sites[0], ready, folder / f"killed-{place}")
        status = run(site, kill_at=place)
        said = {"step": name, "status": status, "killed": describe(site.folder.parent)}
        said["again"] = in_child(site.task().run)
        print(json.dumps(said | describe(site.folder.parent)))
        shutil.rmtree(site.folder.parent)


def move(site: Site, ready: Path, folder: Path) -> Site:
    """Returns the same site in a copy of all folders."""
    shutil.copytree(ready, folder)
    return Site(site.name, folder / site.name, site.members, folder / "exchange", site.options)


def run(site: Site, *, kill_at: int | None = None, steps: Path | None = None) -> int:
    """Runs a site's part until a step; appends the names of earlier steps to `steps`."""

    def note(name: str) -> None:
        if steps is not None:
            with steps.open("a") as stream:
                stream.write(f"{name}\n")

    return run_until(site.folder.parent, site.task().run, kill_at, note)


def describe(folder: Path) -> dict[str, Any]:
    """Returns hashes of the site's message and head, and what its ledger says of its entries."""
    site = Site("east", folder / "east", {}, folder / "exchange", {})
    files = {
        "message": site.exchange / "first/sums-1.east.safetensors",
        "head": site.folder / "results/releases/first/head.safetensors",
    }
    hashes = {
        name: hashlib.sha256(path.read_bytes()).hexdigest()[:12] if path.exists() else None
        for name, path in files.items()
    }
    return hashes | {
        "secret": (site.private / "secret.json").exists(),
        "entries": [entry.state for entry in site.ledger.read_entries()],
        "sent": [entry.sent for entry in site.ledger.read_entries()],
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
