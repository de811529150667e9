"""The tests of an audit catch every broken mechanism of every method, and no correct mechanism."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dpprobe.analyses.audit import controls, white_box
from dpprobe.analyses.audit.controls import CONTROLS, Control, lengthen_late_rows, make_controls
from dpprobe.analyses.audit.noise_tests import Outcome
from dpprobe.analyses.audit.replay import MadeRows
from dpprobe.analyses.audit.transcripts import Release
from dpprobe.heads import clipping
from dpprobe.heads.exact_sums import ExactSums
from dpprobe.heads.fitted import Heads
from dpprobe.heads.normalisation import AroundCentre, NoNormalisation
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.second_order import Design
from dpprobe.heads.training_set import TrainingSet
from dpprobe.heads.transform import Transform
from dpprobe.privacy.plan import Plan
from tests.support.audits import METHODS, head, plan_of

# Heads with their default clipping norms, which no gradient exceeds in three steps from zero.
_FULL = {
    "batch_size": "full",
    "steps": 3,
    "init": "zero",
    "engine": "exact",
    "normalize": "l2",
    "learning_rate": 0.1,
}
# For each test or set of tests, the faults that it is made for; other tests may notice them, too.
NOTICED = {
    ("variance",): ("noise_off", "half_noise", "exact_class", "exact_first_step", "exact_bias"),
    ("sensitivity", "replayed_sums"): (
        "no_clipping",
        "unpriced_centre",
        "double_weight",
        "largest_norm",
        "classes_by_data",
        "light_patients",
        "late_rows",
        "dropped_rows",
    ),
    ("batches",): ("half_sample_rate", "shared_batches", "paired_units"),
    ("low_bits", "replayed_noise"): ("float_noise", "clear_bit"),
    ("tails", "replayed_noise"): ("cut_noise",),
    ("replayed_noise", "variance", "normal", "low_bits", "tails"): (
        "shared_noise",
        "repeated_noise",
        "noise_of_another_run",
        "noise_by_data",
        "faint_columns",
    ),
    ("replayed_noise",): (
        "exact_late_classes",
        "exact_late_features",
        "cut_far_noise",
        "repeated_words",
    ),
    ("head_from_releases",): ("counts_in_bias", "faint_counts", "private_n"),
    ("unobserved",): ("noise_off_unobserved",),
}
SEVEN = {
    **{name: head(name, **_FULL) for name in ("sgd", "momentum", "adam", "lamb")},
    "least_squares": head("least_squares", normalize="l2"),
    "newton": head("newton", normalize="l2", steps=2),
    "feature_covariance": head("feature_covariance", normalize="l2", steps=2),
}
OTHERS = {
    "momentum_whitened": METHODS["momentum_whitened"],
    "sgd": METHODS["sgd"],
    "sampled_exact_sgd": METHODS["sampled_exact_sgd"].model_copy(update={"steps": 6}),
}
# Patients with 7 images on average; more features and classes than in the attacked heads.
N, WIDE, CLASSES = 180, 170, 12
# Heads that release a matrix: late features and words come earlier here, because a matrix of 170
# features has 14,706 numbers, and one of 48 has 1,225.
MATRICES = ("newton", "feature_covariance", "momentum_whitened")
FEW, LATE = 48, {"LATE_FEATURE": 40, "_WORDS": 500}


def cell_of(
    method: MethodOptions, *, runs: int = 40, seed: int = 5, wide: int = WIDE
) -> white_box.AuditedCell:
    plan = replace(plan_of(method, N, noise=3.0), unit="patient")
    shape = white_box.audited_shape(method, plan, 8, 3, False)
    made = MadeRows.make_rows(plan, wide, CLASSES, False)
    return white_box.AuditedCell(method, plan, shape, seed, runs, 0.95, made)


def named_cell(name: str, monkeypatch: pytest.MonkeyPatch, seed: int) -> white_box.AuditedCell:
    method = (SEVEN | OTHERS)[name]
    if name not in MATRICES:
        return cell_of(method, seed=seed)
    for constant, value in LATE.items():
        monkeypatch.setattr(controls, constant, value)
    return cell_of(method, seed=seed, wide=FEW)


def drawn(plan: Plan) -> tuple[float, float, float]:
    *_, item = plan.mechanisms  # each norm enters the last one's sensitivity once
    return item.noise_scale, item.sample_rate, item.count


def absent_controls(name: str, method: MethodOptions) -> set[str]:
    sampled = {"half_sample_rate", "shared_batches", "paired_units"}
    floats = {"float_noise", "clear_bit", "repeated_words", "cut_noise", "cut_far_noise"}
    absent = set() if name.startswith("sampled") else sampled
    absent |= set() if method.is_exact else floats
    absent |= {"largest_norm"} if isinstance(method.normalize, AroundCentre) else set()
    return absent | ({"repeated_noise"} if name == "least_squares" else set())


def test_a_right_mechanism_is_looked_at_twice_at_half_of_the_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The looks after ten and after forty runs share the error of one audit."""
    cell = cell_of(SEVEN["sgd"])
    right = Control("right", "nothing", cell.attack)
    _, record = cell.attack_control(right, "test")
    assert (record["runs"], record["caught"], record["refuted_by"]) == (40, False, [])
    test = cell.run_attack(cell.attack, 40, "right", "test")
    counted = [item for item in cell.list_tests(test) if item.name not in white_box.EXACT_TESTS]
    assert record["level"] == pytest.approx((1 - white_box.REFUTED) / 2 / len(counted))
    for share in (0.4, 0.6, 0.9):
        outcome = Outcome("variance", share * (1 - white_box.REFUTED))
        monkeypatch.setattr(white_box.AuditedCell, "list_tests", lambda *_, one=outcome: [one])
        assert cell.attack_control(right, "test")[1]["caught"] == (share < 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SEVEN, *OTHERS])
