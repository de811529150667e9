"""DP training of networks: its releases, their order and noise, and equality with plain loops."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from dpprobe.backbones.backbone import Backbone
from dpprobe.errors import ConfigError, PrivacyError
from dpprobe.finetune.fine_tuned_network import FineTunedNetwork, Network, build_network
from dpprobe.finetune.gradients import ClippedSums
from dpprobe.finetune.inputs import ImageInputs, Index, Inputs
from dpprobe.finetune.options import Options
from dpprobe.finetune.starting_probe import fit_probe, probe_plan, start_from
from dpprobe.finetune.steps import Training
from dpprobe.finetune.train import Trained, train_network
from dpprobe.heads.adam import Adam
from dpprobe.heads.fitted import Heads
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.public_inputs import NOTHING_CHECKED, PublicInputs, hash_file
from dpprobe.heads.registry import method_options
from dpprobe.heads.schedules import learning_rates
from dpprobe.heads.scoring import score_rows
from dpprobe.heads.training_set import TrainingSet
from dpprobe.heads.transform import Transform
from dpprobe.privacy import float32_noise as noise_module
from dpprobe.privacy.float32_noise import GaussianNoise
from dpprobe.privacy.noise_calibration import calibrate
from dpprobe.privacy.plan import Selection
from dpprobe.privacy.randomness import open_stream
from dpprobe.privacy.releases import Releases
from dpprobe.privacy.target import Target
from tests.support.backbones import load
from tests.support.poisson_batches import poisson_batches
from tests.support.tiny_networks import (
    CLASSES,
    CPU,
    SEED,
    NaiveSums,
    flat,
    mlp_inputs,
    mlp_network,
    network_options,
    plan_of,
    releases_of,
)


class RecordedSums:
    """Records every call, and adds nothing."""

    made: ClassVar[list[RecordedSums]] = []

    def __init__(self, network: FineTunedNetwork, **rest: Any) -> None:
        self.calls: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]] = []
        self.rest = rest
        self.made.append(self)
        self.size = sum(one.numel() for one in network.trained.values())

    def add_rows(
        self,
        total: torch.Tensor,
        inputs: torch.Tensor,
        labels: torch.Tensor,
        weights: torch.Tensor | None,
    ) -> None:
        assert total.dtype == torch.float32
        self.calls.append((inputs, labels, weights))


@pytest.fixture(autouse=True)
def made() -> list[RecordedSums]:
    """Returns the list of all `RecordedSums` that a test makes."""
    RecordedSums.made.clear()
    return RecordedSums.made


def train(
    options: Options,
    inputs: Inputs | None = None,
    *,
    noise: float = 2.0,
    seed: int = SEED,
    make_sums: Any = ClippedSums,
    **rest: Any,
) -> Trained:
    inputs = mlp_inputs() if inputs is None else inputs
    releases = releases_of(options, inputs.n, noise, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpprobe.finetune.steps.ClippedSums", make_sums)
        trained = train_network(options, mlp_network(), inputs, releases, **rest)
    releases.check_counts()
    return trained


def reference(
    options: Options, inputs: Inputs, noise: float, *, seed: int = SEED
) -> list[dict[str, torch.Tensor]]:
    """Returns the parameters after each step of a plain loop: float64 sums and PyTorch's steps."""
    network = mlp_network()
    (mechanism,) = plan_of(options, inputs.n, noise).mechanisms
    rate = mechanism.sample_rate
    sums = NaiveSums(
        network,
        sigmoid=options.loss == "sigmoid",
        max_grad_norm=options.max_grad_norm if noise else math.inf,
        clipping=options.clipping,
    )
    drawn = GaussianNoise([seed], sums.size, CPU)
    units = inputs.units
    batches = poisson_batches(inputs.n, rate, mechanism.count, open_stream(seed, "sampling"))
    head = [one for name, one in network.trained.items() if name.startswith("head")]
    rest = [one for name, one in network.trained.items() if not name.startswith("head")]
    groups = [{"params": head, "lr": 1.0}, {"params": rest, "lr": options.backbone_rate}]
    torch_optimiser: torch.optim.Optimizer
    if options.optimiser == "adam":
        torch_optimiser = torch.optim.Adam(groups)
    else:
        momentum = 0.9 if options.optimiser == "momentum" else 0.0
        torch_optimiser = torch.optim.SGD(groups, momentum=momentum)
    schedule = LambdaLR(
        torch_optimiser, learning_rates(options, mechanism.count).tolist().__getitem__
    )
    states: list[dict[str, torch.Tensor]] = []
    for batch in batches:
        rows = batch
        if units is not None:
            rows, _ = units.rows_of(batch, np.array([len(batch)]))
        labels = inputs.labels[torch.from_numpy(rows)]
        if options.loss == "sigmoid":
            labels = labels.float()
        weights = np.ones(len(rows)) if units is None else units.weights[rows]
        if options.class_weights:
            weights = weights * np.array(options.class_weights)[labels.numpy()]
        total = torch.zeros(sums.size, dtype=torch.float64)
        sums.add_rows(total, inputs.read_batch(rows, step=None), labels, torch.from_numpy(weights))
        total += drawn.draw_steps(1, noise * options.max_grad_norm)[0, 0]
        total /= rate * inputs.n
        parts = total.split([one.numel() for one in network.trained.values()])
        for parameter, part in zip(network.trained.values(), parts, strict=True):
            parameter.grad = part.view(parameter.shape).float()
        torch_optimiser.step()
        if len(states) + 1 < mechanism.count:
            schedule.step()
        states.append({name: one.detach().clone() for name, one in network.trained.items()})
    return states


