"""Options of heads: which are refused, what they release, and their default values by rule."""

from __future__ import annotations

import inspect
import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.optimize import brentq
from scipy.stats import norm

from dpprobe.errors import ConfigError
from dpprobe.heads import auto, auto_rule
from dpprobe.heads.balance import released_priors
from dpprobe.heads.balance_options import log_shifts
from dpprobe.heads.dimension_limits import MOST_FEATURES, dimension_fault
from dpprobe.heads.facts import DataFacts
from dpprobe.heads.gradient_options import GradientOptions
from dpprobe.heads.joint_fits import cohort_fault, sites_fault
from dpprobe.heads.options import check_counts
from dpprobe.heads.registry import METHODS, method_options
from dpprobe.heads.second_order import Spectrum
from dpprobe.heads.whitening import compute_whitener
from dpprobe.options import options_class

SGD: dict[str, Any] = {"head": "sgd"}
MOMENTUM: dict[str, Any] = {"head": "momentum"}
TUNED: dict[str, Any] = {"head": "tuned", "base": SGD | {"steps": 5, "batch_size": "full"}}
RELEASED = {"class_priors": "released"}
WEIGHTS = [1, 0.5, 0.25]
FILE = {"init": "file", "init_file": "{dataset}/{backbone}.npz"}
BUDGET = "takes a share of a privacy budget, but head nonprivate has no budget; use l2 or none"
NO_LIST = "must be a list of two or more values, or low and high"
# Options that every head refuses, and a part of each error.
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"head": "tuned"}, "base: missing; add this key"),
    ({"head": "fine_tune"}, "tune: missing; add this key"),
    (SGD | {"unknown": 1}, "unknown: unknown key"),
    (SGD | {"batch_size": 0}, "batch_size: 0: must be a number of 1 or more"),
    (SGD | {"epochs": 1, "steps": 7}, "epochs 1 and steps 7: set only one of them"),
    (SGD | {"shuffle": True}, "shuffle: not available, because batches are Poisson samples"),
    (SGD | {"init": "file"}, "init file with init_file None: set both"),
    (SGD | {"init_file": "a"}, "init torch with init_file a: set both"),
    (SGD | {"init_scale": 2}, "init_scale 2 has no effect with init torch"),
    (SGD | {"warmup": 0.1}, "warmup 0.1 has no effect with schedule constant"),
    (SGD | {"ema_decay": 0.9}, "ema_decay 0.9 has no effect with average last"),
    (SGD | FILE | {"normalize": "whitened"}, "whitened transforms rows by released statistics"),
    (
        SGD | FILE | {"normalize": {"kind": "whitened", "moment": "public", "public": "p.npy"}},
        "whitened transforms rows by released statistics",
    ),
    (SGD | {"class_weights": [0.5, 0.5]}, "class_weights: the largest is 0.5, but must be 1"),
    (SGD | {"class_weights": [2, 1, 1]}, "class_weights: the largest is 2, but must be 1"),
    (SGD | RELEASED | {"loss": "sigmoid"}, "class_priors: they work only with `loss: softmax`"),
    (SGD | {"prior_share": 0.1}, "prior_share 0.1 has an effect only with class_priors: released"),
    (MOMENTUM | {"normalize": "none"}, "normalize: none needs a learning_rate"),
    (MOMENTUM | {"normalize": "layer_norm"}, "normalize: layer_norm needs a learning_rate"),
    ({"head": "nonprivate", "normalize": "centred"}, f"centred {BUDGET}"),
    ({"head": "nonprivate", "normalize": "whitened"}, f"whitened {BUDGET}"),
    ({"head": "nonprivate", "penalties": [0, 1]}, "penalty 0.0: must be a positive number"),
    ({"head": "nonprivate", "penalties": [1, 1]}, "penalty 1.0 appears twice in the list"),
    ({"head": "nonprivate", "penalties": [math.inf]}, "inf: must be a finite number"),
    ({"head": "nonprivate", "penalties": []}, "must be a list or mapping with 1 or more entries"),
    (TUNED | {"base": {"head": "auto"}}, "base: head auto chooses its own options"),
    (TUNED | {"base": {"head": "nonprivate"}}, "base: head nonprivate cannot be tuned"),
    (TUNED | {"base": {"head": "tuned"}}, "base.base: missing"),
    (TUNED | {"search": {}}, "search: {}: set one option or more, or leave search out"),
    (TUNED | {"search": {"nothing": [1, 2]}}, "search.nothing: not an option of head sgd"),
    *(
        (TUNED | {"search": {name: values}}, f"search.{name}: not an option of head sgd")
        for name, values in {
            "normalize": ["l2", "none"],
            "engine": ["exact", "opacus"],
            "head": ["sgd", "adam"],
            "init_file": ["a.safetensors", "b.safetensors"],
        }.items()
    ),
    (TUNED | {"search": {"learning_rate": [0.1]}}, f"search.learning_rate: [0.1]: {NO_LIST}"),
    (TUNED | {"search": {"learning_rate": []}}, f"search.learning_rate: []: {NO_LIST}"),
    (TUNED | {"search": {"learning_rate": {"low": 2, "high": 1}}}, "low 2 must be below high 1"),
    (TUNED | {"search": {"learning_rate": {"low": 1, "high": 1}}}, "low 1 must be below high 1"),
    *(
        (TUNED | {"search": {"learning_rate": {"low": low, "high": 1, "log": True}}}, said)
        for low, said in ((0, "low 0 has no logarithm"), (-1, "low -1 has no logarithm"))
    ),
    (
        TUNED | {"search": {name: [*range(1, 66)] for name in ("learning_rate", "max_grad_norm")}},
        "search: 4225 combinations of values",  # 65 x 65
    ),
    (TUNED | {"trials": 1}, "trials: 1: must be a number above 1"),
    (TUNED | {"normalize": "l2"}, "normalize: is an option of the base; move it there"),
]


