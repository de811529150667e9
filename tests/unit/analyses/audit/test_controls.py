"""The tests of an audit catch every broken mechanism of every method, and no right one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dpprobe.analyses.audit import white_box
from dpprobe.analyses.audit.controls import CONTROLS, Control, make_controls
from dpprobe.analyses.audit.noise_tests import Outcome
from dpprobe.heads.normalisation import AroundCentre
from dpprobe.heads.options import MethodOptions
from dpprobe.privacy.plan import Plan
from tests.support.audits import METHODS, head, plan_of

_FULL = {
    "batch_size": "full", "steps": 3, "max_grad_norm": 1.0, "init": "zero", "engine": "exact",
    "normalize": "l2", "learning_rate": 0.1,
}  # fmt: skip
# For each fault the test that is made for it, whatever else may notice it.
NOTICED = {
    "variance": ("noise_off", "half_noise", "exact_class", "exact_first_step", "exact_bias"),
    "sensitivity": (
        "no_clipping", "unpriced_centre", "double_weight", "largest_norm", "classes_by_data",
    ),
    "batches": ("half_sample_rate",), "numbers": ("shared_noise",), "steps": ("repeated_noise",),
    "low_bits": ("float_noise",), "runs": ("noise_of_another_run",), "sums": ("noise_by_data",),
    "head_from_releases": ("counts_in_bias", "faint_counts", "private_n"),
    "unobserved": ("noise_off_unobserved",),
}  # fmt: skip
SEVEN = {
    **{name: head(name, **_FULL) for name in ("sgd", "momentum", "adam", "lamb")},
    "least_squares": head("least_squares", normalize="l2"),
    "newton": head("newton", normalize="l2", steps=2),
    "feature_covariance": head("feature_covariance", normalize="l2", steps=2),
}
OTHERS = {name: METHODS[name] for name in ("momentum_whitened", "sgd", "sampled_exact_sgd")}
N = 300


def cell_of(method: MethodOptions, *, runs: int = 40, seed: int = 5) -> white_box._Cell:
    plan = plan_of(method, N, noise=3.0)
    shape = white_box.audited_shape(method, plan, 8, 3, False)
    return white_box._Cell(method, plan, shape, seed, runs, 0.95)


def drawn(plan: Plan) -> tuple[float, float, float]:
    *_, item = plan.mechanisms  # each norm multiplies its sensitivity once
    return item.noise_scale, item.sample_rate, item.count


def absent_controls(name: str, method: MethodOptions) -> set[str]:
    absent = set() if name.startswith("sampled") else {"half_sample_rate"}
    absent |= set() if method.is_exact else {"float_noise"}
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
    for control in make_controls(cell.attack, cell.shape, group=cell.canary_count, seed=5):
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
    for test, faults in NOTICED.items():
        for fault in (each for each in faults if expected[each]):
            assert test in records[fault]["refuted_by"], (fault, records[fault])


@pytest.mark.parametrize("fault", ["largest_norm", "classes_by_data"])
def test_only_a_canary_unlike_all_other_rows_shows_what_is_taken_from_them(fault: str) -> None:
    cell = cell_of(SEVEN["least_squares"])
    controls = make_controls(cell.attack, cell.shape, group=cell.canary_count, seed=5)
    control = next(each for each in controls if each.name == fault)
    assert not isinstance(control.attack, str)
    _, record = cell.attack_control(control, "test")
    assert record["refuted_by"] == ["sensitivity"]
    usual = control._replace(attack=replace(control.attack, unusual=()))
    assert cell.attack_control(usual, "test")[1]["refuted_by"] == []


@pytest.mark.parametrize("name", [*SEVEN, *OTHERS])
def test_a_right_mechanism_is_not_refuted(name: str) -> None:
    for seed in (1, 2):
        cell = cell_of((SEVEN | OTHERS)[name], seed=seed)
        test = cell.run_attack(cell.attack, 40, "runs", "test")
        assert test.head_change == test.unobserved_change == 0
        assert not white_box._list_refuting(cell.list_tests(test)), cell.list_tests(test)
