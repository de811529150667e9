"""Methods that differ in one option."""

from __future__ import annotations

from typing import Any

from dpprobe.study.ablations import best_base, changes, families, varied


def test_families_differ_in_what_varies_alone() -> None:
    options = {
        "a": {"head": "sgd", "batch_size": 32, "x": 1},
        "b": {"head": "sgd", "batch_size": 64, "x": 1},
        "c": {"head": "sgd", "batch_size": 64, "x": 2},
        "d": {"head": "lamb", "batch_size": 32, "x": 1},
    }
    assert families(options, ("batch_size",)) == [("a", "b"), ("c",), ("d",)]
    assert families(options, ("batch_size", "x"))[0] == ("a", "b", "c")


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
    assert varied(options, "batch_size") == [("a", "b")]
    assert varied(options, "init_scale") == [("a", "c", "d")]
    assert varied({"f": options["f"]}, "batch_size") == []


def test_another_head_is_one_change_whatever_only_it_knows() -> None:
    base = {"head": "lamb", "learning_rate": 0.1, "beta": 0.9, "steps": 1}
    other = {"head": "momentum", "learning_rate": 3.0, "momentum": 0.9, "steps": 1}
    assert changes(base, other) == {"head": ("lamb", "momentum")}
    assert list(changes(base, other | {"steps": 2})) == ["head", "steps"]
    assert changes(base, base | {"learning_rate": 1.0}) == {"learning_rate": (0.1, 1.0)}
    named = {"a": base, "b": base | {"steps": 2}, "c": base | {"beta": 0.5}}
    assert best_base({"b": named["b"], "c": named["c"], "a": base}) == "a"
    assert best_base({"a": base}) is None