def test_every_control_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = named_cell(name, monkeypatch, 5)
    records = {}
    given: dict[str, Any] = {"group": cell.canary_count, "seed": 5, "made": cell.made}
    for control in make_controls(cell.attack, cell.shape, **given):
        _, records[control.name] = cell.attack_control(control, "test")
        if not isinstance(control.attack, str):  # neither noise nor claim is faulty
            assert drawn(control.attack.plan) == pytest.approx(drawn(cell.attack.plan))
            told = control.attack.claim == cell.attack.claim
            assert told == (control.name != "half_sample_rate")
    assert list(records) == list(CONTROLS)
    assert records["noise_off"]["runs"] == 10, "a control that ten runs catch has no more"
    caught = {fault: record.get("caught") for fault, record in records.items()}
    expected = dict.fromkeys(CONTROLS, True) | dict.fromkeys(absent_controls(name, cell.method))
    assert caught == expected, records
    assert sorted(sum(NOTICED.values(), ())) == sorted(CONTROLS)
    for tests, faults in NOTICED.items():
        for fault in (each for each in faults if expected[each]):
            assert {*tests} & {*records[fault]["refuted_by"]}, (fault, records[fault])


def read_patched() -> set[object]:
    return {Design.__init__, ExactSums._make_data, ExactSums._add_rows, clipping.clip_bounds}


def test_controls_leave_the_code_as_it_was() -> None:
    before, seen = read_patched(), []

    def fail_inside() -> None:
        with lengthen_late_rows():
            seen.append(read_patched())
            raise ValueError("stopped")

    with pytest.raises(ValueError, match="stopped"):
        fail_inside()
    assert not before & seen[0]
    assert read_patched() == before


@pytest.mark.parametrize(("norm", "reason"), [(1.9, None), (2.1, "keeps all gradients within")])
def test_late_rows_do_not_apply_where_no_gradient_is_longer_than_the_bound(
    norm: float, reason: str | None
) -> None:
    """Rows [x, 1] with |x| = 1 and residuals of at most sqrt(2) have gradients of at most 2."""
    cell = cell_of(SEVEN["sgd"].model_copy(update={"max_grad_norm": norm}))
    given: dict[str, Any] = {"group": cell.canary_count, "seed": 5, "made": cell.made}
    (late,) = (
        control
        for control in make_controls(cell.attack, cell.shape, **given)
        if control.name == "late_rows"
    )
    if reason is None:
        assert "replayed_sums" in cell.attack_control(late, "test")[1]["refuted_by"]
    else:
        assert isinstance(late.attack, str)
        assert reason in late.attack


