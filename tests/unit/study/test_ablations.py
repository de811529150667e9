"""Methods that differ in one option."""

from __future__ import annotations

from typing import Any

import pytest

from dpprobe.study.ablations import (
    best_base,
    find_changes,
    find_families,
    find_varied,
    same_but_size,
)

SGD: dict[str, Any] = {"head": "sgd", "batch_size": 32, "init": "zero", "init_scale": None}
LAMB: dict[str, Any] = {"head": "lamb", "batch_size": 32, "learning_rate": 0.1, "beta2": 0.999}
SQUARES = {"head": "least_squares"}
SIZES = {
    "a": SGD,
    "b": SGD | {"batch_size": "full"},
    "c": SGD | {"init": "scaled", "init_scale": 0.1},
    "d": SGD | {"init": "scaled", "init_scale": 1.0},
    "e": SGD | {"init": "torch"},
    "f": SQUARES,
}
RATES = {"a": LAMB, "b": LAMB | {"learning_rate": 0.2}}
HEADS = {
    "lamb": LAMB,
    "large": LAMB | {"batch_size": 64},
    "squares": SQUARES,
    "momentum": {"head": "momentum", "batch_size": 32, "learning_rate": 6.4, "momentum": 0.9},
}


def test_families_differ_only_in_what_varies() -> None:
    options = {
        "a": SGD,
        "b": SGD | {"batch_size": 64},
        "c": SGD | {"batch_size": 64, "init": "torch"},
        "d": SGD | {"head": "lamb"},
    }
    assert find_families(options, ("batch_size",)) == [("a", "b"), ("c",), ("d",)]
    assert find_families(options, ("batch_size", "init"))[0] == ("a", "b", "c")


@pytest.mark.parametrize(
    ("options", "varied", "groups"),
    [
        (SIZES, "batch_size", [("a", "b")]),
        (SIZES, "init_scale", [("a", "c", "d")]),
        ({"f": SQUARES}, "batch_size", []),
        # learning rates may differ too, but do not count as a varied option
        (RATES, "batch_size", []),
        (RATES | {"c": HEADS["large"] | {"learning_rate": 9.0}}, "batch_size", [("a", "b", "c")]),
        # optimisers may differ in options that only one of them has
        (HEADS, "optimiser", [("lamb", "momentum")]),
        ({"lamb": LAMB}, "optimiser", []),
    ],
)
def test_methods_that_vary_in_one_option_are_found(
    options: dict[str, dict[str, Any]], varied: Any, groups: list[tuple[str, ...]]
) -> None:
    assert find_varied(options, varied) == groups


def test_backbones_of_one_network_differ_in_the_size_of_images() -> None:
    def timm(size: int | None, **changes: Any) -> dict[str, Any]:
        return {"model": "vit", "preprocessing": {"size": size, "crop_pct": 0.9} | changes}

    backbones = {
        "native": timm(None),
        "small": timm(256, crop_pct=0.5),
        "flipped": timm(512, flip=True),
        "again": timm(256),
        "pixels": {"family": "pixels", "size": 8},
    }
    assert same_but_size(backbones) == [("native", "small", "again")]
    assert same_but_size({"small": timm(256), "again": timm(256, crop_pct=0.5)}) == []


def test_another_head_counts_as_one_change_whatever_options_it_adds() -> None:
    base = {"head": "lamb", "learning_rate": 0.1, "beta": 0.9, "steps": 1}
    other = {"head": "momentum", "learning_rate": 3.0, "momentum": 0.9, "steps": 1}
    assert find_changes(base, other) == {"head": ("lamb", "momentum")}
    assert list(find_changes(base, other | {"steps": 2})) == ["head", "steps"]
    assert find_changes(base, base | {"learning_rate": 1.0}) == {"learning_rate": (0.1, 1.0)}
    named = {"a": base, "b": base | {"steps": 2}, "c": base | {"beta": 0.5}}
    assert best_base({"b": named["b"], "c": named["c"], "a": base}) == "a"
    assert best_base({"a": base}) is None
