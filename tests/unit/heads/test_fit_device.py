"""The device of a fit: a function of options and of public sizes."""

from __future__ import annotations

from typing import Any

import pytest

from dpprobe.heads import fit_device
from dpprobe.heads.fit_device import FitPlace, place_fit
from dpprobe.heads.registry import method_options

D, K = 2**10, 2**3
CPU, GPU = FitPlace("cpu", "cpu"), FitPlace("cuda", "cpu")
CIFAR = {"n": 50_000, "dimension": 768, "classes": 10}
DIGITS = {"n": 1_400, "dimension": 64, "classes": 10}
NETWORK = {"head": "fine_tune", "tune": {"blocks": 1}, "batch_size": 8, "learning_rate": 0.1}
FULL = {"head": "momentum", "batch_size": "full"}


def place(method: dict[str, Any], n: int, device: str = "cuda") -> FitPlace:
    return place_fit(method_options(method), device, n=n, dimension=D, classes=K)


@pytest.mark.parametrize(
    ("method", "least", "work"),
    [
        (FULL, fit_device.LEAST_FULL_STEP, D * K),
        ({"head": "nonprivate"}, fit_device.LEAST_FULL_STEP, D * K),
        ({"head": "tuned", "base": FULL}, fit_device.LEAST_FULL_STEP, D * K),
        ({"head": "prototypes"}, fit_device.LEAST_SUMS, D * K),
        *(
            ({"head": head}, fit_device.LEAST_SUMS, D * (D + K))
            for head in ("least_squares", "newton", "feature_covariance", "auto")
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
    most = fit_device.LEAST_SAMPLED_STEP // (D * K)
    for n in (2 * most, 1000 * most):
        assert place({"head": head, "batch_size": 32}, n) == CPU
        assert place({"head": head, "batch_size": most - 1}, n) == CPU
        assert place({"head": head, "batch_size": most}, n) == GPU


def test_usual_small_batches_stay_and_networks_go() -> None:
    for batch in (32, 256, 4096):
        method = method_options({"head": "sgd", "batch_size": batch})
        assert place_fit(method, "cuda", **CIFAR) == CPU
    for head in ({**FULL}, {"head": "nonprivate"}, {"head": "least_squares"}):
        method = method_options(head)
        assert place_fit(method, "cuda", **CIFAR) == GPU
        assert place_fit(method, "cuda", **DIGITS) == CPU
    assert place(NETWORK, 10) == GPU


@pytest.mark.parametrize("wrap", [lambda base: base, lambda base: {"head": "tuned", "base": base}])
def test_rows_of_the_exact_engine_stay_on_the_cpu(wrap: Any) -> None:
    method = wrap({**FULL, "engine": "exact"})
    assert place(method, 10**6) == FitPlace("cpu", "cuda")
    assert place(method, 10) == CPU