@pytest.mark.parametrize("name", [*SEVEN, *OTHERS])
def test_a_right_mechanism_is_not_refuted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in (1, 2):
        cell = named_cell(name, monkeypatch, seed)
        test = cell.run_attack(cell.attack, 40, "runs", "test")
        test.replay = cell.replay(cell.attack)
        assert test.head_change == 0
        assert test.unobserved_change <= (0 if cell.method.is_exact else 1e-6)
        assert not white_box._list_refuting(cell.list_tests(test)), cell.list_tests(test)


@pytest.mark.parametrize(
    ("name", "size", "most"),
    [
        ("exact_late_classes", "classes", 10),
        ("exact_late_features", "features", 160),
        ("late_rows", "rows", 128),
        ("dropped_rows", "rows", 1024),
        ("repeated_words", "features", 249),  # 4 classes with 250 numbers each
    ],
)
def test_a_control_of_late_parts_applies_from_the_first_that_it_breaks(
    name: str, size: str, most: int
) -> None:
    attack = cell_of(SEVEN["sgd"]).attack
    changes: dict[str, Any] = {
        "exact_late_classes": controls.spare_late_classes,
        "exact_late_features": controls.spare_late_features,
        "repeated_words": controls.repeat_words,
    }
    for more in (0, 1):
        sizes = {"classes": 4, "features": 3, "rows": 2, size: most + more}
        labels = np.zeros(sizes["rows"], np.int64)
        features = np.zeros((sizes["rows"], sizes["features"]), np.float32)
        units: dict[str, Any] = {"sizes": labels + 1, "n": len(labels)}
        made = MadeRows(features=features, labels=labels, num_classes=sizes["classes"], **units)
        reason = controls._list_inapplicable(attack, made).get(name, "")
        assert ("at most" in str(reason)) == (more == 0)
        if name in changes:
            one = release((sizes["classes"], sizes["features"] + 1))
            assert changes[name](one, []).equal(one.output) == (more == 0)


# Effects of each control on a release, a head or rows


def release(shape: tuple[int, ...], *, seed: int = 0, name: str = "a") -> Release:
    """Returns a release of classes (3, 5), a vector (4) or a symmetric matrix (4, 4)."""
    sums, noise = torch.randn((2, *shape), generator=torch.manual_seed(seed), dtype=torch.float64)
    if shape == (4, 4):
        sums, noise = sums + sums.T, noise + noise.T
    return Release(name, sums, sums + 2 * noise)


SHAPES = [(3, 5), (4,), (4, 4)]


def noise_left(change: Any, one: Release, earlier: list[Release] | None = None) -> torch.Tensor:
    """Returns the noise of a broken release, divided by that of the correct release."""
    share: torch.Tensor = (change(one, earlier or []) - one.sums) / one.noise
    return share


@pytest.mark.parametrize("shape", SHAPES)
def test_noise_is_left_out_halved_or_follows_the_sum(shape: tuple[int, ...]) -> None:
    one = release(shape)
    assert controls.omit_noise(one, []).equal(one.sums)
    torch.testing.assert_close(
        noise_left(controls.halve_noise, one), torch.full(shape, 0.5).double()
    )
    followed = controls.follow_sums(one, []) - one.sums
    torch.testing.assert_close(followed.abs(), one.noise.abs())
    assert (followed.sign() == one.sums.sign()).all()
    rough = controls.add_float_noise(one, []) - one.sums
    assert 0 < float((rough - one.noise).abs().max()) < 1e-6, "float32's digits alone are lost"


