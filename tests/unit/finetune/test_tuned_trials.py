"""The priced search over networks: what a trial releases, what is kept, what leaves no trace."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dpprobe.errors import ConfigError, PrivacyError
from dpprobe.finetune import tuned_trials
from dpprobe.finetune.checkpoint import Checkpoints
from dpprobe.finetune.inputs import CutInputs
from dpprobe.finetune.options import Options
from dpprobe.finetune.train import Trained, train_network
from dpprobe.finetune.tuned_network import TunedNetwork, tuned_state
from dpprobe.finetune.tuned_trials import Tuned, count_hits, tuned_network
from dpprobe.heads import tuned
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.registry import method_options
from dpprobe.heads.tuned import draw_trials
from dpprobe.privacy.entropy import SEEDED, SystemEntropy
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.randomness import cell_seed, stream_seed
from dpprobe.privacy.releases import Releases

N, D, K, STEPS = 120, 6, 3, 4
SEED = cell_seed("tuned trials", 0)
CPU = torch.device("cpu")
BASE: dict[str, Any] = {"head": "fine_tune", "tune": {"blocks": 1}, "steps": STEPS}


def searched(**changes: Any) -> tuned.Options:
    values = {"head": "tuned", "base": BASE, "search": {"learning_rate": [0.01, 0.5, 3.0]}}
    method = method_options({**values, "trials": 6, **changes})
    assert isinstance(method, tuned.Options)
    return method


def rows_of(n: int = N, units: Units | None = None, *, several: bool = False) -> CutInputs:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, K, n)
    features = generator.normal(size=(n, D))
    features[np.arange(n), labels] += 2
    held = torch.from_numpy(labels)
    if several:
        held = nn.functional.one_hot(held, K).to(torch.uint8)
    return CutInputs(
        torch.from_numpy(features.astype(np.float32)), held, K, shape=(D,), units=units
    )


class Tiny(nn.Module):
    """A body of one linear layer, and a head."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(D, 8), nn.Linear(8, K)
        generator = torch.Generator().manual_seed(stream_seed(seed, "start") >> 1)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.body(inputs).tanh())
        return scores


def made(options: Options, seed: int) -> TunedNetwork:  # noqa: ARG001
    module = Tiny(seed).eval()
    trained = dict(module.named_parameters())
    return TunedNetwork(module=module, trained=trained, shape=(D,), from_images=False)


def planned(method: tuned.Options, n: int = N, noise: float = 3.0) -> Plan:
    private = noise > 0
    return Plan(
        mechanisms=tuple(item.scale_noise(noise) for item in method.list_mechanisms(n)),
        n=n,
        epsilon=1.0 if private else math.inf,
        delta=1e-5,
        accountant="pld",
        selection=method.priced_selection(n),
        realised_epsilon=1.0 if private else math.inf,
    )


def run(
    method: tuned.Options,
    inputs: CutInputs | None = None,
    *,
    noise: float = 3.0,
    seed: int = SEED,
    **rest: Any,
) -> tuple[Tuned, Releases]:
    inputs = inputs or rows_of()
    releases = Releases(planned(method, inputs.n, noise), [seed], CPU)
    return tuned_network(
        method, made, inputs, releases, seed=seed, physical_batch=50, **rest
    ), releases


def trials_of(method: tuned.Options, seed: int = SEED, n: int = N) -> list[tuned.Trial]:
    return draw_trials(method, method.priced_selection(n), 0, seed, SEEDED)


@dataclass
class Spy:
    """Stands in for `train_network`: notes what it is given, and releases as told."""

    counts: int = STEPS
    diverges: Callable[[Options], bool] = lambda options: False  # noqa: ARG005
    stop: int | None = None
    calls: list[dict[str, Any]] = field(default_factory=list)

    def __call__(
        self, options: Options, network: TunedNetwork, inputs: Any, releases: Releases, **rest: Any
    ) -> Trained:
        if self.stop == len(self.calls):
            raise KeyboardInterrupt
        self.calls.append({"options": options, "releases": releases, **rest})
        logging.getLogger("dpprobe").info("a trial")
        releases.count_releases("gradients", self.counts)
        if self.diverges(options):
            raise ConfigError("training diverged")
        assert inputs.rows
        state = tuned_state(network)
        state["head.bias"] += options.learning_rate
        return Trained(state=state, steps=self.counts, history=[], seconds=7.0)


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Spy:
    spy = Spy()
    monkeypatch.setattr(tuned_trials, "train_network", spy)
    return spy


