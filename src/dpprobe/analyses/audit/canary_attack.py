"""The strongest attack on a plan: guesses from all releases if canaries were in the training data.

In each run a fair coin decides between canaries and null rows, and a head is trained by the cell's
method and plan. The attacker sees every noisy release, and knows everything except whether canaries
are in. The attack's score is the log likelihood ratio of all releases of a run: canaries in versus
out. Given earlier releases, release t is Gaussian with standard deviation s_t around its sum with
or without canaries. Replays of a run compute the sums with and without canaries (`transcripts`).
With d_t as the difference of the two sums, the log likelihood ratio of release t is

    l_t = <output - sum without, d_t> / s_t^2  -  |d_t|^2 / (2 s_t^2).

Noise of a symmetric matrix is independent in an orthonormal basis of the symmetric matrices, in
which <.,.> is the Frobenius product. A Poisson batch of rate q contains a binomial number j of the
k equal canaries, and the attacker knows the batch's other rows. A sampled release therefore has the
log likelihood ratio of a mixture: log sum_j Binom(j; k, q) exp(j <.,.> / s_t^2 - j^2 |d_t|^2 / (2
s_t^2)), with d_t for one canary.

By the Neyman-Pearson lemma the best guess is "in" if the score is above 0. The number of right
guesses is binomial, with probability at most (1 + total variation) / 2, for any score distribution.

The canaries' class changes from run to run, so that each class has canaries. A replay also tests
the head: given equal releases, heads trained with and without canaries must be equal, because a
head may depend on the data only through the releases.

Published heads are trained without an observer of the releases, partly by other code. So the audit
retrains one seed per chunk of runs without an observer, and compares the heads bit by bit.

**Data.** A guarantee holds for every pair of data sets that differ in one unit, so an audit may
choose the pair. No row of an audit is private. The data sets have the plan's n units, but most
units have no rows, and so add nothing to any sum, like null rows. A few rows have the canary's
direction but another label, so no head learns to predict the canary, and the canary's gradient
stays at the clipping norm.

A group of k canaries is completely in or completely out. A plan that is mu-GDP for one unit is (k
mu)-GDP for k units (Dong, Roth and Su 2022, theorem 2.14; for sampled releases: Ganesh 2024). A
bound for a group of canaries gives a bound for the plan, with far fewer runs at a small epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import torch

from dpprobe.analyses.audit.noise_tests import NoiseTests, Outcome
from dpprobe.analyses.audit.transcripts import (
    Break,
    ChangeSampler,
    Recorder,
    Replayer,
    Transcript,
    join_blocks,
)
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.fitted import Heads
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.scoring import score_rows
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.randomness import open_stream
from dpprobe.privacy.releases import Observer
from dpprobe.progress import Progress, silent_progress
from dpprobe.training.public_file_check import SYNTHETIC_ROWS

Numbers = npt.NDArray[np.float64]

# Bytes of recorded releases that a chunk of runs may keep in memory.
CHUNK_BYTES = 48 * 2**20
_MOST_AT_ONCE = 64
# The number of training rows besides the canaries.
OTHERS = 64


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Public facts about a cell's training examples: n units, features per row, classes.

    A canary has `rows_per_unit` equal rows; other units have at most `rows_per_unit` rows.
    """

    n: int
    dimension: int
    num_classes: int
    multi_label: bool
    rows_per_unit: int = 1


@dataclass(frozen=True, kw_only=True)
class Worlds:
    """Two training sets that differ only in the canaries' rows.

    Attributes:
      absent, present: the training set with null rows in place of the canaries, and with canaries.
      canary: the features of one canary, float32 [1, d].
      label, other_label: the label of canaries, and of other rows in the canaries' direction.
    """

    absent: TrainingSet
    present: TrainingSet
    canaries: range
    canary: torch.Tensor
    label: int = 0
    other_label: int = 1

    def change_rows(self, change: Callable[[TrainingSet], TrainingSet]) -> Worlds:
        """Returns the two data sets, each changed by `change`."""
        absent, present = change(self.absent), change(self.present)
        assert present.features is not None
        return replace(self, absent=absent, present=present, canary=present.features[-1:])


