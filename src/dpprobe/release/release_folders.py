"""Manages the folders of a release: published bundle, staged copy, and incomplete copy."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dpprobe.errors import PrivacyError
from dpprobe.files.atomic_writes import PARTIAL_SUFFIX, atomic_path
from dpprobe.release.bundle import STATEMENT_FILE, SUMS_FILE, bundle_digest, damaged_files
from dpprobe.release.bundle_folders import list_sums, read_bundle_facts, read_object
from dpprobe.release.ledger.ledger import Ledger
from dpprobe.release.ledger.ledger_file import Entry
from dpprobe.study.reserved_names import LEDGER_FILE, NOTED_FILE

logger = logging.getLogger("dpprobe")

_RESTORE_OR_COPY = (
    "restore the ledger, which records the spent budget; or copy the ledger of the other data into "
    "a folder of data_dir, if it read other data"
)


@dataclass(frozen=True)
class ReleaseFolders:
    """The folders of a release: the published `output`, and hidden folders for ledger entries."""

    name: str
    output: Path
    ledger: Path

    def staged(self, entry: Entry) -> Path:
        return self.output.with_name(f".{self.name}.entry-{entry.number}.staged")

    def partial(self, entry: Entry) -> Path:
        return self.staged(entry).with_suffix(".partial")

    def drop(self, entry: Entry) -> None:
        for folder in (self.staged(entry), self.partial(entry)):
            if folder.exists():
                shutil.rmtree(folder)
                logger.info(
                    "release %s: %s removed, because its entry is abandoned", self.name, folder
                )

    def is_whole(self, folder: Path) -> bool:
        return (folder / SUMS_FILE).is_file() and not damaged_files(folder)

    def has_digest(self, folder: Path, digest: str | None) -> bool:
        return self.is_whole(folder) and bundle_digest(folder) == digest

    def check_listed(self, dataset: str, entries: Sequence[Entry]) -> None:
        """Raises PrivacyError for a bundle that a lost or replaced ledger does not list."""
        for folder in list_unlisted(self.output.parent, dataset, entries):
            fault, remedy = explain_unlisted(dataset, self.ledger)
            raise PrivacyError(f"{folder}: {fault}; {remedy}")

    def explain_lost(self, entry: Entry) -> str:
        return (
            f"release {self.name}: made (entry {entry.number} of {self.ledger}), and its "
            f"bundle is neither at {self.output} nor in {self.staged(entry)}: restore "
            f"a copy whose {SUMS_FILE} has the SHA-256 {entry.digest}, or make a new "
            "release with another name, which spends its epsilon again"
        )

    def touch_files(self) -> None:
        for path in self.output.iterdir():
            os.utime(path)

    def publish(self, staged: Path) -> None:
        """Copies a closed bundle, or its missing files, from `staged` to `output`."""
        self.output.mkdir(exist_ok=True)
        ready = {path.name: path for path in staged.iterdir()}
        for path in self.output.iterdir():
            if path.name.endswith(PARTIAL_SUFFIX):  # of an interrupted copy
                path.unlink()
            elif path.name not in ready or path.read_bytes() != ready[path.name].read_bytes():
                raise PrivacyError(
                    f"{path}: differs from the stored release {self.name}; delete it and run "
                    f"again, which restores the bundle from {staged}"
                )
        for name in sorted(ready, key=lambda name: name == SUMS_FILE):
            if not (self.output / name).exists():
                with atomic_path(self.output / name) as temporary:
                    shutil.copyfile(ready[name], temporary)
        self.touch_files()
        logger.info("release %s: %s", self.name, self.output)


def note_releases(ledger: Path, releases: Path) -> None:
    """Records next to a ledger that a folder receives bundles of its releases.

    If the ledger later loses entries, bundles in the recorded folders reveal the loss.
    """
    path, line = ledger.with_name(NOTED_FILE), json.dumps(str(releases.resolve()))
    if line not in _read_lines(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


def list_noted(data: Path) -> list[tuple[str, Path]]:
    """Lists each folder recorded next to the ledgers of a data_dir, with the dataset."""
    noted = []
    for path in sorted(data.glob(f"*/{NOTED_FILE}")):
        for line in _read_lines(path):
            with suppress(ValueError):  # a line cut short by a full disk
                noted.append((path.parent.name, Path(json.loads(line))))
    return noted


def _read_lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


class Lacking(NamedTuple):
    """A bundle that a ledger should list but does not, or whose predecessor no ledger lists."""

    folder: Path
    fault: str
    remedy: str


def list_lacking(releases: Path, data: Path, dataset: str | None = None) -> list[Lacking]:
    """Lists bundles that their ledger does not list, or whose predecessor no ledger lists.

    Any ledger of the data_dir may list a predecessor. Raises DataError for a damaged ledger.

    Args:
      releases: the folder of a study's bundles.
      data: the study's data_dir.
      dataset: limits the search to bundles of this dataset.
    """
    bundles = {sums.parent: read_bundle_facts(sums.parent) for sums in list_sums(releases)}
    made_from = {str(facts["dataset"]) for facts in bundles.values() if "dataset" in facts}
    ledgers = {
        name: Ledger(data / name / LEDGER_FILE)
        for name in sorted(made_from if dataset is None else made_from & {dataset})
    }
    lacking = [
        Lacking(folder, *explain_unlisted(name, ledger.path))
        for name, ledger in ledgers.items()
        for folder in list_unlisted(releases, name, ledger.read_entries())
    ]
    every = [Ledger(path) for path in data.glob(f"*/{LEDGER_FILE}")]
    known = {bundle_digest(folder) for folder in bundles}
    known |= {str(entry.digest) for ledger in every for entry in ledger.read_entries()}
    for folder, facts in bundles.items():
        named = read_object(folder / STATEMENT_FILE).get("predecessor")
        if facts.get("dataset") not in ledgers or not isinstance(named, dict):
            continue
        if (digest := str(named.get("sha256"))) not in known:
            known.add(digest)
            fault = f"replaces {named.get('name')!r:.60}, which no ledger in {data} lists"
            lacking.append(Lacking(folder, fault, _RESTORE_OR_COPY))
    return lacking


def list_unlisted(releases: Path, dataset: str, entries: Sequence[Entry]) -> list[Path]:
    """Lists a dataset's bundles in a folder, each once, that no entry of its ledger lists."""
    known = {entry.digest for entry in entries}
    # staged bundles of open entries
    staged = {f".{e.booking.release}.entry-{e.number}.staged" for e in entries if not e.digest}
    unlisted: dict[str, Path] = {}
    for sums in list_sums(releases):
        folder, digest = sums.parent, bundle_digest(sums.parent)
        ours = read_bundle_facts(folder).get("dataset") == dataset
        if ours and digest not in known and folder.name not in staged:
            unlisted.setdefault(digest, folder)
    return list(unlisted.values())


def explain_unlisted(dataset: str, ledger: Path) -> tuple[str, str]:
    """Returns the fault of an unlisted bundle, and the remedy."""
    return f"a release from {dataset} that {ledger} does not list", (
        "restore the ledger, which records the spent budget; or move the bundle elsewhere if it "
        "belongs to other data"
    )
