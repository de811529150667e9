"""The MLflow aliases of a release's model: `released`, and `previous` for the target of a rollback.

A release with a predecessor is a version of the predecessor's model. So `models:/<model>@released`
loads the newest release, and after a rollback the previous release. The aliases follow from the
bundles' digests and from the tag `rolled_back` (set by a person), not from the order of calls.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion

from dpprobe.errors import DataError, TrackingError
from dpprobe.files.json_files import read_json
from dpprobe.release.bundle import SUMS_FILE, bundle_digest
from dpprobe.tracking.receipt import find_store_fault
from dpprobe.tracking.store import search_all
from dpprobe.tracking.writer import Destination, open_writer

logger = logging.getLogger("dpprobe")

RELEASED, PREVIOUS = "released", "previous"
DIGEST = "bundle_digest"  # tag of MLflow runs and model versions
# tags of model versions
PREDECESSOR, RELEASE, ROLLED_BACK = "predecessor_digest", "release", "rolled_back"
RELEASES_FOLDER = "_releases"  # folder of artifacts; no dataset has this name


def roll_back(bundle: Path, *, undo: bool = False) -> str:
    """Moves the alias `released` from a tracked bundle to its predecessor; returns the new state.

    The bundle's version keeps the tag `rolled_back`, so tracking the bundle again does not move the
    alias back. A second rollback of the bundle changes nothing. `undo` removes the tag
    `rolled_back` and moves the alias back to the bundle.

    Raises:
      DataError: if the bundle was not tracked in the results of a study.
      TrackingError: if no earlier version exists, or MLflow cannot be reached.
    """
    folder = bundle.absolute()
    if not (folder / SUMS_FILE).is_file() or len(folder.parents) < 2:
        raise DataError(f"{bundle}: no bundle in this folder; name a bundle in results_dir")
    results, digest = folder.parents[1], bundle_digest(folder)
    receipt = results / "tracking/releases" / f"{folder.name}.json"
    if not receipt.is_file() or find_store_fault(receipt):
        raise DataError(
            f"{bundle}: MLflow has no record of this bundle, or its store is missing; name a "
            f"bundle in results_dir, or run `snakemake --cores all releases` to write {receipt}"
        )
    record = read_json(receipt)
    named = {name: record[name] for name in ("uri", "study")}
    with open_writer(
        Destination.of_results(results, receipt=receipt, **named), RELEASES_FOLDER
    ) as writer:
        (model,) = record["models"]
        return ReleaseModel.read(writer.client, model).roll_back(digest, undo=undo)


@dataclass(frozen=True)
class ReleaseModel:
    """A registered model with all of its versions.

    Attributes:
      versions: all versions, oldest first.
      rolled_back: the numbers of the versions that a person rolled back.
    """

    client: MlflowClient
    name: str
    versions: Sequence[ModelVersion]
    rolled_back: set[str]

    @classmethod
    def read(cls, client: MlflowClient, name: str) -> ReleaseModel:
        search = partial(client.search_model_versions, f"name = '{name}'")
        versions = sorted(search_all(search), key=lambda each: int(each.version))
        marked = {str(each.version) for each in versions if ROLLED_BACK in each.tags}
        return cls(client, name, versions, marked)

    def release(self, version: ModelVersion) -> None:
        """Moves `released` to a version, unless it is rolled back or a successor has the alias."""
        released = self._find_released()
        if str(version.version) in self.rolled_back:
            logger.info("MLflow: %s, version %s, stays rolled back", self.name, version.version)
        elif released is None or not self._precedes(version, released):
            released = version
        if released is not None:
            self._set_aliases(released)

    def roll_back(self, digest: str, *, undo: bool) -> str:
        version = self._by_digest().get(digest)
        released = self._find_released()
        if version is None or released is None:
            raise TrackingError(
                f"{self.name}: no version of this bundle, or no released version; run `snakemake "
                "--cores all releases --forcerun track_release`"
            )
        number = str(version.version)
        if undo:
            if number in self.rolled_back:
                self.client.delete_model_version_tag(self.name, number, ROLLED_BACK)
                self.rolled_back.remove(number)
            released = version if self._precedes(released, version) else released
        else:
            earlier = self._find_previous(version)
            if earlier is None:
                raise TrackingError(
                    f"{self.name}, version {number}: MLflow has no predecessor of this version "
                    "that is not rolled back; no release can take its place"
                )
            # tagged before the aliases move, because tracking after a crash would undo the rollback
            self.client.set_model_version_tag(self.name, number, ROLLED_BACK, "true")
            self.rolled_back.add(number)
            released = earlier if str(released.version) == number else released
        previous = self._set_aliases(released)
        return "\n".join(
            f"{self.name}@{alias}: "
            + (f"version {each.version}, {each.tags.get(RELEASE, self.name)}" if each else "none")
            for alias, each in ((RELEASED, released), (PREVIOUS, previous))
        )

    def _set_aliases(self, released: ModelVersion) -> ModelVersion | None:
        """Sets both aliases; returns the version that is now `previous`."""
        previous = self._find_previous(released)
        aliases = self.client.get_registered_model(self.name).aliases
        for alias, version in ((RELEASED, released), (PREVIOUS, previous)):
            if version is None and alias in aliases:
                self.client.delete_registered_model_alias(self.name, alias)
            # some MLflow stores return version numbers as int
            elif version is not None and str(aliases.get(alias)) != str(version.version):
                self.client.set_registered_model_alias(self.name, alias, version.version)
        return previous

    def _find_released(self) -> ModelVersion | None:
        number = str(self.client.get_registered_model(self.name).aliases.get(RELEASED))
        return next((each for each in self.versions if str(each.version) == number), None)

    def _find_previous(self, version: ModelVersion) -> ModelVersion | None:
        """Returns the nearest predecessor that was not rolled back."""
        before = self._list_predecessors(version)
        return next((each for each in before if str(each.version) not in self.rolled_back), None)

    def _precedes(self, version: ModelVersion, other: ModelVersion) -> bool:
        digests = [each.tags.get(DIGEST) for each in self._list_predecessors(other)]
        return version.tags.get(DIGEST) in digests

    def _by_digest(self) -> dict[str, ModelVersion]:
        """Maps each digest to its newest version; older versions belong to deleted runs."""
        return {each.tags[DIGEST]: each for each in self.versions if DIGEST in each.tags}

    def _list_predecessors(self, version: ModelVersion) -> list[ModelVersion]:
        """Lists the predecessor of a version, then the predecessor's predecessor, and so on."""
        left = self._by_digest()
        listed: list[ModelVersion] = []
        # each version is listed once, because a person may edit the tags into a circle
        while (before := left.pop(version.tags.get(PREDECESSOR, ""), None)) is not None:
            listed.append(before)
            version = before
        return listed
