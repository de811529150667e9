"""Lists the jobs of a run that rerun because dpprobe raised the version of a stage's files.

Rules have the versions of `dpprobe.versions` as params, and these know their stage. But Snakemake
records only the text of a job's params, without names, so a version is recorded as its number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from dpprobe import versions
from dpprobe.counted_nouns import count_noun

# The names of stages' files, if the stage's own name is unclear.
_FILES = {
    "download": "downloads",
    "data": "split tables",
    "manifest": "lists of features",
    "text": "embeddings of class names",
    "overlap": "near-duplicates",
    "calibration": "noise multipliers",
    "training": "heads",
    "statement": "statements and metrics",
    "summary": "summaries",
    "papers": "tables of papers",
    "tracking": "MLflow runs",
    "release": "marks of releases",
    "fine_tuning": "networks",
    "search": "searches",
    "tsne": "t-SNE embeddings",
}
# Stages whose new version causes heads to be retrained, or may do so.
_BEFORE_HEADS = {"data", "features", "manifest", "calibration", "training", "fine_tuning", "cuts"}
_KEPT = {"statement": "heads are kept", "release": "bundles are kept"}


class StageVersion(int):
    """The version of a stage's files: a number that knows its stage."""

    stage: str

    def __new__(cls, number: int, stage: str) -> StageVersion:
        version = super().__new__(cls, number)
        version.stage = stage
        return version

    def __reduce__(self) -> tuple[type[StageVersion], tuple[int, str]]:
        return StageVersion, (int(self), self.stage)  # params are pickled for jobs


VERSIONS = {stage: StageVersion(number, stage) for stage, number in versions.VERSIONS.items()}


class Raised(NamedTuple):
    """A stage whose files have another version than this dpprobe's; `old` is None if unknown."""

    stage: str
    old: int | None
    new: int


class RaisedJob(NamedTuple):
    """A job that reruns, with its raised stages and the number of cells that it makes."""

    stages: list[Raised]
    cells: int = 0


def find_raised(params: Iterable[Any], recorded: Sequence[str] | None) -> list[Raised]:
    """Lists the stages whose versions differ from those that Snakemake recorded with a job's files.

    Args:
      params: a rule's params as written; functions among them are not called.
      recorded: the texts of all params of the job that wrote the files; None if unknown.
    """
    if recorded is None:
        return []
    values = [value for value in params if not callable(value)]
    stages = [value for value in values if isinstance(value, StageVersion)]
    constants = Counter(repr(value) for value in values if not isinstance(value, StageVersion))
    # Options and versions may have equal numbers. If options are matched first, a version may seem
    # to be raised because an option has changed to the version's number.
    raised = _find_missing(stages, Counter(recorded) - constants)
    certain = _find_missing(stages, Counter(recorded))
    stages_certain = {each.stage for each in certain}
    return [each for each in raised if each.stage in stages_certain or each.old == each.new - 1]


def _find_missing(stages: Iterable[StageVersion], left: Counter[str]) -> list[Raised]:
    missing = []
    for version in stages:
        if left[repr(version)] > 0:
            left[repr(version)] -= 1
        else:
            missing.append(version)
    numbers = [int(text) for text in left.elements() if text.isdecimal()]
    return [Raised(each.stage, _find_old(each, numbers), int(each)) for each in missing]


def _find_old(version: int, numbers: Sequence[int]) -> int | None:
    """Returns a version's earlier number: the nearest smaller number, or the only number."""
    below = [number for number in numbers if number < version]
    return max(below, default=numbers[0] if len(numbers) == 1 else None)


def is_only_raised(raised: Sequence[Raised], old: Iterable[str], new: Iterable[str]) -> bool:
    """Returns True if the recorded params and a job's params differ only in versions."""
    return {*new} <= {str(each.new) for each in raised} and {*old} <= {
        str(each.old) for each in raised
    }


def describe_raised(jobs: Iterable[RaisedJob]) -> list[str]:
    """Returns one line per stage with the jobs that rerun and the reason."""
    counts: dict[Raised, Counter[str]] = {}
    for job in jobs:
        for raised in job.stages:
            counts.setdefault(raised, Counter()).update(jobs=1, cells=job.cells)
    trained = any(each.stage in _BEFORE_HEADS for each in counts)
    lines = []
    for raised, count in counts.items():
        stage, old, new = raised
        files = _FILES.get(stage, stage.replace("_", " "))
        noun = "cell" if count["cells"] else "job"
        of = count_noun(count[f"{noun}s"], noun)
        had = "files have an earlier one" if old is None else f"files have {old}"
        kept = "" if stage == "statement" and trained else _KEPT.get(stage, "")
        lines.append(
            f"{files} of {of} are recreated: the stage {stage} has version {new}, but the {had}"
            + (f"; {kept}" if kept else "")
        )
    return lines
