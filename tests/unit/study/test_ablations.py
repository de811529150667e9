"""Methods that differ in one option."""

from __future__ import annotations

from typing import Any

from dpprobe.study.ablations import (
    best_base,
    find_changes,
    find_families,
    find_varied,
    same_but_size,
)


def test_families_differ_in_what_varies_alone() -> None:
    options = {
        "a": {"head": "sgd", "batch_size": 32, "x": 1},
        "b": {"head": "sgd", "batch_size": 64, "x": 1},
        "c": {"head": "sgd", "batch_size": 64, "x": 2},
        "d": {"head": "lamb", "batch_size": 32, "x": 1},
    }
    assert find_families(options, ("batch_size",)) == [("a", "b"), ("c",), ("d",)]
    assert find_families(options, ("batch_size", "x"))[0] == ("a", "b", "c")


def test_methods_that_vary_in_batch_size_or_scale_are_found() -> None:
    base: dict[str, Any] = {"head": "sgd", "batch_size": 32, "init": "zero", "init_scale": None}
    options = {
        "a": base,
        "b": base | {"batch_size": "full"},
        "c": base | {"init": "scaled", "init_scale": 0.1},
        "d": base | {"init": "scaled", "init_scale": 1.0},
        "e": base | {"init": "torch"},
        "f": {"head": "least_squares"},
    }
    assert find_varied(options, "batch_size") == [("a", "b")]
    assert find_varied(options, "init_scale") == [("a", "c", "d")]
    assert find_varied({"f": options["f"]}, "batch_size") == []


def test_learning_rates_vary_along_and_are_no_value_of_their_own() -> None:
    base: dict[str, Any] = {"head": "lamb", "batch_size": 32, "learning_rate": 0.1}
    swept = {"a": base, "b": base | {"learning_rate": 0.2}}
    assert find_varied(swept, "batch_size") == []
    both = swept | {"c": base | {"batch_size": 64, "learning_rate": 9.0}}
    assert find_varied(both, "batch_size") == [("a", "b", "c")]


def test_optimisers_differ_in_what_only_they_have() -> None:
    base: dict[str, Any] = {"head": "lamb", "batch_size": 32, "learning_rate": 0.1, "beta2": 0.999}
    options = {
        "lamb": base,
        "momentum": {"head": "momentum", "batch_size": 32, "learning_rate": 6.4, "momentum": 0.9},
        "large": base | {"batch_size": 64},
        "squares": {"head": "least_squares"},
    }
    assert find_varied(options, "optimiser") == [("lamb", "momentum")]
    assert find_varied({"lamb": base}, "optimiser") == []


def test_backbones_of_one_network_differ_in_the_size_of_images() -> None:
    def timm(size: int | None, **changes: Any) -> dict[str, Any]:
        return {"model": "vit", "preprocessing": {"size": size, "crop_pct": 0.9} | changes}

    backbones = {
        "native": timm(None), "small": timm(256, crop_pct=0.5), "flipped": timm(512, flip=True),
        "again": timm(256), "pixels": {"family": "pixels", "size": 8},
    }  # fmt: skip
    assert same_but_size(backbones) == [("native", "small", "again")]
    assert same_but_size({"small": timm(256), "again": timm(256, crop_pct=0.5)}) == []


def test_another_head_is_one_change_whatever_only_it_knows() -> None:
    base = {"head": "lamb", "learning_rate": 0.1, "beta": 0.9, "steps": 1}
    other = {"head": "momentum", "learning_rate": 3.0, "momentum": 0.9, "steps": 1}
    assert find_changes(base, other) == {"head": ("lamb", "momentum")}
    assert list(find_changes(base, other | {"steps": 2})) == ["head", "steps"]
    assert find_changes(base, base | {"learning_rate": 1.0}) == {"learning_rate": (0.1, 1.0)}
    named = {"a": base, "b": base | {"steps": 2}, "c": base | {"beta": 0.5}}
    assert best_base({"b": named["b"], "c": named["c"], "a": base}) == "a"
    assert best_base({"a": base}) is None
