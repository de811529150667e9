"""`engine: opacus` for networks: the other engine's weights, the check, and refusals."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from opacus import GradSampleModule
from pydantic import ValidationError
from torch import nn

from dpprobe.errors import ConfigError
from dpprobe.finetune.engine_check import check_network
from dpprobe.finetune.fine_tuned_network import FineTunedNetwork
from dpprobe.finetune.inputs import Inputs
from dpprobe.finetune.opacus_sums import OpacusSums
from dpprobe.finetune.train import train_network
from tests.support.tiny_networks import (
    CLASSES,
    DIMENSION,
    flat,
    mlp_inputs,
    mlp_network,
    network_options,
    releases_of,
)
from tests.unit.finetune.small_networks import of_timm


def both(
    inputs: Inputs | None = None, *, noise: float = 0.8, physical_batch: int = 64, **values: Any
) -> list[np.ndarray]:
    """Returns the parameters by `ghost` and by `opacus`, with equal seeds."""
    inputs = mlp_inputs() if inputs is None else inputs
    found = []
    for engine in ("ghost", "opacus"):
        options = network_options(engine=engine, **values)
        releases = releases_of(options, inputs.n, noise)
        trained = train_network(
            options, mlp_network(), inputs, releases, physical_batch=physical_batch
        )
        releases.check_counts()
        assert trained.steps == releases.plan.steps
        found.append(flat(trained.state))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("optimiser", ["sgd", "momentum", "adam", "lamb"])
@pytest.mark.parametrize("batch_size", [7, 1, "full"])
@pytest.mark.parametrize("steps", [1, 10, 100])
def test_weights_equal_those_of_the_other_engine(
    optimiser: str, batch_size: Any, steps: int
) -> None:
    """Batches with one expected row are often empty. Roots of mean squares amplify rounding."""
    wanted, actual = both(
        optimiser=optimiser, batch_size=batch_size, steps=steps, learning_rate=0.01
    )
    tolerance = 1e-6 if optimiser in ("sgd", "momentum") else 1e-4
    np.testing.assert_allclose(actual, wanted, rtol=0, atol=tolerance * np.abs(wanted).max())
    assert np.abs(actual - flat(mlp_network().trained)).max() > 1e-4


@pytest.mark.parametrize(
    "values",
    [
        {"loss": "sigmoid", "average": "mean", "schedule": "warmup_linear"},
        {"batch_size": 9, "backbone_rate": 0.3, "class_priors": [0.2, 0.3, 0.5]},
        {"noise": 0.0, "max_batch_grad_norm": 0.05},
        {"physical_batch": 3, "batch_size": 20},
    ],
)
def test_options_mean_what_they_mean_elsewhere(values: dict[str, Any]) -> None:
    inputs = mlp_inputs(several=values.get("loss") == "sigmoid")
    wanted, actual = both(inputs, **values)
    np.testing.assert_allclose(actual, wanted, rtol=0, atol=2e-6)


def test_examples_without_a_finite_gradient_contribute_zero() -> None:
    plain = mlp_inputs()
    rows = plain.read_batch(np.arange(plain.rows), step=None).clone()
    rows[3, 1], rows[7, 0], rows[8, 2] = math.nan, math.inf, 1e30
    spoilt = Inputs(rows, plain.labels, CLASSES, shape=(DIMENSION,), units=None)
    wanted, actual = both(spoilt)
    assert np.isfinite(actual).all()
    np.testing.assert_allclose(actual, wanted, rtol=0, atol=2e-6)


def test_the_network_keeps_its_modules() -> None:
    """Opacus adds its hooks, and sets the training mode it needs, only on a copy."""
    network = mlp_network()
    before = copy.deepcopy(network.module)
    options, inputs = network_options(engine="opacus"), mlp_inputs()
    train_network(options, network, inputs, releases_of(options, inputs.n, 0.8))
    for one, was in zip(network.module.modules(), before.modules(), strict=True):
        assert not one._forward_hooks
        assert not one._backward_hooks
        assert one.training == was.training
    hidden, start = (each.get_parameter("hidden.weight") for each in (network.module, before))
    assert not torch.equal(hidden, start)


def check(network: FineTunedNetwork, classes: int = CLASSES) -> None:
    check_network(
        network,
        sigmoid=False,
        precision="float32",
        engine="opacus",
        example=torch.randn(3, *network.shape),
        classes=classes,
    )


@pytest.mark.parametrize(
    ("name", "size", "more"),
    [
        ("resnet10t", 32, {}),
        ("vit_tiny_patch16_224", 224, {"depth": 1, "embed_dim": 24, "num_heads": 2}),
    ],
)
def test_opacus_has_right_gradients_of_networks_of_timm(
    name: str, size: int, more: dict[str, Any]
) -> None:
    """A ResNet adds to a layer's output in place, which hooks alone would forbid."""
    network = of_timm(name, size, **more)
    for child in network.module.modules():
        if hasattr(child, "inplace"):
            child.inplace = False  # type: ignore[assignment]  # as `standard_form` does
    check(network, classes=5)


def test_a_wrong_gradient_by_opacus_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check(mlp_network())
    rule = GradSampleModule.GRAD_SAMPLERS[nn.Linear]

    def wrong(*arguments: Any) -> Any:
        return {parameter: 1.1 * one for parameter, one in rule(*arguments).items()}

    monkeypatch.setitem(GradSampleModule.GRAD_SAMPLERS, nn.Linear, wrong)
    with pytest.raises(ConfigError, match="engine opacus gives a wrong gradient of hidden.weight"):
        check(mlp_network())


def test_a_layer_without_gradients_of_rows_is_refused() -> None:
    network = mlp_network()
    network.module.get_submodule("hidden").register_buffer("offset", torch.zeros(1))
    with pytest.raises(ConfigError, match="engine opacus: this network has a layer without grad"):
        OpacusSums(network, sigmoid=False, max_grad_norm=1.0, noise_multiplier=1.0, divisor=4.0)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"clipping": "automatic"}, "clipping automatic: Opacus does not divide"),
        ({"precision": "bfloat16"}, "precision bfloat16: Opacus does not sum"),
        ({"augment": {"views": 2}}, "augment.views 2: Opacus does not average"),
        ({"class_weights": [1, 0.5, 0.5]}, "class_weights: Opacus does not weigh"),
    ],
)
def test_what_opacus_does_not_do_is_refused(values: dict[str, Any], said: str) -> None:
    network_options(engine="ghost", **values)
    with pytest.raises(ValidationError, match=f"{said}.*; remove it, or write `engine: ghost`"):
        network_options(engine="opacus", **values)


def test_patients_with_several_images_are_refused() -> None:
    options, inputs = network_options(engine="opacus"), mlp_inputs(units=True)
    with pytest.raises(ConfigError, match="engine opacus clips gradients of images, not the means"):
        train_network(options, mlp_network(), inputs, releases_of(options, inputs.n, 0.8))
