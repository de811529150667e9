"""The device of a fit depends only on options and public sizes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.heads import fit_device
from dpprobe.heads.facts import DataFacts
from dpprobe.heads.fit_device import FitPlace, place_fit
from dpprobe.heads.registry import method_options

D, K = 2**10, 2**3
CPU, GPU = FitPlace("cpu", "cpu"), FitPlace("cuda", "cpu")
CIFAR = {"n": 50_000, "dimension": 768, "classes": 10}
DIGITS = {"n": 1_400, "dimension": 64, "classes": 10}
NETWORK = {"head": "fine_tune", "tune": {"blocks": 1}, "batch_size": 8, "learning_rate": 0.1}
FULL = {"head": "momentum", "batch_size": "full", "steps": 1000}
LEAST_STEP, LEAST_FIT = fit_device.LEAST_STEP, fit_device.LEAST_FIT


def place(method: dict[str, Any], n: int, device: str = "cuda") -> FitPlace:
    return place_fit(method_options(method), device, n=n, dimension=D, classes=K)


@pytest.mark.parametrize(
    ("method", "least", "work"),
    [
        (FULL, LEAST_STEP, D * K),
        ({"head": "tuned", "base": FULL}, LEAST_STEP, D * K),
        ({**FULL, "steps": 2}, LEAST_FIT, 2 * D * K),
        ({"head": "auto"}, LEAST_FIT, 40 * D * K),
        ({"head": "nonprivate"}, LEAST_FIT, 100 * D * K),
        ({"head": "prototypes"}, LEAST_FIT, D * K),
        *(
            ({"head": head}, LEAST_FIT, D * (D + K))
            for head in ("least_squares", "newton", "feature_covariance")
        ),
    ],
)
def test_a_fit_has_a_gpu_from_some_size_on(method: dict[str, Any], least: int, work: int) -> None:
    smallest = -(-least // work)
    for n, expected in ((1, CPU), (smallest - 1, CPU), (smallest, GPU), (2 * smallest, GPU)):
        assert place(method, n) == expected
        assert place(method, n, "cpu") == CPU
        assert place(method, n, "auto").rows == expected.rows.replace("cuda", "auto")


@pytest.mark.parametrize("head", ["sgd", "momentum", "adam", "lamb"])
def test_a_step_s_sample_decides_and_not_the_number_of_examples(head: str) -> None:
    most = LEAST_STEP // (D * K)
    for n in (2 * most, 1000 * most):
        options = {"head": head, "steps": LEAST_FIT // LEAST_STEP}
        assert place(options | {"batch_size": 32}, n) == CPU
        assert place(options | {"batch_size": most - 1, "steps": 100_000}, n) == CPU
        assert place(options | {"batch_size": most}, n) == GPU
        assert place(options | {"batch_size": most, "steps": 1}, n) == CPU


def test_usual_small_batches_stay_and_networks_go() -> None:
    for batch in (32, 256, 4096):
        method = method_options({"head": "sgd", "batch_size": batch})
        assert place_fit(method, "cuda", **CIFAR) == CPU
    for head in ({"head": "momentum"}, {"head": "nonprivate"}, {"head": "least_squares"}):
        method = method_options(head)
        assert place_fit(method, "cuda", **CIFAR) == GPU
        assert place_fit(method, "cuda", **DIGITS) == CPU
    assert place(NETWORK, 10) == GPU


@pytest.mark.parametrize("wrap", [lambda base: base, lambda base: {"head": "tuned", "base": base}])
def test_rows_of_the_exact_engine_stay_on_the_cpu(wrap: Any) -> None:
    method = wrap({**FULL, "engine": "exact"})
    assert place(method, 10**6) == FitPlace("cpu", "cuda")
    assert place(method, 10) == CPU


@given(
    n=st.integers(100, 10**8),
    dimension=st.integers(8, 5000),
    classes=st.integers(2, 1000),
    multi_label=st.booleans(),
    epsilon=st.floats(0.01, 100),
    exact=st.booleans(),
)
def test_auto_is_placed_on_the_same_device_before_and_after_its_choice(
    n: int, dimension: int, classes: int, multi_label: bool, epsilon: float, exact: bool
) -> None:
    sizes = {"n": n, "dimension": dimension, "classes": classes}
    facts = DataFacts(
        n=n,
        dimension=dimension,
        classes=classes,
        multi_label=multi_label,
        epsilon=epsilon,
        delta=1e-9,
        unit="image",
    )
    asked = method_options({"head": "auto"})
    chosen = place_fit(asked.resolve_choice(facts, exact=exact), "cuda", **sizes)
    assert (chosen == CPU) == (place_fit(asked, "cuda", **sizes) == CPU)
