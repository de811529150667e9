"""Noise that meets a target, and the files that cache it."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dpprobe.errors import PrivacyError
from dpprobe.json_values import hash_value
from dpprobe.privacy import accountants, noise_calibration
from dpprobe.privacy.limits import LARGEST_EPSILON, SMALLEST_DELTA, SMALLEST_EPSILON, round_up
from dpprobe.privacy.noise_calibration import calibrate, find_factor
from dpprobe.privacy.plan import Mechanism, Patients, Plan, Selection
from dpprobe.privacy.risk import Risk
from dpprobe.privacy.target import Target
from tests.support.mechanisms import RATE, STEPS, best_of, gaussians, mixed


def relative(rate: float, count: int, noise: float = 1.0, name: str = "g") -> Mechanism:
    return gaussians(noise, rate, count, name)


def solve(
    mechanisms: list[Mechanism],
    epsilon: float,
    cache: Path,
    accountant: str = "pld",
    selection: Selection | None = None,
) -> Plan:
    target = aim(epsilon, accountant=accountant)
    return calibrate(mechanisms, target, cache=cache, selection=selection)


def aim(epsilon: float = 1.0, delta: float = 1e-5, **values: Any) -> Target:
    return Target(n=1437, epsilon=epsilon, delta=delta, **values)


def answer_path(
    cache: Path, mechanisms: list[Mechanism], target: Target, selection: Selection | None = None
) -> Path:
    inputs = noise_calibration._collect_inputs(mechanisms, target, selection)
    return cache / f"{hash_value(inputs)}.json"


@pytest.fixture
def checks() -> None:
    """Computes second opinions in a test."""


@pytest.fixture(autouse=True)
def _quick(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skips second opinions, which cost more than prices, in tests without the fixture `checks`."""
    if "checks" not in request.fixturenames:
        monkeypatch.setattr(noise_calibration, "_cached_checks", lambda *_: ({}, {}))


@pytest.mark.usefixtures("checks")
def test_checks_are_added_to_an_answer_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [relative(64 / 1437, 50)]
    find = partial(calibrate, parts, aim(), cache=tmp_path)
    unchecked = find(checked=False)
    assert not unchecked.checks

    def never(*_: Any) -> None:
        raise AssertionError("calibrated twice")

    monkeypatch.setattr(noise_calibration, "solve_target", never)
    assert find(checked=False) == unchecked
    plan = find()
    assert [name[:3] for name in plan.checks] == ["rdp", "prv"]
    assert all(value is not None and value > 1 for value in plan.checks.values())
    assert plan == replace(unchecked, checks=plan.checks)
    assert find(checked=False) == plan, "what is known is not left out"
    monkeypatch.undo()
    file = answer_path(tmp_path, parts, aim())
    assert file.is_file(), "as of an answer that was found with its checks"
    assert calibrate(parts, aim(), cache=tmp_path / "anew") == plan
    assert (tmp_path / "anew" / file.name).read_bytes() == file.read_bytes()


MET: list[tuple[list[Mechanism], Selection | None, Target]] = [
    *(
        ([relative(rate, count)], None, aim(epsilon, accountant=accountant))
        for accountant in ("pld", "rdp", "rdp_2017")
        for rate, count in ((64 / 1437, 10), (1.0, 20))
        for epsilon in (0.1, 1.0, 8.0)
        if rate == 1 or epsilon != 1 or accountant == "pld"  # others are slow on samples
    ),
    *(
        (mixed(1.0, RATE, STEPS), None, aim(epsilon, delta))
        for epsilon, delta in ((0.01, 1e-5), (0.1, 1e-8), (1.0, 1e-5), (10.0, 1e-8), (100.0, 1e-5))
    ),
    *(
        ([relative(rate, 31_250)], None, aim(epsilon, SMALLEST_DELTA, accountant=accountant))
        for accountant in ("pld", "rdp")
        for epsilon in (SMALLEST_EPSILON, LARGEST_EPSILON)
        for rate in (32 / 50_000, 1.0)
    ),
    ([relative(1.0, 1, 2.0, "covariance"), relative(1.0, 5, 3.0, "gradients")], None, aim()),
    ([relative(RATE, STEPS)], best_of(5), aim()),
    ([relative(1.0, 10), relative(1.0, 1, 2.0, "centre")], best_of(5), aim(0.01, accountant="rdp")),
]


