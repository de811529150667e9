"""Replays a release at its full width, and compares every number with `reference`.

The replayed fits have the cell's dimension, classes and n, and more rows than any block: units of
up to 50 rows, rows beyond and below every clipping norm, and rows that count as null rows. Two
seeds train together, once observed and once as in a release. The reference computes each sum from
the same rows and weights, and each noise number and Poisson batch from the same keystream, so a
difference is a fault and no accident. Weights between releases are what the head shows
(`Releases.show_values`): they follow from earlier releases, and a sum must be right for any.

Some words of the noise are bent, in the fit and in the reference alike, so that many numbers lie
beyond 8 deviations, where random words would give one in 10^15.

Heads of `engine: closed_form` draw float32 noise from another generator. Their sums are compared up
to float32 rounding, and their noise by its variances (chi-square).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dpprobe.analyses.audit import reference as ref
from dpprobe.analyses.audit.canary_attack import Attack, compare_heads
from dpprobe.analyses.audit.noise_tests import Outcome, test_squares
from dpprobe.analyses.audit.transcripts import Break, ChangeSampler, Recorder, Release
from dpprobe.heads import normalisation as kinds
from dpprobe.heads.balance import CLASS_COUNTS, BalanceOptions
from dpprobe.heads.feature_covariance import COVARIANCE
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.gradient_options import GRADIENTS, GradientOptions
from dpprobe.heads.least_squares import GRAM, TARGETS
from dpprobe.heads.newton import HESSIANS
from dpprobe.heads.newton import Options as NewtonOptions
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.prototypes import CLASS_SUMS
from dpprobe.heads.public_inputs import SYNTHETIC_ROWS
from dpprobe.heads.training_set import TrainingSet
from dpprobe.heads.tuned import Options as TunedOptions
from dpprobe.privacy.entropy import SeededEntropy
from dpprobe.privacy.keystream import Keystream
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.randomness import derived_seed, open_stream
from dpprobe.privacy.releases import Observer
from dpprobe.privacy.sampling import Sampler
from dpprobe.progress import silent_progress

Numbers = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]

# At least as many rows, and more than two blocks of float64 rows of 4 MiB.
_FEWEST_ROWS, _MOST_ROWS, _BLOCK = 1100, 20_000, 2**22
_LARGEST_UNIT = 50
# What the reference computes of each mechanism: numbers of noise from all words, products of sums,
# and rows whose sampling is drawn again.
_NUMBERS, _PRODUCTS, _SAMPLED = 2_000_000, 2 * 10**10, 2 * 10**7
_FLOATS = 1e-4
SUMS, NOISE, BATCHES = "replayed_sums", "replayed_noise", "replayed_batches"


def bend_words(name: str, place: int, words: ref.Words) -> None:
    """Changes some words, so that about one number in 500 lies in the tail beyond 8 deviations."""
    places = np.arange(place, place + len(words))
    if name == "words":
        words[places % 64 == 63] |= np.uint64(2**14 - 1)
    else:
        words[places % 8 == 7] |= np.uint64(2**32 - 1 << 32)


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
    """The random words of seeds; the words of noise are bent."""

    def open_keystream(self, seed: int, use: str) -> Keystream:
        kind = _BentKeystream if use.startswith("noise of ") else Keystream
        return kind.from_seed(seed, use)


@dataclass(frozen=True, kw_only=True)
class MadeRows:
    """Made-up rows: features float32 [rows, d], labels [rows] or [rows, K], rows per unit."""

    features: npt.NDArray[np.float32]
    labels: npt.NDArray[Any]
    sizes: Index
    n: int
    num_classes: int

    @classmethod
    def make_rows(cls, plan: Plan, dimension: int, classes: int, multi_label: bool) -> MadeRows:
        generator = open_stream(0, "audit replay")
        most = max(_FEWEST_ROWS, min(_MOST_ROWS, int(2.2 * _BLOCK / (8 * dimension + 8))))
        sizes = np.ones(min(plan.n, most), dtype=np.int64)
        if plan.unit in plan.GROUPS:
            several = np.resize([_LARGEST_UNIT, 1, 2, 3, 1, 5, 2, 1, 4, 2], len(sizes))
            sizes = several[: max(2, int(np.searchsorted(several.cumsum(), most)))]
        rows = int(sizes.sum())
        # Squares of these features sum to the same float64 in any order.
        features = generator.integers(-127, 128, (rows, dimension)).astype(np.float32)
        features *= np.exp2(generator.integers(-14, 0, rows)).astype(np.float32)[:, None]
        for place, value in zip(range(7, rows, 97), (np.nan, np.inf, 1e30, 1e-30, 0), strict=False):
            features[place] = value
        labels = generator.integers(0, classes, rows)
        if multi_label:
            labels = (generator.random((rows, classes)) < 0.3).astype(np.uint8)
        return cls(features=features, labels=labels, sizes=sizes, n=plan.n, num_classes=classes)

    def make_set(self) -> TrainingSet:
        units = None
        if len(self.sizes) < self.n or (self.sizes > 1).any():
            names = [f"{unit:07}" for unit in np.arange(len(self.sizes)).repeat(self.sizes)]
            units = Units.number_units(names)
            missing = np.full(self.n - len(self.sizes), len(self.features))
            units = replace(units, starts=np.concatenate([units.starts, missing]))
        return TrainingSet(
            torch.from_numpy(self.features.copy()), torch.from_numpy(self.labels),
            self.num_classes, units=units, public=SYNTHETIC_ROWS, warn=lambda _: None,
        )  # fmt: skip


class Expected:
    """What one seed of a method must release from made-up rows, by the reference."""

    def __init__(self, method: MethodOptions, claim: Plan, made: MadeRows) -> None:
        self._method, self._claim, self._made, self._n = method, claim, made, made.n
        self._plain = ref.plain_rows(made.features)
        self._shares = ref.fair_weights(made.sizes).repeat(made.sizes)
        self._in_class = self._shares
        if isinstance(method, BalanceOptions) and method.class_weights:
            self._in_class = self._shares * np.float32(method.class_weights)[made.labels]
        hot = made.labels
        if hot.ndim == 1:
            hot = np.arange(made.num_classes) == made.labels[:, None]
        self._hot = hot.astype(np.float64)
        self._starts = np.concatenate([[0], np.cumsum(made.sizes)])
        self._weights = np.zeros((0, 0))
        self._kept: dict[Any, Any] = {}
        self._calls = 0
        self._rows = self._normalise_rows()

    def see_values(self, name: str, values: npt.NDArray[Any]) -> None:
        if name == "weights":
            self._weights = values.astype(np.float64)
            return
        self._kept.clear()
        if name == kinds.CENTRE:
            self._rows = ref.centred_rows(self._plain, values)
        elif name == kinds.CHANNEL_MEANS:
            self._means = values
        elif name == kinds.CHANNEL_DEVIATIONS:
            distances = self._by_channel() - self._means[:, None]
            rows = (distances / values[:, None]).reshape(self._plain.features.shape)
            self._rows = ref.other_rows(self._plain, rows)
        else:
            self._rows = self._whiten_rows(values)

    def sum_release(self, name: str, units: Index | None) -> ref.Sum | None:
        """Returns what a release must sum, over all units or some; None to skip the release."""
        chosen = None if units is None else self._rows_of(units)
        parts = {
            kinds.CENTRE: self._sum_centre, kinds.CHANNEL_MEANS: self._sum_means,
            kinds.CHANNEL_DEVIATIONS: self._sum_deviations, CLASS_COUNTS: self._sum_counts,
            kinds.SECOND_MOMENT: self._sum_centred_squares, GRAM: self._sum_squares,
            COVARIANCE: self._sum_squares, HESSIANS: self._sum_squares, TARGETS: self._sum_targets,
            CLASS_SUMS: self._sum_targets,
        }  # fmt: skip
        if name != GRADIENTS:
            return parts[name]()
        if not isinstance(self._method, GradientOptions):
            return self._sum_gradients()
        sum_steps = self._sum_steps if self._method.is_exact else self._sum_floats
        return sum_steps(slice(None) if chosen is None else chosen)

    def _rows_of(self, units: Index) -> Index:
        rows = [
            np.arange(*self._starts[unit : unit + 2])
            for unit in units
            if unit < len(self._made.sizes)
        ]
        return np.concatenate([np.zeros(0, dtype=np.int64), *rows])

    def _keep(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def _normalise_rows(self) -> ref.Rows:
        spec, rows = self._method.normalize, self._plain
        groups = getattr(spec, "groups", 1)
        if isinstance(spec, kinds.L2):
            return ref.unit_rows(rows)
        if isinstance(spec, kinds.LayerNorm | kinds.GroupNorm):
            parts = rows.features.astype(np.float64).reshape(len(rows.features), groups, -1)
            parts = parts - parts.mean(2, keepdims=True)
            parts /= np.sqrt(np.square(parts).mean(2, keepdims=True) + 1e-5)
            return ref.other_rows(rows, parts.reshape(rows.features.shape), loose=ref.LOOSE)
        return rows

    def _by_channel(self) -> npt.NDArray[np.float32]:
        features, spec = self._plain.features, self._method.normalize
        assert isinstance(spec, kinds.Channels)
        return features.reshape(len(features), spec.channels, -1)

    def _whiten_rows(self, matrix: Numbers) -> ref.Rows:
        step = ref.power_of_two(1.0, ref.entry_bits(self._n))
        entries, doubt = ref.clip_rows(self._rows, self._n, 1.0, 0.0, 1.0).entries(step)
        unit = self._head_step(float(ref.norms_of(matrix).max()))
        whole = np.rint(matrix / unit)
        rows = ref.other_rows(self._plain, entries[:, :-1] @ whole.T * (unit * step))
        away = (doubt[:, :-1] @ np.abs(whole).T).max(1) * unit / np.maximum(rows.lengths, 1e-20)
        return ref.unit_rows(rows._replace(doubt=rows.doubt + away))

    def _head_step(self, longest: float) -> float:
        bits = ref.product_bits(1) - ref.entry_bits(self._n) - 1
        return ref.power_of_two(longest, bits) if longest >= 1e-150 else 1.0

    def _add_vectors(self, vectors: Numbers, longest: float, *, loose: float = 0.0) -> ref.Sum:
        step = ref.power_of_two(longest, min(ref.product_bits(self._n), 26))
        numbers, doubt = ref.round_down(vectors / step, loose=loose)
        return ref.Sum(numbers.sum(0), step, doubt.sum(0))

    def _sum_centre(self) -> ref.Sum:
        factors, _ = ref.invert(np.where(self._plain.usable, self._plain.lengths, np.inf))
        scale = factors.astype(np.float64) * (1 - ref.SHORT) * self._shares
        return self._add_vectors(self._plain.features * scale[:, None], 1.0)

    def _sum_means(self) -> ref.Sum:
        return self._sum_clipped(kinds.CHANNEL_MEANS, self._by_channel().mean(2, dtype=np.float64))

    def _sum_deviations(self) -> ref.Sum:
        squares = np.square(self._by_channel() - self._means[:, None]).astype(np.float64)
        return self._sum_clipped(kinds.CHANNEL_DEVIATIONS, np.sqrt(squares.mean(2)))

    def _sum_clipped(self, name: str, vectors: Numbers) -> ref.Sum:
        bound = self._claim.find_mechanism(name).sensitivity * (1 - ref.SHORT)
        with np.errstate(divide="ignore"):
            factors = np.minimum(bound / ref.norms_of(vectors), 1.0) * self._shares
        vectors = vectors * np.where(self._plain.usable, factors, 0.0)[:, None]
        return self._add_vectors(vectors, bound, loose=ref.LOOSE)

    def _sum_counts(self) -> ref.Sum:
        step = ref.power_of_two(1.0, min(ref.product_bits(self._n), 26))
        each = np.trunc(np.where(self._plain.usable, self._shares.astype(np.float64), 0.0) / step)
        return ref.Sum(each @ self._hot, step)

    def _clip_rows(self) -> tuple[ref.Clipped, float]:
        """Returns rows in the norm of the head's options, and the grid step of their entries."""
        options: Any = self._method
        rows = self._rows.multiplied()
        clipped = ref.clip_rows(
            rows, self._n, options.max_row_norm, options.intercept, options.longest
        )
        return clipped, ref.power_of_two(options.longest, ref.entry_bits(self._n))

    def _entries(self) -> tuple[ref.Whole, float]:
        def make() -> tuple[ref.Whole, float]:
            clipped, step = self._clip_rows()
            return clipped.entries(step), step

        made: tuple[ref.Whole, float] = self._keep("entries", make)
        return made

    def _sum_squares(self) -> ref.Sum:
        """Sums outer products of clipped rows; for Hessians times their curvatures."""
        whole, step = self._entries()
        factors, scale = self._in_class.astype(np.float64), 1.0
        if isinstance(self._method, NewtonOptions):
            factors, scale = self._curve_rows(whole, step)
        return self._square(whole, factors, step**2 / scale)

    def _sum_centred_squares(self) -> ref.Sum:
        step = ref.power_of_two(1.0, ref.entry_bits(self._n))
        whole = ref.clip_rows(self._rows, self._n, 1.0, 0.0, 1.0).entries(step)
        total = self._square(whole, self._shares.astype(np.float64), step**2)
        slack = total.slack if isinstance(total.slack, float) else total.slack[:-1, :-1]
        return ref.Sum(total.steps[:-1, :-1], total.step, slack)

    def _square(self, whole: ref.Whole, factors: Numbers, step: float) -> ref.Sum:
        if not (factors == 1).all():
            roots = np.sqrt(factors)[:, None]
            doubt = np.where(roots == 1, whole.doubt, whole.doubt + 1e-7)
            whole = ref.round_down(whole.numbers * roots, doubt)
        return ref.add_products(whole, whole, step)

    def _curve_rows(self, whole: ref.Whole, step: float) -> tuple[Numbers, float]:
        options: Any = self._method
        logits, _ = self._logits(whole.numbers[:, :-1], whole.doubt[:, :-1], step)
        p, classes = (
            ref.residuals_of(logits, 0 * logits, sigmoid=options.multi_label),
            self._made.num_classes,
        )
        if options.multi_label:
            curvatures = np.minimum(p * (1 - p) / options.loss_curvature(classes), 1.0)
        else:
            curvatures = (1 - np.square(p).sum(1, keepdims=True)) * (classes / max(classes - 1, 1))
            curvatures = np.clip(curvatures, 0.0, 1.0)
        shares = self._in_class.astype(np.float64)
        if options.hessian == "shared":
            return shares * curvatures.mean(1) * (1 - 1e-15), 1.0
        self._calls += 1
        each = curvatures[:, (self._calls - 1) % classes]
        return shares * each * (1 - 1e-15), math.sqrt(classes)

    def _logits(self, entries: Numbers, doubt: Numbers, unit: Any) -> tuple[Numbers, Numbers]:
        """Returns logits of rows in steps of `unit`, and how far another program's may be away."""
        weights = self._weights[:, :-1]
        step = self._head_step(float(ref.norms_of(weights).max()))
        whole = np.rint(weights / step)
        away = (doubt @ np.abs(whole).T).max(1) * np.ravel(unit) * step
        return entries @ whole.T * (unit * step) + self._weights[:, -1], away

    def _sum_targets(self) -> ref.Sum:
        options: Any = self._method
        (whole, entry), classes = self._entries(), self._made.num_classes
        longest = math.sqrt(options.max_labels)
        if options.head == "least_squares" and self._made.labels.ndim == 1:
            targets = self._hot - 1 / classes
            targets *= (1 - ref.SHORT) / max(math.sqrt(1 - 1 / classes), 0.5)
        else:
            with np.errstate(divide="ignore"):
                bound = longest * (1 - ref.SHORT) / ref.norms_of(self._hot)[:, None]
            targets = self._hot * np.minimum(bound, 1.0)
        step = ref.power_of_two(longest, ref.factor_bits(self._n))
        factors = targets * self._in_class[:, None].astype(np.float64) / step
        # without a bound to clip to, ones are whole numbers of steps
        whole_factors = ref.round_down(factors, np.where(factors == np.rint(factors), 0.0, 1e-7))
        return ref.add_products(whole_factors, whole, entry * step)

    def _sum_gradients(self) -> ref.Sum:
        """Sums clipped gradients of heads of second moments, as v u^T of unit rows u."""
        options: Any = self._method
        classes, sigmoid = self._made.num_classes, options.loss == "sigmoid"
        scale = options.gradient_scale(classes) if isinstance(options, NewtonOptions) else 1.0
        clip = self._claim.find_mechanism(GRADIENTS).sensitivity * scale
        longest = min(clip, math.sqrt(classes if sigmoid else 2) * options.longest)
        entry = ref.power_of_two(1.0, ref.entry_bits(self._n))
        step = ref.power_of_two(longest, ref.factor_bits(self._n))

        def make() -> tuple[ref.Whole, Numbers]:
            clipped, _ = self._clip_rows()
            return clipped.entries(entry, unit=True), clipped.norms

        whole, norms = self._keep("units", make)
        unit = (norms * entry / (1 - ref.SHORT))[:, None]
        logits, away = self._logits(whole.numbers[:, :-1], whole.doubt[:, :-1], unit)
        factors = ref.clip_factors(
            logits, away, self._hot, norms, self._in_class.astype(np.float64),
            clip * (1 - ref.SHORT), step, sigmoid=sigmoid,
        )  # fmt: skip
        return ref.add_products(factors, whole, entry * step / scale)

    def _sum_steps(self, chosen: Any) -> ref.Sum:
        """Sums clipped gradients of `engine: exact`, as v u^T of unit rows u."""
        options: Any = self._method
        constant, short = options.constant, 1 - ref.SHORT_STEPS
        clip = self._claim.find_mechanism(GRADIENTS).sensitivity / constant * short
        entry = ref.power_of_two(short, ref.entry_bits(self._n))
        step = ref.power_of_two(clip, ref.factor_bits(self._n))

        def make() -> tuple[ref.Whole, Numbers]:
            rows = self._rows
            if not isinstance(
                options.normalize, kinds.L2 | kinds.AroundCentre | kinds.NoNormalisation
            ):
                rows = rows.multiplied()
            scale, shift = (
                (each / np.float32(constant)).astype(np.float64)
                for each in (rows.scale, rows.shift)
            )
            norms = np.sqrt(np.square(rows.scaled(scale, shift)).sum(1) + 1)
            factors = np.where(rows.usable & (self._in_class > 0), short / (norms * entry), 0.0)
            values = np.hstack([rows.scaled(scale, shift), np.ones((len(norms), 1))])
            whole = ref.round_down(values * factors[:, None], rows.doubt[:, None], rows.loose)
            return whole, np.where(factors > 0, norms, 0.0)

        whole, norms = self._keep("steps", make)
        (numbers, doubt), norms = whole.take_rows(chosen), norms[chosen]
        head = self._weights.copy()
        head[:, :-1] *= constant
        unit = self._head_step(float(ref.norms_of(head).max()))
        rounded = np.rint(head / unit)
        scale = norms * unit * entry / short
        logits = numbers @ rounded.T * scale[:, None]
        away = (doubt @ np.abs(rounded).T).max(1) * scale
        factors = ref.clip_factors(
            logits, away, self._hot[chosen], norms, self._in_class[chosen].astype(np.float64),
            clip, step, sigmoid=options.loss == "sigmoid",
        )  # fmt: skip
        return ref.add_products(factors, ref.Whole(numbers, doubt), entry * step * constant)

    def _sum_floats(self, chosen: Any) -> ref.Sum:
        """Sums clipped gradients of `engine: closed_form`, up to float32 rounding."""
        options: Any = self._method
        rows, constant = self._rows, options.constant
        x = rows.scaled(rows.scale.astype(np.float64), rows.shift.astype(np.float64))[chosen]
        logits = x @ self._weights[:, :-1].T + self._weights[:, -1]
        usable = rows.usable[chosen].astype(np.float64)
        x = np.hstack([x, np.full((len(x), 1), constant)]) * usable[:, None]
        clip = self._claim.find_mechanism(GRADIENTS).sensitivity
        residuals = ref.residuals_of(logits, self._hot[chosen], sigmoid=options.loss == "sigmoid")
        with np.errstate(divide="ignore"):
            factors = np.minimum(1.0, clip / (ref.norms_of(residuals) * ref.norms_of(x)))
        residuals *= (factors * self._in_class[chosen])[:, None]
        slack = _FLOATS * (np.abs(residuals).T @ np.abs(x)) + 1e-9 * clip
        return ref.Sum(residuals.T @ x, 1.0, slack)


