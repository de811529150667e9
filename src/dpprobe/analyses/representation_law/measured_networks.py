"""Lists the networks whose representation laws a study measures, and faults in its block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dpprobe.analyses.analysis import find_wrong_names, has_several_labels
from dpprobe.analyses.representation_law.options import RepresentationLawOptions
from dpprobe.counted_nouns import count_noun
from dpprobe.finetune.options import TuneLora
from dpprobe.heads.options import MethodOptions
from dpprobe.study.network_methods import network_options

if TYPE_CHECKING:
    from dpprobe.study.study import Study


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """One way in which a method tunes a network.

    Attributes:
      setting: "constant" for options as written, "searched" if an unpriced search chose them.
      blocks: the number of tuned blocks; 0 for only the head, None for all and adapters.
    """

    setting: Literal["constant", "searched"]
    tuned: str
    blocks: int | None


def describe_tuning(method: MethodOptions) -> Tuning | None:
    """Describes how a method tunes a network; None for a head on stored features."""
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
    """Returns the datasets with one label per example; none without `representation_law`."""
    if study.block(RepresentationLawOptions) is None:
        return []
    return [name for name in study.datasets if not has_several_labels(study, name)]


def law_backbones(study: Study) -> list[str]:
    """Returns the backbones that have blocks; none without `representation_law`."""
    if study.block(RepresentationLawOptions) is None:
        return []
    return [name for name, backbone in study.backbones.items() if backbone.network]


def list_law_networks(study: Study) -> list[tuple[str, str]]:
    """Returns the (method, epsilon) of the tuned networks that are measured."""
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


def law_faults(study: Study) -> Iterator[str]:
    """Yields one line per fault in a study's block `representation_law`."""
    options = study.block(RepresentationLawOptions)
    if options is None:
        return
    methods = options.methods or ()
    yield from find_wrong_names("methods", methods, list(study.methods))
    for name in methods:
        if name in study.methods and describe_tuning(study.methods[name]) is None:
            yield (
                f"methods: {name}: head {study.methods[name].head} tunes no network; remove the "
                "method from this list"
            )
    yield from find_wrong_names("epsilons", options.epsilons or (), study.job_epsilons())
    if not law_backbones(study):
        yield (
            "no backbone is a network with blocks; add a backbone with blocks, such as one of "
            "family timm"
        )
    if not law_datasets(study):
        yield (
            "the rows of all datasets have several labels, but laws need one label per row; "
            "remove representation_law"
        )
