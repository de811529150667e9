"""The cuts of a study: stored activations from which networks are trained."""

from __future__ import annotations

from typing import NamedTuple

from dpprobe.study.network_methods import network_methods, network_options
from dpprobe.study.study import Study


class Cut(NamedTuple):
    """The activations that enter the last `blocks` blocks of a backbone."""

    dataset: str
    backbone: str
    blocks: int


def study_cuts(study: Study, *datasets: str) -> list[Cut]:
    """Lists the cuts from which a study's networks start, for some datasets or all."""
    options = (network_options(study.methods[name]) for name in network_methods(study))
    depths = {each.cut_blocks for each in options if each is not None} - {None}
    return [
        Cut(dataset, backbone, blocks)
        for dataset in datasets or study.datasets
        for backbone in study.backbones
        for blocks in sorted(depth for depth in depths if depth is not None)
    ]
