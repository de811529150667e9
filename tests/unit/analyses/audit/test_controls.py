"""The tests of an audit catch every broken mechanism of every method, and no right one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dpprobe.analyses.audit import white_box
from dpprobe.analyses.audit.controls import (
    CONTROLS,
    Control,
    lengthen_late_rows,
    make_controls,
)
from dpprobe.analyses.audit.noise_tests import Outcome
from dpprobe.analyses.audit.replay import MadeRows
from dpprobe.heads import clipping
from dpprobe.heads.exact_sums import ExactSums
from dpprobe.heads.normalisation import AroundCentre
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.second_order import Design
from dpprobe.privacy.plan import Plan
from tests.support.audits import METHODS, head, plan_of

# The heads' own clipping norms: no gradient is longer in three steps from zero.
_FULL = {
    "batch_size": "full",
    "steps": 3,
    "init": "zero",
    "engine": "exact",
    "normalize": "l2",
    "learning_rate": 0.1,
}
# For each fault the tests that are made for it, whatever else may notice it.
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
OTHERS = {name: METHODS[name] for name in ("momentum_whitened", "sgd", "sampled_exact_sgd")}
# Patients, of 7 images on average, with more features and classes than in the attacked heads.
N, WIDE, CLASSES = 180, 170, 12


def cell_of(method: MethodOptions, *, runs: int = 40, seed: int = 5) -> white_box._Cell:
    plan = replace(plan_of(method, N, noise=3.0), unit="patient")
    shape = white_box.audited_shape(method, plan, 8, 3, False)
    made = MadeRows.make_rows(plan, WIDE, CLASSES, False)
    return white_box._Cell(method, plan, shape, seed, runs, 0.95, made)


def drawn(plan: Plan) -> tuple[float, float, float]:
    *_, item = plan.mechanisms  # each norm multiplies its sensitivity once
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
    """A look after ten runs and one after forty share the error of one audit."""
    cell = cell_of(SEVEN["sgd"])
    right = Control("right", "nothing", cell.attack)
    _, record = cell.attack_control(right, "test")
    assert (record["runs"], record["caught"], record["refuted_by"]) == (40, False, [])
    test = cell.run_attack(cell.attack, 40, "right", "test")
    counted = [item for item in cell.list_tests(test) if item.name not in white_box.EXACT_TESTS]
    assert record["level"] == pytest.approx((1 - white_box.REFUTED) / 2 / len(counted))
    for share in (0.4, 0.6, 0.9):
        outcome = Outcome("variance", share * (1 - white_box.REFUTED))
        monkeypatch.setattr(white_box._Cell, "list_tests", lambda *_, one=outcome: [one])
        assert cell.attack_control(right, "test")[1]["caught"] == (share < 0.5)


@pytest.mark.parametrize("name", [*SEVEN, *OTHERS])
def test_every_control_is_caught(name: str) -> None:
    method = (SEVEN | OTHERS)[name]
    cell = cell_of(method)
    records = {}
    given: dict[str, Any] = {"group": cell.canary_count, "seed": 5, "made": cell.made}
    for control in make_controls(cell.attack, cell.shape, **given):
        _, records[control.name] = cell.attack_control(control, "test")
        if not isinstance(control.attack, str):  # neither the noise nor the claim is a fault
            assert drawn(control.attack.plan) == pytest.approx(drawn(cell.attack.plan))
            told = control.attack.claim == cell.attack.claim
            assert told == (control.name != "half_sample_rate")
    assert list(records) == list(CONTROLS)
    assert records["noise_off"]["runs"] == 10, "a control that ten runs catch has no more"
    caught = {fault: record.get("caught") for fault, record in records.items()}
    expected = dict.fromkeys(CONTROLS, True) | dict.fromkeys(absent_controls(name, method))
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
    """Rows [x, 1] with |x| = 1 and a residual of at most sqrt(2) have gradients of at most 2."""
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
def test_a_right_mechanism_is_not_refuted(name: str) -> None:
    for seed in (1, 2):
        cell = cell_of((SEVEN | OTHERS)[name], seed=seed)
        test = cell.run_attack(cell.attack, 40, "runs", "test")
        test.replay = cell.replay(cell.attack)
        assert test.head_change == 0
        assert test.unobserved_change <= (0 if cell.method.is_exact else 1e-6)
        assert not white_box._list_refuting(cell.list_tests(test)), cell.list_tests(test)
