"""The strongest test of a plan that its mechanism allows: what was released, against the promise.

In each run a fair coin puts the canaries in, or null rows in their place, and the head is trained
by the cell's method and plan. The attacker sees every noisy release of the run, and knows all else.
Its score is the log likelihood ratio of the whole transcript, canary in against canary out. Given
the transcript so far, release t is Gaussian about one of two known sums, which two replays compute
(`transcripts`), d_t apart:

    l_t = <output - sum without, d_t> / s_t^2  -  |d_t|^2 / (2 s_t^2).

Symmetric matrices have their noise in an orthonormal basis of the symmetric ones, in which this is
the product of Frobenius. Where batches are Poisson samples of rate q, k canaries of one direction
are in with binomial numbers j, the attacker knows the batch's other rows, and the ratio is that of
the mixture: log sum_j Binom(j; k, q) exp(j <.,.> / s_t^2 - j^2 |d_t|^2 / (2 s_t^2)), d_t of one.

By Neyman and Pearson a score above 0 is the best guess of a fair coin. The share of right guesses
is a binomial with a mean of at most (1 + total variation) / 2, whatever the scores' distribution.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from dpprobe.analyses.audit.canaries import LABEL, OTHER_LABEL, Worlds
from dpprobe.analyses.audit.transcripts import Break, Recorder, Replayer, Transcript
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.fitted import Heads
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.scoring import score_rows
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.plan import Plan
from dpprobe.progress import Progress, silent_progress

Numbers = npt.NDArray[np.float64]

# What a chunk of runs keeps of its transcripts.
_CHUNK_BYTES = 48 * 2**20
_MOST_AT_ONCE = 64


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Scores of runs.

    Attributes:
      members: bool [runs], True where the canaries were in.
      releases: float64 [runs], log likelihood ratios of all releases.
      bundle: float64 [runs], of the head alone: its score of the canary's label minus another's.
      used: by mechanism, the largest change of a sum by one canary, over the sensitivity.
    """

    members: npt.NDArray[np.bool_]
    releases: Numbers
    bundle: Numbers
    used: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Attack:
    """An attack on a method and a plan.

    Attributes:
      noise: the noise that the attacker expects, relative to the plan's; of a control.
      broken: what a control does to releases; None elsewhere.
      contrast: True to score differences between classes alone, where a release has a row a class:
        noise that classes share cancels in them.
      low_bits: True to score in which of the two worlds the noise would be of float32 numbers.
    """

    method: MethodOptions
    plan: Plan
    worlds: Worlds
    noise: float = 1.0
    broken: Break | None = None
    contrast: bool = False
    low_bits: bool = False

    def train_and_score(
        self, seeds: Sequence[int], members: npt.NDArray[np.bool_], progress: Progress
    ) -> Runs:
        """Trains and scores one run a seed."""
        releases, bundle = np.empty(len(seeds)), np.empty(len(seeds))
        used: dict[str, float] = {}
        for chunk in self._split_runs(seeds, members):
            present = bool(members[chunk[0]])
            with silent_progress():
                scores, margins = self._score_runs([seeds[i] for i in chunk], present, used)
            releases[chunk], bundle[chunk] = scores, margins
            progress.advance_by(len(chunk))
        return Runs(members=members, releases=releases, bundle=bundle, used=used)

    def compute_strength(self, seeds: Sequence[int]) -> float:
        """Returns the root of the sum of |d_t|^2 / s_t^2 over the releases of a run.

        The mean of one run a seed.
        """
        with silent_progress():
            _, transcripts = self._train_heads(seeds, present=True)
            without, with_ = self._collect_sums(transcripts, present=True)
        strengths = []
        for seed, transcript in transcripts.items():
            squares = 0.0
            for release, absent, present in zip(
                transcript, without[seed], with_[seed], strict=True
            ):
                change = float((present - absent).double().square().sum())
                squares += change / self._noise_deviation(release.name) ** 2
            strengths.append(math.sqrt(squares))
        return math.fsum(strengths) / len(strengths)

    def _split_runs(
        self, seeds: Sequence[int], members: npt.NDArray[np.bool_]
    ) -> Iterator[list[int]]:
        """Yields indices of runs that are trained together: all in, or all out."""
        most = _MOST_AT_ONCE
        if self.plan.selection is None:
            with silent_progress():
                _, transcripts = self._train_heads([seeds[0]], present=False)
            size = sum(
                2 * release.output.nelement() * release.output.element_size()
                + release.sums.nelement() * release.sums.element_size()
                for release in transcripts[seeds[0]]
            )
            most = max(1, min(most, _CHUNK_BYTES // max(size, 1)))
        for present in (False, True):
            group = np.flatnonzero(members == present).tolist()
            for start in range(0, len(group), most):
                yield group[start : start + most]

    def _score_runs(
        self, seeds: Sequence[int], present: bool, used: dict[str, float]
    ) -> tuple[list[float], Numbers]:
        if self.plan.selection is not None:
            heads = fit_heads(self.method, self._training_set(present), self.plan, seeds)
            return [math.nan] * len(seeds), self._compute_margins(heads)
        heads, transcripts = self._train_heads(seeds, present=present)
        without, with_ = self._collect_sums(transcripts, present=present)
        scores = [
            self._log_ratio(transcripts[seed], without[seed], with_[seed], used) for seed in seeds
        ]
        return scores, self._compute_margins(heads)

    def _collect_sums(
        self, transcripts: dict[int, Transcript], *, present: bool
    ) -> tuple[dict[int, list[torch.Tensor]], dict[int, list[torch.Tensor]]]:
        """Returns each seed's sums without and with canaries, of runs in one of the worlds."""
        seen = {
            seed: [release.sums for release in transcript]
            for seed, transcript in transcripts.items()
        }
        sampled = any(item.sample_rate < 1 for item in self.plan.mechanisms)
        # The sums of a run are those of its world, but where a sample decides if canaries are in.
        without = self._replay_sums(transcripts, present=False) if present else seen
        with_ = seen if present and not sampled else self._replay_sums(transcripts, present=True)
        return without, with_

    def _train_heads(
        self, seeds: Sequence[int], *, present: bool
    ) -> tuple[Heads, dict[int, Transcript]]:
        recorder = Recorder(self.broken)
        heads = fit_heads(
            self.method, self._training_set(present), self.plan, seeds, observer=recorder
        )
        return heads, recorder.transcripts

    def _replay_sums(
        self, transcripts: dict[int, Transcript], *, present: bool
    ) -> dict[int, list[torch.Tensor]]:
        replayer = Replayer(transcripts, self.worlds.canaries, sampled=int(present))
        fit_heads(
            self.method,
            self._training_set(present),
            self.plan,
            list(transcripts),
            observer=replayer,
        )
        return replayer.sums

    def _training_set(self, present: bool) -> TrainingSet:
        return self.worlds.present if present else self.worlds.absent

    def _noise_deviation(self, name: str) -> float:
        mechanism = self.plan.find_mechanism(name)
        return self.noise * mechanism.noise_multiplier * mechanism.sensitivity

    def _log_ratio(
        self,
        transcript: Transcript,
        without: Sequence[torch.Tensor],
        with_: Sequence[torch.Tensor],
        used: dict[str, float],
    ) -> float:
        group = len(self.worlds.canaries)
        total = -1.0 if self.low_bits else 0.0
        for name in dict.fromkeys(release.name for release in transcript):
            mechanism = self.plan.find_mechanism(name)
            places = [place for place, release in enumerate(transcript) if release.name == name]
            sums = _stack_places(without, places)
            change = _stack_places(with_, places).sub_(sums)
            noise = _stack_places([release.output for release in transcript], places).sub_(sums)
            sampled = mechanism.sample_rate < 1
            joined = group if sampled else 1
            if self.low_bits:
                total = max(total, _float32_tells(noise, change, joined))
                continue
            if self.contrast:
                if change.ndim != 3 or change.shape[1] == change.shape[2]:
                    continue  # no release of one row a class
                change -= change.mean(1, keepdim=True)
                noise -= noise.mean(1, keepdim=True)
            deviation = self._noise_deviation(name)
            products = (noise * change).flatten(1).sum(1).div_(deviation**2).numpy()
            squares = change.flatten(1).square().sum(1).div_(deviation**2).numpy()
            total += _log_ratios(products, squares, mechanism.sample_rate, joined)
            each = squares.reshape(mechanism.count, -1).sum(1)  # of a release in parts
            longest = deviation * math.sqrt(float(each.max())) / mechanism.sensitivity
            longest /= 1 if sampled else group
            used[name] = max(used.get(name, 0.0), longest)
        return total

    def _compute_margins(self, heads: Heads) -> Numbers:
        scores = np.asarray(score_rows(heads, self.worlds.canary), dtype=np.float64)[:, 0]
        if scores.shape[1] == 1:
            return scores[:, 0]
        margins: Numbers = scores[:, LABEL] - scores[:, OTHER_LABEL]
        return margins


def _float32_tells(noise: torch.Tensor, change: torch.Tensor, joined: int) -> float:
    """Returns by how much the noise looks more like float32 numbers if canaries were in.

    Of the release that tells most: the share of numbers that a float32 holds, with the most fitting
    number of canaries, minus that without.
    """

    def share_exact(values: torch.Tensor) -> torch.Tensor:
        return (values.float().double() == values).flatten(1).double().mean(1)

    inside = torch.stack([share_exact(noise - count * change) for count in range(1, joined + 1)])
    return float((inside.amax(0) - share_exact(noise)).max())


def _stack_places(tensors: Sequence[torch.Tensor], places: Sequence[int]) -> torch.Tensor:
    return torch.stack([tensors[place] for place in places]).double().cpu()


def _log_ratios(products: Numbers, squares: Numbers, rate: float, group: int) -> float:
    """Sums the log likelihood ratios of releases; see the module's docstring."""
    from scipy.special import logsumexp
    from scipy.stats import binom

    if rate == 1:
        return float((products - squares / 2).sum())
    joined = np.arange(group + 1)
    exponents = joined * products[:, None] - joined**2 * squares[:, None] / 2
    return float(logsumexp(exponents + binom.logpmf(joined, group, rate), axis=1).sum())