def make_worlds(
    shape: Shape,
    *,
    group: int,
    length: float,
    seed: int,
    label: int = 0,
) -> Worlds:
    """Makes two data sets from random rows: with canaries, and with null rows instead.

    Args:
      group: the number of canaries, below n.
      length: a canary's norm before normalisation and clipping.
      label: the canaries' label; if rows have several labels, canaries have all labels.
    """
    generator = open_stream(seed, "audit rows")
    others = min(OTHERS, shape.n - group)
    rows = generator.standard_normal((others, shape.dimension)).astype(np.float32)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-6)
    direction = generator.standard_normal(shape.dimension).astype(np.float32)
    direction /= np.linalg.norm(direction)
    rows[: others // 2] = direction * length
    labels = np.arange(others) % shape.num_classes
    labels[: others // 2] = (label + 1) % shape.num_classes
    features = np.concatenate([rows, np.tile(direction * length, (group, 1))])
    return worlds_of(shape, features, np.concatenate([labels, [label] * group]), group)


def worlds_of(shape: Shape, features: np.ndarray, labels: np.ndarray, group: int) -> Worlds:
    """Makes two data sets: all rows, and all rows except the canaries, the last `group` rows."""
    others = len(features) - group
    label = int(labels[-1])
    most = shape.rows_per_unit
    sizes = np.concatenate([1 + np.arange(others) % most, np.full(group, most)])
    absent, present = features[:others], features
    return Worlds(
        absent=_training_set(shape, absent, labels[:others], sizes[:others], label),
        present=_training_set(shape, present, labels, sizes, label),
        canaries=range(others, len(features)),
        canary=torch.from_numpy(present[-1:].copy()),
        label=label,
        other_label=(label + 1) % shape.num_classes,
    )


def _training_set(
    shape: Shape,
    features: np.ndarray,
    labels: np.ndarray,
    sizes: npt.NDArray[np.int64],
    canary: int,
) -> TrainingSet:
    """Makes a set of n units: unit i has `sizes[i]` copies of row i, later units have no rows."""
    numbered = Units.number_units([f"{unit:06}" for unit in np.arange(len(sizes)).repeat(sizes)])
    features, labels = features.repeat(sizes, axis=0), labels.repeat(sizes)
    rows = len(features)
    missing = np.full(shape.n - len(sizes), rows)
    units = replace(numbered, starts=np.concatenate([numbered.starts, missing]))
    if shape.multi_label:  # canaries have all labels, other rows in the canaries' direction none
        hot = np.zeros((rows, shape.num_classes), dtype=np.uint8)
        hot[labels == canary] = 1
        targets = torch.from_numpy(hot)
    else:
        targets = torch.from_numpy(labels.astype(np.int64))
    return TrainingSet(
        torch.from_numpy(features.copy()),
        targets,
        shape.num_classes,
        units=units,
        public=SYNTHETIC_ROWS,
    )


@dataclass(frozen=True)
class Replay:
    """Test results of replayed fits, the change of heads without an observer, and a description."""

    outcomes: tuple[Outcome, ...]
    head_change: float
    compared: str


@dataclass(kw_only=True)
class Runs:
    """Scores of an audit's runs, and further results that are updated with each run.

    Attributes:
      members: bool [runs], True if the canaries were in.
      releases: float64 [runs], log likelihood ratios of all releases.
      bundle: float64 [runs], the head's score of the canary's label minus its score of
        `Worlds.other_label`.
      used: by mechanism, how much one canary changes a sum at most, divided by the sensitivity.
      head_change: the largest difference between heads with and without canaries, given equal
        releases, relative to the largest weight; 0 if correct.
      unobserved_change: the difference between one seed's heads with and without an observer.
      replay: the comparison of a release at full width with the reference, if it ran.
      noise: the results of the tests of noise.
      reach: maps a level to the largest cut of noise (in deviations) that tests surely refute.
    """

    members: npt.NDArray[np.bool_]
    releases: Numbers
    bundle: Numbers
    used: dict[str, float] = field(default_factory=dict)
    head_change: float = 0.0
    unobserved_change: float = 0.0
    replay: Replay | None = None
    noise: Sequence[Outcome] = ()
    reach: Callable[[float], float | None] = lambda _: None


@dataclass(frozen=True, kw_only=True)
class Attack:
    """An attack on a method and a plan.

    Attributes:
      worlds: pairs of data sets, which runs use in turn.
      claim: the plan whose guarantee is tested; equal to `plan` unless a control breaks the plan.
      broken: how a control changes releases; None outside controls.
      broken_unobserved: how a control changes releases without an observer.
      broken_head: how a control changes heads, given their training rows.
      change_rows: how a control changes training rows; the data sets are already changed.
      change_sampler: how a control breaks samplers.
      patch: in a control, replaces code while heads are fitted.
    """

    method: MethodOptions
    plan: Plan
    worlds: Sequence[Worlds]
    claim: Plan
    broken: Break | None = None
    broken_unobserved: Break | None = None
    broken_head: Callable[[Heads, TrainingSet], Heads] | None = None
    change_rows: Callable[[TrainingSet], TrainingSet] | None = None
    change_sampler: ChangeSampler | None = None
    patch: Callable[[], AbstractContextManager[object]] = nullcontext

    @property
    def has_right_releases(self) -> bool:
        """True if fits with and without an observer have equal releases."""
        return self.broken is None and self.change_sampler is None

    def hidden_recorder(self) -> Recorder | None:
        """Returns a recorder that breaks unobserved releases; None without `broken_unobserved`."""
        return None if self.broken_unobserved is None else Recorder(self.broken_unobserved)

    def train_and_score(
        self, seeds: Sequence[int], members: npt.NDArray[np.bool_], progress: Progress
    ) -> Runs:
        """Trains and scores one run per entry of `members`."""
        noise, count = NoiseTests(self.claim), len(seeds)
        runs = Runs(members=members, releases=np.empty(count), bundle=np.empty(count))
        for worlds, present, chunk in self._split_runs(seeds, members):
            with silent_progress():
                part = [seeds[place] for place in chunk]
                scores = self._score_runs(worlds, part, present, runs, noise)
            runs.releases[chunk], runs.bundle[chunk] = scores
            progress.advance_by(len(chunk))
        if self.plan.selection is None:
            runs.noise, runs.reach = noise.list_results(), noise.reach
        return runs

    def compute_strength(self, seeds: Sequence[int]) -> float:
        """Computes sqrt(sum of |d_t|^2 / s_t^2 over releases t), as a mean over seeds."""
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

    def measure_changes(self, worlds: Worlds, seed: int) -> dict[str, Numbers]:
        """Returns how much the canaries change each release, divided by its sensitivity."""
        with silent_progress():
            _, recorder = self._train_heads(worlds, [seed], present=False)
            _, with_ = self._replay_heads(worlds, [seed], recorder.transcripts, present=True)
        changes = {}
        for block in join_blocks(recorder.transcripts[seed]):
            mechanism = self.claim.find_mechanism(block.name)
            squares = (with_[seed][block.name] - block.sums).flatten(1).square().sum(1).numpy()
            each = squares.reshape(mechanism.count, -1).sum(1)  # sums a release's parts
            changes[block.name] = np.sqrt(each) / mechanism.sensitivity
        return changes

    def _split_runs(
        self, seeds: Sequence[int], members: npt.NDArray[np.bool_]
    ) -> Iterator[tuple[Worlds, bool, list[int]]]:
        """Yields two data sets, True for canaries in, and indices of runs to train together."""
        most = _MOST_AT_ONCE
        if self.plan.selection is None:
            with silent_progress():
                _, recorder = self._train_heads(self.worlds[0], [seeds[0]], present=False)
            size = sum(
                2 * block.outputs.nelement() * block.outputs.element_size()
                + block.sums.nelement() * block.sums.element_size()
                for block in recorder.transcripts[seeds[0]]
            )
            most = max(1, min(most, CHUNK_BYTES // max(size, 1)))
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
        if self.has_right_releases:
            again = self._fit_heads(worlds, seeds[:1], present, self.hidden_recorder())
            change = compare_heads(heads, again)
            results.unobserved_change = max(results.unobserved_change, change)
        noise.add_batches(recorder.batches)
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
            results.head_change = max(results.head_change, compare_heads(heads, again))
        scores = []
        for seed in seeds:
            noise.add_run(joined[seed])
            pair, group = (sums[False][seed], sums[True][seed]), len(worlds.canaries)
            scores.append(self._log_ratio(joined[seed], *pair, group, results.used))
        return scores, _compute_margins(heads, worlds)

    def _train_heads(
        self, worlds: Worlds, seeds: Sequence[int], *, present: bool
    ) -> tuple[Heads, Recorder]:
        recorder = Recorder(self.broken, self.change_sampler)
        return self._fit_heads(worlds, seeds, present, recorder), recorder

    def _replay_heads(
        self,
        worlds: Worlds,
        seeds: Sequence[int],
        transcripts: dict[int, Transcript],
        *,
        present: bool,
    ) -> tuple[Heads, dict[int, dict[str, torch.Tensor]]]:
        # Seeds train in parallel, so the order of transcripts may differ.
        replayer = Replayer(transcripts, worlds.canaries, int(present), self.change_sampler)
        return self._fit_heads(worlds, seeds, present, replayer), replayer.joined_sums

    def _fit_heads(
        self, worlds: Worlds, seeds: Sequence[int], present: bool, observer: Observer | None
    ) -> Heads:
        data = worlds.present if present else worlds.absent
        with self.patch():
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
    """Returns each head's score of the canary's label minus its score of `worlds.other_label`."""
    scores = np.asarray(score_rows(heads, worlds.canary), dtype=np.float64)[:, 0]
    if scores.shape[1] == 1:
        return scores[:, 0]
    margins: Numbers = scores[:, worlds.label] - scores[:, worlds.other_label]
    return margins


def compare_heads(heads: Heads, others: Heads) -> float:
    """Returns the largest relative difference of two heads' weights or other released values.

    Differences are relative to the largest weight or value; infinite if a number is NaN.

    Args:
      others: heads of all seeds of `heads`, or of the first seeds.
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
    """Sums the log likelihood ratios of releases by the formulas in the module's docstring."""
    from scipy.special import logsumexp
    from scipy.stats import binom

    if rate == 1:
        return float((products - squares / 2).sum())
    joined = np.arange(group + 1)
    exponents = joined * products[:, None] - joined**2 * squares[:, None] / 2
    return float(logsumexp(exponents + binom.logpmf(joined, group, rate), axis=1).sum())
