"""Weights are read from checkpoints, and refused if they do not fit the network."""

from __future__ import annotations

import re
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn

from dpprobe.backbones.checkpoints import fill_model, load_weights, read_state
from dpprobe.errors import ConfigError

NO_WEIGHTS: dict[str, tuple[bytes, str]] = {
    "a.pth": (b"\xff\xd8\xff\xe0", "this is a JPEG image, not a file of weights"),
    "b.safetensors": (b"\x89PNG\r\n", "this is a PNG image"),
    "c.pth": (b"GIF89a", "this is a GIF image"),
    "d.pth": (b"%PDF-1", "this is a PDF document"),
    "e.pth": (b"<!DOCTYPE html>", "this is a web page, such as an error or a login page"),
    "f.safetensors": (b"<html>", "this is a web page"),
    "g.pth": (b"version https://git-lfs.x\n", "this is a pointer of Git LFS in place of the file"),
    "h.pth": (b"", "this is empty"),
    "i.safetensors": (b"the weights\nare elsewhere", "this is a text"),
    "k.onnx": (b"\x08\x08\x12\x07pytorch", "this is an ONNX network, .*`source: embeddings`"),
    "j.safetensors": (bytes(range(200)), r"no weights can be read from it \(.+\)"),
}


@pytest.mark.parametrize("shapes", [False, True])
@pytest.mark.parametrize("name", NO_WEIGHTS)
def test_an_error_describes_a_file_that_contains_no_weights(
    tmp_path: Path, name: str, shapes: bool
) -> None:
    content, said = NO_WEIGHTS[name]
    path = tmp_path / name
    path.write_bytes(content)
    remedy = r".*name a .safetensors file, or a .pth file with a state_dict"
    with pytest.raises(ConfigError, match=f"checkpoint: {re.escape(str(path))}: {said}{remedy}"):
        read_state(path, shapes=shapes)


def make_model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))


def make_state() -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    return {name: one + 1 for name, one in make_model().state_dict().items()}


def fill(tmp_path: Path, values: Any, model: nn.Module | None = None) -> nn.Module:
    """Saves a file, reads it back, and loads it into a new network."""
    path = tmp_path / "x.pth"
    torch.save(values, path)
    model = make_model() if model is None else model
    fill_model(model, read_state(path), path=path, name="M", remedy="do R")
    return model


def assert_filled(model: nn.Module, state: dict[str, torch.Tensor]) -> None:
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name]), name


PLACES = (
    "model_state_dict",
    "state_dict",
    "model_state",
    "model",
    "net",
    "network",
    "weights",
)
PREFIXES = ("", "module.", "_orig_mod.", "model.", "encoder.backbone.", "module._orig_mod.")


@pytest.mark.parametrize("place", [*PLACES, "params", "backbone", "encoder", None])
@pytest.mark.parametrize("prefix", PREFIXES)
def test_weights_are_found_under_usual_keys_and_names_of_wrappers(
    tmp_path: Path, place: str | None, prefix: str
) -> None:
    state = make_state()
    named = OrderedDict((prefix + name, one) for name, one in state.items())
    other = {"epoch": 3, "optimizer": {"x": torch.zeros(1)}}
    assert_filled(fill(tmp_path, named if place is None else {**other, place: named}), state)


def test_weights_deep_in_a_checkpoint_are_found(tmp_path: Path) -> None:
    state = make_state()
    assert_filled(fill(tmp_path, {"epoch": 1, "weights": {"net": state}}), state)
    assert_filled(fill(tmp_path, {"model": {"state_dict": state}}), state)


@pytest.mark.parametrize("prefix", ["", "model.", "net.", "backbone.net."])
def test_a_part_of_the_network_is_not_mistaken_for_a_wrapper_prefix(
    tmp_path: Path, prefix: str
) -> None:
    """A network with a part `net` has weights named `net.`, with or without a wrapper's prefix."""
    state = {f"net.{name}": one for name, one in make_state().items()}
    named = {prefix + name: one for name, one in state.items()}
    assert_filled(fill(tmp_path, named, nn.ModuleDict({"net": make_model()})), state)


def without(*names: str) -> dict[str, torch.Tensor]:
    return {name: one for name, one in make_state().items() if name not in names}