@pytest.mark.parametrize(("parts", "selection", "target"), MET)
def test_a_plan_meets_its_target_by_one_factor_on_all_noise(
    parts: list[Mechanism], selection: Selection | None, target: Target, tmp_path: Path
) -> None:
    plan = calibrate(parts, target, cache=tmp_path, selection=selection)
    # docs/accounting.md states both
    exact = target.accountant == "pld" and selection is None
    exact = exact and all(part.sample_rate == 1 for part in parts)
    least = (0.99998 if exact else 0.999) * target.nominal_epsilon
    assert least <= plan.realised_epsilon <= target.nominal_epsilon
    again = accountants.compute_epsilon(
        plan.mechanisms, target.delta, target.accountant, selection=selection
    )
    assert again == pytest.approx(plan.realised_epsilon, rel=2e-3)
    by = accountants.describe_accountant(plan.mechanisms, target.accountant, selection)
    assert (plan.priced_by, plan.selection) == (by, selection)
    factors = [
        scaled.noise_multiplier / part.noise_multiplier
        for scaled, part in zip(plan.mechanisms, parts, strict=True)
    ]
    assert factors == pytest.approx([factors[0]] * len(factors))


@pytest.mark.parametrize("step", [1.5e-3, 0.5])
def test_the_search_ends_below_a_step_of_a_price_that_rounding_makes(step: float) -> None:
    """On some processors a price falls at one factor, because Fourier transforms round."""

    def price(factor: float) -> float:
        return 30.0 / factor * (1 + step / 3 if factor < 0.3 else 1 - 2 * step / 3)

    find = partial(find_factor, price, 100.0, what="epsilon 100", tolerance=2e-4, stride=0.3)
    if step > 2e-3:
        with pytest.raises(PrivacyError, match="^epsilon 100: no amount of noise reaches"):
            find()
    else:
        factor, epsilon = find()
        assert factor == pytest.approx(0.3, rel=1e-9)
        assert factor >= 0.3
        assert epsilon == pytest.approx(price(factor))


def test_calibration_can_start_from_the_central_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = solve([relative(0.05, 60)], 1.0, tmp_path / "a")
    monkeypatch.setattr(accountants, "rough_epsilon", lambda *_: math.inf)
    plan = solve([relative(0.05, 60)], 1.0, tmp_path / "b")
    noise = plan.mechanisms[0].noise_multiplier
    assert noise == pytest.approx(wanted.mechanisms[0].noise_multiplier, rel=2e-3)