@pytest.mark.parametrize(
    ("shape", "silent", "bias"),
    [
        ((3, 5), [(2, slice(None))], [(slice(None), 4)]),
        ((4,), [(3,)], [(3,)]),
        ((4, 4), [(3, slice(None)), (slice(None), 3)], [(3, slice(None)), (slice(None), 3)]),
    ],
)
def test_the_last_class_or_feature_or_the_biases_are_spared(
    shape: tuple[int, ...], silent: list[Any], bias: list[Any]
) -> None:
    one = release(shape)
    for change, places in ((controls.spare_class, silent), (controls.spare_bias, bias)):
        wanted = torch.ones(shape, dtype=torch.float64)
        for place in places:
            wanted[place] = 0
        torch.testing.assert_close(noise_left(change, one), wanted)


@pytest.mark.parametrize("shape", SHAPES)
def test_only_the_first_step_of_each_mechanism_is_spared(shape: tuple[int, ...]) -> None:
    one, other, later = (release(shape, seed=k, name=name) for k, name in enumerate("aba"))
    once = controls.spare_class_once
    assert once(one, []).equal(controls.spare_class(one, []))
    assert once(other, [one]).equal(controls.spare_class(other, []))
    assert once(later, [one, other]).equal(later.output)


@pytest.mark.parametrize("shape", SHAPES)
def test_noise_is_repeated_from_the_first_step_or_the_first_run(shape: tuple[int, ...]) -> None:
    one, other, later = (release(shape, seed=k, name=name) for k, name in enumerate("aba"))
    assert controls.repeat_noise(one, []).equal(one.output)
    assert controls.repeat_noise(other, [one]).equal(other.output), "another mechanism's noise"
    repeated = controls.repeat_noise(later, [one, other])
    torch.testing.assert_close(repeated - later.sums, one.noise)
    same = controls._OneNoise()
    assert same(one, []).equal(one.output)
    torch.testing.assert_close(same(other, [one]) - other.sums, other.noise)
    torch.testing.assert_close(same(later, []) - later.sums, one.noise)
    torch.testing.assert_close(same(later, [one]) - later.sums, other.noise)


@pytest.mark.parametrize("shape", SHAPES)
def test_all_classes_or_features_share_one_noise(shape: tuple[int, ...]) -> None:
    one = release(shape)
    shared = controls.share_noise(one, []) - one.sums
    if shape == (3, 5):
        wanted = one.noise[:1].expand(3, 5)
    else:  # off the diagonal, a symmetric matrix has half the variance
        wanted = torch.full(shape, float(one.noise.flatten()[0])).double()
        if len(shape) == 2:
            wanted = wanted * torch.where(torch.eye(4) > 0, 1.0, 0.5**0.5)
    torch.testing.assert_close(shared, wanted.double(), rtol=1e-6, atol=1e-7)
    assert controls._has_classes(one) == (shape == (3, 5))


HEADS = Heads(
    weights=np.arange(24, dtype=np.float32).reshape(2, 3, 4) - 30,
    seeds=(1, 2),
    transforms=(Transform(NoNormalisation()),) * 2,
    steps=0,
)


@pytest.mark.parametrize(
    ("labels", "counts"), [([0, 1, 1, 2], [1, 2, 1]), ([[1, 0, 1], [0, 0, 1]], [1, 0, 2])]
)
def test_exact_counts_of_classes_are_added_to_the_biases(labels: Any, counts: list[int]) -> None:
    kind = torch.uint8 if len(labels) == 2 else torch.int64
    data = TrainingSet(torch.ones(len(labels), 3), torch.tensor(labels, dtype=kind), 3)
    plain = controls.add_counts(HEADS, data).weights - HEADS.weights
    faint = controls.add_counts(HEADS, data, share=1e-3).weights - HEADS.weights
    assert (plain[:, :, :-1] == 0).all()
    assert plain[:, :, -1].tolist() == [counts, counts]
    # relative to the largest weights of the heads, 30 and 18
    wanted = 1e-3 * np.outer([30, 18], counts)
    np.testing.assert_allclose(faint[:, :, -1], wanted, atol=1e-5)


