"""Replays a release at its full width, and compares every number with `reference`.

The replayed fits have the cell's dimension, classes and n. They have more rows than a block, units
of up to 50 rows, rows above and below every clipping norm, and unusable rows. Two seeds train
together, once observed and once as in a release. The reference computes each sum from equal rows
and weights, and each noise number and Poisson batch from equal random words. So a difference is
always a fault, never chance. The head shows its weights between releases (`Releases.show_values`).
The weights follow from earlier releases, and a sum must be correct for any weights. With small
weights, all gradients of rows of norm 1 may be shorter than the clipping norm. Heads of rows of
norm 1 therefore begin at large random weights, which misclassify many rows (`begin_apart`).

Some random words of the noise are changed, in the fit and in the reference, so that some numbers
exceed 8 deviations. Unchanged random words would give about one such number in 10^15.

Sums and noise of `engine: closed_form` are compared up to float32 rounding.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dpprobe.analyses.audit import reference as ref
from dpprobe.analyses.audit.canary_attack import Attack, Replay, compare_heads
from dpprobe.analyses.audit.noise_tests import Outcome
from dpprobe.analyses.audit.reference import Numbers, Sum
from dpprobe.analyses.audit.transcripts import Index, Release
from dpprobe.errors import ConfigError
from dpprobe.heads import normalisation as kinds
from dpprobe.heads.balance_options import CLASS_COUNTS, BalanceOptions
from dpprobe.heads.class_offsets import OFFSET_CLASSES, OFFSET_HEAD
from dpprobe.heads.feature_covariance import COVARIANCE
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.fitted import STUDENT_GAIN
from dpprobe.heads.gradient_options import GRADIENTS, GradientOptions
from dpprobe.heads.least_squares import GRAM, TARGETS
from dpprobe.heads.newton import HESSIANS
from dpprobe.heads.newton import Options as NewtonOptions
from dpprobe.heads.options import CLASS_OFFSETS, MethodOptions
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.prototypes import CLASS_SUMS
from dpprobe.heads.student import STUDENT_CLASSES, STUDENT_HEADS
from dpprobe.heads.training_set import TrainingSet
from dpprobe.heads.transform import Transform
from dpprobe.heads.tuned_options import Options as TunedOptions
from dpprobe.privacy.entropy import SeededEntropy
from dpprobe.privacy.keystream import Keystream
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.randomness import derived_seed, open_stream
from dpprobe.privacy.releases import Observer
from dpprobe.privacy.sampling import Sampler
from dpprobe.progress import silent_progress
from dpprobe.training.public_file_check import SYNTHETIC_ROWS

# The number of rows: at least _FEWEST_ROWS, and more than two blocks of float64 rows of 4 MiB.
_FEWEST_ROWS, _MOST_ROWS, _BLOCKS = 1100, 20_000, 2.2 * 2**22
# Rows per unit of privacy, in turn; a class without rows; features of unusable rows.
_SIZES, _EMPTY = (50, 1, 2, 3, 1, 5, 2, 1, 4, 2), 1
_UNUSABLE = (np.nan, np.inf, 1e30, 1e-30, 0.0)
# Limits of what is compared: noise numbers of a mechanism that take several words, products of
# sums, and draws of Poisson samples.
_NUMBERS, _PRODUCTS, _DRAWS = 10**6, 2 * 10**10, 2 * 10**7
# The number of words of each stream that may be bent.
_BENT = 2**16
# Relative rounding error of float32 sums.
_FLOATS = 1e-4
# The standard deviation of initial weights, so that logits on rows of norm 1 are far apart.
_APART = 10.0
SUMS, NOISE, BATCHES = "replayed_sums", "replayed_noise", "replayed_batches"
# Releases with one row per class, which are not symmetric even if they are square.
TABLES = (GRADIENTS, TARGETS, CLASS_SUMS)


def bend_words(name: str, place: int, words: ref.Words) -> None:
    """Changes some early words, so that one number in 40 lies in the tail beyond 8 deviations.

    A bent word selects the last pieces of the sampler's table, some at their left end. Half of the
    further words select the tail among these pieces.
    """
    places = np.arange(place, place + len(words))
    if name == "words":
        words[(places % 8 == 7) & (places < _BENT)] |= np.uint64(2**14 - 1)
        words[(places % 16 == 15) & (places < _BENT)] &= np.uint64(2**54 - 1)
    else:
        words[places % 2 == 1] |= np.uint64(2**32 - 1 << 32)
        words[places % 4 != 3] |= np.uint64(1)


class _BentKeystream(Keystream):
    _part, _taken = "", 0

    def make_part(self, name: str) -> Keystream:
        part = super().make_part(name)
        bent = _BentKeystream(part._key, part.name)
        bent._part = name
        return bent

    def fill_words(self, out: ref.Words) -> None:
        super().fill_words(out)
        bend_words(self._part, self._taken, out)
        self._taken += len(out)


class BentEntropy(SeededEntropy):
    """The random words of seeds, with bent words for noise."""

    def open_keystream(self, seed: int, use: str) -> Keystream:
        kind = _BentKeystream if use.startswith("noise of ") else Keystream
        return kind.from_seed(seed, use)


@dataclass(frozen=True, kw_only=True)
class MadeRows:
    """Synthetic rows: features float32 [rows, d], labels [rows] or [rows, K], rows per unit."""

    features: npt.NDArray[np.float32]
    labels: npt.NDArray[Any]
    sizes: Index
    n: int
    num_classes: int

    @classmethod
    def make_rows(cls, plan: Plan, dimension: int, classes: int, multi_label: bool) -> MadeRows:
        generator = open_stream(0, "audit replay")
        most = max(_FEWEST_ROWS, min(_MOST_ROWS, int(_BLOCKS / (8 * dimension + 8))))
        grouped = plan.unit in plan.GROUPS
        sizes = np.resize(_SIZES if grouped else 1, min(plan.n, most))
        sizes = sizes[: max(2, int(np.searchsorted(sizes.cumsum(), most)) + 1)]
        rows = int(sizes.sum())
        # Squares of these features have equal float64 sums in any order.
        features = generator.integers(-127, 128, (rows, dimension)).astype(np.float32)
        features *= np.exp2(generator.integers(-20, 0, rows)).astype(np.float32)[:, None]
        for place, value in zip(range(7, rows, 97), _UNUSABLE, strict=False):
            features[place] = value
        labels = generator.integers(0, classes, rows)
        labels[(labels == _EMPTY) & (classes > 2)] = 0
        if multi_label:
            labels = (generator.random((rows, classes)) < 0.3).astype(np.uint8)
        return cls(features=features, labels=labels, sizes=sizes, n=plan.n, num_classes=classes)

    def make_set(self) -> TrainingSet:
        units, rows = None, len(self.features)
        if rows != self.n or (self.sizes > 1).any():
            names = [f"{unit:07}" for unit in np.arange(len(self.sizes)).repeat(self.sizes)]
            units = Units.number_units(names)
            missing = np.full(self.n - len(self.sizes), rows)
            units = replace(units, starts=np.concatenate([units.starts, missing]))
        given = torch.from_numpy(self.features.copy()), torch.from_numpy(self.labels)
        quiet: dict[str, Any] = {"public": SYNTHETIC_ROWS, "warn": lambda _: None}
        return TrainingSet(*given, self.num_classes, units=units, **quiet)


class Expected:
    """Computes one seed's releases with the reference, from a method and synthetic rows.

    `batches` has the units of the next Poisson samples.
    """

    def __init__(self, method: MethodOptions, claim: Plan, made: MadeRows) -> None:
        self._method, self._claim, self._n, self._made = method, claim, made.n, made
        self._options: Any = method
        self._classes, self._sigmoid = made.num_classes, method.link == "sigmoid"
        alone = shares = ref.fair_weights(made.sizes).repeat(made.sizes)
        if isinstance(method, BalanceOptions) and method.class_weights:
            shares = shares * np.asarray(method.class_weights, np.float32)[made.labels]
        self._shares, self._all = shares.astype(np.float64), alone.astype(np.float64)
        self._kept: Any = None
        one_hot = made.labels.ndim == 1
        hot = np.eye(self._classes)[made.labels] if one_hot else made.labels
        self._hot = hot.astype(np.float64)
        self._starts = np.concatenate([[0], np.cumsum(made.sizes)])
        self._plain, self._parts = ref.plain_rows(made.features), 0
        self._weights = self._means = np.zeros((0, 0))
        self._of_class = np.zeros(0)
        self._pair = np.zeros((2, 0, 0))
        self.batches: deque[Index] = deque()
        self._set_rows(self._normalise_alone())

    def see_values(self, name: str, values: npt.NDArray[Any]) -> None:
        """Updates the state with values that the head computed from releases."""
        if name == "weights":
            self._weights = values.astype(np.float64)
        elif name == kinds.CENTRE:
            self._set_rows(ref.centred_rows(self._plain, values))
            self._centred = self._rows
        elif name == kinds.CHANNEL_MEANS:
            self._means = values
        elif name == OFFSET_HEAD:
            self._weights = values.astype(np.float64)
        elif name == STUDENT_HEADS:
            self._pair = values.astype(np.float64)
        elif name in (OFFSET_CLASSES, STUDENT_CLASSES):
            self._of_class = values.astype(np.float64)
        elif name == kinds.CHANNEL_DEVIATIONS:
            distances = (self._by_channel() - self._means[:, None]) / values[:, None]
            self._set_rows(self._plain.with_features(distances))
        else:
            self._set_rows(self._whiten_rows(values))

    def sum_release(self, name: str, units: Index | None) -> Sum:
        """Returns the correct sum of a release, over all units or a sample.

        Raises ConfigError for a mechanism without a reference.
        """
        if name == GRADIENTS and isinstance(self._method, GradientOptions):
            chosen = slice(None) if units is None else self._rows_of(units)
            return self._sum_steps(chosen) if self._method.is_exact else self._sum_floats(chosen)
        sums: dict[str, Callable[[], Sum]] = {
            GRADIENTS: self._sum_gradients,
            TARGETS: self._sum_targets,
            CLASS_SUMS: self._sum_targets,
            GRAM: self._sum_squares,
            COVARIANCE: self._sum_squares,
            HESSIANS: self._sum_squares,
            CLASS_COUNTS: self._sum_counts,
            CLASS_OFFSETS: self._sum_offsets,
            STUDENT_GAIN: self._sum_gains,
            kinds.CENTRE: self._sum_centre,
            kinds.SECOND_MOMENT: self._sum_centred_squares,
            kinds.CHANNEL_MEANS: lambda: self._sum_clipped(
                name, self._by_channel().mean(2, dtype=np.float64)
            ),
            kinds.CHANNEL_DEVIATIONS: lambda: self._sum_clipped(
                name, np.sqrt(np.square(self._by_channel() - self._means[:, None]).mean(2))
            ),
        }
        if name not in sums:
            raise ConfigError(f"audit: {name}: the replay has no reference for it; add one")
        return sums[name]()

    def _rows_of(self, units: Index) -> Index:
        present = units[units < len(self._made.sizes)]
        rows = [np.arange(*self._starts[unit : unit + 2]) for unit in present]
        return np.concatenate([np.zeros(0, dtype=np.int64), *rows])

    def _set_rows(self, rows: ref.Rows) -> None:
        self._rows, self._kept = rows, None

    def _normalise_alone(self) -> ref.Rows:
        """Normalises each row separately; layer and group norms by the audited code, row by row."""
        spec, rows = self._method.normalize, self._plain
        if isinstance(spec, kinds.LayerNorm | kinds.GroupNorm):
            alone = [Transform(spec)(torch.from_numpy(row[None])) for row in rows.features]
            return rows.with_features(torch.cat(alone).numpy())
        return ref.unit_rows(rows) if isinstance(spec, kinds.L2) else rows

    def _by_channel(self) -> npt.NDArray[np.float32]:
        channels = self._options.normalize.channels
        return self._plain.features.reshape(len(self._plain.features), channels, -1)

    def _whiten_rows(self, matrix: Numbers) -> ref.Rows:
        step = ref.power_of_two(1.0, ref.entry_bits(self._n))
        whole = ref.clip_rows(self._rows, self._n, 1.0, 0.0, 1.0).entries(step)[:, :-1]
        values = self._multiply(whole, matrix, np.full(len(self._all), step))
        return ref.unit_rows(self._plain.with_features(values))

    def _multiply(self, whole: Numbers, head: Numbers, unit: Numbers) -> Numbers:
        """Multiplies rows, in steps of `unit` [rows], by a head [K, m] rounded to its own grid."""
        longest = float(ref.norms_of(head).max())
        bits = ref.product_bits(1) - ref.entry_bits(self._n) - 1
        step = ref.power_of_two(longest, bits) if longest >= 1e-150 else 1.0
        return np.asarray(whole @ np.rint(head / step).T * (unit * step)[:, None])

    def _add_vectors(self, vectors: Numbers, longest: float, loose: float = 0.0) -> Sum:
        step = ref.power_of_two(longest, min(ref.product_bits(self._n), 26))
        whole = np.trunc(vectors / step)
        return Sum(whole.sum(0), step, len(whole) + loose * np.abs(whole).sum(0))

    def _sum_centre(self) -> Sum:
        scale = ref.invert(self._plain.lengths).astype(np.float64) * (1 - ref.SHORT) * self._all
        return self._add_vectors(self._plain.features * scale[:, None], 1.0)

    def _sum_clipped(self, name: str, vectors: Numbers) -> Sum:
        bound = self._claim.find_mechanism(name).sensitivity * (1 - ref.SHORT)
        factors = np.minimum(ref.divide(bound, ref.norms_of(vectors)), 1.0)
        factors *= self._all * self._plain.usable
        return self._add_vectors(vectors * factors[:, None], bound, ref.LOOSE)

    def _sum_counts(self) -> Sum:
        each = np.where(self._plain.usable, self._all, 0.0)[:, None] * self._hot
        return self._add_vectors(each, 1.0)

    def _score_rows(self, rows: ref.Rows, head: Numbers) -> Numbers:
        step = ref.power_of_two(1.0, ref.entry_bits(self._n))
        whole = ref.clip_rows(rows, self._n, 1.0, 0.0, 1.0).entries(step)[:, :-1]
        return self._multiply(whole, head[:, :-1], np.full(len(self._all), step)) + head[:, -1]

    def _sum_gains(self) -> Sum:
        """Sums, over rows, the second head's correct predictions minus the first head's."""
        right = [
            self._hot[np.arange(len(self._hot)), self._score_rows(self._centred, head).argmax(1)]
            for head in self._pair
        ]
        shares = self._all * self._plain.usable * (self._hot @ self._of_class)
        return self._add_vectors(((right[1] - right[0]) * shares)[:, None], 1.0)

    def _sum_offsets(self) -> Sum:
        scores = self._score_rows(self._rows, self._weights)
        factors = np.minimum(ref.divide(1.0, ref.norms_of(scores)), 1.0) * self._all
        factors *= self._plain.usable * (self._hot @ self._of_class)
        return self._add_vectors(scores * factors[:, None], 1.0, ref.LOOSE)

    def _clip_rows(self) -> tuple[Numbers, float, Numbers, Numbers]:
        """Returns clipped rows in steps, the step, rows of norm 1, and the clipped rows' norms."""
        if self._kept is None:
            options, step = self._options, ref.power_of_two(1.0, ref.entry_bits(self._n))
            longest = options.longest
            bounds = options.max_row_norm, options.intercept, longest
            clipped = ref.clip_rows(self._rows.multiplied(), self._n, *bounds)
            entry = ref.power_of_two(longest, ref.entry_bits(self._n))
            units = clipped.entries(step, unit=True)
            self._kept = clipped.entries(entry), entry, units, clipped.norms
        kept: tuple[Numbers, float, Numbers, Numbers] = self._kept
        return kept

    def _sum_squares(self) -> Sum:
        """Sums outer products of clipped rows, multiplied by curvatures for Hessians."""
        whole, step, _, _ = self._clip_rows()
        factors, scale = self._shares, 1.0
        if isinstance(self._method, NewtonOptions):
            factors, scale = self._curve_rows(whole, step)
        return ref.add_squares(whole, factors, step**2 / scale)

    def _sum_centred_squares(self) -> Sum:
        step = ref.power_of_two(1.0, ref.entry_bits(self._n))
        whole = ref.clip_rows(self._rows, self._n, 1.0, 0.0, 1.0).entries(step)[:, :-1]
        return ref.add_squares(whole, self._all, step**2)

    def _curve_rows(self, whole: Numbers, step: float) -> tuple[Numbers, float]:
        """Returns the rows' curvatures, and the divisor of their sums."""
        unit, classes = np.full(len(self._all), step), self._classes
        logits = self._multiply(whole[:, :-1], self._weights[:, :-1], unit)
        p = ref.subtract_labels(logits + self._weights[:, -1], 0.0, sigmoid=self._sigmoid)
        if self._options.loss == "sigmoid":
            curved = np.minimum(p * (1 - p) / self._options.loss_curvature(classes), 1.0)
        else:
            spread = 1 - np.square(p).sum(1, keepdims=True)
            curved = np.clip(spread * (classes / max(classes - 1, 1)), 0.0, 1.0)
        if self._options.hessian == "shared":
            return self._shares * curved.mean(1), 1.0
        self._parts += 1
        return self._shares * curved[:, (self._parts - 1) % classes], math.sqrt(classes)

    def _sum_targets(self) -> Sum:
        whole, entry, _, _ = self._clip_rows()
        longest, targets = math.sqrt(self._options.max_labels), self._hot
        if self._options.head == "least_squares" and self._made.labels.ndim == 1:
            targets = targets - 1 / self._classes
            targets *= (1 - ref.SHORT) / max(math.sqrt(1 - 1 / self._classes), 0.5)
        else:
            bounds = ref.divide(longest * (1 - ref.SHORT), ref.norms_of(targets))
            targets = targets * np.minimum(bounds, 1.0)[:, None]
        step = ref.power_of_two(longest, ref.factor_bits(self._n))
        factors = np.trunc(targets * self._shares[:, None] / step)
        return ref.add_products(factors, whole, entry * step)

    def _clip(self) -> float:
        return self._claim.find_mechanism(GRADIENTS).sensitivity

    def _sum_gradients(self) -> Sum:
        """Sums clipped gradients of second-moment heads as outer products v u^T with unit rows."""
        options, newton = self._options, isinstance(self._method, NewtonOptions)
        scale = options.gradient_scale(self._classes) if newton else 1.0
        clip, sigmoid = self._clip() * scale, options.loss == "sigmoid"
        longest = min(clip, math.sqrt(self._classes if sigmoid else 2) * options.longest)
        entry = ref.power_of_two(1.0, ref.entry_bits(self._n))
        step = ref.power_of_two(longest, ref.factor_bits(self._n))
        _, _, whole, norms = self._clip_rows()
        unit = norms * entry / (1 - ref.SHORT)
        logits = self._multiply(whole[:, :-1], self._weights[:, :-1], unit)
        residuals = ref.subtract_labels(logits + self._weights[:, -1], self._hot, sigmoid=sigmoid)
        bound = clip * (1 - ref.SHORT)
        factors = ref.clip_factors(residuals, norms, self._shares, bound, step)
        return ref.add_products(factors, whole, entry * step / scale)

    def _sum_steps(self, chosen: Any) -> Sum:
        """Sums clipped gradients of `engine: exact`, as outer products v u^T with unit rows u."""
        options, constant, short = self._options, self._options.constant, 1 - ref.SHORT_STEPS
        clip = self._clip() / constant * short
        entry = ref.power_of_two(short, ref.entry_bits(self._n))
        step = ref.power_of_two(clip, ref.factor_bits(self._n))
        if self._kept is None:
            rows = self._rows if options.has_unit_rows else self._rows.multiplied()
            scales = (each / np.float32(constant) for each in (rows.scale, rows.shift))
            values = np.hstack([rows.scaled(*scales), np.ones((len(rows.scale), 1))])
            lengths = ref.norms_of(values) * (rows.usable & (self._shares > 0))
            values *= ref.divide(short, lengths * entry, by_zero=0.0)[:, None]
            self._kept = np.trunc(values), lengths
        whole, norms = (each[chosen] for each in self._kept)
        head = self._weights * np.append(np.full(self._weights.shape[1] - 1, constant), 1.0)
        logits = self._multiply(whole, head, norms * entry / short)
        sigmoid = options.loss == "sigmoid"
        residuals = ref.subtract_labels(logits, self._hot[chosen], sigmoid=sigmoid)
        factors = ref.clip_factors(residuals, norms, self._shares[chosen], clip, step)
        return ref.add_products(factors, whole, entry * step * constant)

    def _sum_floats(self, chosen: Any) -> Sum:
        """Sums clipped gradients of `engine: closed_form`, up to float32 rounding."""
        options, rows = self._options, self._rows
        x = rows.scaled(rows.scale, rows.shift)[chosen]
        logits = x @ self._weights[:, :-1].T + self._weights[:, -1]
        x = np.hstack([x, np.full((len(x), 1), options.constant)]) * rows.usable[chosen][:, None]
        sigmoid = options.loss == "sigmoid"
        residuals = ref.subtract_labels(logits, self._hot[chosen], sigmoid=sigmoid)
        bounds = ref.divide(self._clip(), ref.norms_of(residuals) * ref.norms_of(x))
        residuals *= (np.minimum(1.0, bounds) * self._shares[chosen])[:, None]
        slack = _FLOATS * (np.abs(residuals).T @ np.abs(x)) + 1e-9 * self._clip()
        return Sum(residuals.T @ x, 1.0, slack)