@dataclass
class _Seed:
    """What a checker knows of one seed of a fit."""

    expected: Expected
    streams: dict[str, ref.RoundedNormals] = field(default_factory=dict)
    drawn: dict[str, int] = field(default_factory=dict)
    batches: deque[Index] = field(default_factory=deque)
    earlier: list[Release] = field(default_factory=list)


class Checker(Observer):
    """Compares each release of a fit with what the reference expects.

    Attributes:
      differing: the kinds of numbers that differ: SUMS, NOISE, BATCHES.
      summed, numbers: how many sums and noise numbers were compared.
      squares: by mechanism of float32 noise, the squares over the planned variance, by release.
    """

    def __init__(
        self, method: MethodOptions, claim: Plan, made: MadeRows, seeds: Sequence[int],
        broken: Break | None, change_sampler: ChangeSampler | None,
    ) -> None:  # fmt: skip
        self._seeds = {seed: _Seed(Expected(method, claim, made)) for seed in seeds}
        self._claim, self._exact, self._n = claim, method.is_exact, claim.n
        self._broken, self._change_sampler = broken, change_sampler
        self._left = _PRODUCTS
        self.differing: set[str] = set()
        self.summed = self.numbers = 0
        self.squares: dict[str, Numbers] = {}
        self.releases = 0

    def see_values(self, name: str, seeds: Sequence[int], values: torch.Tensor) -> None:
        for seed, each in zip(seeds, values.cpu().numpy(), strict=True):
            self._seeds[seed].expected.see_values(name, each.copy())

    def replace_sampler(self, seed: int, sampler: Sampler) -> Sampler:
        if self._change_sampler is not None:
            sampler = self._change_sampler(sampler)
        rate = min(item.sample_rate for item in self._claim.mechanisms)
        wanted = ref.Batches(seed, self._n, rate) if self._exact else None
        return _CheckedSampler(
            self, sampler, self._seeds[seed].batches, wanted, _SAMPLED // self._n
        )

    def observe_release(
        self,
        name: str,
        seed: int,
        sums: torch.Tensor,
        draw: Callable[[], torch.Tensor],
        step: float | None = None,
    ) -> torch.Tensor:
        state, sums, output = self._seeds[seed], sums.clone(), draw()
        if self._broken is not None:
            release = Release(name, sums, output, step)
            output = self._broken(release, state.earlier)
            if not any(item.name == name for item in state.earlier):
                state.earlier.append(release._replace(output=output))
        exact, noisy = (values.detach().cpu().double().numpy() for values in (sums, output))
        self.releases += 1
        self._check_sums(name, state, exact, step)
        if step is None:
            self._add_squares(name, noisy - exact)
        else:
            self._check_noise(
                name, seed, state, np.rint((noisy - exact) / step), exact, noisy, step
            )
        return output

    def _check_sums(self, name: str, state: _Seed, sums: Numbers, step: float | None) -> None:
        sampled = self._claim.find_mechanism(name).sample_rate < 1
        units = state.batches.popleft() if sampled else None
        if self._left < 0:
            return
        wanted = state.expected.sum_release(name, units)
        rows = state.expected._made.features.shape[0] if units is None else len(units)
        self._left -= sums.size * (rows + 1) * (2 if sums.ndim == 2 else 1)
        if wanted is not None:
            self.summed += 1
            if wanted.differs(sums, 1.0 if step is None else step):
                self.differing.add(SUMS)

    def _check_noise(
        self, name: str, seed: int, state: _Seed, noise: Numbers, sums: Numbers, noisy: Numbers,
        step: float,
    ) -> None:  # fmt: skip
        stream = state.streams.get(name)
        if stream is None:
            stream = state.streams[name] = ref.RoundedNormals(seed, f"noise of {name}", bend_words)
        deviation = math.nextafter(self._claim.find_mechanism(name).noise_scale / step, math.inf)
        parts = [(noise.ravel(), deviation)]
        if noise.ndim == 2 and noise.shape[0] == noise.shape[1] and name not in _TABLES:
            off = math.nextafter(deviation * math.sqrt(0.5), math.inf)
            upper = np.triu_indices(len(noise), 1)
            parts = [(noise.diagonal(), deviation), (noise[upper], off)]
            if not np.array_equal(noisy, noisy.T):
                self.differing.add(NOISE)
        for numbers, scale in parts:
            state.drawn[name] = state.drawn.get(name, 0) + numbers.size
            # once some words are skipped, later numbers of several words are unknown
            everything = state.drawn[name] <= _NUMBERS
            wanted, known = stream.draw_numbers(numbers.size, scale, all_words=everything)
            self.numbers += int(known.sum())
            if not np.array_equal(numbers[known], wanted[known]):
                self.differing.add(NOISE)
        steps = noisy / step
        if (np.abs(steps - np.rint(steps)) > 1e-3 + np.abs(steps) * 2.0**-51).any():
            self.differing.add(NOISE)

    def _add_squares(self, name: str, noise: Numbers) -> None:
        squares = np.square(noise / self._claim.find_mechanism(name).noise_scale)
        self.numbers += squares.size
        kept = self.squares.setdefault(name, np.zeros((1, *squares.shape)))
        kept += squares

    def list_results(self) -> list[Outcome]:
        """Returns the tests of sums, noise and batches; only float32 noise has p-values between."""
        outcomes = [
            Outcome(kind, float(kind not in self.differing)) for kind in (SUMS, NOISE, BATCHES)
        ]
        if not self.squares:
            return outcomes
        levels = []
        for name, (squares,) in self.squares.items():
            count = self._claim.find_mechanism(name).count * len(self._seeds)
            rows, columns = squares.shape
            levels += [
                test_squares(squares, count), test_squares(squares.sum(1), count * columns),
                test_squares(squares.sum(0), count * rows),
            ]  # fmt: skip
        outcomes[1] = Outcome(NOISE, min(1.0, len(levels) * min(levels)))
        return outcomes


