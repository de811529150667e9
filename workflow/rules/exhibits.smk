"""A rule for each exhibit: the tables and figures that the package declares."""

from dpprobe.reporting.registry import EXHIBITS

# What MLflow shows beside the cells of a dataset.
TRACKED_FIGURES = (
    "plot_accuracy",
    "plot_methods",
    "plot_gap",
    "plot_option",
    "plot_fairness",
)
# The tables that the report and MLflow have; others are parts of an analysis.
SHOWN_TABLES = ("write_dataset_table", "write_fairness_table", "write_law_tables")


@cache
def exhibits_by_dataset(exhibit):
    """Returns the files of an exhibit by dataset; under None those of all datasets."""
    places = {}
    for place in exhibit.shown(STUDY):
        places.setdefault(place.get("dataset"), []).append(place)
    return {
        dataset: exhibit.list_files(STUDY, "<results>", each)
        for dataset, each in places.items()
    }


def exhibit_paths(dataset, *, kind=None, names=None):
    """The files of the exhibits of one dataset, or under None of all: of a kind, or of some names."""
    return [
        path
        for exhibit in EXHIBITS
        if exhibit.kind == kind or exhibit.name in (names or ())
        for path in exhibits_by_dataset(exhibit).get(dataset, [])
    ]


def figure_paths(dataset):
    """Every figure of one dataset, and those that show what was removed from it."""
    # a dataset of which nothing is removed has no second name
    every_row = ALL_ROWS.get(dataset, "")
    return [
        path
        for name in (dataset, every_row)
        for path in exhibit_paths(name, kind="figure")
    ]


def page_paths(dataset):
    """The interactive pages of one dataset."""
    return exhibit_paths(dataset, kind="page")


def study_figures():
    """Every figure, interactive pages too."""
    return [
        *exhibit_paths(None, kind="figure"),
        *of_all_datasets(figure_paths),
        *of_all_datasets(page_paths),
    ]


def table_paths(dataset):
    """The tables of one dataset."""
    return exhibit_paths(dataset, names=SHOWN_TABLES)


def study_tables():
    """The tables that people read, with the summaries that they are made of; without the papers' tables."""
    return [
        *FILES.list_summaries(),
        *exhibit_paths(None, names=("write_tables",)),
        *of_all_datasets(table_paths),
    ]


def shown_paper_tables():
    """The papers' tables where the study has a dataset of theirs."""
    return exhibit_paths(None, names=("write_paper_tables",))


# Factories: a loop's variable would hold its last value by the time that Snakemake asks for files.
def exhibit_inputs(exhibit):
    """Makes the input functions of an exhibit."""

    def named(need):
        return lambda wildcards: need.paths(FILES, dict(wildcards.items()))

    return {name: named(need) for name, need in exhibit.needs.items()}


def exhibit_outputs(exhibit):
    """Lists the outputs of an exhibit, marked for Snakemake's report where people may see them."""

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


def exhibit_params(exhibit):
    """Makes the params of an exhibit."""

    def of_job(value):
        return lambda wildcards: value(STUDY, dict(wildcards.items()))

    return {
        name: of_job(value) if callable(value) else value
        for name, value in exhibit.params.items()
    }


def exhibit_words(exhibit):
    """Returns what a run says of an exhibit's job."""
    return re.sub(r"\{(\w+)\}", r"{wildcards.\1}", exhibit.words)


for exhibit in EXHIBITS:

    rule:
        name:
            exhibit.name
        input:
            **exhibit_inputs(exhibit),
        output:
            **exhibit_outputs(exhibit),
        log:
            exhibit.locate_log("<logs>", ".log"),
        benchmark:
            exhibit.locate_log("<benchmarks>", ".tsv")
        wildcard_constraints:
            **{name: names(listed(STUDY)) for name, listed in exhibit.only.items()},
        conda:
            "../../envs/dpprobe.yaml"
        threads: 1
        resources:
            mem_mb=memory(exhibit.memory_mb, factor=exhibit.memory_factor),
            runtime=minutes(exhibit.minutes, per_gb=exhibit.minutes_per_gb),
        params:
            **exhibit_params(exhibit),
        message:
            exhibit_words(exhibit)
        script:
            "../../scripts/make_exhibit.py"
