"""Outputs that a forward pass must return, and options that change a fingerprint."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dpprobe.backbones.backbone import Backbone, backbone_fingerprint
from dpprobe.backbones.registry import backbone_options
from dpprobe.errors import DataError
from dpprobe.versions import VERSIONS
from tests.support.backbones import load

VIT = {"family": "timm", "model": "test_vit"}
ROWS = torch.zeros(3, 4)


def compute(output: Any, *, dimension: int | None = 4, layer: Any = None, width: int = 4) -> Any:
    backbone = Backbone(
        dimension=dimension,
        preprocessing={},
        weights_sha256=None,
        fingerprint="",
        transform=lambda _: ROWS,
        forward=lambda _: output,
        layers={"1": width},
        forward_layers=None if layer is None else lambda _: (output, {"1": layer}),
    )
    return backbone.compute_features(torch.zeros(3, 1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_floats_with_a_row_for_each_image_pass(dtype: torch.dtype) -> None:
    rows = ROWS.to(dtype)
    for dimension in (4, None):
        features, layers = compute(rows, dimension=dimension)
        assert (features is rows, layers) == (True, {})
        features, layers = compute(rows, dimension=dimension, layer=rows)
        assert (features is rows, layers["1"] is rows) == (True, True)


WRONG: dict[str, tuple[Any, str]] = {
    "whole numbers": (ROWS.long(), r"torch.int64 \(3, 4\)"),
    "bfloat16": (ROWS.bfloat16(), r"torch.bfloat16 \(3, 4\)"),
    "narrow": (ROWS[:, :3], r"torch.float32 \(3, 3\)"),
    "two rows": (ROWS[:2], r"torch.float32 \(2, 4\)"),
    "no tensor": ([1], "list"),
    "maps": (ROWS[:, :, None], r"torch.float32 \(3, 4, 1\)"),
    "one number": (ROWS[:, 0], r"torch.float32 \(3,\)"),
    "no number": (ROWS[:, :0], r"torch.float32 \(3, 0\)"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_anything_else_is_refused_with_what_was_given(kind: str) -> None:
    output, given = WRONG[kind]
    said = f"backbone: {{}} of 3 images are {given}, not floats \\[3, {{}}\\]; correct its forward"
    with pytest.raises(DataError, match=said.format("features", 4)):
        compute(output)
    with pytest.raises(DataError, match=said.format("1", 4)):
        compute(ROWS, layer=output)
    if kind == "narrow":  # without a known dimension, any width is accepted
        assert compute(output, dimension=None)[0] is output
    else:
        with pytest.raises(DataError, match=said.format("features", r"(width|\d+)")):
            compute(output, dimension=None)


def test_the_width_of_a_layer_may_differ_from_the_backbone_s_dimension() -> None:
    wide = torch.zeros(3, 6)
    for dimension in (4, None):
        assert compute(ROWS, dimension=dimension, layer=wide, width=6)[1]["1"] is wide
        with pytest.raises(DataError, match=r"1 of 3 images are torch.float32 \(3, 4\), not .*6\]"):
            compute(ROWS, dimension=dimension, layer=ROWS, width=6)


PLAIN: dict[str, Any] = {
    "options": backbone_options(VIT),
    "preprocessing": {"a": 1},
    "weights_sha256": "b",
    "libraries": ["torch"],
    "architecture": "a",
    "pretrained_tag": "t",
    "precision": "float32",
}
OTHER: dict[str, Any] = {
    "options": backbone_options(VIT | {"model": "test_vit2"}),
    "preprocessing": {"a": 2},
    "weights_sha256": None,
    "libraries": ["torch", "timm"],
    "architecture": None,
    "pretrained_tag": "u",
    "precision": "float16",
    "exclude": frozenset({"model_args"}),
}


def hashed(**values: Any) -> str:
    return backbone_fingerprint(values.pop("options"), **values)


def test_a_fingerprint_covers_all_that_decides_features(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [hashed(**PLAIN), *(hashed(**PLAIN | {name: one}) for name, one in OTHER.items())]
    assert len(set(found)) == 1 + len(OTHER)
    ignored = {"dimension": 64, "catalog": "x"}
    assert hashed(**PLAIN | {"options": backbone_options(VIT | ignored)}) == found[0]
    named = PLAIN | {"options": OTHER["options"], "exclude": frozenset({"model"})}
    assert hashed(**named) == hashed(**PLAIN, exclude=frozenset({"model"}))
    with monkeypatch.context() as patch:
        patch.setattr("dpprobe.backbones.backbone.version", lambda _: "0.1")
        assert hashed(**PLAIN) not in found
    monkeypatch.setitem(VERSIONS, "features", -1)
    assert hashed(**PLAIN) not in found


SMALL = {
    "family": "convolutional",
    "preprocessing": {"size": 12},
    "stages": [{"filters": 4, "pool": 2}, {"filters": 6}],
}
VECTORS = {"family": "external", "model": "speech-96", "each_by_itself": True}


@pytest.mark.parametrize(
    ("base", "changes"),
    [
        (VECTORS, [{"model": "speech-97"}, {"version": "2"}, {"weights_sha256": "0" * 64}]),
        ({"family": "pixels", "size": 4}, [{"size": 5}, {"mean": 0.5}, {"std": 2}, {"project": 3}]),
        ({"family": "scattering", "size": 8}, [{"J": 1}, {"L": 4}, {"size": 9}, {"project": 3}]),
        (SMALL, [{"activation": "relu"}, {"hidden": 3}, {"weights_seed": 1}, {"layers": "all"}]),
    ],
)
def test_each_option_makes_another_backbone(
    base: dict[str, Any], changes: list[dict[str, Any]]
) -> None:
    """Each option changes the fingerprint, so stored features are not reused for another one."""
    found = {load(**base | change).fingerprint for change in ({}, *changes)}
    assert len(found) == 1 + len(changes)
    assert load(**base, dimension=load(**base).dimension).fingerprint in found
