"""Random search as a head: what it may search, what it releases, what leaves."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dpprobe.errors import PrivacyError
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.fitted import Fitted
from dpprobe.heads.normalisation import L2, LayerNorm, NoNormalisation, Normalisation
from dpprobe.heads.normalised_rows import normalise_rows
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.registry import method_options
from dpprobe.heads.rows import Rows, Transform
from dpprobe.heads.scoring import score_rows
from dpprobe.heads.search_space import Range
from dpprobe.heads.training_set import TrainingSet
from dpprobe.heads.tuned import Options, draw_trials, score_heads
from dpprobe.privacy.entropy import SEEDED
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.randomness import cell_seed
from dpprobe.privacy.releases import Releases
from tests.support.linear_heads import features_of
from tests.support.mechanisms import made_plan

N, D, K = 400, 6, 3
SEEDS = [cell_seed("tuned", index) for index in range(3)]
BASE: dict[str, Any] = {"head": "sgd", "steps": 5, "batch_size": "full", "init": "zero"}


def tuned(**changes: Any) -> Options:
    values = {"head": "tuned", "base": BASE, "search": {"learning_rate": [0.1, 2.0]}, **changes}
    method = method_options(values)
    assert isinstance(method, Options)
    return method


def training_set(rows: int = N, seed: int = 0) -> TrainingSet:
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, K, rows)
    features = generator.normal(size=(rows, D))
    features[np.arange(rows), labels] += 3
    return TrainingSet(
        torch.from_numpy(features.astype(np.float32)), torch.from_numpy(labels), num_classes=K
    )


def planned(method: MethodOptions, n: int = N, noise: float = 3.0) -> Plan:
    mechanisms, selection = method.list_mechanisms(n), method.priced_selection(n)
    return made_plan(mechanisms, n, noise, selection=selection)


def test_what_is_released_once_before_all_trials_is_not_repeated() -> None:
    method = tuned(base={**BASE, "normalize": "centred"})
    assert method.priced_selection(N).repeated == ("score", "gradients")


class Spy:
    """A base's module that notes what it is given, and releases as told."""

    def __init__(self, releases: int | None = None) -> None:
        self.calls: list[SimpleNamespace] = []
        self._releases = releases

    def fit(self, options: Any, rows: Rows, releases: Releases, *, record: None) -> Fitted:
        assert record is None
        (mechanism,) = (item for item in releases.plan.mechanisms if item.name == "gradients")
        count = mechanism.count if self._releases is None else self._releases
        releases.count_releases("gradients", count)
        shape = (len(releases.seeds), rows.num_classes, rows.dimension + 1)
        self.calls.append(
            SimpleNamespace(
                options=options,
                seeds=releases.seeds,
                sensitivity=releases.sensitivity("gradients"),
                deviation=releases.noise_deviation("gradients"),
            )
        )
        return Fitted(weights=np.zeros(shape, np.float32), steps=count)


def spied(monkeypatch: pytest.MonkeyPatch, spy: Spy) -> None:
    monkeypatch.setattr("dpprobe.heads.sgd.fit", spy.fit)


def test_each_trial_clips_and_adds_noise_to_its_own_norm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sensitivities are searched, noise multipliers, which are what is priced, are the plan's."""
    spy = Spy()
    spied(monkeypatch, spy)
    method = tuned(search={"max_grad_norm": {"low": 0.1, "high": 2.0, "log": True}}, trials=20)
    plan = planned(method)
    fit_heads(method, training_set(), plan, SEEDS)
    multiplier = plan.find_mechanism("gradients").noise_multiplier
    norms = [call.options.max_grad_norm for call in spy.calls]
    assert len(set(norms)) > 5
    assert all(0.1 <= norm <= 2.0 for norm in norms)
    assert min(norms) < 0.45 < max(norms)  # the geometric mean of the ends
    assert [call.sensitivity for call in spy.calls] == norms
    assert [call.deviation / call.sensitivity for call in spy.calls] == pytest.approx(
        [multiplier] * len(norms)
    )
    seeds = [seed for call in spy.calls for seed in call.seeds]
    assert len(set(seeds)) == len(seeds)
    assert not set(seeds) & set(SEEDS)


