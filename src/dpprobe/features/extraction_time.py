"""Estimates how long the extraction of features takes, by timing a network on this machine.

`python -m dpprobe.features.extraction_time` is a separate process, because planning a study does
not import torch. The process reads {"options": [...], "device": ..., "precision": ...} as JSON. The
last line of its output is a list of [images per second, device, pixels of a side].
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from dpprobe.backbones.backbone import Backbone, Runtime
from dpprobe.backbones.loading import load_backbone, resolve_runtime
from dpprobe.backbones.options import BackboneOptions
from dpprobe.backbones.registry import backbone_options
from dpprobe.counted_nouns import count_noun
from dpprobe.devices import is_gpu
from dpprobe.errors import ConfigError

SHORT_SECONDS = 300  # shorter extractions are not reported
SMALLER_SIZE = 224  # pixels of a side; networks of larger images are timed at this size too
_PATIENCE = 30  # the timeout, in seconds, of a network's timing
_SMALLER_PATIENCE = 6  # a second timing follows only if the first took fewer seconds
_GPU_BATCH = 16
# For each unit of a duration: its seconds, and the largest number shown in this unit.
_UNITS = (("minute", 60, 90), ("hour", 3600, 36))


@dataclass(frozen=True, kw_only=True)
class Rate:
    """The measured speed of a network.

    Attributes:
      per_second: images per second, with all processors of this machine, or with its GPU.
      side: pixels of a side of the images that enter the network.
    """

    per_second: float
    device: str
    side: int


def describe_time(images: int, rates: list[Rate] | None) -> str | None:
    """Says how long the extraction takes, and how long it would take with smaller images.

    Returns None if extraction takes less than `SHORT_SECONDS`, or the network cannot be loaded.

    Args:
      rates: the result of `time_network`.
    """
    if rates is None:
        return (
            f"the network was not timed within {_PATIENCE} seconds, so extracting the features of "
            f"{images:,} images may take hours"
        )
    if not rates or (seconds := images / rates[0].per_second) < SHORT_SECONDS:
        return None
    place = "this machine's GPU" if is_gpu(rates[0].device) else "the processors of this machine"
    line = (
        f"extracting the features of {images:,} images takes about {format_duration(seconds)} on "
        f"{place}, as measured now"
    )
    if len(rates) > 1:
        smaller = format_duration(images / rates[1].per_second)
        line += (
            f", and about {smaller} with images of {rates[1].side} instead of {rates[0].side} "
            f"pixels a side (preprocessing.size: {rates[1].side})"
        )
    return line


def format_duration(seconds: float) -> str:
    """Formats a duration in rounded minutes, hours or days."""
    unit, length = next(
        ((name, length) for name, length, most in _UNITS if seconds <= most * length),
        ("day", 86400),
    )
    return count_noun(max(1, round(seconds / length)), unit)


def time_network(options: BackboneOptions, runtime: Runtime) -> list[Rate] | None:
    """Times a network in a separate process, also at `SMALLER_SIZE` if its images are larger.

    Returns [] if the network cannot be loaded, and None after `_PATIENCE` seconds.
    """
    asked = {
        "options": options.model_dump(mode="json"),
        "device": runtime.device,
        "precision": runtime.precision,
    }
    with suppress(OSError, subprocess.CalledProcessError, ValueError, IndexError):
        try:
            ended = subprocess.run(
                [sys.executable, "-m", "dpprobe.features.extraction_time"],
                input=json.dumps(asked),
                capture_output=True,
                encoding="utf-8",
                timeout=_PATIENCE,
                env={**os.environ, "HF_HUB_OFFLINE": "1"},
                check=True,
            )
        except subprocess.TimeoutExpired:
            return None
        return [Rate(**rate) for rate in json.loads(ended.stdout.splitlines()[-1])]
    return []


def main() -> None:
    logging.disable(logging.WARNING)
    asked = json.load(sys.stdin)
    runtime = Runtime(device=asked["device"], precision=asked["precision"])
    print(f"\n{json.dumps([vars(rate) for rate in _measure_rates(asked['options'], runtime)])}")


def _measure_rates(values: Mapping[str, Any], runtime: Runtime) -> Iterator[Rate]:
    started = time.monotonic()
    rate = _measure_rate(backbone_options(values), runtime)
    yield rate
    if rate.side > SMALLER_SIZE and time.monotonic() - started < _SMALLER_PATIENCE:
        sized = {**(values.get("preprocessing") or {}), "size": SMALLER_SIZE}
        with suppress(ConfigError):  # some networks take images of one size
            yield _measure_rate(backbone_options({**values, "preprocessing": sized}), runtime)


def _measure_rate(options: BackboneOptions, runtime: Runtime) -> Rate:
    """Times a network on one image per processor, or on one batch on a GPU."""
    from dpprobe.backbones.feature_digest import probe_image  # heavy: Pillow

    runtime = resolve_runtime(runtime)
    backbone = load_backbone(options, runtime=runtime)
    image = backbone.transform(probe_image())[None]
    seconds, images = (
        _time_batch(backbone, image)
        if is_gpu(runtime.device)
        else _time_processors(backbone, image)
    )
    return Rate(per_second=images / seconds, device=runtime.device, side=image.shape[-1])


def _time_processors(backbone: Backbone, image: Any) -> tuple[float, int]:
    """Times one pass on all processors, as in extraction; loading has already run a first pass."""
    from dpprobe.features.extraction_pipeline import in_order  # heavy: torch

    count = len(os.sched_getaffinity(0))
    started = time.monotonic()
    passes = in_order(
        lambda _: backbone.compute_features(image), range(count), threads=count, ahead=count
    )
    return _last(passes, started), count


def _time_batch(backbone: Backbone, image: Any) -> tuple[float, int]:
    """Times the second of two equal batches, because the first batch includes compiling."""
    batch = image.repeat(_GPU_BATCH, 1, 1, 1)
    backbone.compute_features(batch)[0].cpu()
    started = time.monotonic()
    backbone.compute_features(batch)[0].cpu()
    return time.monotonic() - started, _GPU_BATCH


def _last(passes: Iterator[Any], started: float) -> float:
    for _ in passes:
        pass
    return time.monotonic() - started


if __name__ == "__main__":
    main()
