"""The declaration of an analysis: its options in the study file, its job, tables and figures.

Each subpackage of `dpprobe.analyses` declares its analysis as `ANALYSIS`, and one line of
`dpprobe.analysis_registry` names the subpackage. The workflow creates Snakemake rules from all
declarations. Each start of Snakemake imports the declarations, so declarations import neither torch
nor NumPy, and name the computing function as text. `dpprobe.study.study` imports the declarations,
so declarations import `dpprobe.study.study` only for types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from dpprobe.analysis_registry import ANALYSES
from dpprobe.errors import DpprobeError
from dpprobe.exhibits.exhibit import Exhibit, Need, Paths, Place, one
from dpprobe.files.records import locate_record
from dpprobe.options import Options

if TYPE_CHECKING:
    from pathlib import Path

    from dpprobe.results.study_files import StudyFiles
    from dpprobe.results.summary import Grid
    from dpprobe.study.study import Study


class Cost(NamedTuple):
    """Memory and time that a job requests at its first attempt; each retry requests more."""

    memory_mb: float
    minutes: float


@dataclass(frozen=True, kw_only=True)
class JobSize:
    """The size of a job's inputs.

    Attributes:
      inputs: the paths of the job's input files, by the name of the declared input (`Need`).
      measure_mb: sums the sizes of files in megabytes; a file that does not exist yet counts as 0.
      count_rows: returns the numbers of training and of test examples of the job's dataset.
    """

    inputs: Mapping[str, Sequence[str]]
    measure_mb: Callable[[Iterable[str]], float]
    count_rows: Callable[[], tuple[int, int]]

    def megabytes(self, *needs: str) -> float:
        return self.measure_mb(path for need in needs or self.inputs for path in self.inputs[need])


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The job that computes an analysis of one (dataset, backbone).

    Attributes:
      rule: the name of the job's Snakemake rule.
      words: the job's name in messages; they append "of <dataset>, <backbone>".
      needs: the files that the job reads, by name.
      outputs: the files that the job writes, below the results folder, by name. The last output is
        the record, which marks the job as done. The job gets the path of an output with the name ""
        as its argument `output`.
      params: values that the results depend on, besides the analysis's options and version. A
        function among `params` is called with the study and the wildcards.
      job: the function that the job runs, as "module:function". The function gets the needs and, if
        it has parameters of these names, outputs, `params`, wildcards, `options`, `threads`,
        `study` and `folder` (of records).
      threads: the number of threads, fixed because it may change the last bits of results.
      on_device: True if the job computes on the study's `device`.
    """

    rule: str
    words: str
    needs: Mapping[str, Need]
    outputs: Mapping[str, str]
    params: Mapping[str, Any] = field(default_factory=dict)
    job: str
    cost: Callable[[Study, Place, JobSize], Cost]
    threads: int = 1
    on_device: bool = False


@dataclass(frozen=True, kw_only=True)
class Page:
    """The study's results for a section of the report, and the folder of the report's HTML file.

    Attributes:
      names: for each dataset, its name in the published numbers.
      folder: the folder of the report's HTML file, to which links are relative.
    """

    grid: Grid
    names: Mapping[str, str]
    folder: Path

    @property
    def datasets(self) -> list[str]:
        return list(self.grid.measures)


@dataclass(frozen=True, kw_only=True)
class Section:
    """A section of the report, made from all records of the analysis.

    Attributes:
      template: the package's Jinja template that shows `section.content`, the result of `make`.
      make: the function that reads the records, as "module:function", called with the records'
        paths and the `Page`. If `make` returns nothing, the section is left out.
      needs: inputs of the report by name: first the records, then files that the report waits for.
      place: sections are sorted by `place`, then by the registry's order. The report's section on
        the test images that lose most by privacy precedes sections with place 1 or more.
      figures: the titles of the section's figures, by the figure's name. A figure's name that ends
        with "_" is a prefix, and "{}" in its title stands for the text after the prefix. If there
        are figures, `make` returns one part per dataset, to which the dataset's figures are added.
      tables: the suffixes of the names of the section's tables.
      not_covered: the section's content that no privacy statement covers, as a phrase.
    """

    anchor: str
    title: str
    template: str
    make: str
    needs: Mapping[str, Need]
    place: int = 0
    figures: Mapping[str, str] = field(default_factory=dict)
    tables: tuple[str, ...] = ()
    not_covered: str = ""

    @property
    def records(self) -> str:
        return next(iter(self.needs))

    def title_figure(self, name: str) -> str | None:
        """Returns the title of a figure; None for a figure of another section."""
        if name in self.figures:
            return self.figures[name]
        starts = [key for key in self.figures if key.endswith("_") and name.startswith(key)]
        if not starts:
            return None
        longest = max(starts, key=len)
        # A hyphen separates backbone and method, because neither name may contain a hyphen.
        rest = name.removeprefix(longest).replace("-eps-", ", ε = ").replace("-", ", ")
        return self.figures[longest].format(rest)