@pytest.mark.parametrize(("values", "said"), REFUSED)
def test_options_that_no_head_takes_are_named(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        method_options(values)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("values", "n", "steps", "rate"),
    [
        ({"batch_size": "full", "steps": 7}, 30, 7, 1),
        ({"batch_size": "full", "epochs": 2.4}, 30, 2, 1),
        ({"batch_size": 30, "epochs": 1}, 30, 1, 1),
        ({"batch_size": 32, "epochs": 20}, 1437, 898, 32 / 1437),  # 20 * 1437 / 32 = 898.1
        ({"batch_size": 32, "epochs": 0.001}, 1437, 1, 32 / 1437),  # at least one
        ({"batch_size": 1, "epochs": 20_000}, 30, 600_000, 1 / 30),
    ],
)
def test_epochs_are_steps_of_expected_batches(
    values: dict[str, Any], n: int, steps: int, rate: float
) -> None:
    (gradients,) = method_options(SGD | values).list_mechanisms(n)
    assert gradients.name == "gradients"
    assert gradients.count == steps
    assert gradients.sample_rate == pytest.approx(rate)


@pytest.mark.parametrize(
    ("values", "n", "said"),
    [
        (SGD | {"batch_size": 31}, 30, "batch_size 31 is above the 30 training rows"),
        (SGD | {"batch_size": 1, "epochs": 20_000}, 1437, "steps 28,740,000: at most 1,000,000"),
        (TUNED | {"search": {"steps": [5, 6]}}, 30, "search: steps 6 changes epsilon"),
        (
            TUNED | {"search": {"learning_rate": [1, 2], "batch_size": [400, 40]}},
            1437,
            "search: batch_size 400 changes epsilon",
        ),
        (
            TUNED | {"search": {"batch_size": [400, 40]}},
            30,
            "search: batch_size 400: batch_size 400 is above the 30 training rows",
        ),
    ],
)
def test_options_that_do_not_fit_the_rows_are_refused(
    values: dict[str, Any], n: int, said: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        check_counts(method_options(values).list_mechanisms(n))


EVERY: dict[str, dict[str, Any]] = {
    name: {"head": name} for name in METHODS if name not in ("tuned", "fine_tune", "auto")
} | {"tuned": TUNED}


@pytest.mark.parametrize("name", EVERY)
def test_properties_of_heads_are_as_documented(name: str) -> None:
    """Exactness, privacy and sums over cohorts and sites are those that docs/methods states."""
    method = method_options(EVERY[name])
    exact = {"feature_covariance", "least_squares", "newton", "prototypes"}
    sums = {"feature_covariance", "least_squares", "prototypes"}
    assert method.private == (name != "nonprivate")
    assert (method.private_choices is None) == method.private
    assert method.is_exact == (name in exact)
    # engines with float32 sums and noise are for benchmarks and state their limits
    assert bool(method.engine_limits) == (method.private and not method.is_exact)
    assert bool(method.running_sums) == (name in sums)
    if name in sums:
        public = {"public_covariance": "m.json"} if name == "feature_covariance" else {}
        for centred in (method, method_options(EVERY[name] | public)):
            assert "releases statistics of each cohort" in (cohort_fault(centred) or "")
        assert cohort_fault(method_options(EVERY[name] | {"normalize": "l2"})) is None
    else:
        assert "not made of sums that add up over cohorts" in (cohort_fault(method) or "")
    fault = sites_fault(method)
    assert (fault is None) == (name in exact)
    assert fault is None or "sites add up exact sums, which it does not compute" in fault
    if {"engine", "batch_size"} <= type(method).model_fields.keys():
        whole = EVERY[name] | {"engine": "exact", "batch_size": "full"}
        assert sites_fault(method_options(whole)) is None
        sampled = sites_fault(method_options(whole | {"batch_size": 3}))
        assert "sites add up sums of all rows" in (sampled or "")
        assert method_options(whole).engine_limits is None


def test_sites_cannot_search_together() -> None:
    exact = {"head": "feature_covariance", "normalize": "l2"}
    tuned = method_options({"head": "tuned", "base": exact, "search": {"ridge": [1, 2]}})
    assert "sites cannot search together" in (sites_fault(tuned) or "")


@pytest.mark.parametrize(
    ("normalize", "key"),
    [
        ({"kind": "group_norm", "groups": 27}, "groups: 27"),
        (
            {"kind": "channels", "channels": 27, "max_mean_norm": 1, "max_deviation_norm": 1},
            "channels: 27",
        ),
    ],
)
def test_groups_divide_the_features(normalize: dict[str, Any], key: str) -> None:
    method = method_options(MOMENTUM | {"learning_rate": 1, "normalize": normalize})
    assert dimension_fault(method, 54) is None
    said = dimension_fault(method, 1280)
    assert said == f"normalize.{key} does not divide 1280, the number of features; choose a " + (
        "divisor of 1280"
    )


@pytest.mark.parametrize(
    ("values", "classes", "several", "said"),
    [
        ({"class_weights": WEIGHTS}, 3, False, None),
        ({"class_weights": WEIGHTS}, 4, False, "class_weights has 3 numbers for 4 classes"),
        ({"class_priors": [3, 1, 1, 1]}, 4, False, None),
        ({"class_priors": [3, 1, 1, 1]}, 3, False, "class_priors has 4 numbers for 3 classes"),
        (RELEASED, 3, False, None),
        (RELEASED, 4, True, "class_priors: released needs one label per row"),
        ({"class_weights": WEIGHTS, "loss": "sigmoid"}, 3, True, "class_weights need one label"),
        ({"class_weights": WEIGHTS, "loss": "sigmoid"}, 3, False, None),
    ],
)
def test_numbers_of_classes_fit_the_classes(
    values: dict[str, Any], classes: int, several: bool, said: str | None
) -> None:
    method = method_options(SGD | values)
    fault = method.class_fault(classes, multi_label=several)
    assert fault is None if said is None else (fault or "").startswith(said)
    if values is not RELEASED:  # which no search allows
        search = {"learning_rate": [0.1, 1]}
        tuned = method_options({"head": "tuned", "base": SGD | values, "search": search})
        assert tuned.class_fault(classes, multi_label=several) == fault
    numbers = values.get("class_weights") or values.get("class_priors")
    assert method.counted_classes == (len(numbers) if isinstance(numbers, list) else None)


def test_paths_are_filled_with_dataset_and_backbone() -> None:
    filled = method_options(SGD | FILE).fill_paths(dataset="a", backbone="b")
    assert list(filled.input_files()) == ["a/b.npz"]
    for end in ("{}", "{0}", "{x}", "{"):
        method = method_options(SGD | FILE | {"init_file": f"w_{end}.npz"})
        with pytest.raises(ConfigError, match="init_file"):
            method.fill_paths(dataset="a", backbone="b")
    base = {"head": "feature_covariance", "normalize": "l2", "public_covariance": "{dataset}"}
    tuned = method_options(TUNED | {"base": base, "search": {"ridge": [1, 2]}})
    assert tuned.public_files() == {"base.public_covariance": "{dataset}"}
    assert list(tuned.fill_paths(dataset="a", backbone="b").input_files()) == ["a"]


def test_a_search_is_priced_by_its_mean_number_of_trials() -> None:
    norms = TUNED | {"search": {"max_grad_norm": [0.1, 0.2]}, "trials": 2.5}
    selection = method_options(norms).priced_selection(30)
    assert selection is not None
    assert (selection.mean, set(selection.repeated)) == (2.5, {"score", "gradients"})
    # a trial with another clipping norm draws its noise for that norm
    for values, anew in ((norms, True), (TUNED | {"search": {"learning_rate": [1, 2]}}, False)):
        *_, gradients = method_options(values).list_mechanisms(30)
        assert ("own norm" in gradients.released) == anew
    assert method_options(SGD).priced_selection(30) is None


# Learning rates by rule


def rate_of(
    head: str, steps: int = 40, *, dimension: int = 1280, classes: int = 10, **more: Any
) -> float:
    noise = more.pop("noise", 0.0)
    method = method_options({"head": head, **more})
    assert isinstance(method, GradientOptions)
    return method.choose_rate(steps, noise=noise, classes=classes, dimension=dimension)


@given(steps=st.integers(1, 1000), dimension=st.integers(2, 4096), classes=st.integers(2, 1000))
def test_a_rate_by_rule_falls_with_noise_steps_and_dimension(
    steps: int, dimension: int, classes: int
) -> None:
    sizes = {"dimension": dimension, "classes": classes}
    quiet = rate_of("momentum", steps, **sizes)
    # without noise, the longest step at which heavy ball converges: a part of 2 (1 + beta) / L
    assert rate_of("momentum", 3 * steps, **sizes) == quiet
    noisy = [rate_of("momentum", steps, noise=noise, **sizes) for noise in (0.1, 1.0, 10.0)]
    assert noisy == sorted(noisy, reverse=True)
    assert noisy[0] <= quiet
    # with much noise, the rate is divided by the noise and by the root of the steps
    loud = rate_of("momentum", steps, noise=100.0, **sizes)
    assert rate_of("momentum", 4 * steps, noise=100.0, **sizes) == pytest.approx(loud / 2)
    assert rate_of("momentum", steps, noise=200.0, **sizes) == pytest.approx(loud / 2)
    # Adam's steps have a fixed length per number, whatever the noise
    adam = rate_of("adam", steps, **sizes)
    assert rate_of("adam", steps, noise=5.0, **sizes) == adam
    assert rate_of("adam", 4 * steps, **sizes) == pytest.approx(adam / 2)
    assert rate_of("adam", steps, **sizes | {"dimension": 4 * dimension}) >= adam / 2 - 1e-12
    # LAMB's steps are shares of the weights' norm
    assert rate_of("lamb", 1000 * steps) == pytest.approx(rate_of("lamb", 2000 * steps) * 2)


def test_rates_that_are_written_need_no_rule() -> None:
    with pytest.raises(NotImplementedError, match="head sgd has no rule"):
        rate_of("sgd")


# auto


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 8.0, math.inf])
@pytest.mark.parametrize("dimension", [6, 1280, MOST_FEATURES, MOST_FEATURES + 1])
@pytest.mark.parametrize("n", [300, 50_000])
@pytest.mark.parametrize("several", [False, True])
def test_auto_whitens_where_the_moment_is_worth_its_share(
    n: int, dimension: int, epsilon: float, several: bool
) -> None:
    """`auto` whitens if n mu >= 50 sqrt(d); mu is the Gaussian mechanism's (Dong et al. 2022)."""
    delta = 1e-4
    facts = DataFacts(
        n=n,
        dimension=dimension,
        classes=3,
        multi_label=several,
        epsilon=epsilon,
        delta=delta,
        unit="image",
    )

    def excess(mu: float) -> float:
        near, far = norm.logcdf(-epsilon / mu + mu / 2), norm.logcdf(-epsilon / mu - mu / 2)
        return float(math.exp(near) - math.exp(epsilon + far) - delta)

    mu = math.inf if epsilon == math.inf else brentq(excess, 1e-6, 50)
    signal = n * mu / math.sqrt(dimension)
    assert abs(signal - 50) > 1, "a case in the middle would test rounding"
    chosen = auto.Options().resolve_choice(facts).trained_head
    whitens = signal >= 50 and dimension <= MOST_FEATURES
    assert chosen.head == "momentum"
    assert chosen.normalize.kind == ("whitened" if whitens else "centred")
    assert chosen.link == ("sigmoid" if several else "softmax")
    assert auto.asked_options(auto.Options())["rule"] == auto_rule.RULE == 3