def test_without_noise_the_best_trial_is_kept() -> None:
    """The network is the very one that the chosen options and that trial's seed give."""
    method = searched(search={"learning_rate": [1e-5, 0.3, 2.0]}, trials=8)
    inputs = rows_of()
    for seed in (SEED, cell_seed("tuned trials", 1), cell_seed("tuned trials", 2)):
        (trained, chosen), releases = run(method, inputs, noise=0.0, seed=seed)
        releases.check_counts()
        scores = {}
        trials = trials_of(method, seed)
        for trial in trials:
            options = method.make_trial(trial.values)
            assert isinstance(options, Options)
            plan = tuned.trial_plan(releases.plan, options, method.priced_selection(N))
            network = made(options, trial.seed)
            alone = train_network(
                options, network, inputs, Releases(plan, [trial.seed], CPU), physical_batch=50
            )
            with torch.no_grad():
                right = network.module(inputs.read_batch(np.arange(N), step=None)).argmax(1)
            scores[trial.number] = int((right == inputs.labels).sum()), alone.state
        best = max(scores, key=lambda number: (scores[number][0], -number))
        assert chosen == {"score": scores[best][0] / N, **trials[best].values}
        for name, value in scores[best][1].items():
            torch.testing.assert_close(trained.state[name], value)
        assert list(trained.state) == list(scores[best][1])
        assert trained.steps == STEPS


def test_each_trial_clips_and_adds_noise_to_its_own_norm(spy: Spy) -> None:
    """Sensitivities are searched, noise multipliers, which are what is priced, are the plan's."""
    method = searched(search={"max_grad_norm": {"low": 0.1, "high": 2, "log": True}}, trials=20)
    for index in range(3):
        run(method, seed=cell_seed("norms", index))
    multiplier = planned(method).find_mechanism("gradients").noise_multiplier
    norms = [call["options"].max_grad_norm for call in spy.calls]
    assert len(set(norms)) > 5
    for call in spy.calls:
        given = call["releases"]
        assert given.sensitivity("gradients") == call["options"].max_grad_norm
        assert given.noise_deviation("gradients") / given.sensitivity("gradients") == pytest.approx(
            multiplier
        )
        assert given.plan.selection is None
        assert {item.name for item in given.plan.mechanisms} == {"gradients", "score"}
    seeds = [call["releases"].seeds for call in spy.calls]
    assert len(set(seeds)) == len(seeds)
    assert (SEED,) not in seeds


@pytest.mark.parametrize("counts", [STEPS - 1, STEPS + 1])
def test_a_trial_that_releases_otherwise_than_priced_is_refused(spy: Spy, counts: int) -> None:
    spy.counts = counts
    with pytest.raises(PrivacyError, match=f"{counts} noisy releases were taken, {STEPS} were"):
        run(searched())


def test_what_was_priced_for_one_trial_is_counted_once(spy: Spy) -> None:
    _, releases = run(searched(trials=15))
    assert len(spy.calls) > 1
    releases.check_counts()
    with pytest.raises(PrivacyError, match="taken"):
        releases.count_releases("score", 1)


def test_releases_of_other_seeds_are_refused(spy: Spy) -> None:
    releases = Releases(planned(searched()), [SEED, SEED + 1], CPU)
    with pytest.raises(PrivacyError, match="trials are of one"):
        tuned_network(searched(), made, rows_of(), releases, seed=SEED, physical_batch=9)
    assert not spy.calls


def test_a_release_keeps_no_checkpoint_of_its_random_numbers(spy: Spy, tmp_path: Path) -> None:
    method, checkpoint = searched(), Checkpoints(folder=tmp_path / "kept", fingerprint="f")
    releases = Releases(planned(method), [SEED], CPU, entropy=SystemEntropy())
    with pytest.raises(PrivacyError, match="random numbers of a release are in no checkpoint"):
        tuned_network(
            method, made, rows_of(), releases, seed=SEED, physical_batch=9, checkpoint=checkpoint
        )
    assert not spy.calls
    assert not checkpoint.folder.exists()


