"""The normalisation of feature rows, to be applied before a head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from dpprobe.errors import DataError
from dpprobe.heads import normalisation as kinds
from dpprobe.heads.normalisation import CENTRE, CHANNEL_DEVIATIONS, CHANNEL_MEANS, Normalisation
from dpprobe.heads.row_norms import row_lengths, unit_scale

# The largest factor for scaling centred rows to norm 1; rows nearer to the centre are round-off.
LONGEST_SHIFT = 2.0**40


@dataclass(frozen=True)
class Transform:
    """The normalisation of any feature rows, to be applied before a head.

    `arrays` contains released statistics by name; they are part of the published head.
    """

    spec: Normalisation
    arrays: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """Returns float32 [m, d] rows for a head; raises DataError if their dimension is wrong."""
        spec = self.spec
        if isinstance(spec, kinds.L2):
            return rows * _unit_scale(rows)
        if isinstance(spec, kinds.LayerNorm):
            return torch.nn.functional.layer_norm(rows, rows.shape[1:])
        if isinstance(spec, kinds.GroupNorm):
            by_channel(rows, spec.groups, "groups")
            return torch.nn.functional.group_norm(rows, spec.groups)
        if isinstance(spec, kinds.AroundCentre):
            centred = (rows * _unit_scale(rows)).sub_(self.arrays[CENTRE].to(rows.device))
            # not in place, because gradients of a network flow through
            return centred * _unit_scale(centred).clamp(max=LONGEST_SHIFT)
        if isinstance(spec, kinds.Channels):
            means = self.arrays[CHANNEL_MEANS].to(rows.device)
            deviations = self.arrays[CHANNEL_DEVIATIONS].to(rows.device)
            distances = by_channel(rows, spec.channels) - means[:, None]
            return distances.div_(deviations[:, None]).view_as(rows)
        assert isinstance(spec, kinds.NoNormalisation), spec
        return rows


def by_channel(rows: torch.Tensor, channels: int, name: str = "channels") -> torch.Tensor:
    """Returns rows [m, channels * positions] as [m, channels, positions]."""
    if rows.shape[1] % channels:
        raise DataError(
            f"normalize: {channels} {name} do not divide the dimension {rows.shape[1]}; choose a "
            "divisor"
        )
    return rows.unflatten(1, (channels, -1))


def _unit_scale(rows: torch.Tensor) -> torch.Tensor:
    return unit_scale(row_lengths(rows)).unsqueeze(1)