class Checker(Observer):
    """Compares each release of a fit with the reference's release.

    Attributes:
      differing: the kinds of numbers that differ: SUMS, NOISE, BATCHES.
      summed, numbers: how many sums and noise numbers were compared.
    """

    def __init__(
        self, attack: Attack, stated: MethodOptions, made: MadeRows, seeds: Sequence[int]
    ) -> None:
        self._attack, self._claim, self._exact = attack, attack.claim, stated.is_exact
        self._expected = {seed: Expected(stated, attack.claim, made) for seed in seeds}
        self._earlier: dict[int, list[Release]] = {seed: [] for seed in seeds}
        self._streams: dict[tuple[int, str], ref.RoundedNormals] = {}
        self._rows, self._left = len(made.features), _PRODUCTS
        self._floats = {seed: ref.FloatNormals(seed) for seed in seeds}
        self.differing: set[str] = set()
        self._seen: Counter[str] = Counter()
        self.summed = self.numbers = 0

    def see_values(self, name: str, seeds: Sequence[int], values: torch.Tensor) -> None:
        for seed, each in zip(seeds, values.cpu().numpy(), strict=True):
            self._expected[seed].see_values(name, each.copy())

    def replace_sampler(self, seed: int, sampler: Sampler) -> Sampler:
        if self._attack.change_sampler is not None:
            sampler = self._attack.change_sampler(sampler)
        rate = min(item.sample_rate for item in self._claim.mechanisms)
        wanted = (ref.Batches if self._exact else ref.FloatBatches)(seed, self._claim.n, rate)
        return _CheckedSampler(self, sampler, self._expected[seed].batches, wanted)

    def observe_release(
        self,
        name: str,
        seed: int,
        sums: torch.Tensor,
        draw: Callable[[], torch.Tensor],
        step: float | None = None,
    ) -> torch.Tensor:
        sums, output = sums.clone(), draw()
        if self._attack.broken is not None:
            release, earlier = Release(name, sums, output, step), self._earlier[seed]
            output = self._attack.broken(release, earlier)
            if all(item.name != name for item in earlier):
                earlier.append(release._replace(output=output))
        exact, noisy = (values.detach().cpu().double().numpy() for values in (sums, output))
        self._seen[name] += 1
        self._check_sums(name, seed, exact, step or 1.0)
        if step is None:
            right = self._has_float_noise(name, seed, noisy, exact)
        else:
            right = self._has_noise(name, seed, noisy / step, exact / step, step)
        self.differing |= set() if right else {NOISE}
        return output

    def _check_sums(self, name: str, seed: int, sums: Numbers, step: float) -> None:
        expected = self._expected[seed]
        sampled = self._claim.find_mechanism(name).sample_rate < 1
        units = expected.batches.popleft() if sampled else None
        if self._left < 0:
            return
        self._left -= sums.size * (1 + (self._rows if units is None else len(units)))
        self.summed += 1
        if expected.sum_release(name, units).differs(sums, step):
            self.differing.add(SUMS)

    def _has_noise(self, name: str, seed: int, noisy: Numbers, sums: Numbers, step: float) -> bool:
        """Returns True if noisy sums in steps have exactly the noise of the seed's next words."""
        noise = np.rint(noisy - sums)
        if (np.abs(noisy - np.rint(noisy)) > 1e-3 + np.abs(noisy) * 2.0**-51).any():
            return False
        if (seed, name) not in self._streams:
            self._streams[seed, name] = ref.RoundedNormals(seed, f"noise of {name}", bend_words)
        stream = self._streams[seed, name]
        deviation = math.nextafter(self._claim.find_mechanism(name).noise_scale / step, math.inf)
        parts = [(noise.ravel(), deviation)]
        if noise.ndim == 2 and noise.shape[0] == noise.shape[1] and name not in TABLES:
            if not np.array_equal(noisy, noisy.T):
                return False
            upper = noise[np.triu_indices(len(noise), 1)]
            off_diagonal = math.nextafter(math.sqrt(0.5) * deviation, math.inf)
            parts = [(noise.diagonal(), deviation), (upper, off_diagonal)]
        equal = True
        for numbers, scale in parts:
            wanted, known = stream.draw_numbers(numbers.size, scale, _NUMBERS)
            self.numbers += int(known.sum())
            equal = equal and np.array_equal(numbers[known], wanted[known])
        return equal

    def _has_float_noise(self, name: str, seed: int, noisy: Numbers, sums: Numbers) -> bool:
        if self.numbers > _NUMBERS * len(self._floats):
            return True
        self.numbers += noisy.size
        deviation = self._claim.find_mechanism(name).noise_scale
        wanted = deviation * self._floats[seed].draw_numbers(noisy.size).reshape(noisy.shape)
        slack = _FLOATS * deviation + 2.0**-22 * np.abs(sums)
        return bool((np.abs(noisy - sums - wanted) <= slack).all())

    @property
    def released(self) -> int:
        return self._seen.total()

    def list_results(self) -> tuple[Outcome, ...]:
        """Returns the tests of sums, noise and batches; an unseen release fails the noise test."""
        for item in self._claim.mechanisms:
            planned, seen = item.count * len(self._expected), self._seen[item.name]
            if not seen or seen % planned:  # a release may have a part for each class
                self.differing.add(NOISE)
        tests = (SUMS, NOISE, BATCHES)
        return tuple(Outcome(test, float(test not in self.differing)) for test in tests)


