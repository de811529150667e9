"""The snapshot of a study's run: the study as written and as read, and the versions of the code.

Jobs may start long after planning, and a person may edit the study or the code meanwhile. So jobs
read the study from the snapshot, and stop if the current code reads it differently.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dpprobe.errors import ConfigError
from dpprobe.files.atomic_writes import atomic_path
from dpprobe.json_values import first_difference
from dpprobe.study.local_copies import enter_copies
from dpprobe.study.study import Study
from dpprobe.study.study_file import load_study
from dpprobe.versions import VERSIONS, describe_edit

# A snapshot's only key, because a workflow that uses the rules as a module has its own keys. The
# value has the study as written (`values`) and as read (`study`), versions and the command line.
RUN_KEY = "_run"
FOLDER = Path(".snakemake", "dpprobe")
SNAPSHOT_FILE = "DPPROBE_SNAPSHOT"  # the variable with the snapshot's path, for jobs' scripts
_RENAMED = "DPPROBE_RENAMED_RULES"  # the variable with the names of rules that a workflow renames
DAYS = 30  # a snapshot is removed this many days after the last start of a job that uses it


@dataclass(frozen=True)
class Snapshot:
    """The text of a run's snapshot, and the path of its file, named by a hash of the text."""

    path: Path
    text: str

    def write(self) -> None:
        """Writes the file if it is missing, and marks it as in use."""
        try:
            os.utime(self.path)
        except FileNotFoundError:
            with atomic_path(self.path) as temporary:
                # a study may contain addresses that nobody else should read
                temporary.touch(mode=0o600)
                temporary.write_text(self.text, encoding="utf-8")

    def remove_older(self) -> None:
        """Removes the snapshots of runs that started no job for `DAYS` days."""
        limit = time.time() - DAYS * 86400
        for path in self.path.parent.glob("*.json"):
            with suppress(FileNotFoundError):  # another run may have removed the file
                if path != self.path and path.stat().st_mtime < limit:
                    path.unlink()


def take_snapshot(values: Mapping[str, Any], study: Study, *, call: Sequence[str]) -> Snapshot:
    """Makes the snapshot of a run, without writing it.

    Args:
      values: the study's values from files and command line.
      call: the words after `snakemake` that run this study.
    """
    read = study.model_dump(mode="json")
    run = {"values": values, "versions": VERSIONS, "study": read, "call": call}
    # `default=str` writes a date of a YAML file as text
    text = json.dumps({RUN_KEY: run}, ensure_ascii=False, indent=1, default=str) + "\n"
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    # one file per user, because users must not read others' snapshots
    return Snapshot(path=FOLDER.absolute() / f"{name}-{os.getuid()}.json", text=text)


class Run(NamedTuple):
    """The folders of a run's study, and the words after `snakemake` that run it."""

    results: Path
    data: Path
    call: list[str]


def recent_runs() -> list[Run]:
    """Lists the recent runs in the working directory, latest first."""
    runs = []
    for path in FOLDER.glob("*.json"):
        with suppress(OSError, ValueError, KeyError, TypeError):  # another user's or removed file
            run = json.loads(path.read_text(encoding="utf-8"))[RUN_KEY]
            folders = [Path(run["study"][name]) for name in ("results_dir", "data_dir")]
            runs.append((path.stat().st_mtime, Run(folders[0], folders[1], list(run["call"]))))
    return [run for _, run in sorted(runs, key=lambda item: item[0], reverse=True)]


def check_run(recorded: Mapping[str, Any], study: Study) -> None:
    """Raises ConfigError if versions or study changed after the run began.

    Args:
      recorded: the content of a snapshot under `RUN_KEY`.
    """
    now = {"versions": VERSIONS, "study": study.model_dump(mode="json")}
    if difference := first_difference({key: recorded.get(key) for key in now}, now):
        raise ConfigError(describe_edit(difference))


def run_study(values: Mapping[str, Any]) -> Study:
    """Reads the study in a job's script; raises ConfigError if it differs from the snapshot.

    With a storage provider, the returned study has the folders of local copies.
    """
    study = load_study(values)
    path = os.environ.get(SNAPSHOT_FILE)
    if path and Path(path).is_file():
        check_run(json.loads(Path(path).read_text(encoding="utf-8"))[RUN_KEY], study)
    folders = {name: getattr(study, name) for name in ("results_dir", "data_dir")}
    return study.model_copy(update={name: enter_copies(each) for name, each in folders.items()})


def note_renamed(name: str, original: str) -> None:
    """Notes, for jobs' scripts, a new rule name in a workflow that uses these rules as a module."""
    os.environ[_RENAMED] = json.dumps(_renamed_rules() | {name: original})


def original_rule(name: str) -> str:
    """Returns the name of a job's rule in the rule files."""
    return _renamed_rules().get(name, name)


def _renamed_rules() -> dict[str, str]:
    names: dict[str, str] = json.loads(os.environ.get(_RENAMED, "{}"))
    return names
