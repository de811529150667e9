"""The time of an extraction is told before a run, if it is long."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch

from dpprobe.backbones.backbone import Runtime
from dpprobe.backbones.registry import backbone_options
from dpprobe.features import extraction_time
from dpprobe.features.extraction_time import (
    Rate,
    describe_time,
    format_duration,
    time_network,
)

SLOW = [Rate(per_second=0.5, device="cpu", side=518), Rate(per_second=4, device="cpu", side=224)]


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (10, "1 minute"),
        (610, "10 minutes"),
        (5400, "90 minutes"),
        (5500, "2 hours"),
        (36 * 3600, "36 hours"),
        (60 * 3600, "2 days"),
    ],
)
def test_a_duration_has_the_unit_that_people_use(seconds: float, told: str) -> None:
    assert format_duration(seconds) == told


def test_only_long_extractions_are_told() -> None:
    """At 1 image in 2 seconds, 149 images take less than 5 minutes."""
    assert describe_time(149, SLOW) is None
    assert describe_time(10_000, []) is None
    line = describe_time(5_400, SLOW)
    assert line is not None
    assert "5,400 images takes about 3 hours on the processors of this machine" in line
    assert "about 22 minutes with images of 224 instead of 518 pixels" in line
    on_gpu = [Rate(per_second=0.5, device="cuda:0", side=518)]
    assert str(describe_time(5_400, on_gpu)).endswith(
        "3 hours on this machine's GPU, as measured now"
    )


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    torch.save(timm.create_model("test_vit").state_dict(), tmp_path / "test_vit.pth")
    return tmp_path / "test_vit.pth"


def network(weights: Path, **preprocessing: Any) -> dict[str, Any]:
    return {
        "family": "timm",
        "model": "test_vit",
        "checkpoint": str(weights),
        "preprocessing": preprocessing,
    }


def test_a_network_is_timed_also_at_a_smaller_size(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extraction_time, "_PATIENCE", 300)
    run: Callable[..., Any] = subprocess.run
    monkeypatch.setattr(extraction_time, "_SMALLER_PATIENCE", 300)
    asked: list[dict[str, Any]] = []

    def run_here(*words: Any, **named: Any) -> Any:
        asked.append(json.loads(named["input"]))
        return run(*words, **named)

    monkeypatch.setattr(subprocess, "run", run_here)
    runtime = Runtime(device="cpu", precision="float32")
    rates = list(extraction_time._measure_rates(network(weights, size=480), runtime))
    assert [rate.side for rate in rates] == [480, 224]
    assert [rate.device for rate in rates] == ["cpu", "cpu"]
    # a fifth of the pixels: at least 1.5 times the images, also on a busy machine
    assert rates[1].per_second > 1.5 * rates[0].per_second > 0
    timed = time_network(backbone_options(network(weights, size=160)), runtime)
    assert timed is not None
    (alone,) = timed
    assert alone.side == 160
    assert asked[0]["device"] == "cpu"
    monkeypatch.setattr(extraction_time, "_PATIENCE", 0.01)
    assert (late := time_network(backbone_options(network(weights)), runtime)) is None
    assert "not timed within 0.01 seconds" in str(describe_time(400, late))
    monkeypatch.setattr(extraction_time, "_PATIENCE", 300)
    weights.write_bytes(b"no weights")
    assert time_network(backbone_options(network(weights)), runtime) == []