@dataclass
class _CheckedSampler:
    """Draws batches, and compares the first batches with the reference's."""

    checker: Checker
    sampler: Sampler
    batches: deque[Index]
    wanted: ref.Batches | ref.FloatBatches

    def draw_block(self, steps: int) -> tuple[Index, Index]:
        units, sizes = self.sampler.draw_block(steps)
        for batch in np.split(units, np.cumsum(sizes)[:-1]):
            self.batches.append(batch)
            right = self.wanted.drawn >= _DRAWS or batch.tolist() == self.wanted.draw_batch()
            if not right:
                self.checker.differing.add(BATCHES)
        return units, sizes


def begin_apart(method: MethodOptions) -> MethodOptions:
    """Returns the method with large random initial weights, if rows have norm 1."""
    head = method.trained_head
    if not isinstance(head, GradientOptions) or not head.has_unit_rows:
        return method
    head = head.model_copy(update={"init": "scaled", "init_scale": _APART, "init_file": None})
    return head if head.head == method.head else method.model_copy(update={"chosen": head})


def replay_release(attack: Attack, stated: MethodOptions, made: MadeRows, seed: int) -> Replay:
    """Replays fits of an attack's method with two seeds; `stated` is the claimed method.

    A search publishes one trial's head. So for a search, the base method is replayed with its own
    options and the noise of a trial.
    """
    if isinstance(stated, TunedOptions) and isinstance(attack.method, TunedOptions):
        plan = _plan_base(attack.method.base, attack.plan)
        attack = replace(attack, method=attack.method.base, plan=plan, claim=plan)
        stated = stated.base
    attack = replace(attack, method=begin_apart(attack.method))
    stated = begin_apart(stated).trained_head
    seeds = [derived_seed(seed, f"audit replay {place}") for place in range(2)]
    checker = Checker(attack, stated, made, seeds)

    def fit(observer: Observer | None) -> Any:
        rows = made.make_set()
        rows = rows if attack.change_rows is None else attack.change_rows(rows)
        given = {"observer": observer, "entropy": BentEntropy()}
        return fit_heads(attack.method, rows, attack.plan, seeds, **given)  # type: ignore[arg-type]

    with silent_progress(), attack.patch():
        heads, change = fit(checker), 0.0
        if attack.has_right_releases:
            change = compare_heads(heads, fit(attack.hidden_recorder()))
    rows, dimension = made.features.shape
    compared = (
        f"{checker.summed:,} of {checker.released:,} sums of {rows:,} rows with {dimension:,} "
        f"features in {made.num_classes:,} classes, and {checker.numbers:,} numbers of noise"
    )
    return Replay(checker.list_results(), change, compared)


def _plan_base(base: MethodOptions, plan: Plan) -> Plan:
    wanted = base.list_mechanisms(plan.n)
    factor = plan.find_mechanism(wanted[-1].name).noise_multiplier / wanted[-1].noise_multiplier
    scaled = tuple(item.scale_noise(factor) for item in wanted)
    return replace(plan, mechanisms=scaled, selection=None)
