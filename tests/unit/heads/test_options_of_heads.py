"""Options of heads: releases, rules and refusals of settings, and where options stand."""

from __future__ import annotations

import inspect
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import norm

from dpprobe.errors import ConfigError
from dpprobe.heads import auto
from dpprobe.heads.balance import log_shifts, released_priors
from dpprobe.heads.dimension_limits import MOST_FEATURES, dimension_fault
from dpprobe.heads.facts import DataFacts
from dpprobe.heads.gradient_options import GradientOptions
from dpprobe.heads.options import check_counts
from dpprobe.heads.registry import METHODS, method_options
from dpprobe.heads.schedules import learning_rates, mixing_rates
from dpprobe.heads.search_space import Range, list_corners, list_probes
from dpprobe.heads.second_order import Spectrum
from dpprobe.heads.whitening import compute_whitener
from dpprobe.options import options_class
from dpprobe.privacy.plan import Mechanism

SGD: dict[str, Any] = {"head": "sgd"}
BASE = SGD | {"steps": 5, "batch_size": "full"}
FILE = {"init": "file", "init_file": "{dataset}/{backbone}.npz"}
N = 1437


def tuned(**values: Any) -> dict[str, Any]:
    return {"head": "tuned", "base": BASE, **values}


def searched(name: str, space: Any) -> dict[str, Any]:
    return tuned(search={name: space})


def releases(values: dict[str, Any], n: int = N) -> dict[str, Mechanism]:
    mechanisms = method_options(values).list_mechanisms(n)
    check_counts(mechanisms)
    return {each.name: each for each in mechanisms}


@pytest.mark.parametrize(
    ("values", "rate", "count"),
    [
        ({"batch_size": "full", "steps": 7}, 1.0, 7),
        ({"batch_size": 30, "steps": 7}, 30 / N, 7),
        ({"batch_size": 30, "epochs": 1}, 30 / N, 48),  # 1437 / 30 = 47.9
        ({"batch_size": 32, "epochs": 2}, 32 / N, 90),  # 89.8
        ({"batch_size": 3, "epochs": 10}, 3 / N, 4790),
        ({"batch_size": N, "epochs": 5}, 1.0, 5),
        ({"batch_size": "full", "epochs": 0.001}, 1.0, 1),  # a step at least
    ],
)
@pytest.mark.parametrize("bound", [0.3, 2.0])
def test_sgd_releases_a_gradient_per_step_at_the_rate_of_its_batches(
    values: dict[str, Any], rate: float, count: int, bound: float
) -> None:
    found = releases(SGD | values | {"normalize": "none", "max_grad_norm": bound})
    (gradients,) = found.values()
    assert list(found) == ["gradients"]
    assert (gradients.sample_rate, gradients.count) == (pytest.approx(rate), count)
    assert gradients.sensitivity == bound


# The intercept is a feature of every row of norm at most 1, so that a row's squared norm is at most
# 1 + intercept^2: the sensitivity of a sum of outer products; that of sums of rows is its root.
OF_SUMS: list[tuple[dict[str, Any], dict[str, float]]] = [
    ({"head": "prototypes"}, {"class_sums": math.sqrt(1 + 0.5**2)}),
    ({"head": "prototypes", "intercept": 2.0}, {"class_sums": math.sqrt(1 + 2.0**2)}),
    (
        {"head": "least_squares", "intercept": 0.2},
        {"gram": 1 + 0.2**2, "targets": math.sqrt(1 + 0.2**2)},
    ),
    ({"head": "least_squares", "intercept": 0}, {"gram": 1.0, "targets": 1.0}),
    (
        {"head": "feature_covariance", "intercept": 0.2, "max_grad_norm": 0.7},
        {"covariance": 1 + 0.2**2, "gradients": 0.7},
    ),
    ({"head": "feature_covariance", "public_covariance": "x.json"}, {"gradients": 0.7}),
    (
        {"head": "newton", "intercept": 0.2, "max_grad_norm": 0.5},
        {"hessians": 1 + 0.2**2, "gradients": 0.5},
    ),
]