def assert_close(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert list(first) == list(second)
    np.testing.assert_allclose(flat(first), flat(second), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("noise", [0.0, 0.7])
@pytest.mark.parametrize("batch_size", [1, 8, "full"])
@pytest.mark.parametrize("optimiser", ["sgd", "momentum", "adam"])
def test_a_training_is_a_plain_loop_s(optimiser: str, batch_size: Any, noise: float) -> None:
    """Without noise it equals a plain optimiser on the same batches."""
    options = network_options(
        optimiser=optimiser, batch_size=batch_size, learning_rate=0.1, backbone_rate=0.5
    )
    wanted = reference(options, mlp_inputs(), noise)[-1]
    assert_close(train(options, noise=noise).state, wanted)


@pytest.mark.parametrize(
    "values",
    [
        {"clipping": "automatic"},
        {"schedule": "warmup_linear", "warmup": 0.5},
        {"loss": "sigmoid"},
        {"class_weights": (1.0, 0.25, 0.5)},
        {"units": True, "class_weights": (1.0, 0.25, 0.5)},
        {"units": True},
        {"units": True, "batch_size": "full"},
    ],
)
def test_options_of_rows_equal_those_of_a_plain_loop(values: dict[str, Any]) -> None:
    values = {"batch_size": 8, "optimiser": "sgd", "units": False, **values}
    units = values.pop("units")
    options = network_options(**values)
    inputs = mlp_inputs(units=units, several=options.loss == "sigmoid")
    assert_close(train(options, inputs, noise=0.7).state, reference(options, inputs, noise=0.7)[-1])


@pytest.mark.parametrize("average", ["mean", "ema"])
def test_averages_are_of_the_iterates(average: str) -> None:
    options = network_options(average=average, optimiser="sgd", batch_size=8)
    states = [flat(one) for one in reference(options, mlp_inputs(), 0.7)]
    weights: np.ndarray = np.ones(len(states))
    if average == "ema":
        weights = 0.99 ** np.arange(len(states))[::-1]
    wanted = np.average(states, axis=0, weights=weights)
    np.testing.assert_allclose(flat(train(options, noise=0.7).state), wanted, rtol=1e-4, atol=1e-5)


def test_an_empty_batch_takes_a_noisy_step_that_is_counted(made: list[RecordedSums]) -> None:
    options = network_options(batch_size=1, steps=30, optimiser="sgd", learning_rate=1.0)
    inputs = mlp_inputs(rows=8)
    start = flat(mlp_network().trained)
    trained = train(options, inputs, noise=1.0, make_sums=RecordedSums)
    assert trained.steps == 30
    assert 3 < len(made[0].calls) < 30  # some were empty, on average a share of 1/e
    drawn = GaussianNoise([SEED], len(start), CPU)
    total = sum(drawn.draw_steps(1, 0.3)[0, 0].double().numpy().copy() for _ in range(30))
    np.testing.assert_allclose(start - flat(trained.state), total, rtol=1e-4, atol=1e-5)


def test_priors_change_only_biases_of_the_result() -> None:
    options = network_options()
    priors = (0.5, 0.3, 0.2)
    plain, moved = train(options), train(network_options(class_priors=priors))
    for name, one in plain.state.items():
        if name != "head.bias":
            assert torch.equal(one, moved.state[name])
    logs = torch.log(torch.tensor(priors))
    shift = moved.state["head.bias"] - plain.state["head.bias"]
    torch.testing.assert_close(shift, logs.mean() - logs)


def test_mean_gradients_are_clipped_only_without_privacy() -> None:
    options = network_options(steps=1, batch_size="full", learning_rate=1.0)
    clipped = options.model_copy(update={"max_batch_grad_norm": 0.01})
    start = flat(dict(mlp_network().trained))
    step, short = (flat(train(one, noise=0.0).state) - start for one in (options, clipped))
    assert np.linalg.norm(step) > 0.02
    np.testing.assert_allclose(short, step * 0.01 / np.linalg.norm(step), rtol=1e-4, atol=1e-7)
    wide = options.model_copy(update={"max_batch_grad_norm": 1e6})
    np.testing.assert_array_equal(flat(train(wide, noise=0.0).state) - start, step)
    private, same = (flat(train(one).state) for one in (options, clipped))
    np.testing.assert_array_equal(private, same)


@pytest.mark.parametrize("batch_size", [8, "full"])
@pytest.mark.parametrize("values", [{}, {"units": True}])
def test_physical_batches_are_parts_of_one_batch(
    batch_size: Any, values: dict[str, Any], made: list[RecordedSums]
) -> None:
    options = network_options(batch_size=batch_size, optimiser="momentum")
    inputs = mlp_inputs(**values)
    for size, inputs.slow in ((1, False), (3, True), (3, False), (64, True)):
        train(options, inputs, physical_batch=size, make_sums=RecordedSums)
    first, *others = (
        [torch.cat(part) for part in zip(*one.calls, strict=True) if part[0] is not None]
        for one in made
    )
    for other in others:
        for mine, theirs in zip(first, other, strict=True):
            assert torch.equal(mine, theirs)
    assert max(len(call[0]) for call in made[1].calls) == 3


@pytest.mark.parametrize(
    ("n", "change", "said"),
    [
        (40, {"count": 5}, "has count"),
        (40, {"count": 7}, "has count"),
        (40, {"sensitivity": 0.1}, "sensitivity"),
        (40, {"sample_rate": 0.3}, "rate"),
        (39, {}, "n = 39 units of privacy, but the data has 40"),
    ],
)
def test_a_plan_of_another_training_is_refused(n: int, change: dict[str, Any], said: str) -> None:
    options, inputs = network_options(batch_size=8), mlp_inputs()
    plan = plan_of(options, n, 1.0)
    other = replace(plan, mechanisms=(replace(plan.mechanisms[0], **change),))
    with pytest.raises(PrivacyError, match=said):
        train_network(options, mlp_network(), inputs, Releases(other, [SEED], CPU))
    two, watched = Releases(plan, [SEED, 1], CPU), releases_of(options, 40, 1.0)
    watched.observer = lambda *_: None  # type: ignore[assignment]
    for releases, fault in ((two, "2 seeds"), (watched, "audit")) if n == 40 else ():
        with pytest.raises(PrivacyError, match=f"head fine_tune: .*{fault}"):
            train_network(options, mlp_network(), inputs, releases)


def test_files_that_were_not_compared_and_other_classes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "start.safetensors"
    path.write_bytes(b"public")
    options = network_options(init="file", init_file=str(path))
    checked = PublicInputs(hashes={str(path): str(hash_file(str(path)))})
    train(options, public=checked)
    path.write_bytes(b"another")
    for public in (checked, NOTHING_CHECKED):
        with pytest.raises(PrivacyError, match="not compared with the private rows"):
            train(options, public=public)
    options = network_options(class_weights=(1.0, 0.5))
    with pytest.raises(ConfigError, match="head fine_tune: class_weights"):
        train(options)


def test_releases_serve_one_training() -> None:
    options, inputs = network_options(), mlp_inputs()
    releases = releases_of(options, inputs.n, 1.0)
    train_network(options, mlp_network(), inputs, releases)
    with pytest.raises(PrivacyError, match="already used"):
        train_network(options, mlp_network(), inputs, releases)
    releases = releases_of(options, inputs.n, 1.0)
    releases.count_releases("gradients", 1)
    with pytest.raises(PrivacyError, match="7 noisy releases were asked for, but epsilon covers 6"):
        train_network(options, mlp_network(), inputs, releases)


def test_sums_get_the_plan_s_norm_and_the_options(made: list[RecordedSums]) -> None:
    options = network_options(clipping="automatic", precision="bfloat16")
    train(options, make_sums=RecordedSums)
    train(options, noise=0.0, make_sums=RecordedSums)
    common = {"sigmoid": False, "precision": "bfloat16"}
    assert made[0].rest == common | {"max_grad_norm": 0.3, "clipping": "automatic"}
    assert made[1].rest == common | {"max_grad_norm": math.inf, "clipping": "fixed"}


def test_rows_that_take_no_part_are_null_rows() -> None:
    """Batches, noise and divisor cover all rows; excluded rows' content changes nothing."""
    options, inputs = network_options(batch_size=8), mlp_inputs()
    kept = np.arange(inputs.rows) % 3 > 0
    rows = inputs.read_batch(np.arange(inputs.rows), step=None)
    rows[torch.from_numpy(~kept)] = 1e6
    other = Inputs(rows, inputs.labels, inputs.num_classes, shape=inputs.shape, units=None)
    ends = [train(options, one.keep_rows(kept)) for one in (inputs, other)]
    assert flat(ends[0].state).tolist() == flat(ends[1].state).tolist()
    assert inputs.kept is None
    assert flat(ends[0].state).tolist() != flat(train(options, inputs).state).tolist()


@pytest.mark.parametrize(("batch_size", "rate"), [("full", 1.0), (8, 0.2)])
def test_records_are_of_what_would_be_returned_then(
    monkeypatch: pytest.MonkeyPatch, batch_size: Any, rate: float
) -> None:
    monkeypatch.setattr("dpprobe.finetune.train.LOSS_ROWS", 30)  # in batches of 7 rows
    values = {"average": "mean", "class_priors": (0.5, 0.3, 0.2), "steps": 50}
    options = network_options(**values, batch_size=batch_size)
    inputs, seen = mlp_inputs(), []

    def record(step: int, network: FineTunedNetwork) -> dict[str, float]:
        seen.append((step, flat(network.trained)))
        return {"held_out": step / 7}

    watched = train(options, inputs, record=record, physical_batch=7)
    alone = train(options, inputs, physical_batch=7)
    assert flat(watched.state).tolist() == flat(alone.state).tolist()  # watching changes nothing
    assert alone.history == []
    steps = [step for step, _ in seen]
    assert (steps[0], steps[-1], len(steps)) == (0, 50, 21)
    assert [one["step"] for one in watched.history] == steps
    epochs = [one["epoch"] for one in watched.history]
    assert epochs == pytest.approx([step * rate for step in steps])
    assert [one["held_out"] for one in watched.history] == [step / 7 for step in steps]
    assert seen[-1][1].tolist() == flat(watched.state).tolist()
    network = mlp_network()
    with torch.no_grad():
        for name, one in watched.state.items():
            network.trained[name].copy_(one)
        scores = network.module(inputs.read_batch(np.arange(30), step=None))
    loss = nn.functional.cross_entropy(scores, inputs.labels[:30])
    assert watched.history[-1]["train_loss"] == pytest.approx(float(loss), rel=1e-5)


def test_divergence_names_the_learning_rate() -> None:
    options = network_options(learning_rate=1e38, steps=40, max_grad_norm=1e4)
    with pytest.raises(ConfigError, match="diverged at learning_rate 1e\\+38.*set a smaller"):
        train(options)
    for places in ((0,), (1,), (0, 1)):
        values = [torch.tensor([1.0, math.nan if place in places else 2.0]) for place in (0, 1)]
        parts: Any = SimpleNamespace(_parameters=dict(enumerate(values)))
        assert not Training.is_finite.fget(parts)  # type: ignore[attr-defined]


def test_lamb_scales_adam_s_direction_to_each_tensor() -> None:
    options = network_options(optimiser="lamb", steps=1, learning_rate=0.01)
    inputs = mlp_inputs()
    network = mlp_network()
    (one,) = reference(network_options(optimiser="sgd", steps=1, learning_rate=1.0), inputs, 0.7)
    trained = train(options, inputs, noise=0.7)
    for name, start in network.trained.items():
        gradient = (start.detach() - one[name]).double()
        adam = Adam(beta1=0.9, beta2=0.999, eps=1e-6).compute_direction(gradient)
        step = adam * start.detach().norm() / adam.norm()
        torch.testing.assert_close(
            start.detach() - trained.state[name], 0.01 * step.float(), rtol=1e-2, atol=1e-5
        )


def test_one_label_is_its_one_hot_and_units_of_one_row_are_rows() -> None:
    options = network_options(loss="sigmoid", batch_size=8)
    inputs = mlp_inputs()
    several = mlp_inputs()
    several.labels = nn.functional.one_hot(inputs.labels, CLASSES).to(torch.uint8)
    assert_close(train(options, inputs).state, train(options, several).state)
    plain = network_options(batch_size=8)
    alone, units = mlp_inputs(), mlp_inputs()
    units.units = Units.number_units([f"{row:03d}" for row in range(units.rows)])
    assert flat(train(plain, alone).state).tolist() == flat(train(plain, units).state).tolist()


# Real architectures, with views, adapters, cuts and precisions.


ROWS, SIZE = 10, 32
AUGMENT = {"views": 2, "flip": True, "pad": 3}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("test_efficientnet", {"tune": "all", "augment": AUGMENT}),
    ("test_efficientnet", {"tune": {"blocks": 2}}),
    ("test_vit", {"tune": "all", "augment": AUGMENT, "optimiser": "adam", "learning_rate": 0.01}),
    ("test_vit", {"tune": {"lora": {"rank": 2}}, "init": "lecun_normal", "optimiser": "lamb"}),
    ("test_efficientnet", {"tune": "norm", "normalize": {"kind": "l2"}}),
]


@cache
def backbone(model: str) -> Backbone:
    return load(family="timm", model=model, pretrained=False, preprocessing={"size": SIZE})


def options_of(values: dict[str, Any]) -> Options:
    return network_options(**{"steps": 3, "batch_size": 4, "learning_rate": 0.1, **values})


def network_of(model: str, options: Options) -> FineTunedNetwork:
    torch.manual_seed(0)
    return build_network(
        backbone(model),
        options,
        classes=CLASSES,
        seed=1,
        device="cpu",
        transform=Transform(options.normalize),
    )


def inputs_of(network: FineTunedNetwork, options: Options) -> Inputs:
    generator = torch.Generator().manual_seed(2)
    labels = torch.arange(ROWS) % CLASSES
    units = Units.number_units([f"p{row // 2}" for row in range(ROWS)])
    shape = (ROWS, *network.shape)
    if network.from_images:
        images = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
        return ImageInputs(
            images,
            labels,
            CLASSES,
            shape=network.shape,
            units=units,
            augment=options.augment,
            seed=4,
        )
    activations = torch.randn(shape, generator=generator)
    return Inputs(activations, labels, CLASSES, shape=network.shape, units=units)


def train_real(
    model: str, values: dict[str, Any], *, noise: float = 0.5, **rest: Any
) -> tuple[Trained, FineTunedNetwork]:
    options = options_of(values)
    network = network_of(model, options)
    inputs = inputs_of(network, options)
    releases = releases_of(options, inputs.n, noise)
    trained = train_network(options, network, inputs, releases, **rest)
    releases.check_counts()
    return trained, network


@pytest.mark.parametrize(("model", "values"), CASES)
def test_sums_equal_those_of_single_rows_in_any_physical_batch(
    model: str, values: dict[str, Any]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpprobe.finetune.steps.ClippedSums", NaiveSums)
        wanted, _ = train_real(model, values)
    start = flat(network_of(model, options_of(values)).trained)
    moved = flat(wanted.state) - start
    assert np.count_nonzero(moved) > 0.5 * len(moved)
    # First steps of Adam and LAMB divide by a gradient's size, which amplifies its rounding.
    loose = 0.02 if "optimiser" in values else 1e-3
    for size in (1, 3, 64):
        trained, network = train_real(model, values, physical_batch=size)
        away = np.linalg.norm(flat(trained.state) - flat(wanted.state))
        assert away < loose * np.linalg.norm(moved)
        assert flat(network.trained).tolist() == flat(trained.state).tolist()


def test_each_physical_batch_is_read_with_its_step_and_augmented_views() -> None:
    model, values = CASES[0]
    taken: list[tuple[int | None, tuple[int, ...]]] = []

    class Watched(ImageInputs):
        def read_batch(self, index: Index, *, step: int | None) -> torch.Tensor:
            batch = super().read_batch(index, step=step)
            taken.append((step, tuple(batch.shape)))
            return batch

    options = options_of({**values, "batch_size": "full"})
    network = network_of(model, options)
    inputs = inputs_of(network, options)
    inputs.__class__ = Watched
    releases = releases_of(options, inputs.n, 0.5)
    train_network(options, network, inputs, releases, physical_batch=10)
    shape = (5, 2, 3, SIZE, SIZE)  # ten images at once are five rows of two views
    assert taken == [(step, shape) for step in (0, 0, 1, 1, 2, 2)]


@pytest.mark.parametrize("rate", [1.0, 0.0])
def test_frozen_parameters_and_buffers_stay(rate: float) -> None:
    """With a rate of zero, only the head changes."""
    model, values = CASES[1][0], {**CASES[1][1], "backbone_rate": rate}
    kept = network_of(model, options_of(values)).module.state_dict()
    trained, network = train_real(model, values)
    assert set(trained.state) == set(network.trained)
    for name, one in network.module.state_dict().items():
        moved = name in network.trained and (rate > 0 or name.startswith("head."))
        assert torch.equal(one, kept[name]) != moved


# The probe is priced in the whole plan and released once, with its own noise, before training.


WIDTH, PROBED = 7, 60  # features, and rows for a probe


def own_features() -> torch.Tensor:
    return torch.randn(PROBED, WIDTH, generator=torch.Generator().manual_seed(1))


def own_labels() -> torch.Tensor:
    return own_features()[:, :CLASSES].argmax(1)


def probe_rows(units: Units | None = None) -> TrainingSet:
    return TrainingSet(own_features(), own_labels(), CLASSES, units=units)


def head_network(transform: Transform) -> FineTunedNetwork:
    module = Network(nn.Identity(), nn.Linear(WIDTH, CLASSES), transform, graph=None).eval()
    return FineTunedNetwork(
        module=module,
        trained=dict(module.named_parameters()),
        shape=(WIDTH,),
        from_images=False,
    )


def started(weights: np.ndarray, transform: Transform) -> FineTunedNetwork:
    """Returns a network that starts from a probe."""
    network = head_network(transform)
    start_from(network, weights, transform)
    return network


def inputs_of_rows() -> Inputs:
    return Inputs(own_features(), own_labels(), CLASSES, shape=(WIDTH,), units=None)


def probed(method: dict[str, Any] | None = None, **values: Any) -> Options:
    base = {"steps": 5} if "head" in (method or {}) else {"steps": 5, "normalize": "l2"}
    method = {"head": "momentum", **base, **(method or {})}
    return network_options(tune="head", steps=4, probe={"share": 0.3, "method": method}, **values)


PROBES: list[dict[str, Any]] = [
    {"head": "momentum", "steps": 5},
    {"head": "sgd", "batch_size": 12, "steps": 5, "normalize": {"kind": "l2"}},
    {"head": "feature_covariance", "normalize": {"kind": "l2"}},
    {"head": "feature_covariance"},  # needs priced statistics
]


@pytest.mark.parametrize("method", PROBES)
@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_the_network_starts_from_the_probe_s_scores(method: dict[str, Any], noise: float) -> None:
    options = probed(method)
    weights, transform = fit_probe(options, probe_rows(), releases_of(options, PROBED, noise), SEED)
    assert weights.shape == (CLASSES, WIDTH + 1)
    assert weights.dtype == np.float32
    network = started(weights, transform)
    heads = Heads(weights=weights[None], seeds=(0,), transforms=(transform,), steps=0)
    with torch.no_grad():
        assert torch.equal(
            network.module(own_features()), torch.from_numpy(score_rows(heads, own_features())[0])
        )


@pytest.mark.parametrize("method", PROBES)
def test_both_parts_are_counted_in_the_plan_of_the_whole(method: dict[str, Any]) -> None:
    options = probed(method)
    releases = releases_of(options, PROBED, 1.0)
    weights, transform = fit_probe(options, probe_rows(), releases, SEED)
    with pytest.raises(PrivacyError, match="gradients: 0 noisy releases .* but epsilon covers 4;"):
        releases.check_counts()
    train_network(options, started(weights, transform), inputs_of_rows(), releases)
    releases.check_counts()


def test_a_probe_is_released_once_under_its_own_plan() -> None:
    options = probed()
    releases = releases_of(options, PROBED, 1.0)
    network = head_network(Transform(options.normalize))
    train_network(options, network, inputs_of_rows(), releases)
    with pytest.raises(PrivacyError, match="probe gradients: 0 noisy releases"):
        releases.check_counts()
    twice = releases_of(options, PROBED, 1.0)
    fit_probe(options, probe_rows(), twice, SEED)
    for asked, planned, said in (
        (options, twice, "probe gradients: 10 noisy releases were asked for, but epsilon covers 5"),
        (options, releases_of(network_options(tune="head"), PROBED, 1.0), "covers no probe"),
        (options, releases_of(options, 59, 1.0), "the plan is for n = 59"),
        (probed({"steps": 6}), releases_of(options, PROBED, 1.0), "calibrate for this method"),
    ):
        with pytest.raises(PrivacyError, match=said):
            fit_probe(asked, probe_rows(), planned, SEED)


def test_the_probe_has_its_share_of_a_calibrated_budget(tmp_path: Path) -> None:
    """With full batches mu^2 adds up, so the probe's part can be compared with its share."""
    options = probed()
    plan = calibrate(
        options.list_mechanisms(PROBED), Target(n=PROBED, epsilon=1.0, delta=1e-3), cache=tmp_path
    )
    parts = {item.name: item.count / item.noise_multiplier**2 for item in plan.mechanisms}
    assert set(parts) == {"probe gradients", "gradients"}
    assert parts["probe gradients"] / sum(parts.values()) == pytest.approx(0.3, rel=1e-6)
    part = probe_plan(replace(plan, selection=Selection(mean=3.0, repeated=("gradients",))))
    assert part == replace(plan, mechanisms=part.mechanisms), "the search is not the probe's"
    assert [item.name for item in part.mechanisms] == ["gradients"]
    multiplier = plan.find_mechanism("probe gradients").noise_multiplier
    assert part.mechanisms[0].noise_multiplier == multiplier
    releases = Releases(plan, [SEED], CPU)
    fit_probe(options, probe_rows(), releases, SEED)


def test_probe_and_network_never_share_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The difference of two releases with equal noise would have no noise."""
    drawn: list[np.ndarray] = []
    draw = noise_module.GaussianNoise.draw_steps

    def watched(self: Any, steps: int, deviation: float) -> torch.Tensor:
        block = draw(self, steps, deviation)
        drawn.extend((block[0] / deviation).numpy().copy())
        return block

    monkeypatch.setattr(noise_module.GaussianNoise, "draw_steps", watched)
    options = probed()
    releases = releases_of(options, PROBED, 1.0)
    weights, transform = fit_probe(options, probe_rows(), releases, SEED)
    train_network(options, started(weights, transform), inputs_of_rows(), releases)
    assert len(drawn) == 5 + 4
    numbers = np.concatenate([np.round(one[:24], 5) for one in drawn])
    assert len(set(numbers.tolist())) > 0.98 * len(numbers)


def test_without_privacy_the_start_is_the_head_s_own_fit() -> None:
    options = probed({"steps": 200})
    weights, _ = fit_probe(options, probe_rows(), releases_of(options, PROBED, 0.0), SEED)
    scores = own_features() @ torch.from_numpy(weights[:, :-1]).T + torch.from_numpy(weights[:, -1])
    assert float((scores.argmax(1) == own_labels()).float().mean()) > 0.9
    assert np.isfinite(weights).all()
    units = Units.number_units([f"p{row // 3}" for row in range(PROBED)])
    weights, _ = fit_probe(probed(), probe_rows(units), releases_of(probed(), 20, 1.0), SEED)
    assert np.isfinite(weights).all()


def test_a_normalisation_with_a_price_is_the_probe_s() -> None:
    options = probed({"head": "feature_covariance"})
    assert options.normalize.priced
    names = [item.name for item in options.list_mechanisms(PROBED)]
    assert names == ["probe centre", "probe covariance", "probe gradients", "gradients"]
    cost = {
        item.name: item.count * (item.sample_rate / item.noise_multiplier) ** 2
        for item in options.list_mechanisms(PROBED)
    }
    assert cost["gradients"] == pytest.approx(0.7 * sum(cost.values()))
    assert method_options(options.model_dump(mode="json")) == options


def test_gradients_pass_through_released_statistics() -> None:
    options = probed({"head": "feature_covariance"})
    _, transform = fit_probe(options, probe_rows(), releases_of(options, PROBED, 1.0), SEED)
    rows = own_features().double()[:2].requires_grad_()
    double = Transform(transform.spec, {k: v.double() for k, v in transform.arrays.items()})

    def normalised(rows: torch.Tensor) -> torch.Tensor:
        return double(rows)

    (gradient,) = torch.autograd.grad(normalised(rows).sum(), rows)
    step = 1e-3
    for place in range(3):
        moved = rows.detach().clone()
        moved[0, place] += step
        slope = (normalised(moved) - normalised(rows)).sum().item() / step
        assert gradient[0, place].item() == pytest.approx(slope, abs=5e-3)
