"""Options of the heads of noisy gradient steps, and what they release."""

from __future__ import annotations

from typing import Any

import pytest

from dpprobe.heads.registry import HEADS
from dpprobe.heads.sgd import Options
from dpprobe.options import options_class


@pytest.mark.parametrize("head", ["sgd", "momentum", "adam", "lamb"])
def test_heads_are_registered_and_release_the_same(head: str) -> None:
    cls: Any = options_class(HEADS, head)
    (release,) = cls(head=head, batch_size=100, steps=7, max_grad_norm=0.5).list_releases(1000)
    assert (release.sensitivity, release.sample_rate, release.count) == (0.5, 0.1, 7)
    (full,) = cls(head=head, batch_size="full", epochs=3).list_releases(1000)
    assert (full.sample_rate, full.count) == (1.0, 3)
    assert cls(head=head).list_releases(1000)[0].count >= 1
    assert not cls(head=head).multi_label
    assert cls(head=head).link == "softmax"
    several = cls(head=head, loss="sigmoid")
    assert several.multi_label
    assert several.link == "sigmoid"


def test_the_foundation_features_recipe_is_sgd_s_default() -> None:
    options = Options()
    assert (options.batch_size, options.learning_rate, options.max_grad_norm) == (32, 0.1, 1.2)
    assert (options.init, options.average, options.schedule) == ("torch", "last", "constant")
    assert options.list_releases(50_000)[0].count == 31_250


def test_initial_weights_are_a_public_file_of_the_head() -> None:
    options = Options(init="file", init_file="{dataset}/{backbone}.safetensors")
    located = options.fill_paths(dataset="digits", backbone="pixels")
    assert located.input_files() == ("digits/pixels.safetensors",)
    assert Options().input_files() == ()
