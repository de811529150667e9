"""The strongest test of a plan: all released values, compared with the privacy guarantee.

In each run a fair coin decides between canaries and null rows, and a head is trained by the cell's
method and plan. The attacker sees every noisy release, and knows everything except if canaries are
in. The attack's score is the log likelihood ratio of the whole transcript, canaries in against out.
Given the earlier releases, release t is Gaussian around one of two known sums, which differ by d_t;
two replays compute these sums (`transcripts`):

    l_t = <output - sum without, d_t> / s_t^2  -  |d_t|^2 / (2 s_t^2).

Symmetric matrices have their noise in an orthonormal basis of the symmetric matrices, in which
<.,.> is the Frobenius product. If batches are Poisson samples of rate q, a batch contains a
binomial number j of the k equal canaries, and the attacker knows the batch's other rows. The ratio
of a sampled release is a mixture's: log sum_j Binom(j; k, q) exp(j <.,.> / s_t^2 - j^2 |d_t|^2 / (2
s_t^2)), with d_t for one canary.

By Neyman and Pearson the best guess is "in" if the score is above 0. The number of right guesses is
binomial, with a probability of at most (1 + total variation) / 2, for any distribution of scores.

The canaries' class changes from run to run, so that each class has canaries. A replay also tests
the head: given the releases, heads on both data sets must be equal, because a head may depend on
the data only through the releases.

Published heads are trained without an observer, partly by other code. So one seed of each chunk of
runs is trained again without an observer, and must give the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from dpprobe.analyses.audit.canaries import Worlds
from dpprobe.analyses.audit.noise_tests import NoiseTests, Outcome
from dpprobe.analyses.audit.transcripts import Break, Recorder, Replayer, Transcript, join_blocks
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.fitted import Heads
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.scoring import score_rows
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.releases import Observer
from dpprobe.progress import Progress, silent_progress

Numbers = npt.NDArray[np.float64]

# Bytes of transcripts that a chunk of runs may keep in memory.
_CHUNK_BYTES = 48 * 2**20
_MOST_AT_ONCE = 64


@dataclass(kw_only=True)
class Runs:
    """Scores of an audit's runs, and further results that grow run by run.

    Attributes:
      members: bool [runs], True if the canaries were in.
      releases: float64 [runs], log likelihood ratios of all releases.
      bundle: float64 [runs], the head's score of the canary's label minus its score of the other.
      used: by mechanism, how much one canary changes a sum at most, divided by the sensitivity.
      head_change: the largest difference between heads on the two data sets given the same
        releases, relative to the largest weight; 0 if correct.
      unobserved_change: the difference between one seed's heads with and without an observer.
      noise: the tests of the runs' noise.
    """

    members: npt.NDArray[np.bool_]
    releases: Numbers
    bundle: Numbers
    used: dict[str, float] = field(default_factory=dict)
    head_change: float = 0.0
    unobserved_change: float = 0.0
    noise: Sequence[Outcome] = ()


@dataclass(frozen=True, kw_only=True)
class Attack:
    """An attack on a method and a plan.

    Attributes:
      worlds: pairs of data sets, which runs use in turn.
      unusual: pairs of data sets only for the exact tests and the noise tests, without scores.
      claim: the plan whose guarantee is tested; differs from `plan` only in controls.
      broken: how a control changes releases; None outside controls.
      broken_unobserved: how a control changes releases without an observer.
      broken_head: how a control changes heads, given their training rows.
    """

    method: MethodOptions
    plan: Plan
    worlds: Sequence[Worlds]
    claim: Plan
    unusual: Sequence[Worlds] = ()
    broken: Break | None = None
    broken_unobserved: Break | None = None
    broken_head: Callable[[Heads, TrainingSet], Heads] | None = None

    @property
    def unusual_runs(self) -> list[tuple[Worlds, bool]]:
        """The data sets of the runs that are not scored, and for each True if the canary is in."""
        return [(worlds, present) for worlds in self.unusual for present in (False, True)]

    def train_and_score(
        self, seeds: Sequence[int], members: npt.NDArray[np.bool_], progress: Progress
    ) -> Runs:
        """Trains and scores a run for each of `members`.

        Args:
          seeds: the seeds of the scored runs, then the seeds of `unusual_runs`.
        """
        seeds, further = seeds[: len(members)], seeds[len(members) :]
        noise, count = NoiseTests(self.claim), len(seeds)
        runs = Runs(members=members, releases=np.empty(count), bundle=np.empty(count))
        with silent_progress():
            for (worlds, present), seed in zip(self.unusual_runs, further, strict=True):
                self._score_runs(worlds, [seed], present, runs, noise)
        for worlds, present, chunk in self._split_runs(seeds, members):
            with silent_progress():
                part = [seeds[place] for place in chunk]
                scores = self._score_runs(worlds, part, present, runs, noise)
            runs.releases[chunk], runs.bundle[chunk] = scores
            progress.advance_by(len(chunk))
        if self.plan.selection is None:
            runs.noise = noise.list_results()
        return runs

    def compute_strength(self, seeds: Sequence[int]) -> float:
        """Returns the root of the sum of |d_t|^2 / s_t^2 over releases, as a mean over seeds."""
        worlds = self.worlds[0]
        with silent_progress():
            _, recorder = self._train_heads(worlds, seeds, present=False)
            _, with_ = self._replay_heads(worlds, seeds, recorder.transcripts, present=True)
        strengths = []
        for seed, transcript in recorder.transcripts.items():
            squares = 0.0
            for block in join_blocks(transcript):
                change = float((with_[seed][block.name] - block.sums).square().sum())
                squares += change / self.claim.find_mechanism(block.name).noise_scale ** 2
            strengths.append(math.sqrt(squares))
        return math.fsum(strengths) / len(strengths)

    def _split_runs(
        self, seeds: Sequence[int], members: npt.NDArray[np.bool_]
    ) -> Iterator[tuple[Worlds, bool, list[int]]]:
        """Yields data sets, and indices of runs to train together (all in, or all out)."""
        most = _MOST_AT_ONCE
        if self.plan.selection is None:
            with silent_progress():
                _, recorder = self._train_heads(self.worlds[0], [seeds[0]], present=False)
            size = sum(
                2 * block.outputs.nelement() * block.outputs.element_size()
                + block.sums.nelement() * block.sums.element_size()
                for block in recorder.transcripts[seeds[0]]
            )
            most = max(1, min(most, _CHUNK_BYTES // max(size, 1)))
        turns = np.arange(len(seeds)) % len(self.worlds)
        for turn, worlds in enumerate(self.worlds):
            for present in (False, True):
                group = np.flatnonzero((members == present) & (turns == turn)).tolist()
                for start in range(0, len(group), most):
                    yield worlds, present, group[start : start + most]

    def _score_runs(
        self,
        worlds: Worlds,
        seeds: Sequence[int],
        present: bool,
        results: Runs,
        noise: NoiseTests,
    ) -> tuple[list[float], Numbers]:
        if self.plan.selection is not None:
            heads = self._fit_heads(worlds, seeds, present, None)
            return [math.nan] * len(seeds), _compute_margins(heads, worlds)
        heads, recorder = self._train_heads(worlds, seeds, present=present)
        if self.broken is None:
            hidden = self.broken_unobserved and Recorder(self.broken_unobserved)
            again = self._fit_heads(worlds, seeds[:1], present, hidden)
            change = _compare_heads(heads, again)
            results.unobserved_change = max(results.unobserved_change, change)
        noise.add_batches(recorder)
        joined = {seed: join_blocks(blocks) for seed, blocks in recorder.transcripts.items()}
        sums = {}
        sampled = any(item.sample_rate < 1 for item in self.plan.mechanisms)
        for world in (False, True):
            # The recorded sums come from the run's own data set, unless canaries are sampled.
            if world == present and not (sampled and present):
                sums[world] = {
                    seed: {block.name: block.sums for block in blocks}
                    for seed, blocks in joined.items()
                }
                continue
            again, sums[world] = self._replay_heads(
                worlds, seeds, recorder.transcripts, present=world
            )
            results.head_change = max(results.head_change, _compare_heads(heads, again))
        scores = []
        for seed in seeds:
            noise.add_run(joined[seed], present=present)
            pair, group = (sums[False][seed], sums[True][seed]), len(worlds.canaries)
            scores.append(self._log_ratio(joined[seed], *pair, group, results.used))
        return scores, _compute_margins(heads, worlds)

    def _train_heads(
        self, worlds: Worlds, seeds: Sequence[int], *, present: bool
    ) -> tuple[Heads, Recorder]:
        recorder = Recorder(self.broken)
        return self._fit_heads(worlds, seeds, present, recorder), recorder

    def _replay_heads(
        self,
        worlds: Worlds,
        seeds: Sequence[int],
        transcripts: dict[int, Transcript],
        *,
        present: bool,
    ) -> tuple[Heads, dict[int, dict[str, torch.Tensor]]]:
        # Seeds train side by side, so the order of transcripts may differ.
        replayer = Replayer(transcripts, worlds.canaries, sampled=int(present))
        return self._fit_heads(worlds, seeds, present, replayer), replayer.joined_sums

    def _fit_heads(
        self, worlds: Worlds, seeds: Sequence[int], present: bool, observer: Observer | None
    ) -> Heads:
        data = worlds.present if present else worlds.absent
        heads = fit_heads(self.method, data, self.plan, seeds, observer=observer)
        return heads if self.broken_head is None else self.broken_head(heads, data)

    def _log_ratio(
        self,
        transcript: Transcript,
        without: Mapping[str, torch.Tensor],
        with_: Mapping[str, torch.Tensor],
        group: int,
        used: dict[str, float],
    ) -> float:
        total = 0.0
        for name, _, outputs, _ in transcript:
            mechanism = self.claim.find_mechanism(name)
            change = with_[name] - without[name]
            noise = outputs - without[name]
            sampled = mechanism.sample_rate < 1
            joined = group if sampled else 1
            deviation = mechanism.noise_scale
            products = (noise * change).flatten(1).sum(1).div_(deviation**2).numpy()
            squares = change.flatten(1).square().sum(1).div_(deviation**2).numpy()
            total += _log_ratios(products, squares, mechanism.sample_rate, joined)
            each = squares.reshape(mechanism.count, -1).sum(1)  # sums a release's parts
            longest = deviation * math.sqrt(float(each.max())) / mechanism.sensitivity
            longest /= 1 if sampled else group
            longest = math.inf if math.isnan(longest) else longest
            used[name] = max(used.get(name, 0.0), longest)
        return total


def _compute_margins(heads: Heads, worlds: Worlds) -> Numbers:
    """Returns each head's score of the canary's label minus its score of the other label."""
    scores = np.asarray(score_rows(heads, worlds.canary), dtype=np.float64)[:, 0]
    if scores.shape[1] == 1:
        return scores[:, 0]
    margins: Numbers = scores[:, worlds.label] - scores[:, worlds.other_label]
    return margins


def _compare_heads(heads: Heads, others: Heads) -> float:
    """Returns the largest difference of weights or of other released values of the first seeds.

    Differences are relative to the largest weight or value; infinite if a number is NaN.

    Args:
      others: heads of the same seeds, or of the first seeds.
    """
    pairs = [(heads.weights, others.weights)]
    arrays = others.released_arrays()
    pairs += [(values, arrays[name]) for name, values in heads.released_arrays().items()]
    change = 0.0
    for values, again in ((values[: len(again)], again) for values, again in pairs):
        if not np.array_equal(values, again):
            part = float(np.abs(values - again).max() / np.abs(values).max())
            change = math.inf if math.isnan(part) else max(change, part)
    return change


def _log_ratios(products: Numbers, squares: Numbers, rate: float, group: int) -> float:
    """Sums the log likelihood ratios of releases (formulas: the module's docstring)."""
    from scipy.special import logsumexp
    from scipy.stats import binom

    if rate == 1:
        return float((products - squares / 2).sum())
    joined = np.arange(group + 1)
    exponents = joined * products[:, None] - joined**2 * squares[:, None] / 2
    return float(logsumexp(exponents + binom.logpmf(joined, group, rate), axis=1).sum())