# Priors


@given(priors=st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=8), factor=st.floats(0.01, 100))
def test_shifts_undo_priors_and_leave_the_mean_of_logits(
    priors: list[float], factor: float
) -> None:
    """Menon et al. 2021 subtract the logarithms of priors; only differences of logits matter."""
    shifts = log_shifts(priors)
    assert sum(shifts) == pytest.approx(0, abs=1e-9)
    undone = np.asarray(shifts) + np.log(priors)
    assert undone == pytest.approx(np.full(len(priors), undone[0]), abs=1e-9)
    assert log_shifts([factor * each for each in priors]) == pytest.approx(shifts, abs=1e-9)
    assert log_shifts(()) == ()


@pytest.mark.parametrize(
    ("counts", "deviation", "floored"),
    [
        ([60, 30, 10], 0.0, [60, 30, 10]),
        ([60, 30, 10], 10.0, [60, 30, 20]),  # each is at least twice the noise
        ([60, 30, -500], 10.0, [60, 30, 20]),
        ([9, 0, 0], 0.0, [9, 1, 1]),  # each is at least one
        ([-3, -5, 1], 100.0, [200, 200, 200]),
        ([9, 1, 0.5], 0.25, [9, 1, 1]),
        ([9, 1, 0.5], 0.75, [9, 1.5, 1.5]),
    ],
)
def test_noisy_counts_are_raised_to_what_noise_cannot_decide(
    counts: list[float], deviation: float, floored: list[float]
) -> None:
    wanted = [each / sum(floored) for each in floored]
    assert released_priors(counts, deviation) == pytest.approx(wanted)


