"""Comparison of subgroups of the test examples in each cell; not private."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dpprobe.analyses.analysis import (
    Analysis,
    Cost,
    JobSize,
    Measurement,
    Section,
    of_datasets,
)
from dpprobe.analyses.fairness.fairness_record import (
    FAIRNESS,
    FAIRNESS_SUFFIXES,
    RECORD_SUFFIX,
    TABLE_SUFFIX,
)
from dpprobe.analyses.fairness.options import FairnessOptions
from dpprobe.data.people.group_columns import CLASSES, group_name
from dpprobe.exhibits.exhibit import LAST_FIGURES, TABLES, Exhibit, Place, many, waits
from dpprobe.files.records import locate_record
from dpprobe.privacy.limits import INFINITE
from dpprobe.results.cell_files import METRICS_FILE, PREDICTIONS_FILE

if TYPE_CHECKING:
    from dpprobe.results.study_files import StudyFiles
    from dpprobe.study.study import Cell, Study

PACKAGE = "dpprobe.analyses.fairness"


def fairness_cells(study: Study, *datasets: str) -> list[Cell]:
    """Returns the cells whose subgroups are compared, by default of all datasets.

    Reference cells are included. Without the block `fairness`, a study compares no cells.
    """
    fairness = study.block(FairnessOptions)
    if fairness is None:
        return []
    chosen = {
        cell
        for cell in study.list_cells(*datasets)
        if (fairness.methods is None or cell.method in fairness.methods)
        and (fairness.epsilons is None or cell.epsilon in fairness.epsilons)
    }
    chosen |= {
        cell._replace(method=other[0], epsilon=other[1])
        for cell in chosen
        if (other := reference_of(study, cell.method, cell.epsilon))
    }
    return [cell for cell in study.list_cells(*datasets) if cell in chosen]


def reference_of(study: Study, method: str, epsilon: str) -> tuple[str, str] | None:
    """Returns the method and epsilon of the reference cell for a cell's gaps.

    Returns None if the study has no reference, or if the cell itself is the reference.
    """
    at_infinity = study.job_methods(INFINITE)
    fairness = study.block(FairnessOptions)
    named = fairness.reference if fairness else None
    ceilings = [name for name in at_infinity if not study.methods[name].private]
    candidates = [named] if named else [*ceilings[:1], method]
    reference = next((name for name in candidates if name in at_infinity), None)
    if reference is None or (reference, INFINITE) == (method, epsilon):
        return None
    return reference, INFINITE


def fairness_faults(study: Study, fairness: FairnessOptions) -> Iterator[str]:
    """Yields one line per fault in a study's options for comparing subgroups."""
    at_infinity = study.job_methods(INFINITE)
    if fairness.reference and fairness.reference not in at_infinity:
        few = ", ".join(at_infinity) or "none"
        yield (
            f"reference: no cell trains {fairness.reference} without privacy; add inf to "
            f"epsilons, or name a method with a cell at inf: {few}"
        )
    if not fairness_cells(study):
        yield "no cell of the study has these methods and epsilons; choose other values"
    pairs = [(group_name(first), group_name(second)) for first, second in fairness.pairs]
    yield from find_group_faults(study, fairness.groups or (), list(itertools.chain(*pairs)))
    by_dataset = _name_groups(study)
    columns = set().union(*by_dataset.values())
    seen: set[frozenset[str]] = set()
    for first, second in pairs:
        pair = f"pairs: [{first}, {second}]"
        if first == second:
            yield f"{pair}: a pair needs two different columns"
        elif frozenset((first, second)) in seen:
            yield f"{pair} appears twice; remove one"
        elif CLASSES in (first, second) and CLASSES not in columns:
            yield f"{pair}: `class` is not a group column; use two group columns"
        elif {first, second} <= columns and not any(
            {first, second} <= each for each in by_dataset.values()
        ):
            yield f"{pair}: no dataset has both columns; use two columns of one dataset"
        seen.add(frozenset((first, second)))


def find_group_faults(
    study: Study, groups: Sequence[str], paired: Sequence[str] = ()
) -> Iterator[str]:
    """Yields one line per fault in names of groups, which may have the prefix `group_`.

    Args:
      groups: the names of an option `groups`.
      paired: further names, without the prefix, that must be groups of some dataset.
    """
    given = list(map(group_name, groups))
    for name in dict.fromkeys(given):
        if given.count(name) > 1:
            yield f"groups: {name} appears twice; remove one"
    by_dataset = _name_groups(study)
    for name, columns_of_it in by_dataset.items():
        if given and CLASSES not in given and not columns_of_it & set(given):
            yield (
                f"groups: datasets.{name} has none of the groups {', '.join(groups)}; "
                f"add a group of this dataset, or `{CLASSES}`"
            )
    columns = set().union(*by_dataset.values())
    for group in dict.fromkeys([*given, *paired]):
        if group not in columns and group != CLASSES:
            yield (
                f"groups: {group} is not a group of any dataset; choose from "
                f"{', '.join(sorted(columns)) or CLASSES}"
            )


def _name_groups(study: Study) -> dict[str, set[str]]:
    """Returns the names of each dataset's groups."""
    return {
        name: set(map(group_name, dataset.named_people().groups))
        for name, dataset in study.datasets.items()
    }


def list_datasets(study: Study) -> list[str]:
    return list(study.datasets) if fairness_cells(study) else []


def list_cells(study: Study, place: Place) -> list[Cell]:
    cells = fairness_cells(study, place["dataset"])
    return [cell for cell in cells if cell.backbone == place["backbone"]]


