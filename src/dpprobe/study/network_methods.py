"""Lists methods of a study by what they train, and explains why methods cannot run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from dpprobe.finetune.options import Options as FineTuneOptions
from dpprobe.finetune.options import blocks_fault
from dpprobe.heads.options import MethodOptions

if TYPE_CHECKING:
    from dpprobe.study.study import Study


def head_methods(study: Study, epsilon: str) -> tuple[str, ...]:
    """Returns the methods of linear heads at an epsilon, which one job trains together."""
    return tuple(
        name for name in study.job_methods(epsilon) if not study.methods[name].tunes_network
    )


def network_methods(study: Study) -> tuple[str, ...]:
    """Returns the methods that train a part of the backbone: each seed has its own job."""
    return tuple(name for name, method in study.methods.items() if method.tunes_network)


def searched_methods(study: Study) -> tuple[str, ...]:
    """Returns the methods whose options a search chooses without counting its privacy cost."""
    return tuple(
        name
        for name, method in study.methods.items()
        if isinstance(method, FineTuneOptions) and method.search is not None
    )


def network_options(method: MethodOptions) -> FineTuneOptions | None:
    return method if isinstance(method, FineTuneOptions) else None


def network_faults(study: Study) -> Iterator[str]:
    for name in network_methods(study):
        options = network_options(study.methods[name])
        assert options is not None
        processes = study.fine_tuning.processes
        if options.engine == "opacus" and processes > 1:
            yield (
                f"methods.{name}: engine opacus trains a network in one process, but "
                f"fine_tuning.processes is {processes}; remove one of them"
            )
        for backbone in study.backbones:
            if fault := _backbone_fault(study, backbone, options):
                yield f"methods.{name}: backbones.{backbone}: {fault}"
    for name, release in study.releases.items():
        if study.methods[release.method].tunes_network:
            yield (
                f"releases.{name}: method {release.method}: it trains a network with float32 "
                "sums, which only benchmarks may use, and bundles hold linear heads; choose "
                "another method"
            )


def _backbone_fault(study: Study, name: str, options: FineTuneOptions) -> str | None:
    backbone = study.backbones[name]
    if not backbone.network:
        return (
            f"family {backbone.family} has no network to train; move the method to a study of "
            "networks (timm, open_clip, convolutional)"
        )
    if backbone.stored_crops:
        return (
            "preprocessing.crops is only for linear heads; remove it, and for networks write "
            "augment, which draws views in each step"
        )
    if options.cut_blocks is None:
        return None
    if backbone.random_crops:
        return (
            "preprocessing.crop: inception, but activations of a single random crop would be "
            "stored for all steps; write `crop: centre`, or `augment`, which trains from images"
        )
    if getattr(getattr(backbone, "preprocessing", None), "flip", False):
        return (
            "preprocessing.flip makes two passes per image, but activations of only one are "
            "stored; remove it, or write `augment`, which trains from images"
        )
    return None


def blocks_faults(study: Study, blocks: Mapping[str, int]) -> Iterator[str]:
    """Yields faults of options `blocks`; `blocks` has 0 for networks without accessible blocks."""
    for method in network_methods(study):
        options = network_options(study.methods[method])
        if options is None or options.blocks is None:
            continue
        for backbone, shown in blocks.items():
            name = str(getattr(study.backbones[backbone], "model", backbone))
            if fault := blocks_fault(options.blocks, shown, name):
                yield f"methods.{method} on backbones.{backbone}: {fault}"
