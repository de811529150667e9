"""Digests of features: when machines agree, and which digests in strangers' files are valid."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpprobe.backbones.feature_digest import (
    NO_PROBE,
    is_probe,
    probe_image,
    probes_agree,
    take_probe,
)
from tests.support.backbones import load, run

BASE: dict[str, Any] = {"sha256": "a" * 64, "norm": 2.0, "sample": [1.0, -1.0]}


@pytest.mark.parametrize(
    ("change", "agree"),
    [
        ({}, True),
        # 5% of the larger norm: 0.105 for 2.1, and 0.1 for 2.0
        ({"norm": 2.1}, True),
        ({"norm": 2.11}, False),
        ({"norm": 1.91}, True),
        ({"norm": 1.89}, False),
        # 5% of the longer sample, with lengths of 1.46 and 1.47
        ({"sample": [1.07, -1.0]}, True),
        ({"sample": [1.08, -1.0]}, False),
        ({"sample": [1.04, -1.04]}, True),
        ({"sample": [1.06, -1.06]}, False),
        ({"sample": [1.0]}, False),
        ({"sample": []}, False),
        ({"norm": 9.0, "sample": [], "sha256": BASE["sha256"]}, True),
    ],
)
def test_digests_agree_up_to_five_percent_of_their_length(
    change: dict[str, Any], agree: bool
) -> None:
    other = BASE | {"sha256": "b" * 64} | change
    assert probes_agree(BASE, other) == probes_agree(other, BASE) == agree


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=5), st.floats(0.1, 10))
def test_agreement_does_not_depend_on_the_scale_of_features(
    sample: list[float], scale: float
) -> None:
    def probe(values: np.ndarray, digest: str) -> dict[str, Any]:
        return {"sha256": digest, "norm": float(np.linalg.norm(values)), "sample": values.tolist()}

    row = np.array([*sample, 1.0])
    for change, agree in ((1.04, True), (1.06, False)):
        pair = probe(scale * row, "a"), probe(scale * change * row, "b")
        assert probes_agree(*pair) == agree, f"{change} times {row}"


@pytest.mark.parametrize(
    ("change", "right"),
    [
        ({}, True),
        ({"norm": 2}, True),
        ({"norm": 0.0, "sample": []}, True),
        ({"sample": [1, 2]}, True),
        ({"sha256": "A" * 64}, False),
        ({"sha256": "a" * 63}, False),
        ({"sha256": "a" * 64 + "\n"}, False),
        ({"sha256": 1}, False),
        ({"norm": True}, False),
        ({"norm": "2"}, False),
        ({"norm": None}, False),
        ({"sample": [None]}, False),
        ({"sample": [1.0, True]}, False),
        ({"sample": 1.0}, False),
        ({"sample": "12"}, False),
    ],
)
def test_a_stranger_s_digest_has_a_hash_and_numbers(change: dict[str, Any], right: bool) -> None:
    assert is_probe(BASE | change) == right
    for key in BASE:
        assert not is_probe({name: one for name, one in BASE.items() if name != key})


def test_the_public_image_is_two_ramps_and_their_exclusive_or() -> None:
    pixels = np.asarray(probe_image())
    assert pixels.shape == (256, 256, 3)
    for row, column in ((0, 0), (3, 5), (255, 1), (128, 255)):
        assert pixels[row, column].tolist() == [column, row, column ^ row]


@pytest.mark.parametrize(("size", "step"), [(8, 1), (9, 2), (11, 2), (12, 3)])
def test_a_digest_is_of_the_features_of_that_image(size: int, step: int) -> None:
    """At most 64 numbers are listed: every second of 81, every third of 144."""
    backbone = load(family="pixels", size=size)
    row = run(backbone, probe_image())[0].numpy()
    found = take_probe(backbone)
    assert found["sha256"] == hashlib.sha256(row.tobytes()).hexdigest()
    assert found["norm"] == pytest.approx(np.linalg.norm(row.astype(float)))
    assert found["sample"] == row[::step].tolist()
    assert len(found["sample"]) <= 64


def test_vectors_of_another_program_have_no_features_to_digest() -> None:
    backbone = load(family="external", model="speech-96", each_by_itself=True)
    assert take_probe(backbone) == NO_PROBE
    assert is_probe(NO_PROBE)
    assert NO_PROBE["sha256"] == hashlib.sha256().hexdigest()