def list_references(study: Study, place: Place) -> list[list[str]]:
    """Lists all cells with a reference: [method, epsilon, reference method, reference epsilon]."""
    keys = [(cell.method, cell.epsilon) for cell in list_cells(study, place)]
    return [[*key, *other] for key in keys if (other := reference_of(study, *key))]


def estimate_cost(study: Study, place: Place, size: JobSize) -> Cost:
    """Estimates a job's memory (a byte per test unit and resample, a cell's scores) and time."""
    _, test = size.count_rows()
    options = study.block(FairnessOptions)
    assert options is not None
    counts = test * options.resamples / 1e6
    largest = max([size.measure_mb([path]) for path in size.inputs["predictions"]], default=0)
    heads = len(list_cells(study, place)) * study.seeds
    return Cost(
        memory_mb=3000 + counts + 8 * largest, minutes=30 + heads * (0.5 + 0.5 * test / 25_000)
    )


def list_fairness_files(
    files: StudyFiles, dataset: str, suffixes: Sequence[str] = FAIRNESS_SUFFIXES
) -> list[str]:
    """Lists the results of subgroup comparisons of a dataset, if the study compares subgroups."""
    cells = fairness_cells(files.study, dataset)
    return [
        str(locate_record(f"{files.results}/{FAIRNESS}", dataset, backbone, suffix))
        for backbone in dict.fromkeys(cell.backbone for cell in cells)
        for suffix in suffixes
    ]


def _fairness_places(study: Study) -> list[Place]:
    return [{"dataset": dataset} for dataset in list_datasets(study)]


DATASET_RECORDS = many(
    lambda files, place: list_fairness_files(files, place["dataset"], [RECORD_SUFFIX])
)
FAIRNESS_FIGURES = Exhibit(
    name="plot_fairness",
    kind="figure",
    order=LAST_FIGURES,
    files={
        "gap": "figures/{dataset}/fairness_gap",
        "auc": "figures/{dataset}/fairness_auc",
        "parity": "figures/{dataset}/fairness_parity",
    },
    needs={"records": DATASET_RECORDS},
    make=f"{PACKAGE}.show:plot_fairness",
    words="gaps between the subgroups of {dataset}",
    category="Subgroups",
    caption={
        "gap": "fairness_gap.rst",
        "auc": "fairness_auc.rst",
        "parity": "fairness_parity.rst",
    },
    group_labels={
        "gap": {"against": "epsilon"},
        "auc": {"against": "quality"},
        "parity": {"against": "epsilon, by parity"},
    },
    places=_fairness_places,
)

FAIRNESS_TABLE = Exhibit(
    name="write_fairness_table",
    kind="table",
    order=TABLES,
    files={"": "tables/{dataset}_fairness"},
    needs={
        "records": DATASET_RECORDS,
        "tables": waits(lambda files, place: list_fairness_files(files, place["dataset"])),
    },
    make=f"{PACKAGE}.fairness_table:make_fairness_table",
    words="table of the subgroups of {dataset}",
    category="Subgroups",
    caption="fairness.rst",
    places=_fairness_places,
    memory_factor=8.0,
)

ANALYSIS = Analysis(
    name="fairness",
    describe=(
        "Compare subgroups of the test images, for private and non-private heads; "
        "skipped if absent."
    ),
    reads=(
        "Results of subgroups",
        "computed from labels and groups of test rows, without noise; results of a small group "
        "describe few people.",
    ),
    options=FairnessOptions,
    faults=fairness_faults,
    datasets=list_datasets,
    # One job compares all cells on the same resamples, so that differences of cells are paired.
    measurement=Measurement(
        rule="compare_groups",
        words="groups",
        needs={
            "metrics": many(
                lambda files, place: files.list_cells(
                    list_cells(files.study, place), [METRICS_FILE]
                )
            ),
            "predictions": waits(
                lambda files, place: files.list_cells(
                    list_cells(files.study, place), [PREDICTIONS_FILE]
                )
            ),
        },
        outputs={
            "record": f"{FAIRNESS}/{{dataset}}/{{backbone}}{RECORD_SUFFIX}",
            "table": f"{FAIRNESS}/{{dataset}}/{{backbone}}{TABLE_SUFFIX}",
        },
        params={"references": list_references, "seed": lambda study, _place: study.seed},
        job="dpprobe.analyses.fairness.measure:compare_groups",
        cost=estimate_cost,
        threads=2,
    ),
    named_datasets=lambda study: list(study.datasets),
    target_shows=False,
    exhibits=(FAIRNESS_FIGURES, FAIRNESS_TABLE),
    section=Section(
        anchor="subgroups",
        title="Subgroups",
        template="fairness.html.j2",
        make=f"{PACKAGE}.fairness_table:make_section",
        needs={
            "fairness": many(
                of_datasets(
                    lambda files, dataset: list_fairness_files(files, dataset, [RECORD_SUFFIX])
                )
            ),
            "fairness_tables": waits(of_datasets(list_fairness_files)),
        },
        figures={
            "fairness_gap": "Gaps between groups against epsilon",
            "fairness_auc": "Gaps between groups against quality",
            "fairness_parity": "Recall, equalised odds and demographic parity against epsilon",
        },
        tables=("_fairness",),
        not_covered=(
            "labels and subgroups of test rows: results of groups are computed from them without "
            "noise, and results of a small group describe few people"
        ),
    ),
)