# Whitening


@pytest.mark.parametrize("exponent", [0.5, 0.25])
@pytest.mark.parametrize("ridge", [0.05, 0.7])
def test_whitened_rows_have_norm_1_in_the_mean_and_loud_directions_shrink(
    exponent: float, ridge: float
) -> None:
    """A = (M + r)^-p is scaled so that trace(A M A), the sum of squared norms, is n."""
    n, values = 50, torch.tensor([9.0, 0.1]).double()
    matrix = compute_whitener(Spectrum(values, torch.eye(2)), exponent, ridge=ridge, n=n)
    factors = matrix.diagonal()
    assert matrix.tolist() == torch.diag(factors).tolist()
    assert float((values * factors.square()).sum()) == pytest.approx(n)
    assert factors[0] < factors[1]
    # a ridge limits how much quiet directions grow
    ratio = float(factors[1] / factors[0])
    assert 1 < ratio < (9 / 0.1) ** exponent
    noisier = compute_whitener(Spectrum(values, torch.eye(2)), exponent, ridge=ridge + 1, n=n)
    assert float(noisier[1, 1] / noisier[0, 0]) < ratio
    turned = torch.tensor([[0.6, -0.8], [0.8, 0.6]]).double()
    other = compute_whitener(Spectrum(values, turned), exponent, ridge=ridge, n=n)
    assert torch.allclose(other, turned @ matrix @ turned.T)


