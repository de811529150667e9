"""The memory that jobs which train linear heads ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpprobe.study.study import Study

# Memory of names and labels over the size of shards of 768 features, by bench/scale.py.
NAMES = 0.13


def estimate_memory_mb(study: Study, shards_mb: float) -> float:
    """Estimates the MB of a job with inputs of `shards_mb`: float16 on disk, float32 in memory.

    Features above `features.memory_mb` are streamed. Whitened rows, which `auto` may choose, are a
    copy.
    """
    copies = 1 + any(
        method.head == "auto" or method.normalize.kind == "whitened"
        for method in study.methods.values()
    )
    features = min(2.2 * shards_mb, study.features.memory_mb)
    # names of all rows, also where features are streamed
    return 2000 + copies * features + NAMES * shards_mb
