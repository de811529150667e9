# One rule for each table or figure that the package declares (an exhibit).

import re
from functools import cache

from dpprobe.reporting.registry import EXHIBITS, find_exhibit
from dpprobe.results.study_files import StudyFiles

# Tables of papers and analyses, which have separate targets.
APART = (
    "write_paper_tables",
    "write_imbalance_tables",
    *(
        exhibit.name
        for analysis in MEASURED
        if analysis.target_shows
        for exhibit in analysis.exhibits
    ),
)


@cache
def exhibits_by_dataset(exhibit):
    """Returns an exhibit's files by dataset; key None has files about all datasets."""
    places = {}
    for place in exhibit.shown(STUDY):
        places.setdefault(place.get("dataset"), []).append(place)
    return {
        dataset: exhibit.list_files(STUDY, "<results>", each)
        for dataset, each in places.items()
    }


def exhibit_paths(dataset, *, kind=None, names=()):
    """The files of exhibits, by kind or by name, for one dataset or (None) all datasets together."""
    of_kind = [exhibit for exhibit in EXHIBITS if exhibit.kind == kind]
    return [
        path
        for exhibit in (of_kind or map(find_exhibit, names))
        for path in exhibits_by_dataset(exhibit).get(dataset, [])
    ]


def figure_paths(dataset):
    return exhibit_paths(dataset, kind="figure")


def study_figures():
    return [*exhibit_paths(None, kind="figure"), *of_all_datasets(figure_paths)]


def table_paths(dataset, names=None):
    """The tables for one dataset or (None) all datasets together: all tables, or tables of some exhibits."""
    chosen = [
        exhibit.name
        for exhibit in EXHIBITS
        if exhibit.kind == "table" and exhibit.name not in APART
    ]
    return exhibit_paths(dataset, names=names or chosen)


def study_tables(names=None):
    """Tables for readers, with the summaries that they come from, but without tables of papers."""
    return [
        *FILES.list_summaries(),
        *table_paths(None, names),
        *of_all_datasets(table_paths, names),
    ]


def shown_paper_tables():
    """The tables of papers, if the study has a dataset of a paper."""
    return exhibit_paths(None, names=("write_paper_tables",))


def shown_files():
    """Paths, within the results, of all summaries, tables and figures of the study."""
    shown = StudyFiles(STUDY, results="").list_summaries()
    for exhibit in EXHIBITS:
        shown += exhibit.list_files(STUDY, "", exhibit.shown(STUDY))
    return [path.removeprefix("/") for path in shown]


def exhibit_outputs(exhibit):
    """Lists the outputs of an exhibit, and marks public outputs for Snakemake's report."""

    def marked(output):
        paths = [f"<results>/{path}" for path in output.paths]
        files = paths if output.several else paths[0]
        if output.caption is None:
            return files
        return report(
            files,
            caption=f"../../resources/captions/{output.caption}",
            category=exhibit.category,
            subcategory=exhibit.subcategory,
            labels=dict(output.labels) or None,
        )

    return {output.name: marked(output) for output in exhibit.list_outputs(STUDY)}


def exhibit_words(exhibit):
    """Returns the message of an exhibit's job."""
    return re.sub(r"\{(\w+)\}", r"{wildcards.\1}", exhibit.words)


for exhibit in EXHIBITS:

    rule:
        name:
            exhibit.name
        input:
            **declared_inputs(exhibit.needs),
        output:
            **exhibit_outputs(exhibit),
        log:
            exhibit.locate_log("<logs>", ".log"),
        benchmark:
            exhibit.locate_log("<benchmarks>", ".tsv")
        wildcard_constraints:
            **{name: names(listed(STUDY)) for name, listed in exhibit.only.items()},
        conda:
            "../../envs/report.yaml"
        threads: 1
        resources:
            mem_mb=memory(exhibit.memory_mb, factor=exhibit.memory_factor),
            runtime=minutes(exhibit.minutes),
        params:
            **declared_params(exhibit.job_params),
        message:
            exhibit_words(exhibit)
        script:
            "../../scripts/make_exhibit.py"

    describe_rule(exhibit.name, f"{exhibit.words}; made by {exhibit.make}")
