"""The folders of a release: the published bundle, its staged copy, and the folder being written."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dpprobe.artifacts import PARTIAL_SUFFIX, atomic_path, read_json
from dpprobe.errors import PrivacyError
from dpprobe.release.bundle import FACTS_FILE, SUMS_FILE, bundle_digest, damaged_files
from dpprobe.release.ledger.ledger_file import Entry

logger = logging.getLogger("dpprobe")


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
        known = {entry.digest for entry in entries}
        for sums in self.output.parent.glob(f"*/{SUMS_FILE}"):
            try:
                of = read_json(sums.with_name(FACTS_FILE)).get("dataset")
            except (OSError, ValueError, AttributeError):
                continue  # not a usable bundle
            if of == dataset and bundle_digest(sums.parent) not in known:
                raise PrivacyError(
                    f"{sums.parent}: a release from {of} that {self.ledger} does not list; "
                    "restore the ledger, which records the spent budget; or move the bundle "
                    "elsewhere if it belongs to other data"
                )

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
                    f"{path}: differs from release {self.name} as it was made; delete it and run "
                    f"again, which restores the bundle from {staged}"
                )
        for name in sorted(ready, key=lambda name: name == SUMS_FILE):
            if not (self.output / name).exists():
                with atomic_path(self.output / name) as temporary:
                    shutil.copyfile(ready[name], temporary)
        self.touch_files()
        logger.info("release %s: %s", self.name, self.output)