def find_wrong_names(study: Study, block: Options) -> Iterator[str]:
    """Yields one line for each unknown or repeated name in an analysis's options."""
    known = {
        "datasets": list(study.datasets),
        "backbones": list(study.backbones),
        "methods": list(study.methods),
        "epsilons": study.job_epsilons(),
    }
    for key, names in known.items():
        chosen = getattr(block, key, None) or ()
        for name in dict.fromkeys(chosen):
            if name not in names:
                yield f"{key}: {name} is not in this study; choose from {', '.join(names)}"
            elif chosen.count(name) > 1:
                yield f"{key}: {name} appears twice; remove one"


def list_single_label(study: Study, chosen: Sequence[str] | None = None) -> list[str]:
    """Lists the chosen datasets in the study's order; by default those with one label per image."""
    return [
        name
        for name in study.datasets
        if (name in chosen if chosen else not has_several_labels(study, name))
    ]


def find_several_labels(
    study: Study, block: str, chosen: Sequence[str] | None = None
) -> Iterator[str]:
    """Yields one line per chosen multi-label dataset; for all datasets if no dataset is usable."""
    for name in chosen or (() if list_single_label(study) else study.datasets):
        if has_several_labels(study, name):
            yield (
                f"datasets: {name}: has several labels per image, but {block} needs one; name "
                f"datasets with one label, or remove {block}"
            )


def has_several_labels(study: Study, dataset: str) -> bool:
    """Returns True for a multi-label dataset; False if the dataset's source cannot be read."""
    with suppress(DpprobeError):
        return study.datasets[dataset].multi_label()
    return False


def of_datasets(list_files: Callable[[StudyFiles, str], Iterable[str]]) -> Paths:
    """Makes a function that calls `list_files` for each dataset and joins the results."""
    return lambda files, _place: [
        path for name in files.study.datasets for path in list_files(files, name)
    ]


def one_record(folder: str) -> Need:
    """Declares one input: a (dataset, backbone)'s record in a folder of the results."""
    return one(
        lambda files, place: str(
            locate_record(f"{files.results}/{folder}", place["dataset"], place["backbone"])
        )
    )


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """An analysis of features, cells or networks; not private unless `reads` says otherwise.

    Attributes:
      name: the analysis's name in the registry and in the study file, and its Snakemake target.
      describe: a sentence on what the analysis does, for people who write a study.
      reads: a title and a sentence for the report on the private examples that the analysis reads;
        None if another part of the report describes the examples.
      unpriced: the analysis's name in a release's list of results that use training examples
        without an epsilon; None if the analysis does not use training examples.
      exposes: lists a dataset's unpriced results, as "backbone/name"; by default each backbone's.
      reveals: True if a file in the analysis's folder is a result that uses training examples.
      options: the class of the analysis's options; None without options, or if `Study` has a field.
      faults: yields one line for each fault in a study's options of the analysis, except for wrong
        names of datasets, backbones, methods and epsilons.
      datasets, backbones: list the datasets and backbones that a study measures.
      measurement: the analysis's job; None if the analysis has handwritten Snakemake rules.
      target: the name of the Snakemake target, if it is not `name`.
      named_datasets: lists datasets with a target `<name>_<dataset>`; by default `datasets`.
      target_shows: True if the analysis's targets also make the analysis's tables and figures.
    """

    name: str
    describe: str
    reads: tuple[str, str] | None
    unpriced: str | None = None
    exposes: Callable[[Study, str], Iterable[str]] | None = None
    reveals: Callable[[Path], bool] = lambda _path: True
    options: type[Options] | None = None
    faults: Callable[[Study, Any], Iterable[str]] = lambda _study, _block: ()
    datasets: Callable[[Study], Sequence[str]] = lambda study: list(study.datasets)
    backbones: Callable[[Study], Sequence[str]] = lambda study: list(study.backbones)
    measurement: Measurement | None = None
    exhibits: tuple[Exhibit, ...] = ()
    section: Section | None = None
    target: str | None = None
    named_datasets: Callable[[Study], Sequence[str]] | None = None
    target_shows: bool = True

    @property
    def folder(self) -> str:
        return ANALYSES[self.name].folder

    @property
    def version(self) -> int:
        return ANALYSES[self.name].version

    def list_faults(self, study: Study) -> list[str]:
        """Lists one line per fault in the analysis's options; empty if a study has none."""
        block = study.block(self.options) if self.options else None
        if block is None:
            return []
        return list(find_wrong_names(study, block)) or list(self.faults(study, block))

    def list_unpriced(self, study: Study, dataset: str) -> list[str]:
        """Lists the results of a dataset that use its training examples without an epsilon."""
        if self.unpriced is None or dataset not in self.datasets(study):
            return []
        if self.exposes is not None:
            return list(self.exposes(study, dataset))
        return [f"{backbone}/{self.unpriced}" for backbone in self.backbones(study)]

    def list_files(self, study: Study, results: str, *datasets: str) -> list[str]:
        """Lists the outputs of the jobs for some datasets, by default for all measured datasets."""
        assert self.measurement is not None
        measured = self.datasets(study)
        return [
            f"{results}/{path.format(dataset=dataset, backbone=backbone)}"
            for dataset in datasets or measured
            if dataset in measured
            for backbone in self.backbones(study)
            for path in self.measurement.outputs.values()
        ]

    def list_named_datasets(self, study: Study) -> list[str]:
        return list((self.named_datasets or self.datasets)(study))