def test_the_number_of_trials_leaves_no_trace(
    spy: Spy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    seen = {}
    for index in range(12):
        caplog.clear()
        seed, before = cell_seed("trace", index), len(spy.calls)
        checkpoint = Checkpoints(folder=tmp_path / f"{index}", fingerprint="f", minutes=0)
        (trained, chosen), _ = run(searched(), seed=seed, checkpoint=checkpoint)
        checkpoint.remove_checkpoint()
        assert not checkpoint.folder.exists()
        assert trained.seconds == 0
        assert trained.history == []
        assert set(chosen) == {"score", "learning_rate"}
        seen[len(spy.calls) - before] = [record.getMessage() for record in caplog.records]
    assert len(seen) > 3, "of several numbers of trials"
    assert len({str(lines) for lines in seen.values()}) == 1
    logging.getLogger("dpprobe").info("afterwards")
    assert caplog.messages[-1] == "afterwards"


def test_no_trial_gives_a_network_that_no_data_decides(
    spy: Spy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("dpprobe.privacy.random_run_count.draw_runs", lambda *_: 0)
    method = searched(distribution="poisson")
    checkpoint = Checkpoints(folder=tmp_path / "none", fingerprint="f")
    (trained, chosen), releases = run(method, checkpoint=checkpoint)
    assert not spy.calls
    assert chosen == {"score": None}
    for name, value in tuned_state(made(_first(method), SEED)).items():
        torch.testing.assert_close(trained.state[name], value)
    releases.check_counts()


def _first(method: tuned.Options) -> Options:
    assert isinstance(method.base, Options)
    return method.base


def test_a_trial_that_diverged_gets_no_label_right(spy: Spy) -> None:
    spy.diverges = lambda options: options.learning_rate > 1
    method = searched(trials=20)
    (trained, chosen), releases = run(method, noise=0.0)
    releases.check_counts()
    assert chosen["learning_rate"] < 1
    assert any(spy.diverges(call["options"]) for call in spy.calls)
    for call in spy.calls:  # its score too is a release, with noise, and is counted
        call["releases"].check_counts()
    assert all(value.isfinite().all() for value in trained.state.values())
    spy.diverges = lambda options: True  # noqa: ARG005
    with pytest.raises(ConfigError, match="in the best trial: training diverged"):
        run(method)


@pytest.mark.parametrize("minutes", [0, 60])
def test_an_interrupted_search_ends_as_if_it_had_not_been(
    spy: Spy, tmp_path: Path, minutes: float
) -> None:
    method = searched(trials=12)
    seed = next(
        seed
        for seed in (cell_seed("resumed", index) for index in range(99))
        if len(trials_of(method, seed)) == 6
    )
    (whole, chosen), _ = run(method, seed=seed)
    values = [call["options"].learning_rate for call in spy.calls]
    for stop in range(6):
        folder = tmp_path / f"{stop}"
        spy.calls, spy.stop = [], stop
        with pytest.raises(KeyboardInterrupt):
            run(method, seed=seed, checkpoint=_checkpoint(folder, minutes))
        spy.calls, spy.stop = [], None
        again = _checkpoint(folder, minutes)
        (trained, picked), releases = run(method, seed=seed, checkpoint=again)
        assert [call["options"].learning_rate for call in spy.calls] == values[stop:]
        assert picked == chosen
        releases.check_counts()
        for name, value in whole.state.items():
            assert torch.equal(trained.state[name], value)
        again.remove_checkpoint()
        assert not folder.exists()


def _checkpoint(folder: Path, minutes: float) -> Checkpoints:
    return Checkpoints(folder=folder, fingerprint="of this seed", minutes=minutes)


def test_a_trial_has_checkpoints_of_its_own(spy: Spy, tmp_path: Path) -> None:
    run(searched(trials=12), checkpoint=_checkpoint(tmp_path / "c", 3))
    given = [call["checkpoint"] for call in spy.calls]
    assert len(given) > 1
    assert len({each.fingerprint for each in given}) == len(given)
    assert {each.folder for each in given} == {tmp_path / "c" / "trial"}
    assert {each.minutes for each in given} == {3}


def test_a_probe_is_released_in_each_trial(spy: Spy) -> None:
    probe = {"share": 0.3, "method": {"head": "sgd", "steps": 2, "normalize": "none"}}
    method = searched(base={**BASE, "probe": probe}, trials=5)
    started: list[Releases] = []

    def start(options: Options, network: TunedNetwork, releases: Releases) -> None:
        assert options.probe is not None
        assert network.trained
        for item in releases.plan.mechanisms:
            if item.name.startswith("probe "):
                releases.count_releases(item.name, item.count)
        started.append(releases)

    _, releases = run(method, start=start)
    releases.check_counts()
    assert [call["releases"] for call in spy.calls] == started
    with pytest.raises(PrivacyError, match="probe gradients: 0 noisy releases were taken"):
        run(method)


def test_the_score_has_the_noise_that_is_priced(spy: Spy, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not spy.calls
    monkeypatch.setattr("dpprobe.privacy.random_run_count.draw_runs", lambda *_: 1)
    method, inputs = searched(search={"learning_rate": [0.5, 0.50001]}), rows_of()
    monkeypatch.setattr(f"{__name__}.made", lambda options, seed: _constant(options, seed))
    errors = []
    for index in range(300):
        (_, chosen), _ = run(method, inputs, noise=2.0, seed=cell_seed("noise", index))
        errors.append(chosen["score"] * N - int((inputs.labels == 0).sum()))
    deviation = planned(method, noise=2.0).find_mechanism("score").noise_multiplier
    assert abs(np.mean(errors)) < 4 * deviation / math.sqrt(300)
    assert np.std(errors) == pytest.approx(deviation, rel=0.15)


def _constant(options: Options, seed: int) -> TunedNetwork:  # noqa: ARG001
    network = _tiny(SEED)
    with torch.no_grad():
        for parameter in network.module.parameters():
            parameter.zero_()
        network.trained["head.bias"][0] = 1.0
    return network


def _tiny(seed: int) -> TunedNetwork:
    module = Tiny(seed).eval()
    trained = dict(module.named_parameters())
    return TunedNetwork(module=module, trained=trained, shape=(D,), from_images=False)


@given(
    seed=st.integers(0, 10_000),
    damage=st.sampled_from([None, math.nan, math.inf, -math.inf, 1e30]),
    several=st.booleans(),
    grouped=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_one_unit_changes_the_score_by_at_most_one(
    seed: int, damage: float | None, several: bool, grouped: bool
) -> None:
    generator = np.random.default_rng(seed)
    units = Units.number_units([f"{row // 3}" for row in range(12)]) if grouped else None
    inputs = rows_of(12, units, several=several)
    method = _first(searched(base={**BASE, "loss": "sigmoid" if several else "softmax"}))
    network = _tiny(cell_seed("score", seed))
    changed = inputs.read_batch(np.arange(12), step=None).clone()
    mine = slice(0, 3) if grouped else slice(0, 1)
    changed[mine] = torch.from_numpy(generator.normal(size=(D,)) * 10).float()
    if damage is not None:
        changed[mine, int(generator.integers(D))] = damage
    other = CutInputs(changed, inputs.labels, K, shape=(D,), units=units)
    scores = [float(count_hits(method, network, each, 5, CPU).values) for each in (inputs, other)]
    assert min(scores) >= 0
    assert abs(scores[0] - scores[1]) <= 1
    # with null rows in the place of the unit, too
    null = inputs.keep_rows(np.arange(12) >= mine.stop)
    without = float(count_hits(method, network, null, 5, CPU).values)
    assert 0 <= scores[1] - without <= 1
    if damage is not None and not math.isfinite(damage):
        rest = changed.clone()
        rest[mine] = math.nan
        nulled = CutInputs(rest, inputs.labels, K, shape=(D,), units=units)
        assert float(count_hits(method, network, nulled, 5, CPU).values) == without


@pytest.mark.parametrize("rows", [1, 7, 12, 100])
def test_the_score_counts_right_labels_whatever_passes_at_once(rows: int) -> None:
    inputs, network = rows_of(12), _tiny(SEED)
    with torch.no_grad():
        right = (
            network.module(inputs.read_batch(np.arange(12), step=None)).argmax(1) == inputs.labels
        )
    method = _first(searched())
    assert float(count_hits(method, network, inputs, rows, CPU).values) == int(right.sum())
    units = Units.number_units(["a"] * 8 + ["b"] * 4)
    weighted = float(count_hits(method, network, rows_of(12, units), rows, CPU).values)
    expected = right[:8].double().mean() + right[8:].double().mean()
    assert weighted == pytest.approx(float(expected), abs=1e-5)


def test_scores_that_are_no_numbers_get_no_label_right() -> None:
    """Their largest is the first class, which some of the labels are."""
    inputs = rows_of(12)
    assert (inputs.labels == 0).any()
    nulled = CutInputs(torch.full((12, D), math.nan), inputs.labels, K, shape=(D,), units=None)
    assert float(count_hits(_first(searched()), _tiny(SEED), nulled, 5, CPU).values) == 0