@pytest.mark.parametrize(
    ("values", "wanted", "kind"),
    [
        (*case, kind)
        for case, kind in itertools.product(OF_SUMS, ("l2", "centred", "whitened"))
        if kind == "l2" or "public_covariance" not in case[0]  # is of rows as they are
    ],
)
def test_sums_have_the_sensitivity_of_the_longest_row(
    values: dict[str, Any], wanted: dict[str, float], kind: str
) -> None:
    """A normalisation releases its statistics before the head does, of rows of norm 1."""
    first = {"l2": [], "centred": ["centre"], "whitened": ["centre", "second_moment"]}[kind]
    found = releases(values | {"normalize": kind})
    assert list(found) == [*first, *wanted]
    assert [found[name].sensitivity for name in first] == [1.0] * len(first)
    for name, sensitivity in wanted.items():
        assert found[name].sensitivity == pytest.approx(sensitivity)
        assert found[name].sample_rate == 1.0


def test_steps_without_a_clipping_norm_have_the_sensitivity_of_the_loss() -> None:
    """Two residuals of a softmax have a norm of at most sqrt(2), a single sigmoid's at most 1."""
    first = {"head": "newton", "steps": 1, "max_grad_norm": None, "normalize": "l2"}
    row = math.sqrt(1 + 0.2**2)
    sizes = {
        ("softmax", 0.5): math.sqrt(2) * row,
        ("sigmoid", 0.0): row / 2,  # from zero every residual is 1/2
        ("sigmoid", 0.5): row,
    }
    for (loss, bias), wanted in sizes.items():
        options = first | {"loss": loss, "init_bias": bias}
        assert releases(options)["gradients"].sensitivity == pytest.approx(wanted)


@pytest.mark.parametrize("head", ["sgd", "adam", "newton", "lamb"])
def test_released_priors_come_first(head: str) -> None:
    found = releases({"head": head, "class_priors": "released", "normalize": "l2"})
    assert next(iter(found)) == "class_counts"
    counts = found["class_counts"]
    assert (counts.sensitivity, counts.sample_rate, counts.count) == (1.0, 1.0, 1)
    assert "class_counts" not in releases({"head": head, "class_priors": [1, 2]})


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"head": "tuned"}, "base: missing; add this key"),
    ({"head": "fine_tune"}, "tune: missing; add this key"),
    *(
        ({"head": "momentum", "normalize": kind}, f"normalize: {kind} needs a learning_rate")
        for kind in ("none", "layer_norm")
    ),
    *(
        (
            {"head": "nonprivate", "normalize": kind},
            f"normalize: {kind} takes a share .*; write l2 or none",
        )
        for kind in ("centred", "whitened")
    ),
    ({"head": "nonprivate", "penalties": [0, 1]}, "penalty 0.0: write a positive number"),
    ({"head": "nonprivate", "penalties": [1, 1]}, "penalty 1.0 appears twice"),
    ({"head": "nonprivate", "penalties": [math.inf]}, "inf: write a finite number"),
    ({"head": "nonprivate", "penalties": []}, "1 or more entries"),
    (tuned(base={"head": "auto"}), "base: head auto chooses its own options"),
    (tuned(base={"head": "nonprivate"}), "base: head nonprivate cannot be tuned"),
    (tuned(base={"head": "tuned"}), "base.base: missing"),
    (tuned(base={"head": "fine_tune"}), "base.tune: missing"),
    (SGD | {"batch_size": 0}, "batch_size: 0: write a number of 1 or more"),
    (SGD | {"epochs": 1, "steps": 7}, "epochs 1 and steps 7: write only one"),
    (SGD | {"shuffle": True}, "shuffle: not available, because batches are Poisson samples"),
    (SGD | {"init": "file"}, "init file with init_file None: write both"),
    (SGD | {"init_file": "a"}, "init torch with init_file a: write both"),
    (SGD | {"init_scale": 2}, "init_scale 2 has no effect with init torch"),
    (SGD | {"warmup": 0.1}, "warmup 0.1 has no effect with schedule constant"),
    (SGD | {"ema_decay": 0.9}, "ema_decay 0.9 has no effect with average last"),
    (SGD | {"unknown": 1}, "unknown: unknown key"),
    (SGD | {"class_weights": [0.5, 0.5]}, "the largest is 0.5, but must be 1; divide"),
    (SGD | {"class_weights": [2, 1, 1]}, "the largest is 2, but must be 1; divide"),
    (SGD | {"class_priors": "released", "loss": "sigmoid"}, "work only with `loss: softmax`"),
    (SGD | {"prior_share": 0.1}, "prior_share 0.1 has an effect only with class_priors: released"),
    (SGD | FILE | {"normalize": "whitened"}, "init_file was computed from rows without this"),
    (tuned(search={}), "write one option or more, or leave search out"),
    (searched("nothing", [1, 2]), "search.nothing: not an option of head sgd"),
    (searched("learning_rate", [0.1]), r"\[0.1\]: write a list of two or more values"),
    (searched("learning_rate", []), r"\[\]: write a list of two or more values"),
    (searched("learning_rate", {"low": 2, "high": 1}), "low 2 must be below high 1"),
    (searched("learning_rate", {"low": 1, "high": 1}), "low 1 must be below high 1"),
    (searched("learning_rate", {"low": 0, "high": 1, "log": True}), "low 0 has no logarithm"),
    (searched("learning_rate", {"low": -1, "high": 1, "log": True}), "low -1 has no logarithm"),
    (searched("learning_rate", [0.1, 1]) | {"trials": 1}, "trials: 1: write a number above 1"),
    (tuned(normalize="l2"), "normalize: is an option of the base; move it there"),
    (
        tuned(search={name: [*range(1, 66)] for name in ("learning_rate", "max_grad_norm")}),
        "4225 combinations .* at most 4096",  # 65 values each
    ),
]


