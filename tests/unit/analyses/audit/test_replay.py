"""A replay finds that correct releases equal the reference, and detects faults anywhere in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors.numpy import save_file
from scipy.special import expit, softmax
from scipy.stats import kstest

from dpprobe.analyses.audit import reference
from dpprobe.analyses.audit.canary_attack import Attack, Replay
from dpprobe.analyses.audit.controls import lengthen_late_rows
from dpprobe.analyses.audit.replay import (
    BATCHES,
    NOISE,
    SUMS,
    BentEntropy,
    MadeRows,
    bend_words,
    replay_release,
)
from dpprobe.heads import accuracy_difference, student, whitening
from dpprobe.heads.exact_sums import ExactSums
from dpprobe.heads.facts import DataFacts
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.rows import Rows
from dpprobe.heads.second_order import Design
from dpprobe.privacy import releases
from dpprobe.privacy.float32_noise import GaussianNoise
from dpprobe.privacy.grid import GridSum
from dpprobe.privacy.keystream import Keystream
from dpprobe.privacy.releases import Releases
from dpprobe.privacy.rounded_gaussian import RoundedGaussian
from dpprobe.privacy.sampling import ExactPoissonSampler, PoissonSampler
from tests.support.audits import METHODS, head, plan_of

# Units of one image, and patients with 7 images on average.
N, WIDE, CLASSES = {"image": 1100, "patient": 160}, 44, 12
_EXACT = {"engine": "exact", "steps": 3}
_CHANNELS = {"kind": "channels", "channels": 4, "max_mean_norm": 1.0, "max_deviation_norm": 0.5}
_THIRDS = [1.0, 0.5, 0.25] + [0.3] * (CLASSES - 3)
FACTS = DataFacts(N["image"], WIDE, CLASSES, False, epsilon=3.0, delta=1e-5, unit="image")
MORE: dict[str, MethodOptions] = {
    "exact_momentum": head("momentum", **_EXACT),
    "exact_adam_sampled": head("adam", engine="exact", batch_size=60, steps=4),
    "exact_lamb_whitened": head("lamb", **_EXACT, normalize="whitened"),
    "exact_sgd_rows": head("sgd", **_EXACT, learning_rate=1.0, max_grad_norm=0.3),
    "exact_sgd_layer": head("sgd", **_EXACT, learning_rate=1.0, normalize="layer_norm"),
    "exact_sgd_channels": head("sgd", **_EXACT, learning_rate=1.0, normalize=_CHANNELS),
    "exact_weighted": head("momentum", **_EXACT, class_weights=_THIRDS),
    "exact_balanced": head("momentum", **_EXACT, class_priors="released"),
    "exact_offsets": head("momentum", **_EXACT, class_priors="released", offset_share=0.1),
    "newton_offsets": head("newton", class_priors="released", offset_share=0.1),
    "opacus_sampled": head("momentum", engine="opacus", batch_size=60, steps=3),
    "sampled_often": head("sgd", batch_size=600, steps=3, learning_rate=0.1),
    "least_squares_rows": head("least_squares", normalize="none"),
    "covariance_whitened": head("feature_covariance", normalize="whitened"),
    "covariance_weighted": head("feature_covariance", class_weights=_THIRDS),
    "newton_unclipped": head("newton", max_grad_norm=None),
    "newton_sigmoid": head("newton", loss="sigmoid", max_grad_norm=None),
    "auto": head("auto").resolve_choice(FACTS),
    "auto_balanced": head("auto", balanced=True).resolve_choice(FACTS),
    "auto_several": head("auto").resolve_choice(replace(FACTS, multi_label=True)),
    "auto_large": head("auto").resolve_choice(replace(FACTS, n=20_000, epsilon=8.0)),
    "tuned": head("tuned", base={"head": "prototypes"}, search={"max_row_norm": [1.0, 2.0]}),
    "tuned_as_auto": head(
        "tuned", base={"head": "momentum", **_EXACT}, search={"max_grad_norm": [0.5, 0.7]}
    ),
    "tuned_several": head(
        "tuned", base={"head": "newton", "loss": "sigmoid"}, search={"max_row_norm": [1.0, 2.0]}
    ),
    **{
        f"{name}_{engine}_defaults": head(name, engine=engine, steps=3, normalize=normalize)
        for normalize, engine in (("l2", "exact"), ("centred", "closed_form"))
        for name in ("sgd", "momentum", "adam", "lamb")
    },
}
# Methods whose rows have several labels here.
SEVERAL = (
    "least_squares_rows",
    "newton_per_class",
    "newton_sigmoid",
    "auto_several",
    "tuned_several",
)
ALL = METHODS | MORE
Patch = Callable[[pytest.MonkeyPatch], None]


def replayed(name: str, unit: str = "image", **changes: Any) -> tuple[Replay, dict[str, float]]:
    method, n = ALL[name], N[unit]
    plan = replace(plan_of(method, n, noise=3.0), unit=unit)
    if method.head == "tuned":
        plan = replace(plan, selection=method.priced_selection(n))
    attack = Attack(method=method, plan=plan, claim=plan, worlds=(), **changes)
    made = MadeRows.make_rows(plan, WIDE, CLASSES, name in SEVERAL)
    replay = replay_release(attack, method, made, 3)
    return replay, {item.name: item.p_value for item in replay.outcomes}


@pytest.mark.parametrize("unit", N)
@pytest.mark.parametrize("name", ALL)
def test_a_right_release_is_what_the_reference_computes(name: str, unit: str) -> None:
    if ALL[name] == ALL["sampled_often"] and unit == "patient":
        pytest.skip("its batches have more units than there are patients")
    if unit == "patient" and (fault := ALL[name].units_fault):
        pytest.skip(fault)
    replay, values = replayed(name, unit)
    assert values == {SUMS: 1, NOISE: 1, BATCHES: 1}
    assert replay.head_change <= (0 if ALL[name].is_exact else 1e-4)
    compared, released = replay.compared.split(" sums")[0].split(" of ")
    assert compared == released != "0"


def test_rows_that_public_rows_whiten_are_replayed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whitening, "MOST_DIRECTIONS", 0.5)
    generator = np.random.default_rng(0)
    few = generator.normal(size=(200, 3)) @ generator.normal(size=(3, WIDE))
    np.save(path := tmp_path / "public.npy", few)
    spec = {"kind": "whitened", "public": str(path), "moment": "public"}
    monkeypatch.setitem(ALL, "public", head("momentum", **_EXACT, normalize=spec))
    replay, values = replayed("public")
    assert values[SUMS] == 1
    assert replay.head_change == 0
    assert replayed("public", patch=lengthen_late_rows)[1][SUMS] == 0


def test_steps_along_a_public_head_are_replayed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = np.random.default_rng(0).normal(size=(CLASSES, WIDE)).astype(np.float32)
    save_file({"weights": weights}, path := tmp_path / "head.safetensors")
    method = head("auto", public_head=str(path)).resolve_choice(FACTS)
    monkeypatch.setitem(ALL, "public_head", method)
    replay, values = replayed("public_head")
    assert values == {SUMS: 1, NOISE: 1, BATCHES: 1}
    assert replay.head_change <= 1e-4
    assert replayed("public_head", patch=lengthen_late_rows)[1][SUMS] == 0


@pytest.mark.parametrize("kind", ["centred", "whitened"])
def test_gains_of_students_are_replayed_too(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(path := tmp_path / "public.npy", np.random.default_rng(0).normal(size=(200, WIDE)))
    spec = {"kind": kind, "public": str(path)}
    balance = {"class_priors": "released", "student_share": 0.1}
    options = {**_EXACT, **(balance if kind == "centred" else {"student_share": 0.1})}
    monkeypatch.setitem(ALL, "student", head("momentum", **options, normalize=spec))
    for unit in N:
        assert replayed("student", unit)[1] == {SUMS: 1, NOISE: 1, BATCHES: 1}
    counted = accuracy_difference.sum_differences

    def count_whole_rows(first: Any, second: Any, weights: Any, n: int) -> GridSum:
        return counted(first, second, np.ones_like(weights), n)

    monkeypatch.setattr(student, "sum_differences", count_whole_rows)
    assert replayed("student", "patient")[1][SUMS] == 0


@pytest.mark.parametrize("name", [name for name in ALL if "opacus" not in name])
def test_the_replay_detects_unclipped_rows_after_the_128th(name: str) -> None:
    """At any normalisation and clipping norm, some of these rows exceed the bound.

    The fault is in dpprobe's clipping, which `engine: opacus` does not use.
    """
    _, values = replayed(name, patch=lengthen_late_rows)
    assert values[SUMS] == 0


@given(
    logits=arrays(
        np.float64, st.tuples(st.just(1), st.integers(2, 6)), elements=st.floats(-40, 40)
    ),
    loss=st.sampled_from(["softmax", "sigmoid"]),
    constant=st.floats(0.01, 10),
)
def test_no_gradient_is_longer_than_the_longest(logits: Any, loss: str, constant: float) -> None:
    method: Any = head("momentum", loss=loss, intercept=constant)
    classes = logits.shape[1]
    longest = method.longest_gradient(classes)
    for chosen in range(classes):
        p = expit(logits) if loss == "sigmoid" else softmax(logits, axis=1)
        gradient = np.outer(p - np.eye(classes)[chosen], [1.0, constant])
        assert np.linalg.norm(gradient) <= longest * (1 + 1e-12)
    surely_wrong = np.eye(classes)[0] - (
        1 - np.eye(classes)[0] if loss == "sigmoid" else np.eye(classes)[1]
    )
    assert np.linalg.norm(np.outer(surely_wrong, [1.0, constant])) == pytest.approx(longest)


def test_replayed_rows_are_those_on_which_faults_show() -> None:
    plan = replace(plan_of(METHODS["exact_sgd"], 10**6), unit="patient")
    for dimension in (4, 64, 2048):
        made = MadeRows.make_rows(plan, dimension, 100, False)
        assert made.features.shape[1] == dimension
        assert made.sizes.sum() == len(made.features) > 1024
        assert made.sizes.max() == 50
        assert len(set(made.labels.tolist())) == 99, "no row has the second class"
        data = made.make_set()
        assert (data.n, data.rows) == (10**6, len(made.features))
        assert not np.isfinite(made.features).all()
        lengths = data.lengths[data.lengths.isfinite()]
        assert lengths.min() == 0
        assert (lengths > 1).sum() > 50
        assert ((lengths > 0) & (lengths < 0.1)).sum() > 50
    assert len(MadeRows.make_rows(plan_of(METHODS["sgd"], 7), 3, 2, False).features) == 7


def test_the_reference_draws_normal_numbers_and_bent_words_far_ones() -> None:
    deviation = 1e6
    plain = reference.RoundedNormals(5, "noise of x", lambda *_: None)
    numbers, known = plain.draw_numbers(20_000, deviation, 10**6)
    assert known.all()
    assert kstest(numbers / deviation, "norm").pvalue > 1e-3
    bent = reference.RoundedNormals(5, "noise of x", bend_words)
    far = np.abs(bent.draw_numbers(20_000, deviation, 10**6)[0]) > 8 * deviation
    assert 20_000 / 80 < far.sum() < 20_000 / 20
    drawn = RoundedGaussian(BentEntropy().open_keystream(5, "noise of x"))
    many = np.concatenate([drawn.draw_numbers(size, deviation) for size in (1, 999, 19_000)])
    assert (np.abs(many) > 8 * deviation).tolist() == far.tolist()
    some = reference.RoundedNormals(5, "noise of x", lambda *_: None)
    numbers_too, known = some.draw_numbers(20_000, deviation, 0)
    assert 0.97 < known.mean() < 0.99
    assert (numbers_too[known] == numbers[known]).all()
    floats = reference.FloatNormals(5).draw_numbers(20_000)
    assert kstest(floats, "norm").pvalue > 1e-3


@pytest.mark.parametrize("rate", [0.03, 0.5])
def test_batches_of_the_reference_have_the_promised_rate(rate: float) -> None:
    for batches in (reference.Batches(4, 700, rate), reference.FloatBatches(4, 700, rate)):
        drawn = [batches.draw_batch() for _ in range(60)]
        sizes = [len(batch) for batch in drawn]
        assert abs(np.mean(sizes) - 700 * rate) < 5 * np.sqrt(700 * rate * (1 - rate) / 60)
        assert all(sorted(set(batch)) == batch and batch[-1] < 700 for batch in drawn)


def cut_at_four(patch: pytest.MonkeyPatch) -> None:
    draw = RoundedGaussian.draw_numbers

    def draw_cut(self: RoundedGaussian, size: int, deviation: float) -> Any:
        return draw(self, size, deviation).clip(-int(4 * deviation), int(4 * deviation))

    def add_cut(self: RoundedGaussian, sums: Any, deviation: float) -> None:
        sums += draw_cut(self, sums.size, deviation).reshape(sums.shape)

    patch.setattr(RoundedGaussian, "draw_numbers", draw_cut)
    patch.setattr(RoundedGaussian, "add_to", add_cut)


def start_again(patch: pytest.MonkeyPatch) -> None:
    """Restarts the keystream in every release of a mechanism."""

    def make(_: Releases, name: str, seed: int) -> RoundedGaussian:
        return RoundedGaussian(BentEntropy().open_keystream(seed, f"noise of {name}"))

    patch.setattr(Releases, "_make_rounded_gaussian", make)


def share_seeds(patch: pytest.MonkeyPatch) -> None:
    """Gives the mechanisms of all seeds the noise of the first seed."""
    first: list[int] = []
    kept: dict[tuple[Releases, str, int], RoundedGaussian] = {}

    def make(self: Releases, name: str, seed: int) -> RoundedGaussian:
        first.append(seed)
        stream = BentEntropy().open_keystream(first[0], f"noise of {name}")
        return kept.setdefault((self, name, seed), RoundedGaussian(stream))

    patch.setattr(Releases, "_make_rounded_gaussian", make)


def name_no_mechanism(patch: pytest.MonkeyPatch) -> None:
    """Starts all mechanisms of a seed with the same words of the keystream."""
    kept: dict[tuple[Releases, str, int], RoundedGaussian] = {}

    def make(self: Releases, name: str, seed: int) -> RoundedGaussian:
        stream = Keystream.from_seed(seed, "noise")
        return kept.setdefault((self, name, seed), RoundedGaussian(stream))

    patch.setattr(Releases, "_make_rounded_gaussian", make)


def spare_a_mechanism(patch: pytest.MonkeyPatch) -> None:
    """Releases the centre without noise and without telling the observer."""
    release = Releases.release_gaussian

    def release_some(self: Releases, name: str, sums: GridSum) -> torch.Tensor:
        if name != "centre":
            return release(self, name, sums)
        self.count_releases(name, 1)
        return sums.values

    patch.setattr(Releases, "release_gaussian", release_some)


def repeat_steps(patch: pytest.MonkeyPatch) -> None:
    """Repeats the float32 noise of the first step in every step."""
    draw, first = GaussianNoise.draw_steps, dict[GaussianNoise, torch.Tensor]()

    def draw_first(self: GaussianNoise, steps: int, deviation: float) -> torch.Tensor:
        drawn = draw(self, steps, deviation)
        return first.setdefault(self, drawn[:, :1].clone()).expand_as(drawn).clone()

    patch.setattr(GaussianNoise, "draw_steps", draw_first)


def bend_one_number(patch: pytest.MonkeyPatch) -> None:
    """Shifts one number of each step's float32 noise by a hundredth of its deviation."""
    draw = GaussianNoise.draw_steps

    def draw_bent(self: GaussianNoise, steps: int, deviation: float) -> torch.Tensor:
        drawn = draw(self, steps, deviation).clone()
        drawn[..., 0] += 0.01 * deviation
        return drawn

    patch.setattr(GaussianNoise, "draw_steps", draw_bent)


