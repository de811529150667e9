"""The declaration of a table or figure: its files, its inputs, and the function that makes it.

The workflow creates a rule for each exhibit. Every start of Snakemake imports the declarations, so
declarations import neither torch nor NumPy nor Matplotlib, and name functions as text.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

from dpprobe.stage_versions import VERSIONS

if TYPE_CHECKING:
    from dpprobe.results.study_files import StudyFiles
    from dpprobe.study.study import Study

# The wildcards of one job, such as {"dataset": "digits", "backbone": "pixels"}.
Place = Mapping[str, str]
# Maps a file's ending to the name of the rule's output, if they differ.
OUTPUT_NAMES = {"md": "markdown"}
# Files with this ending are shown in Snakemake's report.
REPORTED = {"figure": "png", "table": "csv"}
FORMATS = {"figure": ("svg", "png"), "table": ("csv", "md")}
# A function that returns the paths of a job's files.
Paths = Callable[["StudyFiles", Place], Sequence[str]]
# Paths below the results, by the name of the group of files.
Files = Mapping[str, str | tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class Output:
    """One named output of a rule.

    Attributes:
      paths: the output's paths below the results, with wildcards.
      several: True if the output is a list of files, even with one file.
      caption: the file with the output's caption in Snakemake's report; None if not in the report.
    """

    name: str
    paths: tuple[str, ...]
    several: bool
    caption: str | None
    labels: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Need:
    """Input files of an exhibit.

    Attributes:
      paths: the function that returns the files of a job; see `one`, `many` and `waits`.
      many: True if `make` gets a list of paths; False for one path, or None if the file is missing.
      read: True if `make` gets the files; False if the job only waits for them.
    """

    paths: Paths
    many: bool = True
    read: bool = True


def one(path: Callable[[StudyFiles, Place], str | None]) -> Need:
    """Declares a single file; if `path` returns None, the study has no such file."""

    def named(files: StudyFiles, place: Place) -> list[str]:
        name = path(files, place)
        return [] if name is None else [name]

    return Need(paths=named, many=False)


def many(paths: Paths) -> Need:
    return Need(paths=paths)


def waits(paths: Paths) -> Need:
    """Declares files that must exist before the job starts, but are not passed to `make`."""
    return Need(paths=paths, read=False)


# Places of exhibits in reports.
FIRST, FIGURES, LAST_FIGURES, TABLES, LAST = range(5)
# A dataset's summary, with the results of all the dataset's cells.
SUMMARY = one(lambda files, place: files.locate_summary(place["dataset"]))


@dataclass(frozen=True, kw_only=True, eq=False)
class Exhibit:
    """One job that makes a table, figures or a page.

    Paths and texts may contain wildcards: `{dataset}`, `{backbone}` or others that `per` names.

    Attributes:
      files: paths below the results, by the name of a group of files. A path without an ending is
        written in each of `FORMATS`: the group "" has outputs named after the endings, such as
        `svg`, and a group "law" has `law_svg`. A path with an ending is one file, named after its
        group. A tuple of paths makes a list of files. `files` may be a function from study to
        paths.
      make: the function that makes the exhibit, as "module:function". The function returns a figure
        or a table, or a list with a figure or table per path of `files`. A function that returns
        None writes the files itself. The function's arguments are the needs that are read. Further
        arguments may be params, wildcards, `study`, `results` (the folder), `folder` (of the files)
        and `published` (the published numbers).
      words: the job's name on the screen.
      category: the category in Snakemake's report; None omits the files from the report.
      caption: the caption's file below `resources/captions`, for all files or by name of their
        group; by default the file with the figure's name.
      labels: the labels in Snakemake's report; by default the dataset, if it is a wildcard.
      group_labels: further labels by the name of the group of files.
      params: values on which the files depend, besides `needs` and the version of exhibits. A
        function among `params` is called with the study and the wildcards.
      only: for some wildcards, the values that the rule accepts.
      places: a function that lists the wildcards of a study's jobs; by default every combination
        of `only`, the study's datasets and its backbones.
      order: the place in reports, such as `LAST`; exhibits of equal `order` keep the declared
        order, with exhibits of analyses last.
      memory_factor: MB of memory per MB of input.
    """

    name: str
    kind: Literal["figure", "table"]
    files: Files | Callable[[Study], Files]
    needs: Mapping[str, Need]
    make: str
    words: str
    category: str | None
    subcategory: str | None = None
    caption: str | Mapping[str, str] = ""
    labels: Mapping[str, str] | None = None
    group_labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    only: Mapping[str, Callable[[Study], Sequence[str]]] = field(default_factory=dict)
    places: Callable[[Study], Sequence[Place]] | None = None
    order: int = FIGURES
    memory_mb: int = 1000
    memory_factor: float = 0.0
    minutes: int = 10

    @property
    def per(self) -> tuple[str, ...]:
        """The names of the wildcards, in the order of the log's path."""
        if not isinstance(self.files, Mapping):
            return ()
        paths = next(iter(self.files.values()))
        return tuple(re.findall(r"{(\w+)}", paths if isinstance(paths, str) else paths[0]))

    @property
    def job_params(self) -> dict[str, Any]:
        return {"version": VERSIONS[f"{self.kind}s"], **self.params}

    def shown(self, study: Study) -> list[Place]:
        """Lists the wildcards of each job that a study needs."""
        if self.places is not None:
            return list(self.places(study))
        known = {"dataset": list(study.datasets), "backbone": list(study.backbones)}
        known |= {name: list(listed(study)) for name, listed in self.only.items()}
        combinations = itertools.product(*(known[name] for name in self.per))
        return [dict(zip(self.per, values, strict=True)) for values in combinations]

    def list_outputs(self, study: Study | None) -> list[Output]:
        """Lists the rule's outputs; `study` may be None if the files do not depend on the study."""
        groups = self._groups(study)
        return [output for group, paths in groups.items() for output in self._outputs(group, paths)]

    def list_stems(self, study: Study | None) -> list[str]:
        groups = self._groups(study).values()
        return [stem for paths in groups for stem in _as_tuple(paths)]

    def _groups(self, study: Study | None) -> Files:
        if isinstance(self.files, Mapping):
            return self.files
        assert study is not None
        return self.files(study)

    def _outputs(self, group: str, paths: str | tuple[str, ...]) -> list[Output]:
        several, stems = isinstance(paths, tuple), _as_tuple(paths)
        if PurePosixPath(stems[0]).suffix:
            return [self._output(group, group, stems, several)]
        outputs = []
        for ending in FORMATS[self.kind]:
            name = "_".join(filter(None, (group, OUTPUT_NAMES.get(ending, ending))))
            files = tuple(f"{stem}.{ending}" for stem in stems)
            outputs.append(self._output(name, group, files, several))
        return outputs

    def _output(self, name: str, group: str, paths: tuple[str, ...], several: bool) -> Output:
        ending = PurePosixPath(paths[0]).suffix.removeprefix(".")
        reported = self.category is not None and REPORTED.get(self.kind) == ending
        caption = self.caption if isinstance(self.caption, str) else self.caption.get(group, "")
        caption = caption or f"{self.name.removeprefix('plot_')}.rst"
        by_dataset = {"dataset": "{dataset}"} if "dataset" in self.per else {}
        labels = {
            **(by_dataset if self.labels is None else self.labels),
            **self.group_labels.get(group, {}),
        }
        return Output(
            name=name,
            paths=paths,
            several=several,
            caption=caption if reported else None,
            labels=labels if reported else {},
        )

    def list_files(self, study: Study, results: str, places: Sequence[Place]) -> list[str]:
        """Lists the files of jobs with these wildcards, in the order of the paths in `files`."""
        stems = [
            (group, stem)
            for group, paths in self._groups(study).items()
            for stem in _as_tuple(paths)
        ]
        return [
            f"{results}/{path.format(**place)}"
            for group, stem in stems
            for place in places
            for output in self._outputs(group, stem)
            for path in output.paths
        ]

    def locate_log(self, folder: str, ending: str) -> str:
        """Returns the path of a job's log or benchmark, with its wildcards."""
        parts = [f"eps-{{{name}}}" if name == "epsilon" else f"{{{name}}}" for name in self.per]
        return "/".join([folder, self.name, *parts]) + ending


def _as_tuple(paths: str | tuple[str, ...]) -> tuple[str, ...]:
    return (paths,) if isinstance(paths, str) else paths
