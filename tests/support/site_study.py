"""Three sites with separate folders, for tests of joint releases."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpprobe.release.ledger.ledger import Ledger
from dpprobe.release.make import ReleaseTask
from dpprobe.release.parts.sites.several_sites import make_site_key
from dpprobe.site_exchange.agreement import name_public_key
from tests.support.feature_stores import write_split
from tests.support.release_study import CLASSES, DIMENSION, PROBE, study

SITES = ("east", "north", "south")
TRAIN_ROWS, TEST_ROWS = (100, 140, 60), (60, 90, 50)
HEADER: dict[str, Any] = {
    "probe": PROBE,
    "class_names": CLASSES,
    "backbone": "pixels",
    "backbone_options": {"family": "pixels", "color": "gray"},
    "preprocessing": {"color": "gray"},
    "precision": "float32",
}


@dataclass
class Site:
    """A site, with its folder, its study's release and its Ed25519 key."""

    name: str
    folder: Path
    members: dict[str, str]
    exchange: Path
    options: dict[str, Any]

    def task(self, **changes: Any) -> ReleaseTask:
        """Returns the release of the site's current study."""
        sites = {
            "name": self.name,
            "members": self.members,
            "key": str(self.folder / "site.pem"),
            "exchange": str(self.exchange),
            **self.options.get("sites", {}),
            **changes.pop("sites", {}),
        }
        made = study(self.folder, **{**self.options, **changes, "sites": sites})
        return ReleaseTask(
            study=made,
            name="first",
            output=self.folder / "results/releases/first",
            train=self.folder / "train/manifest.json",
            test=self.folder / "test/manifest.json",
            cache=self.folder.parent / "calibration",
        )

    @property
    def ledger(self) -> Ledger:
        return Ledger.of_dataset(self.folder / "data", "toy")

    @property
    def private(self) -> Path:
        return self.folder / "data/toy/site-first"


def make_sites(folder: Path, **options: Any) -> list[Site]:
    """Writes the features of three sites; `options` are release options for all sites.

    With `of_patients` each patient has two images.
    """
    members = {}
    for name in SITES:
        key: Ed25519PrivateKey = make_site_key(folder / name / "site.pem")
        members[name] = name_public_key(key)
    for split, sizes in (("train", TRAIN_ROWS), ("test", TEST_ROWS)):
        generator = np.random.default_rng(len(split))
        labels = generator.integers(len(CLASSES), size=sum(sizes)).astype(np.int64)
        features = generator.normal(size=(sum(sizes), DIMENSION))
        features[np.arange(sum(sizes)), labels] += 4.0
        edges = np.cumsum([0, *sizes])
        for place, name in enumerate(SITES):
            rows = slice(edges[place], edges[place + 1])
            write_split(
                folder / name / split,
                features[rows],
                labels[rows],
                ids=[f"{name}-{split}-{row}" for row in range(sizes[place])],
                units=[f"{name} {split} {row // 2}" for row in range(sizes[place])]
                if options.get("of_patients")
                else None,
                dataset_fingerprint=f"data of {name}",
                **HEADER,
            )
    exchange = folder / "exchange"
    return [Site(name, folder / name, members, exchange, options) for name in SITES]