def test_without_signal_rows_stay_as_they_are() -> None:
    flat = compute_whitener(Spectrum(torch.zeros(2).double(), torch.eye(2)), 0.5, ridge=0.7, n=50)
    assert torch.allclose(flat, torch.eye(2).double())


# Options for which 0 means "none".
WITH_ZERO = {"backbone_rate", "beta", "beta1", "beta2", "intercept", "ridge", "warmup"}


@pytest.mark.parametrize("name", METHODS)
def test_numbers_are_positive_unless_0_means_none(name: str) -> None:
    model = options_class(METHODS, name)
    for key, field in model.model_fields.items():
        if not re.search(r"\b(int|float)\b", str(field.annotation)) or key in ("rule", "init_bias"):
            continue
        for value in (-1,) if key in WITH_ZERO else (0, -1):
            given = [1, value] if "tuple" in str(field.annotation) else value
            with pytest.raises(ValidationError) as caught:
                model.model_validate({"head": name, key: given, "unknown": value})
            assert key in [error["loc"][0] for error in caught.value.errors()], (key, given)


@pytest.mark.parametrize("name", METHODS)
def test_head_options_are_defined_in_the_file_of_the_head_and_at_most_one_other(name: str) -> None:
    cls = options_class(METHODS, name)
    assert cls.__module__ in (METHODS[name], f"{METHODS[name]}_options")
    owners = {
        next(each.__module__ for each in cls.__mro__ if option in inspect.get_annotations(each))
        for option in set(cls.model_fields) - {"head", "normalize"}
    }
    assert len(owners - {cls.__module__}) <= 1


# Versions


@pytest.mark.parametrize("head", ["newton", "feature_covariance", "least_squares"])
def test_a_damped_head_has_another_identity_than_before(head: str) -> None:
    """A search with such a base too. All other heads keep their identity, and so their seeds."""
    identity = method_options({"head": head}).identity_options()
    assert identity["fit_version"] == 2
    tuned = method_options({"head": "tuned", "base": {"head": head}}).identity_options()
    assert tuned["base"] == identity
    for other in ("sgd", "momentum", "prototypes", "nonprivate"):
        options = method_options({"head": other})
        assert options.identity_options().keys() <= options.model_dump().keys()
