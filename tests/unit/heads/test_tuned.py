"""Random search as a head: its options, its releases, and its result."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dpprobe.errors import PrivacyError
from dpprobe.heads.default_search_spaces import SPACES, default_space
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.fitted import Fitted
from dpprobe.heads.normalisation import L2, LayerNorm, NoNormalisation, Normalisation
from dpprobe.heads.normalised_rows import normalise_rows
from dpprobe.heads.registry import HEADS, method_options
from dpprobe.heads.rows import Rows
from dpprobe.heads.scoring import score_rows
from dpprobe.heads.training_set import TrainingSet
from dpprobe.heads.transform import Transform
from dpprobe.heads.tuned import Options, draw_trials, score_heads
from dpprobe.options import options_class
from dpprobe.privacy.entropy import SEEDED
from dpprobe.privacy.randomness import cell_seed
from dpprobe.privacy.releases import Releases
from tests.conftest import REPOSITORY
from tests.support.linear_heads import features_of, plan_for, with_units

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


class Spy:
    """Stands in for a base's module: records its arguments and counts the given releases."""

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
    """Trials change sensitivities; noise multipliers, which determine the price, are the plan's."""
    spy = Spy()
    spied(monkeypatch, spy)
    method = tuned(search={"max_grad_norm": {"low": 0.1, "high": 2.0, "log": True}}, trials=20)
    plan = plan_for(method, N, 3.0)
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


@pytest.mark.parametrize(("releases", "were"), [(4, "made"), (6, "asked for")])
def test_a_trial_that_releases_otherwise_than_priced_is_refused(
    releases: int, were: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spied(monkeypatch, Spy(releases))
    method = tuned()
    said = f"{releases} noisy releases were {were}, but epsilon covers 5"
    with pytest.raises(PrivacyError, match=said):
        fit_heads(method, training_set(), plan_for(method, N, 3.0), SEEDS)


def test_a_plan_of_another_selection_is_refused() -> None:
    method = tuned()
    plan = plan_for(method, N, 3.0)
    assert plan.selection is not None
    for other in (None, replace(plan.selection, mean=2.0)):
        with pytest.raises(PrivacyError, match="belongs to another method"):
            fit_heads(method, training_set(), replace(plan, selection=other), SEEDS)


def test_without_noise_the_best_trial_is_kept() -> None:
    """The result is the head that the chosen options give with that trial's seed."""
    method = tuned(search={"learning_rate": [1e-6, 0.3, 3.0]}, trials=12)
    data = training_set()
    plan = plan_for(method, N, 0.0)
    fitted = fit_heads(method, data, plan, SEEDS)
    for index, (seed, chosen) in enumerate(zip(SEEDS, fitted.chosen, strict=True)):
        trials = draw_trials(method, 0, seed, SEEDED)
        scores = {}
        for trial in trials:
            base = method.make_trial(trial.values)
            fitted_trial = fit_heads(base, data, plan_for(base, N, 0.0), [trial.seed])
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
def test_null_rows_are_not_counted_as_correct(several: bool, spec: Normalisation) -> None:
    """A head with only biases is right for all rows of its class, except rows without values."""
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


@pytest.mark.usefixtures("several_blocks")
def test_a_patient_moves_a_score_by_one_wherever_the_rows_are() -> None:
    """Patients have 1 to 20 rows each, in several blocks."""
    data = with_units()
    assert data.units is not None
    owners = data.units.unit_of_rows()
    weights = torch.randn(1, 4, 8, generator=torch.Generator().manual_seed(1))
    right = (features_of(data) @ weights[0, :, :-1].T + weights[0, :, -1]).argmax(1)
    sizes = [sum(owners == owner) for owner in range(data.n)]
    several = owners % 2 == 0
    for hit in [several, *(owners == owner for owner in range(data.n))]:
        data.labels = torch.where(torch.from_numpy(hit), right, (right + 1) % 4)
        rows = Rows(data, Transform(NoNormalisation()))
        assert len([*rows.read_blocks(16 * 4)]) > 5
        score = float(score_heads(method_options(BASE), rows, weights).values)
        wanted = sum(1 / sizes[owner] for owner in owners[hit])
        assert wanted - 1e-4 < score <= round(wanted)


def test_only_the_best_trial_is_released() -> None:
    method = tuned(trials=8)
    data, plan = training_set(), plan_for(method, N, 3.0)
    seen: list[int] = []

    def record(step: int, weights: torch.Tensor, _: object) -> None:
        seen.append(step)
        assert weights.shape == (len(SEEDS), K, D + 1)

    fitted = fit_heads(method, data, plan, SEEDS, record=record)
    assert seen == [5]
    assert [row["seed_index"] for row in fitted.history] == [0, 1, 2]
    assert [set(choice) for choice in fitted.chosen] == [{"score", "learning_rate"}] * 3
    json.dumps(fitted.chosen, allow_nan=False)
    alone = fit_heads(method, data, plan, SEEDS[1:2])
    np.testing.assert_allclose(alone.weights[0], fitted.weights[1], atol=1e-5)
    assert alone.chosen[0]["learning_rate"] == fitted.chosen[1]["learning_rate"]
    again = fit_heads(method, data, plan, SEEDS)
    np.testing.assert_array_equal(again.weights, fitted.weights)
    assert again.chosen == fitted.chosen


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
    # The first head predicts no label, so each head gets at least 7 of 9 right.
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


# --- default search spaces ----------------------------------------------------------------------


def default(**base: Any) -> Options:
    method = method_options({"head": "tuned", "base": base})
    assert isinstance(method, Options)
    return method


@pytest.mark.parametrize("head", sorted(SPACES))
def test_a_head_is_searched_over_options_that_it_has_at_no_change_of_price(head: str) -> None:
    assert set(SPACES[head]) <= set(options_class(HEADS, head).model_fields)
    method = default(head=head)
    assert set(method.search) <= set(SPACES[head])
    names = [item.name for item in method.list_releases(N)]  # raises if a price would change
    assert names == ["score", *(item.name for item in method.base.list_releases(N))]
    # the base's own values must be among the candidates
    for name, values in method.search.items():
        assert getattr(method.base, name) in values


def test_the_space_is_part_of_the_options() -> None:
    method = default(head="prototypes")
    written = json.loads(json.dumps(method.model_dump(mode="json")))
    assert written["search"] == {"intercept": [0.0, 0.5, 1.0]}
    assert method_options(written) == method
    assert method.identity_options()["search"] == written["search"]


def test_the_page_states_every_space() -> None:
    page = (REPOSITORY / "docs/methods/tuned.md").read_text(encoding="utf-8")
    stated: dict[str, dict[str, Any]] = {}
    for heads, options in re.findall(r"^\| (`.+`) \| (`.+`.*) \|$", page, re.MULTILINE):
        for head in re.findall(r"`(\w+)`", heads):
            base = method_options({"head": head})
            for name, times, numbers in re.findall(r"`(\w+)` (×?)([^;]+)", options):
                own = getattr(base, name)
                values = [float(number) for number in re.findall(r"[\d.]+", numbers)]
                wanted = [own * value for value in values] if times else sorted({*values, own})
                stated.setdefault(head, {})[name] = pytest.approx(wanted)
    assert {head: default_space(method_options({"head": head})) for head in SPACES} == stated


def test_options_set_in_the_base_are_not_searched() -> None:
    assert set(default(head="newton").search) == {"step", "max_grad_norm"}
    assert set(default(head="newton", step=1.0).search) == {"max_grad_norm"}
