"""Long tails: rare sub-classes and memorised rows in the features of each (dataset, backbone).

Results on long tails are not private. Long tails are measured only if a study has `long_tail`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpprobe.analyses.analysis import (
    Analysis,
    Cost,
    JobSize,
    Measurement,
    Section,
    find_several_labels,
    list_single_label,
)
from dpprobe.analyses.long_tail.long_tail_record import (
    LONG_TAIL,
    LONG_TAIL_TABLES,
    RECORD_SUFFIX,
    ROWS_SUFFIX,
)
from dpprobe.analyses.long_tail.options import LongTailOptions
from dpprobe.exhibits.exhibit import Exhibit, Place, many, one, waits

if TYPE_CHECKING:
    from dpprobe.results.study_files import StudyFiles
    from dpprobe.study.study import Study

PACKAGE = "dpprobe.analyses.long_tail"


def list_datasets(study: Study) -> list[str]:
    """Lists the datasets whose long tails a study measures; none without `long_tail`."""
    options = study.block(LongTailOptions)
    return [] if options is None else list_single_label(study, options.datasets)


def estimate_cost(study: Study, _place: Place, size: JobSize) -> Cost:
    """Estimates a job's memory (copies of features, rows-by-rows matrices), and triple its time.

    Clustering time grows with rows. Each ridge head factorises a matrix of 30% of the scored rows.
    """
    options, (train, _) = study.block(LongTailOptions), size.count_rows()
    assert options is not None
    clustered = min(train, options.rows)
    scored = min(clustered, options.memorisation.rows) if options.memorisation else 0
    heads = options.memorisation.heads if options.memorisation else 0
    # Features are float16 on disk, but the job computes with float64.
    clustered_mb = 4 * size.megabytes("shards") / train * clustered
    return Cost(
        memory_mb=2000 + 4 * clustered_mb + 24 * scored**2 / 1e6,
        minutes=20 + clustered / 2000 + 0.03 * heads * scored**3 / 1e10 / 60,
    )


def list_records(files: StudyFiles, *datasets: str) -> list[str]:
    return [
        f"{files.results}/{LONG_TAIL}/{dataset}/{backbone}{RECORD_SUFFIX}"
        for dataset in datasets or list_datasets(files.study)
        for backbone in files.study.backbones
    ]


ALL_RECORDS = many(lambda files, _place: list_records(files))
ALL_SUMMARIES = many(
    lambda files, _place: [files.locate_summary(name) for name in list_datasets(files.study)]
)
TABLES = Exhibit(
    name="write_long_tail_tables",
    kind="table",
    files={"": tuple(f"tables/{name}" for name in LONG_TAIL_TABLES)},
    needs={"records": ALL_RECORDS, "summaries": ALL_SUMMARIES},
    make=f"{PACKAGE}.long_tail_tables:make_long_tail_tables",
    words="tables of long tails",
    category="Long tails",
    caption="long_tail.rst",
    places=lambda study: [{}] if list_datasets(study) else [],
)
FIGURE = Exhibit(
    name="plot_long_tail",
    kind="figure",
    files={"": "figures/{dataset}/long_tail"},
    needs={"records": many(lambda files, place: list_records(files, place["dataset"]))},
    make=f"{PACKAGE}.show:plot_long_tail",
    words="long tail of {dataset}",
    category="Long tails",
    places=lambda study: [{"dataset": name} for name in list_datasets(study)],
)
ANALYSIS = Analysis(
    name="long_tail",
    describe="Sub-classes and memorisation in the features, not private; without this block, none.",
    reads=(
        "Long tails",
        "sub-classes and memorised rows come from features and labels, without noise.",
    ),
    unpriced="long tail",
    options=LongTailOptions,
    faults=lambda study, block: find_several_labels(study, "long_tail", block.datasets),
    datasets=list_datasets,
    measurement=Measurement(
        rule="measure_long_tail",
        words="long tail",
        needs={
            "train": one(lambda f, p: f.locate_manifest(p["dataset"], p["backbone"], "train")),
            "shards": waits(lambda f, p: f.list_shards(p["dataset"], p["backbone"], "train")),
        },
        outputs={
            "rows": f"{LONG_TAIL}/{{dataset}}/{{backbone}}{ROWS_SUFFIX}",
            "record": f"{LONG_TAIL}/{{dataset}}/{{backbone}}{RECORD_SUFFIX}",
        },
        params={"seed": lambda study, _place: study.seed},
        job=f"{PACKAGE}.measure:measure_long_tail",
        cost=estimate_cost,
    ),
    exhibits=(TABLES, FIGURE),
    section=Section(
        anchor="long-tail",
        title="Long tails",
        template="long_tail.html.j2",
        make=f"{PACKAGE}.show:make_section",
        needs={"long_tails": ALL_RECORDS},
    ),
)