@pytest.mark.parametrize(("values", "said"), REFUSED)
def test_a_setting_that_makes_no_sense_is_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        method_options(values)


def test_as_many_combinations_as_are_checked_are_allowed() -> None:
    names = ("learning_rate", "max_grad_norm")
    method_options(tuned(search={name: [*range(1, 65)] for name in names}))  # 64 * 64 = 4096


@pytest.mark.parametrize(("n", "allowed"), [(30, True), (31, True), (29, False)])
def test_a_batch_has_at_most_all_rows(n: int, allowed: bool) -> None:
    values = SGD | {"batch_size": 30, "steps": 2}
    if allowed:
        assert releases(values, n)["gradients"].sample_rate == pytest.approx(30 / n)
        return
    with pytest.raises(ConfigError, match="batch_size 30 is above the 29 training rows"):
        releases(values, n)


def test_auto_has_no_releases_before_it_has_chosen() -> None:
    with pytest.raises(ConfigError, match="the choice needs the features; call `resolve_choice`"):
        releases({"head": "auto"})


@pytest.mark.parametrize("width", [MOST_FEATURES, MOST_FEATURES + 1])
@pytest.mark.parametrize("values", [{"head": "newton"}, {"head": "momentum"}])
@pytest.mark.parametrize("kind", ["centred", "whitened"])
def test_second_moments_have_a_largest_width(values: dict[str, Any], kind: str, width: int) -> None:
    method = method_options(values | {"normalize": kind})
    fault = dimension_fault(method, width)
    if width <= MOST_FEATURES or (values["head"] == "momentum" and kind == "centred"):
        assert fault is None
    else:
        assert f"{width} features are too many" in str(fault)
        assert f"up to {MOST_FEATURES}" in str(fault)


@pytest.mark.parametrize(("groups", "fits"), [(27, True), (26, False)])
def test_groups_divide_the_features(groups: int, fits: bool) -> None:
    values = {"learning_rate": 1, "normalize": {"kind": "group_norm", "groups": groups}}
    method = method_options({"head": "momentum", **values})
    assert (dimension_fault(method, 27 * 64) is None) == fits


def test_a_path_has_the_names_of_dataset_and_backbone_alone() -> None:
    method = method_options(SGD | FILE)
    assert method.public_files() == {"init_file": "{dataset}/{backbone}.npz"}
    filled = method.fill_paths(dataset="a", backbone="b")
    assert list(filled.input_files()) == ["a/b.npz"]
    for path in ("w_{}.npz", "w_{0}.npz", "w_{x}.npz"):
        wrong = method_options(SGD | FILE | {"init_file": path})
        with pytest.raises(ConfigError, match="only {dataset} and {backbone} may be in braces"):
            wrong.fill_paths(dataset="a", backbone="b")


def test_a_tuned_head_has_the_files_of_its_base() -> None:
    base = {"head": "feature_covariance", "normalize": "l2", "public_covariance": "{dataset}"}
    started = base | {"init": "file", "init_file": "{backbone}"}
    method = method_options({"head": "tuned", "base": started, "search": {"ridge": [1, 2]}})
    assert method.public_files() == {
        "base.init_file": "{backbone}",
        "base.public_covariance": "{dataset}",
    }
    filled = method.fill_paths(dataset="a", backbone="b")
    assert sorted(filled.input_files()) == ["a", "b"]


