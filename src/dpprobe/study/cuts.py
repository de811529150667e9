"""The activations that a study stores: before which blocks of which backbone, of which dataset."""

from __future__ import annotations

from typing import NamedTuple

from dpprobe.finetune.options import Options as FineTune
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.tuned import Options as Tuned
from dpprobe.study.study import Study

CUTS = "cuts"  # the folder among the results


class Cut(NamedTuple):
    """The last blocks that are trained from stored activations of one dataset."""

    dataset: str
    backbone: str
    blocks: int

    @property
    def folder(self) -> str:
        """The folder below `CUTS`; in it there is one a split."""
        return f"{self.dataset}/{self.backbone}/blocks-{self.blocks}"


def study_cuts(study: Study, *datasets: str) -> list[Cut]:
    """Returns the cuts that a study needs, of some datasets or of all, each once."""
    cuts = (
        Cut(cell.dataset, cell.backbone, blocks)
        for cell in study.cells(*datasets)
        if (blocks := cut_blocks(study.methods[cell.method])) is not None
    )
    return list(dict.fromkeys(cuts))


def cut_blocks(method: MethodOptions) -> int | None:
    """Returns the blocks that a method trains from stored activations; None where it does not."""
    if isinstance(method, Tuned):
        method = method.base
    if isinstance(method, FineTune) and method.cut:
        return method.blocks
    return None
