"""Heads over many settings: weights, scores, choices and losses are as stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dpprobe.heads.facts import DataFacts
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.registry import method_options
from dpprobe.heads.scoring import score_rows
from dpprobe.heads.training_set import TrainingSet
from tests.support.linear_heads import Source, plan_for
from tests.support.stored_records import answer_of, check_values

pytestmark = pytest.mark.usefixtures("several_blocks")

ROWS, DIMENSION, CLASSES = 90, 6, 4
SGD: dict[str, Any] = {"head": "sgd", "steps": 7, "batch_size": 30, "learning_rate": 0.5}
FULL = SGD | {"batch_size": "full", "init": "zero"}
FIRST: dict[str, Any] = {"steps": 6, "batch_size": 30}
CHANNELS = {"kind": "channels", "channels": 3, "max_mean_norm": 0.7, "max_deviation_norm": 0.3}
GROUPS = [{"kind": "group_norm", "groups": groups} for groups in (2, 3)]
WHITENED = {"kind": "whitened", "share": 0.3, "moment_share": 0.5, "exponent": 0.5}
SIGMOID = {"loss": "sigmoid"}
WEIGHTS, PRIORS = {"class_weights": [1, 0.5, 0.25, 0.8]}, {"class_priors": [4, 1, 2, 3]}
RELEASED = {"class_priors": "released", "prior_share": 0.2}
SEARCH = {"search": {"max_grad_norm": [0.1, 1.0], "learning_rate": {"low": 0.1, "high": 9}}}
SETTINGS: list[dict[str, Any]] = [
    SGD,
    SGD | SIGMOID,
    FULL | SIGMOID,
    FULL | {"init_bias": -2.0, "max_grad_norm": 0.1},
    *(FULL | {"init": init} for init in ("torch", "scaled", "lecun_normal")),
    SGD | {"init": "scaled", "init_scale": 0.5},
    SGD | {"engine": "exact"} | SIGMOID,
    SGD | {"schedule": "warmup_cosine", "warmup": 0.4, "average": "ema"},
    FULL | {"schedule": "warmup_linear", "warmup": 0.3, "average": "mean", "engine": "exact"},
    SGD | {"max_batch_grad_norm": 0.01, "average": "ema", "ema_decay": 0.5},
    SGD | {"engine": "exact", "normalize": "layer_norm"},
    *(SGD | {"normalize": each} for each in ("l2", "layer_norm", "centred", CHANNELS, *GROUPS)),
    *(FULL | {"engine": "exact", "normalize": each} for each in ("centred", WHITENED, CHANNELS)),
    *(
        each | more
        for each in (SGD, FULL | {"engine": "exact"})
        for more in (WEIGHTS, PRIORS, WEIGHTS | PRIORS, RELEASED, RELEASED | WEIGHTS)
    ),
    *(
        {"head": head, **FIRST, **more}
        for head in ("momentum", "adam", "lamb")
        for more in (
            {},
            SIGMOID,
            {"intercept": 1.0, "normalize": "l2"},
            {"engine": "exact"},
            RELEASED,
        )
    ),
    {"head": "momentum", **FIRST, "normalize": WHITENED, "beta": 0.5},
    {"head": "adam", "steps": 5, "noise_correction": None, "beta1": 0.5, "beta2": 0.9},
    {"head": "lamb", "steps": 5, "noise_correction": 0.5, "learning_rate": 0.1},
    *({"head": head, "ridge": 0} for head in ("newton", "least_squares", "feature_covariance")),
    *({"head": "least_squares", **more} for more in ({}, {"ridge": 3.0}, {"normalize": "none"})),
    *(
        {"head": "least_squares", "normalize": "l2", **more}
        for more in (
            {},
            {"max_labels": 2, "gram_share": 0.6},
            {"intercept": 0},
            {"max_row_norm": 0.3},
        )
    ),
    {"head": "prototypes"},
    *(
        {"head": "prototypes", "normalize": "l2", **more}
        for more in ({}, {"max_labels": 2}, {"intercept": 0}, {"max_row_norm": 0.3})
    ),
    *(
        {"head": head, "steps": 3, **more}
        for head in ("newton", "feature_covariance")
        for more in (
            {},
            SIGMOID,
            {"normalize": "l2"},
            {"normalize": "l2"} | WEIGHTS,
            {"step": 1.0, "average": "mean"},
            {"ridge": 2.0, "penalised": False},
            {"learning_rate": 0.7, "average": "last"},
            SIGMOID | {"init_bias": -1.0, "intercept": 0},
            SIGMOID | {"init_bias": 0},
            WEIGHTS,
            PRIORS,
            RELEASED,
            {"normalize": WHITENED},
        )
    ),
    *(
        {"head": "newton", "steps": 2, "max_grad_norm": None, **more}
        for more in ({}, SIGMOID, SIGMOID | {"hessian": "per_class", "init_bias": 0.5})
    ),
    {"head": "newton", "steps": 1, "max_grad_norm": None, "hessian_share": 0.6},
    {"head": "nonprivate"},
    {"head": "nonprivate", "penalties": [0.1], "normalize": "l2"},
    {"head": "nonprivate", "penalties": [0.03, 1.0, 30.0], "folds": 5},
    *({"head": "tuned", "base": FULL | more, "trials": 6, **SEARCH} for more in ({}, WEIGHTS)),
    {"head": "tuned", "base": FIRST | SIGMOID | {"head": "adam"}, "score_share": 0.4},
    {"head": "tuned", "base": {"head": "least_squares"}, "trials": 30},
    {"head": "auto"},
    {"head": "auto", "balanced": True},
    SGD | {"class_weights": [1, 1, 1]},
]


def data_of(kind: str, *, streamed: bool = False) -> TrainingSet:
    """Uneven classes in any order; rows of NaN, of zeros, next to zero and far out."""
    generator = torch.Generator().manual_seed(4)
    labels = (torch.arange(ROWS) ** 2 % 11).clamp(max=CLASSES - 1)
    features = torch.randn(ROWS, DIMENSION, generator=generator) + 0.5
    features[torch.arange(ROWS), labels] += 2
    features[5], features[17], features[23], features[31, 2] = torch.nan, 0, 1e-25, 1e4
    units = Units.number_units([f"{row * row % 83}" for row in range(ROWS)])
    if kind == "several":
        labels = torch.nn.functional.one_hot(labels, CLASSES) | (features[:, :CLASSES] > 2)
        labels = labels.to(torch.uint8)
    if kind == "one":  # one label, which rows have or not
        return TrainingSet(features, (labels[:, None] == 1).to(torch.uint8), 1)
    crops = [features.roll(by, 1) for by in (1, 2)] if kind == "crops" else []

    def read_crops() -> list[TrainingSet]:
        return [TrainingSet(each, labels, CLASSES) for each in crops]

    given = units if kind == "units" else None
    rows: Any = Source(features.numpy(), 20) if streamed else features
    return TrainingSet(rows, labels, CLASSES, units=given, crops=read_crops)


def digest(values: Any) -> list[float]:
    """An array's largest size, and two sums relative to it."""
    numbers = np.asarray(values, dtype=np.float64).ravel()
    largest = np.abs(numbers).max()
    relative = numbers / (largest or 1)
    sums = relative.sum(), np.cos(np.arange(len(numbers))) @ relative
    return [float(f"{each:.6g}") for each in (largest, *sums)]


