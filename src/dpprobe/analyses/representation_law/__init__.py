"""Representation laws: how class separability changes from block to block; not private."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dpprobe.analyses.analysis import (
    Analysis,
    Section,
    find_several_labels,
    list_single_label,
    of_datasets,
)
from dpprobe.analyses.representation_law.law_record import (
    LAW_TABLES,
    LAYERS,
    MEASURE_FIGURES,
    law_path,
)
from dpprobe.analyses.representation_law.options import RepresentationLawOptions
from dpprobe.counted_nouns import count_noun
from dpprobe.exhibits.exhibit import LAST_FIGURES, SUMMARY, TABLES, Exhibit, Place, many, one
from dpprobe.exhibits.published import published_digest
from dpprobe.finetune.options import TuneLora
from dpprobe.heads.options import MethodOptions
from dpprobe.study.network_methods import network_options
from dpprobe.study.published_names import part_names

if TYPE_CHECKING:
    from dpprobe.results.study_files import StudyFiles
    from dpprobe.study.study import Study

PACKAGE = "dpprobe.analyses.representation_law"


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """The part of a network that a method fine-tunes, and the source of the method's options.

    Attributes:
      setting: "constant" for options as written, "searched" for options chosen by a search that
        epsilon does not cover.
      tuned: the fine-tuned part, such as "head" or "last 4 blocks".
      blocks: the number of fine-tuned blocks; 0 for the head, None for all blocks and adapters.
    """

    setting: Literal["constant", "searched"]
    tuned: str
    blocks: int | None


def describe_tuning(method: MethodOptions) -> Tuning | None:
    """Describes how a method fine-tunes a network; None for a head on stored features."""
    options = network_options(method)
    if options is None:
        return None
    setting: Literal["constant", "searched"] = "constant" if options.search is None else "searched"
    if options.tune == "head":
        return Tuning(setting=setting, tuned="head", blocks=0)
    if options.blocks is not None:
        words = f"last {count_noun(options.blocks, 'block')}"
        return Tuning(setting=setting, tuned=words, blocks=options.blocks)
    words = (
        f"lora {options.tune.lora.rank}"
        if isinstance(options.tune, TuneLora)
        else str(options.tune)
    )
    return Tuning(setting=setting, tuned=words, blocks=None)


def law_datasets(study: Study) -> list[str]:
    """Returns the datasets whose laws are measured; none without `representation_law`."""
    if study.block(RepresentationLawOptions) is None:
        return []
    return list_single_label(study)


def law_backbones(study: Study) -> list[str]:
    """Returns the backbones whose laws are measured; none without `representation_law`."""
    if study.block(RepresentationLawOptions) is None:
        return []
    return [name for name, backbone in study.backbones.items() if backbone.network]


def list_law_networks(study: Study) -> list[tuple[str, str]]:
    """Returns the (method, epsilon) of the fine-tuned networks that are measured."""
    options = study.block(RepresentationLawOptions)
    if options is None:
        return []
    return [
        (method, epsilon)
        for method in study.methods
        for epsilon in study.job_epsilons()
        if describe_tuning(study.methods[method]) is not None
        and method in study.job_methods(epsilon)
        and (options.methods is None or method in options.methods)
        and (options.epsilons is None or epsilon in options.epsilons)
    ]


def law_faults(study: Study, options: RepresentationLawOptions) -> Iterator[str]:
    """Yields one line per fault in a study's block `representation_law`."""
    for name in options.methods or ():
        if describe_tuning(study.methods[name]) is None:
            yield (
                f"methods: {name}: head {study.methods[name].head} tunes no network; remove the "
                "method from this list"
            )
    if not law_backbones(study):
        yield (
            "no backbone is a network with blocks; add a backbone with blocks, such as one of "
            "family timm"
        )
    yield from find_several_labels(study, "representation_law")


def list_law_places(study: Study) -> list[Place]:
    backbones = law_backbones(study)
    return [
        {"dataset": dataset, "backbone": backbone}
        for dataset in law_datasets(study)
        for backbone in backbones
    ]


def locate_law(files: StudyFiles, place: Place) -> str:
    return str(law_path(f"{files.results}/{LAYERS}", place["dataset"], place["backbone"]))


def list_law_records(files: StudyFiles, dataset: str) -> list[str]:
    """Lists the records of a dataset's laws, if the study measures laws of the dataset."""
    places = list_law_places(files.study)
    return [locate_law(files, place) for place in places if place["dataset"] == dataset]


LAW_FIGURES = Exhibit(
    name="plot_law",
    kind="figure",
    order=LAST_FIGURES,
    files={"": tuple(f"figures/{{dataset}}/{name}_{{backbone}}" for name in MEASURE_FIGURES)},
    needs={
        "record": one(locate_law),
    },
    make=f"{PACKAGE}.show:plot_law",
    words="representation laws of {dataset}, {backbone}",
    category="Representation laws",
    labels={"dataset": "{dataset}", "backbone": "{backbone}"},
    places=list_law_places,
)

LAW_TABLE_FILES = Exhibit(
    name="write_law_tables",
    kind="table",
    order=TABLES,
    files={"": tuple(f"tables/{{dataset}}_{name}" for name in LAW_TABLES)},
    needs={
        "records": many(lambda files, place: list_law_records(files, place["dataset"])),
        "summary": SUMMARY,
    },
    make=f"{PACKAGE}.law_tables:make_law_tables",
    words="tables of representation laws, {dataset}",
    category="Representation laws",
    caption="law.rst",
    params={
        "name": lambda study, place: part_names(study)[place["dataset"]],
        "published": lambda _study, _place: published_digest(),
    },
    places=lambda study: [
        {"dataset": dataset} for dataset in (law_datasets(study) if law_backbones(study) else [])
    ],
)

ANALYSIS = Analysis(
    name="representation_law",
    describe=(
        "Laws of separability over the blocks of frozen and tuned networks, not private; "
        "skipped if absent."
    ),
    reads=(
        "Representation laws",
        "scatter and regressions of training and test rows, without noise; also of "
        "networks that were tuned with privacy.",
    ),
    unpriced="representation law",
    options=RepresentationLawOptions,
    faults=law_faults,
    datasets=law_datasets,
    backbones=law_backbones,
    exhibits=(LAW_FIGURES, LAW_TABLE_FILES),
    section=Section(
        anchor="laws",
        title="Representation laws",
        template="representation_law.html.j2",
        make=f"{PACKAGE}.show:make_section",
        needs={
            "laws": many(of_datasets(list_law_records)),
        },
        place=2,
        figures={
            "law_fuzziness_": "Fuzziness by block, {}",
            "law_separability_": "Separability by block, as printed, {}",
            "law_residual_": "Prediction residual by block, {}",
            "law_residual_one_hot_": "One-hot prediction residual by block, {}",
        },
        tables=tuple(f"_{name}" for name in LAW_TABLES),
    ),
)
