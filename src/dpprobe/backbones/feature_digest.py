"""A digest of the features that a backbone computes on this machine."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from PIL import Image

    from dpprobe.backbones.backbone import Backbone

PROBE_VALUES = 64
# The probe (digest) of a backbone that computes nothing: the SHA-256 of an empty string.
NO_PROBE = {"sha256": hashlib.sha256(b"").hexdigest(), "norm": 0.0, "sample": [0.0]}
# The largest accepted distance between two digests of one backbone, relative to their norm.
PROBE_TOLERANCE = 0.05


def take_probe(backbone: Backbone) -> dict[str, Any]:
    """Digests the features of one public image: SHA-256, L2 norm, and at most 64 features.

    Unlike a fingerprint, the digest (probe) shows if machines compute equal features. `norm` and
    `sample` agree up to machine precision; `sha256` agrees only on equal machines.
    """
    if backbone.takes_vectors:
        return dict(NO_PROBE)
    import numpy as np  # slow import, which readers of shards do not need

    row = compute_probe(backbone)
    return {
        "sha256": hashlib.sha256(np.ascontiguousarray(row).tobytes()).hexdigest(),
        "norm": float(np.linalg.norm(row.astype(np.float64))),
        "sample": [float(value) for value in row[:: -(-len(row) // PROBE_VALUES)]],
    }


def compute_probe(backbone: Backbone) -> npt.NDArray[np.float32]:
    """Computes the features [d] of the public image, which `probe_image` draws."""
    import torch  # slow import

    images = backbone.transform(probe_image())[None]
    row: npt.NDArray[np.float32] = (
        backbone.compute_features(images)[0][0].to("cpu", torch.float32).numpy()
    )
    return row


def is_probe(values: Mapping[str, Any]) -> bool:
    """Returns True if untrusted values have the keys and types of a probe."""
    sample = values.get("sample")
    numbers = [values.get("norm"), *(sample if isinstance(sample, list) else [None])]
    sha256 = values.get("sha256")
    if not isinstance(sha256, str) or re.fullmatch("[0-9a-f]{64}", sha256) is None:
        return False
    return all(type(number) in (int, float) for number in numbers)


def probe_image() -> Image.Image:
    import numpy as np  # slow import
    from PIL import Image

    ramp = np.arange(256, dtype=np.uint8)
    across, down = np.broadcast_arrays(ramp[None, :], ramp[:, None])
    return Image.fromarray(np.stack([across, down, across ^ down], axis=-1))


def probes_agree(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Returns True if two digests of features are equal up to the machines' precision."""
    if first["sha256"] == second["sha256"]:
        return True
    norms, samples = ([probe[key] for probe in (first, second)] for key in ("norm", "sample"))
    apart = math.dist(*samples) if len(samples[0]) == len(samples[1]) else math.inf
    return bool(
        abs(norms[0] - norms[1]) <= PROBE_TOLERANCE * max(norms)
        and apart <= PROBE_TOLERANCE * max(math.hypot(*sample) for sample in samples)
    )
