"""Training of real architectures: views, adapters, cuts and precisions, whole and after a stop."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from dpprobe.backbones.backbone import Backbone
from dpprobe.finetune.inputs import ImageInputs, Index, Inputs
from dpprobe.finetune.options import Options
from dpprobe.finetune.train import Trained, train_network
from dpprobe.finetune.tuned_network import TunedNetwork, build_network
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.rows import Transform
from tests.support.backbones import load
from tests.support.tiny_networks import NaiveSums, flat, network_options, releases_of

ROWS, CLASSES, SIZE = 10, 3, 32
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


def network_of(model: str, options: Options) -> TunedNetwork:
    torch.manual_seed(0)
    return build_network(
        backbone(model), options, classes=CLASSES, seed=1, device="cpu",
        transform=Transform(options.normalize),
    )  # fmt: skip


def inputs_of(network: TunedNetwork, options: Options) -> Inputs:
    generator = torch.Generator().manual_seed(2)
    labels = torch.arange(ROWS) % CLASSES
    units = Units.number_units([f"p{row // 2}" for row in range(ROWS)])
    shape = (ROWS, *network.shape)
    if network.from_images:
        images = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
        return ImageInputs(
            images, labels, CLASSES, shape=network.shape, units=units, augment=options.augment,
            seed=4,
        )  # fmt: skip
    activations = torch.randn(shape, generator=generator)
    return Inputs(activations, labels, CLASSES, shape=network.shape, units=units)


def train(
    model: str, values: dict[str, Any], *, noise: float = 0.5, **rest: Any
) -> tuple[Trained, TunedNetwork]:
    options = options_of(values)
    network = network_of(model, options)
    inputs = inputs_of(network, options)
    releases = releases_of(options, inputs.n, noise)
    trained = train_network(options, network, inputs, releases, **rest)
    releases.check_counts()
    return trained, network


@pytest.mark.parametrize(("model", "values"), CASES)
def test_sums_are_those_of_single_rows_in_any_physical_batch(
    model: str, values: dict[str, Any]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpprobe.finetune.steps.ClippedSums", NaiveSums)
        wanted, _ = train(model, values)
    start = flat(network_of(model, options_of(values)).trained)
    moved = flat(wanted.state) - start
    assert np.count_nonzero(moved) > 0.5 * len(moved)
    # Adam's and LAMB's first steps divide by a gradient's size, so rounding of small ones shows.
    loose = 0.02 if "optimiser" in values else 1e-3
    for size in (1, 3, 64):
        trained, network = train(model, values, physical_batch=size)
        away = np.linalg.norm(flat(trained.state) - flat(wanted.state))
        assert away < loose * np.linalg.norm(moved)
        assert flat(network.trained).tolist() == flat(trained.state).tolist()


def test_each_step_takes_views_of_its_own() -> None:
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


def test_frozen_parameters_and_buffers_stay() -> None:
    model, values = CASES[1]
    options = options_of(values)
    before = network_of(model, options)
    kept = {name: one.clone() for name, one in before.module.state_dict().items()}
    trained, network = train(model, values)
    assert set(trained.state) == set(network.trained)
    for name, one in network.module.state_dict().items():
        if name not in network.trained:
            assert torch.equal(one, kept[name])


def test_backbone_rate_zero_trains_the_head_alone() -> None:
    model, values = CASES[1]
    start = network_of(model, options_of(values)).trained
    trained, _ = train(model, {**values, "backbone_rate": 0.0})
    for name, one in trained.state.items():
        assert torch.equal(one, start[name].detach()) == (not name.startswith("head."))
