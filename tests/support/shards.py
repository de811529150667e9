"""Writes tar shards in WebDataset's format."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

CLASSES = ["cat", "dog"]
Members = Sequence[tuple[str, bytes]]


def png(value: int) -> bytes:
    """Returns a small picture, a different one for each value below 65,536."""
    stream = io.BytesIO()
    pixels = np.full((6, 6), value % 256, np.uint8)
    pixels[5, 5] ^= value // 256
    Image.fromarray(pixels).save(stream, format="PNG")
    return stream.getvalue()


def pack(path: Path, members: Members, **options: Any) -> Path:
    """Writes a tar with the members in their order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, **{"mode": "w"} | options) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def samples(first: int, count: int, **more: Any) -> list[tuple[str, bytes]]:
    """Returns members of samples: keys in two folders, alternating labels, `more` in key.json."""
    members = []
    for number in range(first, first + count):
        key = f"n{number % 2:02d}/{number:04d}"
        fields: Mapping[str, Any] = {"label": CLASSES[number % 2]} | {
            name: values[number % len(values)] for name, values in more.items()
        }
        members += [
            (f"{key}.png", png(number)),
            (f"{key}.cls", str(number % 2).encode()),
            (f"{key}.json", json.dumps(fields).encode()),
        ]
    return members
