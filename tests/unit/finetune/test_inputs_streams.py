"""Keyed streams: words of different purposes, seeds, rows and steps never repeat."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dpprobe
from dpprobe.backbones.image_preprocessing import crop_box
from dpprobe.finetune.inputs import ImageInputs
from dpprobe.finetune.options import Augment
from dpprobe.privacy.gradient_noise import _start_lanes
from dpprobe.privacy.keystream import Keystream
from dpprobe.privacy.randomness import cell_seed, derived_seed, open_stream, stream_seed

SEEDS, ROWS, STEPS = (0, 1, 2, 2**64, 2**127), (0, 1, 2, 3, 250), (0, 1, 2, 3, 1000)
WORDS = 40  # of each stream, more than a view takes


def words_of(name: str, monkeypatch: pytest.MonkeyPatch, call: Callable[[], Any]) -> list[Any]:
    """The first words of each generator of NumPy that a call makes."""
    real, seen = getattr(np.random, name), []

    def watched(*arguments: Any, **named: Any) -> Any:
        made = real(*arguments, **named)
        seen.append(getattr(made, "bit_generator", made).random_raw(WORDS))
        return real(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(np.random, name, watched)
        call()
    assert seen
    return seen


def used_names() -> list[str]:
    """The names of streams in the code, of which some belong to one seed."""
    pattern = re.compile(
        r'(?:open_stream|stream_seed|derived_seed|open_keystream)\([^"()]*"([^"]+)"'
    )
    files = Path(inspect.getfile(dpprobe)).parent.rglob("*.py")
    names = {name for file in files for name in pattern.findall(file.read_text())}
    assert {"sampling", "noise", "views", "coins"} <= names
    return sorted(names)


def test_no_word_is_used_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = (
        torch.zeros(300, 1, 8, 8, dtype=torch.uint8),
        torch.zeros(300, dtype=torch.int64),
    )
    drawn: list[Any] = []
    for seed in SEEDS:
        inputs = ImageInputs(
            images, labels, 2, shape=(1, 8, 8), units=None, augment=Augment(pad=2), seed=seed
        )
        for step in STEPS:
            views = words_of(
                "Philox",
                monkeypatch,
                lambda: inputs.read_batch(np.array(ROWS), step=step),  # noqa: B023
            )
            assert len(views) == len(ROWS)
            drawn += views
    for seed, row, number in itertools.product(SEEDS[:4], ROWS, range(3)):
        sha256 = row.to_bytes(32, "big")
        drawn += words_of(
            "default_rng", monkeypatch,
            lambda: crop_box(9, 9, seed=seed, sha256=sha256, number=number),  # noqa: B023
        )  # fmt: skip
    for seed, name in itertools.product(SEEDS, used_names()):
        drawn.append(open_stream(seed, name).bit_generator.random_raw(WORDS))
        drawn.append(Keystream.from_seed(seed, name).draw_words(WORDS))
        drawn.append(np.array([derived_seed(seed, name) >> 64, stream_seed(seed, f"{name} ")]))
        part = Keystream.from_seed(seed, name).make_part("part")
        drawn.append(part.draw_words(WORDS))
        drawn.append(_start_lanes(seed, f"lanes of {name}", 8)[:3].reshape(-1))
    drawn.append(
        np.array([cell_seed({"a": one}, index) >> 64 for one in range(9) for index in range(9)])
    )
    words = np.concatenate([np.asarray(one, dtype=np.uint64) for one in drawn])
    assert len(np.unique(words)) == len(words)