NOTED: dict[str, list[float]] = {"kept": [0.5, 0.25], "seen": [3, 7]}


def answer(values: dict[str, Any], data: TrainingSet, noise: float) -> Any:
    method = method_options(values)
    facts = DataFacts(data.n, DIMENSION, data.num_classes, data.multi_label, 1.0, 1e-5, "image")
    method = method.resolve_choice(facts)
    plan = plan_for(method, data.n, noise)
    heads = fit_heads(method, data, plan, [3, 11], record=lambda *_: NOTED)
    found = {
        "weights": digest(heads.weights),
        "scores": digest(score_rows(heads, torch.eye(DIMENSION))),
        "chosen": heads.chosen,
        "priors": heads.priors,
        "steps": heads.steps,
        "history": [list(heads.history[-1].values()), len(heads.history)],
    }
    if not method.private:  # weights are found to a tolerance; scikit-learn's are elsewhere
        found |= {"weights": None, "scores": None}
    return {name: each for name, each in found.items() if each is not None and len(str(each)) > 2}


@pytest.mark.parametrize("kind", ["rows", "units", "several", "one", "crops"])
@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_heads_are_as_stored(kind: str, noise: float) -> None:
    """All on one training set, which keeps what heads share; with noise mostly streamed."""
    sampled, kept = data_of(kind), SETTINGS
    whole = data_of(kind, streamed=True) if kind == "rows" and noise else sampled
    if kind == "crops":
        kept = [each for each in SETTINGS if "batch_size" in each]
    found = {
        f"{each}": answer_of(
            answer, each, sampled if "'batch_size': 30" in str(each) else whole, noise
        )
        for each in kept
    }
    check_values(f"trained_heads_{kind}_{noise:g}", found, rel=2e-4, abs=2e-4)