STATISTICS = ("1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked")
ONE, FOUND = torch.zeros(1), "it should contain named tensors, but contains"
MISFITS: dict[str, tuple[Any, str]] = {
    "missing": (without("0.weight"), "1 of its 7 tensors are missing, 0.weight first; do R"),
    "five missing": (without(*STATISTICS), "5 of its 7 tensors are missing, 1.weight first; do R"),
    "more": (make_state() | {"a": ONE}, "the model has no tensor a; do R"),
    "two more": (
        make_state() | {"a": ONE, "b": ONE},
        r"the model has no tensor a \(and 1 more\); do R",
    ),
    "shape": (
        make_state() | {"0.bias": torch.zeros(2)},
        r"0.bias has shape \[2\] instead of \[3\]; do R",
    ),
    "two shapes": (
        make_state() | {"0.bias": torch.zeros(2), "1.bias": ONE},
        r"0.bias has shape \[2\] instead of \[3\] \(and 1 more\); do R",
    ),
    "pair": (
        make_state() | {"1.num_batches_tracked": torch.zeros(2)},
        r"1.num_batches_tracked has shape \[2\] instead of \[\]",
    ),
    "square": (
        make_state() | {"1.num_batches_tracked": torch.zeros(1, 1)},
        r"1.num_batches_tracked has shape \[1, 1\] instead of \[\]",
    ),
    "all": (
        without("0.weight") | {"a": ONE, "0.bias": torch.zeros(2)},
        r"are missing, 0.weight first, the model has no tensor a, "
        r"0.bias has shape \[2\] instead of \[3\]",
    ),
    "prefix of some": (
        {"encoder." * (name[0] == "0") + name: one for name, one in make_state().items()},
        r"2 of its 7 tensors are missing, 0.weight first, "
        r"the model has no tensor encoder.0.weight \(and",
    ),
}


@pytest.mark.parametrize("kind", MISFITS)
def test_weights_of_another_network_are_refused_with_the_difference(
    tmp_path: Path, kind: str
) -> None:
    values, said = MISFITS[kind]
    model = make_model()
    before = {name: one.clone() for name, one in model.state_dict().items()}
    file = re.escape(str(tmp_path / "x.pth"))
    with pytest.raises(
        ConfigError, match=f"checkpoint: {file}: these are not weights of M: .*{said}"
    ):
        fill(tmp_path, values, model)
    assert_filled(model, before)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"epoch": 3}, "contains epoch; name a"),
        ({}, "contains nothing; name a"),
        (dict.fromkeys("abcdefg", 1), "contains a, b, c, d, e; name a"),
        ({"model": {"state_dict": {"x": 1}}}, "contains"),
    ],
)
def test_the_error_lists_the_keys_of_a_checkpoint_without_tensors(
    tmp_path: Path, values: Any, said: str
) -> None:
    with pytest.raises(ConfigError, match=f"it should contain named tensors, but {said}"):
        fill(tmp_path, values)


def test_a_scalar_may_be_saved_with_one_dimension(tmp_path: Path) -> None:
    state = make_state() | {"1.num_batches_tracked": torch.full((1,), 5)}
    assert fill(tmp_path, state).state_dict()["1.num_batches_tracked"] == 5


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_shapes_alone_are_read_without_numbers(tmp_path: Path, suffix: str) -> None:
    state = make_state()
    path = tmp_path / f"x{suffix}"
    (save_file if suffix == ".safetensors" else torch.save)(state, path)
    shapes = read_state(path, shapes=True)
    assert all(one.is_meta for one in shapes.values())
    assert {name: one.shape for name, one in shapes.items()} == {
        name: one.shape for name, one in state.items()
    }
    model = make_model()
    before = {name: one.clone() for name, one in model.state_dict().items()}
    fill_model(model, shapes, path=path, name="M", remedy="do R")
    assert_filled(model, before)
    with pytest.raises(ConfigError, match="not weights of M: 1 of its 7"):
        fill_model(model, dict(list(shapes.items())[1:]), path=path, name="M", remedy="do R")


@pytest.mark.parametrize(("extra", "known"), [("fc.scale", True), ("a.b", False)])
def test_a_classifier_is_left_out_only_by_its_name(tmp_path: Path, extra: str, known: bool) -> None:
    """Tensors that are unknown for other reasons are still refused."""
    state = timm.create_model("test_resnet", num_classes=7).state_dict() | {extra: ONE}
    fresh = timm.create_model("test_resnet")
    given: dict[str, Any] = {"path": tmp_path / "x.pth", "name": "test_resnet"}
    if known:
        load_weights(fresh, {f"model.{name}": one for name, one in state.items()}, **given)
        assert not any(name.startswith("fc") for name in fresh.state_dict())
        assert_filled(fresh, state)
    else:
        with pytest.raises(
            ConfigError, match=f"the model has no tensor {extra}; name the trained model"
        ):
            load_weights(fresh, state, **given)
