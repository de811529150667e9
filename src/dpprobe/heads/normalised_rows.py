"""Normalises the rows of a training set, and releases the statistics for it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dpprobe.heads import normalisation as kinds
from dpprobe.heads.normalisation import CENTRE, CHANNEL_DEVIATIONS, CHANNEL_MEANS, Normalisation
from dpprobe.heads.public_rows import PublicRows, share_public_rows
from dpprobe.heads.row_norms import unit_scale
from dpprobe.heads.rows import Rows
from dpprobe.heads.training_set import TrainingSet
from dpprobe.heads.transform import Transform, by_channel
from dpprobe.heads.whitening import publicly_whitened_rows, whitened_rows
from dpprobe.privacy.grid import GridSum
from dpprobe.privacy.releases import Releases

# Float32 rounding may lengthen a row of norm 1 by _MARGIN, so rows are first shortened by it.
_MARGIN = 4 * 2.0**-24


def normalise_rows(data: TrainingSet, spec: Normalisation, releases: Releases) -> Rows:
    """Returns the rows of a training set after a normalisation.

    A normalisation without a release is computed once per job. A priced normalisation is released
    for each seed, so its rows are for one seed only.
    """
    if not spec.priced:
        return data.make_once(spec, lambda: Rows(data, Transform(spec)))
    assert len(releases.seeds) == 1, "a priced normalisation is released for one seed at a time"
    if isinstance(spec, kinds.Channels):
        return Rows(data, Transform(spec, _channel_statistics(data, spec, releases)))
    assert isinstance(spec, kinds.AroundCentre), spec
    public = share_public_rows(spec, data)
    centre = _release_centre(data, releases, public)
    if isinstance(spec, kinds.Whitened):
        if spec.moment == "public":
            assert public is not None
            return publicly_whitened_rows(data, spec, centre, public, releases)
        return whitened_rows(data, spec, centre, releases)
    return Rows(data, Transform(spec, {CENTRE: centre}))


def _release_centre(
    data: TrainingSet, releases: Releases, public: PublicRows | None
) -> torch.Tensor:
    """Returns the noisy sum of rows scaled to norm 1, divided by n: float32 [d].

    Each row adds a vector of norm at most its weight, and a null row adds nothing, so the
    sensitivity is 1. The divisor n is public. The released centre is then shrunk towards the mean
    of public rows, or towards 0, by the expected share of noise in its squared distance (James and
    Stein 1961, positive part), at no privacy cost: a centre of pure noise would hide the classes.
    """
    total = torch.zeros(data.dimension, dtype=torch.float64, device=data.device)
    grid = releases.make_grid(1.0, data.n)
    for start, block in data.read_blocks():
        factors = unit_scale(data.lengths[start : start + len(block)]).double()
        factors *= 1 - _MARGIN
        if data.weights is not None:
            factors *= data.weights[start : start + len(block)]
        total += grid.round_to_steps(block * factors[:, None]).sum(0)
    noisy = releases.release_gaussian(CENTRE, GridSum(total[None], grid.step))[0]
    noise = data.dimension * releases.noise_deviation(CENTRE) ** 2
    target = torch.zeros_like(noisy) if public is None else public.mean * data.n
    distance = noisy - target
    square = float(distance.square().sum())
    shrunk = target + distance * max(0.0, 1 - noise / square) if noise > 0 else noisy
    centre = (shrunk / data.n).to(torch.float32)
    releases.show_values(CENTRE, centre[None])
    return centre


def _channel_statistics(
    data: TrainingSet, spec: kinds.Channels, releases: Releases
) -> dict[str, torch.Tensor]:
    """Returns the noisy means and scales of `normalisation.Channels`: float32 [channels] each."""

    def release_statistic(
        name: str, statistic: Callable[[torch.Tensor], torch.Tensor]
    ) -> torch.Tensor:
        bound = releases.sensitivity(name) * (1 - _MARGIN)
        grid = releases.make_grid(bound, data.n)
        total = torch.zeros(spec.channels, dtype=torch.float64, device=data.device)
        for start, block in data.read_blocks():
            usable = data.lengths[start : start + len(block)].isfinite()
            vectors = statistic(by_channel(block, spec.channels)).to(torch.float64)
            norms = torch.linalg.vector_norm(vectors, dim=1)
            factors = torch.where(usable, (bound / norms).clamp(max=1), 0.0)
            if data.weights is not None:
                factors *= data.weights[start : start + len(block)]
            total += grid.round_to_steps(vectors * factors[:, None]).sum(0)
        return releases.release_gaussian(name, GridSum(total[None], grid.step))[0] / data.n

    means = release_statistic(CHANNEL_MEANS, lambda block: block.mean(2, dtype=torch.float64))
    centre = means.to(torch.float32)[:, None]
    releases.show_values(CHANNEL_MEANS, centre[None, :, 0])
    raw = release_statistic(
        CHANNEL_DEVIATIONS, lambda block: (block - centre).square_().mean(2).sqrt_()
    )
    deviations = raw.clamp(min=0).square_().add_(spec.floor).sqrt_()
    releases.show_values(CHANNEL_DEVIATIONS, deviations.to(torch.float32)[None])
    return {
        CHANNEL_MEANS: means.to(torch.float32),
        CHANNEL_DEVIATIONS: deviations.to(torch.float32),
    }
