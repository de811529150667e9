"""Printed digits as a public dataset beside the handwritten ones of scikit-learn.

    .venv/bin/python bench/printed_digits.py data/method_cards/printed_digits.parquet

Each of matplotlib's fonts draws 0 to 9, moved, turned and thickened a little by a fixed seed, at
8 x 8 pixels as scikit-learn has its digits. They are made of no handwriting.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from matplotlib import get_data_path
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from dpprobe.artifacts import atomic_path

FONTS = (
    "DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSansMono", "DejaVuSerif",
    "DejaVuSerif-Bold", "DejaVuSerif-Italic", "STIXGeneral", "STIXGeneralItalic", "cmr10",
)  # fmt: skip
VIEWS = 15
_SIDE, _CANVAS = 8, 128


def main() -> None:
    write_digits(Path(sys.argv[1]))


def write_digits(path: Path) -> None:
    """Writes images and labels."""
    generator = np.random.default_rng(0)
    images, labels = [], []
    for name in FONTS:
        font = ImageFont.truetype(str(Path(get_data_path(), "fonts", "ttf", f"{name}.ttf")), 96)
        for digit in range(10):
            for _ in range(VIEWS):
                content = io.BytesIO()
                drawn(font, str(digit), generator).save(content, "png")
                images.append({"bytes": content.getvalue(), "path": None})
                labels.append(digit)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as temporary:
        pq.write_table(pa.table({"image": images, "label": labels}), temporary)


def drawn(font: ImageFont.FreeTypeFont, digit: str, generator: np.random.Generator) -> Image.Image:
    """Draws a digit in white on black, as large as the picture but for what moves it."""
    canvas = Image.new("L", (_CANVAS, _CANVAS))
    middle = _CANVAS / 2
    ImageDraw.Draw(canvas).text((middle, middle), digit, fill=255, font=font, anchor="mm")
    if generator.random() < 0.5:
        canvas = canvas.filter(ImageFilter.MaxFilter(7))
    turned = canvas.rotate(generator.uniform(-15, 15), Image.Resampling.BICUBIC)
    box = turned.getbbox()
    assert box is not None
    margin = generator.uniform(0, 10, 4)
    low, high = box[1] - margin[0], box[3] + margin[1]
    # narrow digits keep their width
    half = max(high - low, box[2] - box[0]) / 2 + margin[2]
    centre = (box[0] + box[2]) / 2 + generator.uniform(-5, 5)
    size = (_SIDE, _SIDE)
    return turned.resize(
        size, Image.Resampling.BOX, clipped((centre - half, low, centre + half, high))
    )


def clipped(box: tuple[float, float, float, float]) -> tuple[float, float, float, float]:
    return (max(box[0], 0), max(box[1], 0), min(box[2], _CANVAS), min(box[3], _CANVAS))


if __name__ == "__main__":
    main()
