"""Split tables of made-up images, for tests of code that only reads names and hashes."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from dpprobe.data.registry import dataset_options
from dpprobe.data.table import read_info
from dpprobe.data.table_writer import make_batch, write_dataset

CLASSES = ("a", "b", "c")


def encode(image: Image.Image, **options: Any) -> bytes:
    """Returns an image as a PNG file."""
    stream = io.BytesIO()
    image.save(stream, format="PNG", **options)
    return stream.getvalue()


def picture_of(text: str) -> bytes:
    """Returns a small picture whose pixels are the hash of a text."""
    return encode(Image.frombytes("L", (8, 4), hashlib.sha256(text.encode()).digest()))


def write_tables(
    folder: Path,
    images: Mapping[str, Sequence[str | bytes]],
    *,
    units: Mapping[str, Sequence[str]] | None = None,
    verify: str = "hash",
) -> str:
    """Writes tables of images, or of pictures made from texts; returns the fingerprint."""
    options = dataset_options(
        {
            "source": "sklearn",
            "name": "digits",
            "verify": verify,
            "duplicates": "warn",
            "missing_classes": "warn",
        }
    )
    batches = [
        (
            split,
            make_batch(
                ids=[f"{split}-{row}" for row in range(len(texts))],
                paths=[None] * len(texts),
                labels=[row % len(CLASSES) for row in range(len(texts))],
                images=[picture_of(text) if isinstance(text, str) else text for text in texts],
                units=None if units is None else units[split],
            ),
        )
        for split, texts in images.items()
    ]
    write_dataset(
        folder,
        iter(batches),
        options=options,
        class_names=CLASSES,
        units=units is not None,
        rows=sum(map(len, images.values())),
    )
    return read_info(folder / "dataset.json").fingerprint
