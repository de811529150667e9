"""Gradients of subgroups at trained heads: norms, clipped shares and alignment; not private."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dpprobe.analyses.analysis import Analysis, Cost, JobSize, Measurement, Section, one_record
from dpprobe.analyses.fairness import find_group_faults
from dpprobe.analyses.group_gradients.options import GroupGradientsOptions
from dpprobe.exhibits.exhibit import LAST_FIGURES, TABLES, Exhibit, Place, many, one, waits
from dpprobe.heads.balance_options import BalanceOptions
from dpprobe.heads.gradient_options import GradientOptions
from dpprobe.heads.normalisation import Whitened
from dpprobe.heads.preconditioned_descent import PreconditionedDescentOptions
from dpprobe.results.cell_files import METRICS_FILE

if TYPE_CHECKING:
    from dpprobe.heads.options import MethodOptions
    from dpprobe.results.study_files import StudyFiles
    from dpprobe.study.study import Cell, Study

PACKAGE = "dpprobe.analyses.group_gradients"
FOLDER = "group_gradients"


def explain_skip(method: MethodOptions) -> str | None:
    """Explains why the gradients at a method's heads cannot be computed; None if they can.

    For the method `auto`, the result is None until `auto` has chosen a head.
    """
    if method.is_undecided:
        return None
    if method.tunes_network:
        return "trains a network, and only heads are measured"
    if method.trial_head is not method:
        return "a search chooses options for each seed"
    head = method.trained_head
    clip = getattr(head, "max_grad_norm", None)
    if clip is None or not isinstance(head, GradientOptions | PreconditionedDescentOptions):
        return f"head {head.head} clips no gradients of examples"
    if isinstance(head.normalize, Whitened):
        return "a cell does not store the matrix of `normalize: whitened`"
    if isinstance(head, BalanceOptions) and head.class_priors:
        return "class_priors change the head after training"
    if head.has_student:
        return "a student may replace the trained head"
    return None


def list_methods(study: Study) -> list[str]:
    """Lists the requested methods whose gradients can be computed, in the study's order."""
    options = study.block(GroupGradientsOptions)
    if options is None:
        return []
    return [
        name
        for name, method in study.methods.items()
        if name in (options.methods or study.methods) and explain_skip(method) is None
    ]


def list_skipped(study: Study) -> dict[str, str]:
    """Returns the requested methods that are not measured, with reasons."""
    options = study.block(GroupGradientsOptions)
    assert options is not None
    asked = {name: explain_skip(study.methods[name]) for name in options.methods or study.methods}
    return {name: reason for name, reason in asked.items() if reason}


def list_cells(study: Study, *datasets: str) -> list[Cell]:
    """Lists the measured cells, by default of all datasets; none without `group_gradients`."""
    options = study.block(GroupGradientsOptions)
    if options is None:
        return []
    methods = list_methods(study)
    return [
        cell
        for cell in study.list_cells(*datasets)
        if cell.method in methods and (options.epsilons is None or cell.epsilon in options.epsilons)
    ]


def list_faults(study: Study, options: GroupGradientsOptions) -> Iterator[str]:
    """Yields one line per fault in a study's block `group_gradients`."""
    if not list_methods(study):
        reasons = "; ".join(f"{name} ({reason})" for name, reason in list_skipped(study).items())
        yield f"no method clips gradients of examples: {reasons}; add one, such as momentum"
    elif not list_cells(study):
        yield "no cell of the study has these methods and epsilons; choose other values"
    yield from find_group_faults(study, options.groups or ())


def list_datasets(study: Study) -> list[str]:
    return list(study.datasets) if list_cells(study) else []


def list_records(files: StudyFiles, *datasets: str) -> list[str]:
    analysis: Analysis = ANALYSIS
    return analysis.list_files(files.study, files.results, *datasets)


def _list_metrics(files: StudyFiles, place: Place) -> list[str]:
    cells = list_cells(files.study, place["dataset"])
    mine = [cell for cell in cells if cell.backbone == place["backbone"]]
    return files.list_cells(mine, [METRICS_FILE])


def estimate_cost(study: Study, place: Place, size: JobSize) -> Cost:
    """Estimates a job's memory (float32 features and two normalised copies), and time."""
    cells = list_cells(study, place["dataset"])
    heads = study.seeds * len(cells) / len(study.backbones)
    return Cost(
        memory_mb=3000 + 3 * min(2.2 * size.megabytes("shards"), study.features.memory_mb),
        minutes=20 + heads * size.megabytes("shards") / 1000,
    )


TABLE = Exhibit(
    name="write_group_gradients",
    kind="table",
    order=TABLES,
    files={"": "tables/{dataset}_group_gradients"},
    needs={"records": many(lambda files, place: list_records(files, place["dataset"]))},
    make=f"{PACKAGE}.show:make_gradients_table",
    words="table of the gradients of the subgroups of {dataset}",
    category="Subgroups",
    caption="group_gradients.rst",
    places=lambda study: [{"dataset": name} for name in list_datasets(study)],
)
FIGURE = Exhibit(
    name="plot_group_gradients",
    kind="figure",
    order=LAST_FIGURES,
    files={"": "figures/{dataset}/group_gradients_{backbone}-{method}"},
    needs={"record": one_record(FOLDER)},
    make=f"{PACKAGE}.show:plot_group_gradients",
    words="gradients of the subgroups of {dataset}, {backbone}, {method}",
    category="Subgroups",
    caption="group_gradients.rst",
    labels={"backbone": "{backbone}", "method": "{method}", "against": "epsilon, by gradients"},
    places=lambda study: [
        {"dataset": dataset, "backbone": backbone, "method": method}
        for dataset in list_datasets(study)
        for backbone in study.backbones
        for method in dict.fromkeys(cell.method for cell in list_cells(study))
    ],
)
ANALYSIS = Analysis(
    name="group_gradients",
    describe=(
        "Measure the gradients of subgroups of the training images at trained heads; "
        "skipped if absent."
    ),
    reads=(
        "Gradients of subgroups",
        "computed from features, labels and groups of training rows, without noise; results of a "
        "small group describe few people.",
    ),
    unpriced="gradients of subgroups",
    options=GroupGradientsOptions,
    faults=list_faults,
    datasets=list_datasets,
    measurement=Measurement(
        rule="measure_group_gradients",
        words="gradients of groups",
        needs={
            "metrics": many(_list_metrics),
            "train": one(lambda f, p: f.locate_manifest(p["dataset"], p["backbone"], "train")),
            "shards": waits(lambda f, p: f.list_shards(p["dataset"], p["backbone"], "train")),
        },
        outputs={"record": f"{FOLDER}/{{dataset}}/{{backbone}}.json"},
        params={
            "skipped": lambda study, _place: list_skipped(study),
            "memory_mb": lambda study, _place: study.features.memory_mb,
        },
        job=f"{PACKAGE}.measure:measure_group_gradients",
        cost=estimate_cost,
    ),
    exhibits=(TABLE, FIGURE),
    section=Section(
        anchor="group-gradients",
        title="Gradients of subgroups",
        template="group_gradients.html.j2",
        make=f"{PACKAGE}.show:make_section",
        needs={"group_gradients": many(lambda files, _place: list_records(files))},
        figures={"group_gradients_": "Clipped share and alignment of groups, {}"},
        tables=("_group_gradients",),
        not_covered=(
            "training rows: gradients of subgroups are computed from them without noise, and "
            "results of a small group describe few people"
        ),
    ),
)
