"""Estimates the memory that jobs request to train linear heads."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpprobe.study.study import Study

# Memory of names and labels, as a share of shards with 768 features (bench/results/scale.json).
NAMES = 0.13


def estimate_memory_mb(study: Study, shards_mb: float) -> float:
    """Estimates the memory, in MB, of a job whose shards take `shards_mb` in float16 on disk.

    In memory features are float32; above `features.memory_mb` they are streamed. Whitening, which
    `auto` may choose, needs a copy of all rows.
    """
    copies = 1 + any(
        method.head == "auto" or method.normalize.kind == "whitened"
        for method in study.methods.values()
    )
    features = min(2.2 * shards_mb, study.features.memory_mb)
    # the names of all rows are in memory even if features are streamed
    return 2000 + copies * features + NAMES * shards_mb