def gradient_options(**values: Any) -> GradientOptions:
    method = method_options(SGD | values)
    assert isinstance(method, GradientOptions)
    return method


@pytest.mark.parametrize("schedule", ["constant", "warmup_cosine", "warmup_linear"])
@pytest.mark.parametrize("warmup", [0.0, 0.25, 0.99])
@pytest.mark.parametrize("steps", [1, 2, 3, 10])
def test_rates_rise_and_fall_as_they_are_defined(schedule: str, warmup: float, steps: int) -> None:
    more = {} if schedule == "constant" else {"warmup": warmup}
    options = gradient_options(schedule=schedule, learning_rate=0.4, **more)
    warm = min(round(warmup * steps), steps - 1)
    expected = []
    for step in range(steps):
        part = (step - warm) / (steps - warm)
        falling = {"warmup_cosine": math.cos(math.pi * part / 2) ** 2, "warmup_linear": 1 - part}
        rising = (step + 1) / max(warm, 1)
        share = rising if step < warm else falling.get(schedule, 1.0)
        expected.append(0.4 * (1.0 if schedule == "constant" else share))
    np.testing.assert_allclose(learning_rates(options, steps), expected, rtol=1e-12)
    np.testing.assert_allclose(learning_rates(options, steps, 2.0), 5 * np.array(expected))


@pytest.mark.parametrize("values", [{"average": "mean"}, {"average": "ema", "ema_decay": 0.5}])
def test_mixing_gives_the_average_of_the_weights(values: dict[str, Any]) -> None:
    weights = np.random.default_rng(0).normal(size=9)
    rates = mixing_rates(gradient_options(**values), 9)
    assert rates is not None
    average, decay = 0.0, values.get("ema_decay", 1.0)
    for taken, (rate, weight) in enumerate(zip(rates, weights, strict=True), start=1):
        average += rate * (weight - average)
        importance = decay ** np.arange(taken)[::-1]
        assert average == pytest.approx(np.average(weights[:taken], weights=importance))


def test_the_last_weights_need_no_mixing_and_a_moving_average_forgets_slowly() -> None:
    assert mixing_rates(gradient_options(), 4) is None
    usual = mixing_rates(gradient_options(average="ema"), 4)
    given = mixing_rates(gradient_options(average="ema", ema_decay=0.99), 4)
    np.testing.assert_array_equal(usual, given)


def test_a_range_is_even_in_its_numbers_or_their_logarithms() -> None:
    even, log = Range(low=0.5, high=8), Range(low=0.5, high=8, log=True)
    assert [even.value_at(place) for place in (0, 0.25, 0.5, 1)] == [0.5, 2.375, 4.25, 8]
    assert [log.value_at(place) for place in (0, 0.25, 0.5, 1)] == [0.5, 1, 2, 8]
    for each in (even, log):
        assert [each.round_value(value) for value in (0.4, 2 / 3, 9)] == [0.5, 0.666667, 8]
        first, between, last = list_probes(each)
        assert (first, last) == (0.5, 8)
        assert 0.5 < between < 8
        assert between != round(between), "an option of whole numbers refuses it"


def test_corners_are_each_value_alone_and_all_together() -> None:
    spaces = {"a": (1, 2), "b": ("x", "y", "z")}
    corners = list(list_corners(spaces))
    alone = [{name: value} for name, values in spaces.items() for value in values]
    together = [{"a": a, "b": b} for a, b in itertools.product(*spaces.values())]
    assert corners == alone + together


@pytest.mark.parametrize("exponent", [0.5, 0.25])
def test_whitening_evens_out_directions_and_keeps_the_length(exponent: float) -> None:
    """The summed squared length of 50 units of norm 1; more noise changes directions less."""
    vectors = torch.tensor([[0.6, -0.8], [0.8, 0.6]])
    moment = Spectrum(torch.tensor([9.0, 0.1]).double(), vectors)
    values, basis = np.array([9.0, 0.1]), vectors.double().numpy()
    matrix = compute_whitener(moment, exponent, noise=0.0, n=50).numpy()
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-12)
    second = basis @ np.diag(values) @ basis.T
    assert np.trace(matrix @ second @ matrix.T) == pytest.approx(50, rel=1e-5)
    factors = np.diag(basis.T @ matrix @ basis)
    ridge = 0.03 * math.sqrt(2)  # which keeps quiet directions from being blown up
    evened = ((9.0 + ridge) / (0.1 + ridge)) ** exponent
    assert factors[1] / factors[0] == pytest.approx(evened)
    ratios = []
    for noise in (0.0, 0.1, 0.5, 5.0):
        noisy = compute_whitener(moment, exponent, noise=noise, n=50).numpy()
        own = np.diag(basis.T @ noisy @ basis)
        ratios.append(own[1] / own[0])
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[-1] > 1


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_a_moment_without_signal_leaves_rows_as_they_are(noise: float) -> None:
    nothing = Spectrum(torch.zeros(2).double(), torch.eye(2))
    found = compute_whitener(nothing, 0.5, noise=noise, n=50)
    torch.testing.assert_close(found, torch.eye(2).double())