@pytest.mark.parametrize("rate", [0.05, 1.0])
def test_last_bits_of_an_accountant_do_not_change_the_plan(
    rate: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = solve([relative(rate, 60)], 1.0, tmp_path / "a")
    original = accountants.compute_epsilon
    monkeypatch.setattr(
        accountants,
        "compute_epsilon",
        lambda *args, **options: original(*args, **options) * (1 + 1e-13),
    )
    assert solve([relative(rate, 60)], 1.0, tmp_path / "b") == first
    assert f"{first.mechanisms[0].noise_multiplier:.6g}" == str(
        first.mechanisms[0].noise_multiplier
    )
    # The price is that of the noise in use.
    price = original(first.mechanisms, 1e-5, "pld", interval=1e-4)
    assert price <= first.realised_epsilon <= price * (1 + 1.1e-5)
    if rate == 1:
        assert first.realised_epsilon > 1.0 - 2e-5


def test_the_key_holds_what_the_answer_depends_on_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def key(rate: float = 0.1, noise: float = 1.0, name: str = "g", **target: Any) -> Path:
        parts = [relative(rate, target.pop("count", 5), noise, name), relative(1.0, 1, 2.0, "b")]
        selection = target.pop("selection", None)
        return answer_path(tmp_path, parts, aim(**target), selection)

    best: dict[str, Any] = {"selection": best_of(5)}
    changes: list[dict[str, Any]] = [
        {"epsilon": 1.1},
        {"delta": 1e-6},
        {"accountant": "rdp"},
        {"rate": 0.11},
        {"count": 6},
        {"count": 2000},
        {"count": 3000},
        {"noise": 2.0},
        best,
        {"selection": best_of(6)},
        {"selection": best_of(5, "g", "b")},
    ]
    others = {key(**each) for each in changes}
    assert len(others) == len(changes)
    assert key() == key(name="another") not in others
    assert key(**best) == key(name="another", selection=best_of(5, "another"))
    libraries = {"dp-accounting": "1", "opacus": "1"}
    monkeypatch.setattr(accountants, "version", libraries.__getitem__)
    keys = [key()]
    for library in libraries:
        libraries[library] = "2"
        keys.append(key())
    for name, value in (("DIGITS", 5), ("VERSIONS", {"calibration": 0})):
        monkeypatch.setattr(noise_calibration, name, value)
        keys.append(key())
    assert len({*keys}) == 5, "each library, the digits and the version"


@pytest.mark.parametrize("damage", ["truncate", "edit", "format", "swap", "[]", "{}", '"text"'])
def test_an_error_names_a_damaged_noise_calibration_file(tmp_path: Path, damage: str) -> None:
    solve([relative(1.0, 3)], 2.0, tmp_path)
    (file,) = tmp_path.iterdir()
    if damage == "truncate":
        file.write_bytes(file.read_bytes()[:-40])
    elif damage in ("edit", "format"):  # half the noise, or another program's record
        record = json.loads(file.read_text())
        record |= {"factor": record["factor"] / 2} if damage == "edit" else {"format": "other"}
        del record["sha256"]
        digest = hash_value(record | ({} if damage == "format" else {"factor": 1.0}))
        file.write_text(json.dumps({**record, "sha256": digest}))
    elif damage != "swap":
        file.write_text(damage)
    else:
        solve([relative(1.0, 4)], 2.0, tmp_path / "other")
        (other,) = (tmp_path / "other").iterdir()
        file.write_bytes(other.read_bytes())
    with pytest.raises(PrivacyError, match=f"{file.name}.*delete it"):
        solve([relative(1.0, 3)], 2.0, tmp_path)


PRICES: dict[str, Callable[[float], float]] = {
    "line": lambda x: 3 / x,
    "steep": lambda x: 5 / x**4,
    "flat": lambda x: 2 / x**0.3,
    "curved": lambda x: 1 / x + 1 / x**3,
    "ends": lambda x: math.inf if x < 0.5 else 4 / x if x < 200 else 0.0,
    "floor": lambda x: 0.25 + 1 / x,
    "jump": lambda x: 3.0 if x < 5 else 0.1,
}


@pytest.mark.parametrize("name", PRICES)
@pytest.mark.parametrize("target", [0.03, 0.3, 1.0, 7.0])
@pytest.mark.parametrize("tolerance", [0.05, 1e-4])
@pytest.mark.parametrize("start", [1e-3, 1.0, 1e3])
def test_a_search_ends_just_below_its_target_or_says_why(
    name: str, target: float, tolerance: float, start: float
) -> None:
    prices: list[float] = []

    def price(factor: float) -> float:
        prices.append(factor)
        return PRICES[name](factor)

    out_of_reach = {"ends": 0.03, "floor": 0.2, "jump": 100.0}
    find = partial(find_factor, price, target, what="what", tolerance=tolerance, start=start)
    if target < out_of_reach.get(name, 0):
        with pytest.raises(PrivacyError, match="what: no amount of noise"):
            find()
        return
    factor, value = find()
    assert value == PRICES[name](factor)
    assert factor == prices[-1]
    assert (1 - tolerance) * target <= value <= target
    assert len(prices) <= 80
    # a price far from the target may need more memory than is available
    assert all(abs(math.log(b / a)) <= 3 + 1e-9 for a, b in itertools.pairwise(prices))


@pytest.mark.parametrize("start", [0.02, 1.0, 90.0])
@pytest.mark.parametrize("limit", [0.011, 0.5, 1.0, 7.7, 99.0, 100.0, 500.0])
@pytest.mark.parametrize("exact", [False, True])
def test_a_risk_has_the_largest_epsilon_that_it_permits(
    start: float, limit: float, exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Limit:
        def to_epsilon(self, _: float) -> float:
            return start

        def permits(self, plan: Any) -> bool:
            return bool(plan.epsilon <= limit)

    def make(epsilon: float) -> Any:
        assert SMALLEST_EPSILON <= epsilon <= LARGEST_EPSILON
        return SimpleNamespace(epsilon=epsilon, mechanisms=(), selection=None)

    monkeypatch.setattr(accountants, "exactly_priced", lambda *_: exact)
    search = partial(noise_calibration._search_plan, cast(Any, Limit()), 1e-5, make)
    if exact and start > limit:
        with pytest.raises(PrivacyError, match="exceeds this risk"):
            search()
    elif exact:
        assert search().epsilon == start
    else:
        most = min(limit, LARGEST_EPSILON)
        assert most / 1.005001 <= search().epsilon <= most
    limit = SMALLEST_EPSILON / 2
    if not exact:
        with pytest.raises(PrivacyError, match="even the smallest possible epsilon"):
            search()


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("price", [0.5, 5.9, 6.1, 100.0, 1e9])
@pytest.mark.parametrize("lowest", [0.0, 2.0])
def test_a_price_far_above_its_target_is_a_bound(exact: bool, price: float, lowest: float) -> None:
    """More noise gives a bound up to six times the target; a bound below the target is dropped."""
    asked = []

    class Prices:
        delta = 1e-5

        def rough_price(self, factor: float) -> float:
            return price / factor

        def price_at(self, factor: float, interval: float | None) -> float:
            assert (interval is None) == exact
            asked.append(factor)
            return max(price / factor, lowest) if lowest else 0.9 if factor > 1 else price

    prices: Any = Prices()
    prices.exact = exact
    found = noise_calibration._cached_price(prices, 1.0)
    factor = 1.0
    while price / factor > 6 and factor < 1e6:
        factor *= 1.5
    far = not exact and factor > 1
    wanted = [factor] if far and lowest else [factor, 1.0] if far else [1.0]
    assert asked == wanted
    assert found == (max(price / asked[-1], lowest) if lowest else price)


@pytest.mark.parametrize("off", [0.9985, 1.0012])
def test_a_fine_price_decides_what_a_coarse_one_proposes(off: float) -> None:
    """The price on the fine grid may exceed the coarse one, and therefore the target."""
    fine = accountants.pld_interval(2.0)

    class Prices:
        exact, resolved, delta = False, "pld", 1e-5

        def price_at(self, factor: float, interval: float) -> float:
            return (off if interval == fine else 1.0) / factor

        def rough_price(self, factor: float) -> float:
            return 1.0 / factor

    prices: Any = Prices()
    factor, realised = noise_calibration._meet_target(prices, 2.0, "test")
    assert realised == off / factor
    assert 0.999 * 2 <= realised <= 2


# what cannot be calibrated


@pytest.mark.parametrize(
    ("parts", "values", "message"),
    [
        (
            [relative(1.0, 4)],
            {"epsilon": 0.009},
            r"0\.009: outside .* 0\.01 to 100; choose a larger",
        ),
        ([relative(1.0, 4)], {"epsilon": 100.1}, '100.1: outside .* write "inf" for no privacy'),
        ([relative(1.0, 4)], {"delta": 9e-11}, "9e-11: outside .* 1e-10 to 1; choose a delta"),
        ([relative(1.0, 4)], {"accountant": "gdp"}, "accountant 'gdp': choose one of pld, rdp"),
        ([relative(0.05, 9)], {"accountant": "gaussian"}, "mechanism 'g' samples its rows"),
        ([], {}, "epsilon 1: this method has no private mechanism; write epsilon inf"),
        ([relative(1.0, 1, 0.0)], {}, "mechanism 'g': relative noise multiplier 0 cannot be"),
    ],
)
def test_impossible_targets_are_refused_before_any_search(
    parts: list[Mechanism],
    values: dict[str, Any],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(noise_calibration, "solve_target", None)
    with pytest.raises(PrivacyError, match=message):
        calibrate(parts, aim(**values), cache=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "values",
    [
        {"epsilon": SMALLEST_EPSILON},
        {"epsilon": LARGEST_EPSILON},
        {"delta": SMALLEST_DELTA},
        {"accountant": "gaussian"},
        {"unit": "patient"},
    ],
)
def test_extreme_targets_are_calibrated_and_read_back(
    values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, parts = aim(**values), [relative(1.0, 4)]
    plan = calibrate(parts, target, cache=tmp_path)
    mu = 2 / plan.mechanisms[0].noise_multiplier
    exact = accountants.gaussian_epsilon(mu, target.delta)
    assert exact == pytest.approx(plan.realised_epsilon, rel=1.1e-5)
    assert exact <= target.nominal_epsilon
    assert Target.of_plan(plan) == target
    monkeypatch.setattr(noise_calibration, "solve_target", None)
    assert calibrate(parts, target, cache=tmp_path) == plan


@pytest.mark.parametrize("selection", [None, best_of(5)])
@pytest.mark.parametrize("parts", [[], [relative(1.0, 4), relative(0.1, 2, name="b")]])
def test_calibration_to_infinite_epsilon_gives_no_noise_and_no_price(
    parts: list[Mechanism], selection: Selection | None, tmp_path: Path
) -> None:
    selection = selection if parts else None
    plan = calibrate(parts, aim(math.inf), cache=tmp_path, selection=selection)
    assert [item.noise_multiplier for item in plan.mechanisms] == [0.0] * len(parts)
    assert (plan.realised_epsilon, plan.priced_by, plan.checks) == (math.inf, "none", {})
    assert plan.selection == selection
    prices = [noise_calibration.price_plan(plan), noise_calibration.price_of_group(plan, 3)]
    assert [*prices, noise_calibration.price_of_fits(plan, 3)] == [math.inf] * 3
    assert noise_calibration.second_opinions(plan) == ("none", {}, {})
    assert not list(tmp_path.iterdir()), "there was nothing to search for"


@pytest.mark.parametrize("above", [True, False, None])
@pytest.mark.parametrize(("delta", "allowed"), [(1 / 1437, True), (1.1 / 1437, False)])
def test_a_target_above_one_over_n_is_refused_unless_it_is_allowed(
    above: bool | None, delta: float, allowed: bool
) -> None:
    if allowed or above:
        assert aim(delta=delta, above=above) == aim(delta=delta, above=True)
    else:
        with pytest.raises(PrivacyError, match="n = 1437 training rows"):
            aim(delta=delta, above=above)


def test_a_target_in_words_has_its_budget_and_delta() -> None:
    assert str(aim(1.5)) == "epsilon 1.5 at delta 1e-05"
    risk = Risk(advantage=0.1)
    target = Target(n=1437, epsilon=risk, delta=1e-5)
    assert str(target) == "advantage 0.1 at delta 1e-05"
    assert target.nominal_epsilon == risk.to_epsilon(1e-5)
    assert aim(1.5).nominal_epsilon == 1.5


def test_the_target_of_a_plan_has_its_risk_and_no_price_for_patients() -> None:
    plan = Plan(
        mechanisms=(relative(1.0, 4),),
        n=1437,
        epsilon=1.0,
        delta=0.5,  # a stored delta is not checked again
        accountant="pld",
        realised_epsilon=0.9,
        patients=Patients(images=3, epsilon=2.5),
        risk={"advantage": 0.1},
    )
    target = Target.of_plan(plan)
    assert target.patients == Patients(images=3)
    assert target.epsilon == Risk(advantage=0.1)
    assert Target.of_plan(replace(plan, patients=None, risk=None)).epsilon == 1.0


# pricing a plan again


@pytest.mark.parametrize(
    ("parts", "selection", "accountant"),
    [
        ([relative(1.0, 4), relative(1.0, 1, 3.0, "b")], None, "pld"),
        ([relative(0.05, 9)], None, "pld"),
        ([relative(0.05, 9)], None, "rdp"),
        ([relative(1.0, 2), relative(1.0, 1, 2.0, "centre")], best_of(5), "pld"),
    ],
)
def test_a_plan_priced_again_has_its_price_to_one_to_groups_and_to_several_fits(
    parts: list[Mechanism], selection: Selection | None, accountant: str, tmp_path: Path
) -> None:
    plan = solve(parts, 1.0, tmp_path, accountant, selection)
    # prices depend neither on sensitivities nor on descriptions
    plan = replace(
        plan,
        mechanisms=tuple(
            replace(item, sensitivity=7.0, released="anything") for item in plan.mechanisms
        ),
    )
    price = noise_calibration.price_plan(plan)
    assert price == pytest.approx(plan.realised_epsilon, rel=1.1e-5)
    given = {"selection": selection}
    assert noise_calibration.price_of_group(plan, 3) == accountants.group_epsilon(
        plan.mechanisms, 1e-5, 3, **given
    )
    assert noise_calibration.price_of_fits(plan, 3) == accountants.price_together(
        plan.mechanisms, 1e-5, 3, **given
    )
    assert (
        price < noise_calibration.price_of_fits(plan, 3) < noise_calibration.price_of_group(plan, 3)
    )


@pytest.mark.usefixtures("checks")
@pytest.mark.parametrize("selection", [None, best_of(5)])
def test_second_opinions_round_up(selection: Selection | None, tmp_path: Path) -> None:
    parts = [relative(1.0, 4), relative(1.0, 2, 3.0, "centre")]
    plan = calibrate(parts, aim(), cache=tmp_path, selection=selection)
    by, checks, notes = noise_calibration.second_opinions(plan)
    assert (by, checks, notes) == (plan.priced_by, plan.checks, plan.check_notes)
    values, reasons = accountants.check_epsilons(plan.mechanisms, 1e-5, "gaussian", selection)
    assert checks == {
        name: None if value is None else round_up(value) for name, value in values.items()
    }
    assert notes == reasons
    assert [*notes] == ([name for name in checks if name[:3] == "prv"] if selection else [])
    assert ("selection by" in by) == (selection is not None)


@pytest.mark.parametrize("budget", [1.0, Risk(advantage=0.1)], ids=str)
def test_a_delta_above_one_over_n_is_refused_for_an_epsilon_and_for_a_risk(
    budget: float | Risk,
) -> None:
    Target(n=1000, epsilon=budget, delta=0.001)
    with pytest.raises(PrivacyError, match="delta 0.0011 is above 1/n"):
        Target(n=1000, epsilon=budget, delta=0.0011)