# Releases of one row per class, which are no symmetric matrices even if they are square.
_TABLES = (GRADIENTS, TARGETS, CLASS_SUMS)


class _CheckedSampler:
    """Draws batches, and compares the first ones with the reference's."""

    def __init__(
        self, checker: Checker, sampler: Sampler, batches: deque[Index],
        wanted: ref.Batches | None, left: int,
    ) -> None:  # fmt: skip
        self._checker, self._sampler, self._batches = checker, sampler, batches
        self._wanted, self._left = wanted, left

    def draw_block(self, steps: int) -> tuple[Index, Index]:
        units, sizes = self._sampler.draw_block(steps)
        for batch in np.split(units, np.cumsum(sizes)[:-1]):
            self._batches.append(batch)
            if self._wanted is not None and self._left > 0:
                self._left -= 1
                if batch.tolist() != self._wanted.draw_batch():
                    self._checker.differing.add(BATCHES)
        return units, sizes


@dataclass(frozen=True)
class Replay:
    """The tests of replayed fits, how heads differ without an observer, and what was compared."""

    outcomes: tuple[Outcome, ...]
    head_change: float
    compared: str


def replay_release(attack: Attack, stated: MethodOptions, made: MadeRows, seed: int) -> Replay:
    """Replays fits of an attack's method by two seeds; `stated` is the method that is claimed.

    A search publishes one trial's head. Its base is replayed with its own options, with a trial's
    noise.
    """
    method, plan, claim = attack.method, attack.plan, attack.claim
    if isinstance(stated, TunedOptions) and isinstance(method, TunedOptions):
        stated, method = stated.base, method.base
        plan = claim = _plan_base(method, plan)
    seeds = [derived_seed(seed, f"audit replay {place}") for place in range(2)]
    checker = Checker(stated, claim, made, seeds, attack.broken, attack.change_sampler)

    def fit(observer: Observer | None) -> Any:
        rows = made.make_set()
        rows = rows if attack.change_rows is None else attack.change_rows(rows)
        entropy = BentEntropy()
        return fit_heads(method, rows, plan, seeds, observer=observer, entropy=entropy)

    with silent_progress(), attack.patch():
        heads, change = fit(checker), 0.0
        if attack.broken is None and attack.change_sampler is None:
            hidden = attack.broken_unobserved and Recorder(attack.broken_unobserved)
            change = compare_heads(heads, fit(hidden))
    rows, dimension = made.features.shape
    compared = (
        f"{checker.summed:,} of {checker.releases:,} sums of {rows:,} rows with {dimension:,} "
        f"features in {made.num_classes:,} classes, and {checker.numbers:,} numbers of noise"
    )
    return Replay(tuple(checker.list_results()), change, compared)


def _plan_base(base: MethodOptions, plan: Plan) -> Plan:
    wanted = base.list_mechanisms(plan.n)
    factor = plan.find_mechanism(wanted[-1].name).noise_multiplier / wanted[-1].noise_multiplier
    scaled = tuple(item.scale_noise(factor) for item in wanted)
    return replace(plan, mechanisms=scaled, selection=None)