@pytest.mark.parametrize("priors", [(1.0,), (0.5, 0.25, 0.25), (3.0, 1.0)])
def test_shifts_undo_log_priors_and_have_no_mean(priors: tuple[float, ...]) -> None:
    shifts = np.array(log_shifts(priors))
    assert shifts.mean() == pytest.approx(0, abs=1e-12)
    undone = np.exp(shifts) * priors
    np.testing.assert_allclose(undone, undone[0])
    assert log_shifts(()) == ()


@pytest.mark.parametrize(
    ("counts", "deviation", "floored"),
    [
        ([60, 30, 10], 0.0, [60, 30, 10]),
        ([60, 30, 10], 10.0, [60, 30, 20]),  # two standard deviations of the noise
        ([60, 30, -500], 10.0, [60, 30, 20]),
        ([9, 0, 0], 0.0, [9, 1, 1]),  # a row at least
        ([-3, -5, 1], 100.0, [1, 1, 1]),
        ([9, 1, 0.5], 0.25, [9, 1, 1]),
        ([9, 1, 0.5], 0.75, [9, 1.5, 1.5]),
    ],
)
def test_a_count_below_its_noise_or_a_row_is_raised(
    counts: list[float], deviation: float, floored: list[float]
) -> None:
    expected = np.array(floored) / sum(floored)
    np.testing.assert_allclose(released_priors(counts, deviation), expected)


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Balle and Wang 2018, theorem 8: the mu at which a Gaussian mechanism has this delta."""

    def excess(mu: float) -> float:
        low, high = (-epsilon / mu + sign * mu / 2 for sign in (-1, 1))
        return float(norm.cdf(high) - math.exp(epsilon) * norm.cdf(low) - delta)

    return float(brentq(excess, 1e-3, 50))


@pytest.mark.parametrize("n", [300, 2000, 50_000])
@pytest.mark.parametrize("dimension", [6, 1280, MOST_FEATURES, MOST_FEATURES + 1])
@pytest.mark.parametrize("epsilon", [0.1, 0.5, 8.0, math.inf])
@pytest.mark.parametrize("several", [False, True])
def test_auto_whitens_where_the_second_moment_is_worth_its_share(
    n: int, dimension: int, epsilon: float, several: bool
) -> None:
    """From n mu = 100 sqrt(d) on, as docs/methods/auto.md says, up to the largest width."""
    facts = DataFacts(
        n=n,
        dimension=dimension,
        classes=3,
        multi_label=several,
        epsilon=epsilon,
        delta=1e-4,
        unit="image",
    )
    asked = method_options({"head": "auto"})
    assert auto.is_undecided(asked)
    chosen = asked.resolve_choice(facts)
    assert not auto.is_undecided(chosen)
    head = auto.trained_head(chosen)
    mu = math.inf if math.isinf(epsilon) else gaussian_mu(epsilon, 1e-4)
    whitens = dimension <= MOST_FEATURES and n * mu >= 100 * math.sqrt(dimension)
    assert head.head == "momentum"
    assert head.normalize.kind == ("whitened" if whitens else "centred")
    assert head.link_on(several) == ("sigmoid" if several else "softmax")
    said = auto.describe_choice(chosen, facts)
    assert said is not None
    assert {**facts.to_dict(), **said} == said
    assert said["head"] == "momentum"


@pytest.mark.parametrize("name", METHODS)
def test_all_options_of_a_head_stand_in_its_file_and_one_other(name: str) -> None:
    cls = options_class(METHODS, name)
    assert cls.__module__ == METHODS[name]
    owners = {
        next(each.__module__ for each in cls.__mro__ if option in inspect.get_annotations(each))
        for option in set(cls.model_fields) - {"head", "normalize"}
    }
    assert len(owners - {cls.__module__}) <= 1
