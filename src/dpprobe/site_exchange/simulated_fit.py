"""Simulates a fit of several sites in one process, with the sums and noise of a real fit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from dpprobe.heads.fit import fit_heads
from dpprobe.heads.fitted import Heads
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.entropy import SEEDED
from dpprobe.privacy.noise_shares import split_noise
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.rounded_gaussian import RoundedGaussian
from dpprobe.site_exchange.shared_sums import SharedSums, Sum, SumsMissing, add_sums


def fit_together(
    method: MethodOptions,
    parts: Sequence[TrainingSet],
    plan: Plan,
    seed: int,
    *,
    colluders: int | None = 1,
) -> Heads:
    """Trains one head on the rows of several sites.

    Args:
      parts: the rows of each site; `public_n` is the number of units of all sites.
      plan: has the noise for the units of all sites.
      colluders: number of colluding sites, whose noise does not count. None for an aggregator that
        adds all noise: the head then equals, to the last bit, a head trained without sites.
    """
    sites = [SimulatedSite(number, len(parts), seed, colluders) for number in range(len(parts))]
    totals: list[Sum] = []
    while True:
        answers: list[tuple[Sum, ...]] = []
        for site, rows in zip(sites, parts, strict=True):
            shared = SharedSums(
                totals,
                open_noise=site.open_noise,
                share=site.share_noise,
                together=method.running_sums or (),
            )
            try:
                return fit_heads(method, rows, plan, [seed], shared=shared)
            except SumsMissing as missing:
                answers.append(missing.sums)
        totals += [add_sums(sums) for sums in zip(*answers, strict=True)]


class SimulatedSite:
    """The noise of one site, from published seeds; if `colluders` is None, one site adds all noise.

    All releases of a mechanism draw noise from one random stream, as in a fit without sites.
    """

    def __init__(self, number: int, parties: int, seed: int, colluders: int | None) -> None:
        self._number, self._seed = number, seed
        self._streams: dict[str, RoundedGaussian] = {}
        self._split = (
            None
            if colluders is None
            else partial(split_noise, parties=parties, colluders=colluders)
        )

    def share_noise(self, deviation: float) -> float:
        if self._split is not None:
            return self._split(deviation)
        return deviation if self._number == 0 else 0.0

    def open_noise(self, _place: int, exact: Sum) -> RoundedGaussian:
        name = exact.name
        if name not in self._streams:
            where = "" if self._split is None else f" at site {self._number}"
            stream = SEEDED.open_keystream(self._seed, f"noise of {name}{where}")
            self._streams[name] = RoundedGaussian(stream)
        return self._streams[name]