def thin_the_diagonal(patch: pytest.MonkeyPatch) -> None:
    """Shrinks the noise on a matrix's diagonal by a hundredth."""
    add_noise = releases._add_to_triangle

    def add_less(sampler: RoundedGaussian, matrix: torch.Tensor, deviation: float) -> None:
        before = matrix.diagonal().clone()
        add_noise(sampler, matrix, deviation)
        added = matrix.diagonal() - before
        matrix.diagonal().copy_(before + (0.99 * added).round())

    patch.setattr(releases, "_add_to_triangle", add_less)


def clip_loosely(patch: pytest.MonkeyPatch) -> None:
    """Lets gradients exceed the bound by a hundredth."""
    make = ExactSums.__init__

    def make_loose(self: ExactSums, *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        self._given = self._given._replace(clip=1.01 * self._given.clip)

    patch.setattr(ExactSums, "__init__", make_loose)


def weigh_rows(patch: pytest.MonkeyPatch) -> None:
    """Weights a unit of m rows like sqrt(m) units."""
    number = Units.number_units

    def number_units(names: Any) -> Units:
        units = number(names)
        return replace(units, weights=np.sqrt(units.weights))

    patch.setattr(Units, "number_units", number_units)


def drop_last_block(patch: pytest.MonkeyPatch) -> None:
    read = Rows.read_blocks

    def read_some(self: Rows, *args: Any, **options: Any) -> Any:
        *first, _ = read(self, *args, **options)
        yield from first

    patch.setattr(Rows, "read_blocks", read_some)
    patch.setattr("dpprobe.heads.training_set.CPU_BLOCK_BYTES", 2**17)


def count_unusable(patch: pytest.MonkeyPatch) -> None:
    """Leaves the constant of rows with NaN in place."""
    make = Design.__init__

    def make_full(self: Design, *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        self.constant[:] = self.offset
        self.norms = torch.hypot(self.norms, (self.norms == 0) * self.offset)

    patch.setattr(Design, "__init__", make_full)


def sample_more(kind: type[Any]) -> Patch:
    """Doubles the sampling rate after the second batch."""

    def change(patch: pytest.MonkeyPatch) -> None:
        draw, later = kind.draw_block, dict[Any, int]()

        def draw_more(self: Any, steps: int) -> Any:
            parts = []
            for _ in range(steps):
                later[self] = later.get(self, 0) + 1
                drawn = [draw(self, 1)[0] for _ in range(1 + (later[self] > 2))]
                parts.append(np.unique(np.concatenate(drawn)))
            return np.concatenate(parts), np.array([len(part) for part in parts])

        patch.setattr(kind, "draw_block", draw_more)

    return change


FAULTS: list[tuple[Patch, str, str, str]] = [
    (cut_at_four, "exact_sgd", "image", NOISE),
    (cut_at_four, "least_squares", "image", NOISE),
    (start_again, "exact_momentum", "image", NOISE),
    (share_seeds, "exact_sgd", "image", NOISE),
    (name_no_mechanism, "prototypes", "image", NOISE),
    (spare_a_mechanism, "prototypes", "image", NOISE),
    (repeat_steps, "sgd", "image", NOISE),
    (bend_one_number, "sgd", "image", NOISE),
    (thin_the_diagonal, "covariance_weighted", "image", NOISE),
    (clip_loosely, "exact_sgd_rows", "image", SUMS),
    (weigh_rows, "prototypes", "patient", SUMS),
    (weigh_rows, "sampled_exact_sgd", "patient", SUMS),
    (drop_last_block, "covariance_weighted", "image", SUMS),
    (count_unusable, "prototypes", "image", SUMS),
    (sample_more(ExactPoissonSampler), "sampled_exact_sgd", "image", BATCHES),
    (sample_more(PoissonSampler), "sampled_sgd", "image", BATCHES),
]


@pytest.mark.parametrize(("fault", "name", "unit", "test"), FAULTS)
def test_a_fault_in_the_code_is_found(
    fault: Patch, name: str, unit: str, test: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    _, values = replayed(name, unit)
    assert values[test] == 0


LOOSE = head("sgd", **_EXACT, learning_rate=1.0, max_grad_norm=0.6)


@pytest.mark.parametrize(
    ("name", "method", "noise", "test"),
    [
        ("prototypes", METHODS["prototypes"], 1 - 1e-6, NOISE),
        ("exact_sgd_rows", LOOSE, 0.5, SUMS),  # twice the clipping norm at the claimed noise
    ],
)
def test_a_plan_that_is_not_the_claimed_one_is_found(
    name: str, method: MethodOptions, noise: float, test: str
) -> None:
    claim, plan = (plan_of(each, N["image"], noise=3.0) for each in (ALL[name], method))
    plan = replace(plan, mechanisms=tuple(item.scale_noise(noise) for item in plan.mechanisms))
    attack = Attack(method=method, plan=plan, claim=claim, worlds=())
    replay = replay_release(attack, ALL[name], MadeRows.make_rows(claim, WIDE, CLASSES, False), 3)
    assert {item.name for item in replay.outcomes if item.p_value == 0} == {test}
