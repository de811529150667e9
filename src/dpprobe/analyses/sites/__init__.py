"""Simulated sites: compares single sites' heads, averaged heads, secure sums and pooled data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dpprobe.analyses.analysis import (
    Analysis,
    Cost,
    JobSize,
    Measurement,
    Section,
    find_several_labels,
    list_single_label,
    one_record,
)
from dpprobe.analyses.sites.options import SimulatedSitesOptions
from dpprobe.exhibits.exhibit import Exhibit, Place, many, one, waits
from dpprobe.heads.auto import asked_options
from dpprobe.heads.joint_fits import sites_fault
from dpprobe.privacy.limits import INFINITE

if TYPE_CHECKING:
    from dpprobe.heads.options import MethodOptions
    from dpprobe.results.study_files import StudyFiles
    from dpprobe.study.study import Study

PACKAGE = "dpprobe.analyses.sites"


def list_datasets(study: Study) -> list[str]:
    """Lists the datasets that a study divides among simulated sites; none without `sites`."""
    options = study.block(SimulatedSitesOptions)
    return [] if options is None else list_single_label(study, options.datasets)


def list_backbones(study: Study) -> list[str]:
    options = study.block(SimulatedSitesOptions)
    chosen = options.backbones if options else None
    return [name for name in study.backbones if chosen is None or name in chosen]


def list_budgets(study: Study) -> list[str]:
    return [token for token in study.epsilons if token != INFINITE]


def choose_method(study: Study) -> str | None:
    """Returns the option `method`, by default the first method that sites can train, or None."""
    trainable = [name for name, each in study.methods.items() if not method_fault(each)]
    options = study.block(SimulatedSitesOptions)
    return (options and options.method) or next(iter(trainable), None)


def method_fault(method: MethodOptions) -> str | None:
    """Explains why sites cannot train a method; None if they can, separately and together."""
    if not method.private or method.tunes_network or method.is_undecided:
        return (
            f"head {method.head}: sites need one private head on frozen features that all sites "
            "share; use least_squares, prototypes or feature_covariance"
        )
    return sites_fault(method)


def list_faults(study: Study, options: SimulatedSitesOptions) -> Iterator[str]:
    """Yields one line per fault in a study's block `sites`."""
    yield from find_several_labels(study, "sites", options.datasets)
    if not list_budgets(study):
        yield "epsilons: only inf is listed, which needs no noise; add a finite epsilon, such as 1"
    method = choose_method(study)
    if method is None:
        faults = (f"{name} ({method_fault(each)})" for name, each in study.methods.items())
        yield f"no method that sites can train: {'; '.join(faults)}"
    elif method not in study.methods:
        yield f"method: {method} is not in this study; choose from {', '.join(study.methods)}"
    elif fault := method_fault(study.methods[method]):
        yield f"method: {method}: {fault}"


def list_inputs(study: Study, place: Place) -> dict[str, Any]:
    """Returns the values outside the block `sites` that a record depends on, JSON-compatible."""
    dataset, method = place["dataset"], choose_method(study)
    assert method is not None
    return {
        "method": method,
        "options": asked_options(study.methods[method]),
        "epsilons": list_budgets(study),
        "delta": study.dataset_delta(dataset),
        "accountant": study.accountant,
        "unit": study.dataset_unit(dataset),
        "metric": study.datasets[dataset].metric,
        "seeds": study.seeds,
        "seed": study.seed,
    }


def list_records(files: StudyFiles, *datasets: str) -> list[str]:
    analysis: Analysis = ANALYSIS
    return analysis.list_files(files.study, files.results, *datasets)


def estimate_cost(study: Study, _place: Place, size: JobSize) -> Cost:
    """Estimates a job's memory (copies of float32 features), and time (seconds per site's head)."""
    options = study.block(SimulatedSitesOptions)
    assert options is not None
    heads = study.seeds * len(list_budgets(study)) * len(options.splits) * sum(options.counts)
    return Cost(memory_mb=3000 + 6 * size.megabytes("shards"), minutes=20 + 0.1 * heads)


TABLE = Exhibit(
    name="write_sites_table",
    kind="table",
    files={"": "tables/{dataset}_sites"},
    needs={"records": many(lambda files, place: list_records(files, place["dataset"]))},
    make=f"{PACKAGE}.show:make_sites_table",
    words="table of the simulated sites of {dataset}",
    category="Several sites",
    caption="sites.rst",
    places=lambda study: [{"dataset": name} for name in list_datasets(study)],
)
FIGURE = Exhibit(
    name="plot_sites",
    kind="figure",
    files={"": "figures/{dataset}/sites_{backbone}"},
    needs={"record": one_record("sites")},
    make=f"{PACKAGE}.show:plot_sites",
    words="figure of the simulated sites of {dataset}, {backbone}",
    category="Several sites",
    caption="sites.rst",
    labels={"dataset": "{dataset}", "backbone": "{backbone}"},
    places=lambda study: [
        {"dataset": dataset, "backbone": backbone}
        for dataset in list_datasets(study)
        for backbone in list_backbones(study)
    ],
)
ANALYSIS = Analysis(
    name="sites",
    describe=(
        "Splits datasets over several sites and compares heads of single sites, averaged heads, "
        "secure sums and pooled data; skipped if absent."
    ),
    reads=(
        "Simulated sites",
        "test labels, and training labels for a split by labels, without noise.",
    ),
    unpriced="simulated sites",
    options=SimulatedSitesOptions,
    faults=list_faults,
    datasets=list_datasets,
    backbones=list_backbones,
    measurement=Measurement(
        rule="simulate_sites",
        words="simulated sites",
        needs={
            "train": one(lambda f, p: f.locate_manifest(p["dataset"], p["backbone"], "train")),
            "test": one(lambda f, p: f.locate_manifest(p["dataset"], p["backbone"], "test")),
            "shards": waits(lambda f, p: f.list_shards(p["dataset"], p["backbone"])),
        },
        outputs={"record": "sites/{dataset}/{backbone}.json"},
        params={"inputs": list_inputs},
        job=f"{PACKAGE}.measure:simulate_sites",
        cost=estimate_cost,
    ),
    exhibits=(TABLE, FIGURE),
    section=Section(
        anchor="sites",
        title="Several sites",
        template="sites.html.j2",
        make=f"{PACKAGE}.show:make_section",
        needs={"sites": many(lambda files, _place: list_records(files))},
        place=1,
        figures={"sites_": "Heads of several sites, {} features"},
        tables=("_sites",),
    ),
)