def patients() -> TrainingSet:
    """Returns patients with one and three images in classes 5 and 2 of seven, and an empty unit."""
    numbered = Units.number_units(["a", "b", "b", "b"])
    units = replace(numbered, starts=np.append(numbered.starts, 4))
    features = torch.tensor([[3.0, 4.0], [1.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
    return TrainingSet(features, torch.tensor([5, 2, 2, 2]), 7, units=units)


def test_rows_are_changed_as_the_fault_says() -> None:
    data = patients()
    assert data.units is not None
    weights = data.units.weights
    assert weights == pytest.approx([1, 1 / 3, 1 / 3, 1 / 3])
    doubled, raised = (
        change(data).units for change in (controls.double_weights, controls.raise_weights)
    )
    assert doubled is not None
    assert raised is not None
    assert doubled.weights == pytest.approx([1, 2 / 3, 2 / 3, 2 / 3])
    assert raised.weights == pytest.approx([1, 1 / 3, 1 / 3, 1 / 3])
    several = Units.number_units(["a"] * 4)
    four = controls.raise_weights(TrainingSet(torch.ones(4, 2), data.labels, 7, units=several))
    assert four.units is not None
    assert four.units.weights == pytest.approx([1 / 3] * 4), "never below a third"
    assert controls.number_classes(data).labels.tolist() == [1, 0, 0, 0]
    scaled, centred = controls.scale_rows(data).features, controls.centre_rows(data).features
    assert scaled is not None
    assert centred is not None
    torch.testing.assert_close(scaled, torch.tensor([[0.6, 0.8], [0.2, 0], [0, 0.4], [0, 0]]))
    shifted = np.array([[3.0, 4.0], [1.0, 0.0], [0.0, 2.0], [0.0, 0.0]]) - [1.0, 1.5]
    wanted = shifted / np.linalg.norm(shifted, axis=1, keepdims=True)
    np.testing.assert_allclose(centred.numpy(), wanted, atol=1e-6)


def test_rows_all_alike_have_no_direction_from_their_centre() -> None:
    same = controls.centre_rows(TrainingSet(torch.ones(3, 2), torch.tensor([0, 1, 0]), 2))
    assert same.features is not None
    assert (same.features == 0).all()


def made_controls(name: str) -> dict[str, Any]:
    cell = cell_of(METHODS[name])
    given: dict[str, Any] = {"group": cell.canary_count, "seed": 5, "made": cell.made}
    listed = list(make_controls(cell.attack, cell.shape, **given))
    assert all(control.breaks == CONTROLS[control.name] for control in listed)
    return {control.name: control.attack for control in listed} | {"right": cell.attack}


def test_clipping_is_loosened_with_the_claimed_noise_kept() -> None:
    """Rows may be eight times as long, but the noise has the claimed deviation."""
    made = made_controls("sampled_exact_sgd")
    right, loose = made["right"], made["no_clipping"]
    assert loose.method.max_grad_norm == 8 * right.method.max_grad_norm
    assert isinstance(loose.method.normalize, NoNormalisation)
    for before, after in zip(right.plan.mechanisms, loose.plan.mechanisms, strict=True):
        assert after.sensitivity == pytest.approx(8 * before.sensitivity)
        assert after.noise_scale == pytest.approx(before.noise_scale)
        assert (after.sample_rate, after.count) == (before.sample_rate, before.count)
    assert loose.claim == right.claim
    (long,) = loose.worlds
    assert float(long.canary.norm()) == pytest.approx(1000.0)


def test_half_of_the_rate_is_claimed_only_of_mechanisms_that_sample() -> None:
    made = made_controls("sampled_lamb_centred")
    right, halved = made["right"].plan, made["half_sample_rate"]
    assert halved.plan == right
    for before, after in zip(right.mechanisms, halved.claim.mechanisms, strict=True):
        rate = before.sample_rate / 2 if before.sample_rate < 1 else 1
        assert after == replace(before, sample_rate=rate)
    assert {item.sample_rate < 1 for item in right.mechanisms} == {True, False}