@pytest.mark.parametrize("releases", [4, 6])
def test_a_trial_that_releases_otherwise_than_priced_is_refused(
    releases: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spied(monkeypatch, Spy(releases))
    method = tuned()
    with pytest.raises(
        PrivacyError, match=f"{releases} noisy releases were made, but epsilon covers 5"
    ):
        fit_heads(method, training_set(), planned(method), SEEDS)


def test_a_plan_of_another_selection_is_refused() -> None:
    method = tuned()
    plan = planned(method)
    assert plan.selection is not None
    for other in (None, replace(plan.selection, mean=2.0)):
        with pytest.raises(PrivacyError, match="belongs to another method"):
            fit_heads(method, training_set(), replace(plan, selection=other), SEEDS)


def test_without_noise_the_best_trial_is_kept() -> None:
    """The head is the very one that the chosen options and that trial's seed give."""
    method = tuned(search={"learning_rate": [1e-6, 0.3, 3.0]}, trials=12)
    data = training_set()
    plan = planned(method, noise=0.0)
    fitted = fit_heads(method, data, plan, SEEDS)
    for index, (seed, chosen) in enumerate(zip(SEEDS, fitted.chosen, strict=True)):
        trials = draw_trials(method, 0, seed, SEEDED)
        scores = {}
        for trial in trials:
            base = method.make_trial(trial.values)
            fitted_trial = fit_heads(base, data, planned(base, noise=0.0), [trial.seed])
            correct = (
                score_rows(fitted_trial, features_of(data))[0].argmax(1) == data.labels.numpy()
            )
            scores[trial.number] = (correct.sum(), fitted_trial.weights[0])
        best = max(scores, key=lambda number: (scores[number][0], -number))
        assert chosen["score"] == scores[best][0] / N
        assert chosen["learning_rate"] == trials[best].values["learning_rate"]
        np.testing.assert_allclose(fitted.weights[index], scores[best][1], atol=1e-6)


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("spec", [NoNormalisation(), L2(), LayerNorm()])
def test_null_rows_score_nothing(several: bool, spec: Normalisation) -> None:
    """A head of biases alone is right for all rows of its class, but not for one without values."""
    features = torch.randn(6, D, generator=torch.Generator().manual_seed(0))
    features[:4] = torch.tensor([math.nan, math.inf, -math.inf, 1e30])[:, None]
    labels = torch.zeros(6, dtype=torch.int64)
    if several:
        labels = torch.nn.functional.one_hot(labels, K).to(torch.uint8)
    rows = Rows(TrainingSet(features, labels, K), Transform(spec))
    weights = torch.zeros(1, K, D + 1)
    weights[0, :, D] = torch.tensor([1000.0, -1000.0, -1000.0])
    method = method_options(BASE | {"loss": "sigmoid" if several else "softmax"})
    assert float(score_heads(method, rows, weights).values) == 2


def test_only_the_best_trial_leaves() -> None:
    method = tuned(trials=8)
    seen: list[int] = []

    def record(step: int, weights: torch.Tensor, _: object) -> None:
        seen.append(step)
        assert weights.shape == (len(SEEDS), K, D + 1)

    fitted = fit_heads(method, training_set(), planned(method), SEEDS, record=record)
    assert seen == [5]
    assert [row["seed_index"] for row in fitted.history] == [0, 1, 2]
    assert [set(choice) for choice in fitted.chosen] == [{"score", "learning_rate"}] * 3
    json.dumps(fitted.chosen, allow_nan=False)


def test_a_seed_depends_on_itself_alone_and_repeats() -> None:
    method = tuned(trials=6)
    data, plan = training_set(), planned(method)
    together = fit_heads(method, data, plan, SEEDS)
    alone = fit_heads(method, data, plan, SEEDS[1:2])
    np.testing.assert_allclose(alone.weights[0], together.weights[1], atol=1e-5)
    assert alone.chosen[0]["learning_rate"] == together.chosen[1]["learning_rate"]
    again = fit_heads(method, data, plan, SEEDS)
    np.testing.assert_array_equal(again.weights, together.weights)
    assert again.chosen == together.chosen


def test_a_priced_normalisation_is_released_once_for_all_trials() -> None:
    method = tuned(base={**BASE, "normalize": "centred"}, trials=5)
    fitted = fit_heads(method, training_set(), planned(method), SEEDS)
    centres = [transform.arrays["centre"] for transform in fitted.transforms]
    assert len({id(centre) for centre in centres}) == len(SEEDS)
    assert score_rows(fitted, features_of(training_set())).shape == (3, N, K)


def test_the_score_of_several_labels_prefers_better_probabilities() -> None:
    labels = torch.tensor([[1, 0, 0], [0, 0, 0], [0, 1, 0]], dtype=torch.uint8)
    data = TrainingSet(torch.eye(3), labels, 3)
    releases: Any = None
    rows = normalise_rows(data, method_options({"head": "sgd"}).normalize, releases)
    nothing = torch.zeros(3, 4)
    nothing[:, -1] = -1.0
    right = nothing.clone()
    right[:, :3] = 2.0 * labels.T.to(torch.float32)
    method: Any = SimpleNamespace(link="sigmoid")
    low, high = score_heads(method, rows, torch.stack([nothing, right])).values[:, 0].tolist()
    # No label is above a half in the one head, so that both get 7 of 9 right or more.
    assert low < high - 0.1
    expected = 3 - (7 * (1 / (1 + math.e)) ** 2 + 2 * (1 / (1 + math.exp(-1))) ** 2) / 3
    assert low == pytest.approx(expected, rel=1e-6)


def test_draws_cover_the_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpprobe.privacy.random_run_count.draw_runs", lambda *_: 1000)
    method = tuned(
        search={
            "learning_rate": {"low": 0.01, "high": 1.0, "log": True},
            "max_grad_norm": [0.5, 1.0, 2.0],
        }
    )
    trials = draw_trials(method, 0, SEEDS[0], SEEDED)
    logs = np.log10([trial.values["learning_rate"] for trial in trials])
    assert logs.mean() == pytest.approx(-1, abs=0.1)
    assert logs.std() == pytest.approx(2 / math.sqrt(12), rel=0.1)
    norms = [trial.values["max_grad_norm"] for trial in trials]
    assert min(norms.count(norm) for norm in (0.5, 1.0, 2.0)) > 250
    assert Range(low=1, high=3).value_at(0.5) == 2.0
    assert Range(low=0.1, high=0.3).value_at(1.0) == 0.3


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("base", ["least_squares", "prototypes"])
def test_heads_without_a_loss_can_be_searched(base: str, several: bool) -> None:
    data = training_set()
    if several:
        many = torch.nn.functional.one_hot(data.labels, K).to(torch.uint8)
        assert data.features is not None
        data = TrainingSet(data.features, many, K)
    method = tuned(base={"head": base, "normalize": "l2"}, search={"intercept": [0.1, 0.2]})
    fitted = fit_heads(method, data, planned(method), [1, 2], record=lambda *_: {"hits": [0, 1]})
    assert [row["hits"] for row in fitted.history] == [0, 1]
    assert all("train_loss" not in row for row in fitted.history)
    for chosen in fitted.chosen:
        rows = chosen["score"] * data.rows if chosen["score"] is not None else 0
        assert rows == pytest.approx(round(rows), abs=1e-6)
