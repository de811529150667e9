"""Images of the pairs that `pairs` names: made here of what libraries ship, or CIFAR-10's."""

from __future__ import annotations

import io
import math
import string
from collections.abc import Iterator
from pathlib import Path

import matplotlib
import numpy as np
import pyarrow.parquet as pq
from PIL import Image, ImageDraw, ImageFont
from sklearn.datasets import load_digits, load_sample_images

BICUBIC = Image.Resampling.BICUBIC
# Matplotlib's own fonts: sans, serif and typewriter, upright, bold and slanted.
FONTS = (
    "DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique",
    "DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique", "DejaVuSerif",
    "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic", "STIXGeneral",
    "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta", "cmb10", "cmmi10", "cmr10",
    "cmss10", "cmti10", "cmtt10",
)  # fmt: skip

Labelled = Iterator[tuple[Image.Image, int]]


def plain_digits() -> Labelled:
    """Scikit-learn's digits, 8 x 8, in an order of chance."""
    images, labels = load_digits(return_X_y=True)
    for index in np.random.default_rng(0).permutation(len(images)):
        yield Image.fromarray((images[index].reshape(8, 8) * 15.9).astype(np.uint8)), labels[index]


def digits() -> Labelled:
    """Each digit four times in a row, turned, shifted, dimmed and blurred by noise."""
    generator = np.random.default_rng(0)
    images, labels = load_digits(return_X_y=True)
    for index in generator.permutation(len(images)):
        clean = Image.fromarray((images[index].reshape(8, 8) * 15.9).astype(np.uint8))
        clean = clean.resize((32, 32), BICUBIC)
        for _ in range(4):
            shift = (int(generator.integers(-5, 6)), int(generator.integers(-5, 6)))
            turned = clean.rotate(generator.uniform(-25, 25), BICUBIC, translate=shift)
            pixels = np.asarray(turned) * generator.uniform(0.5, 1)
            pixels = pixels + generator.normal(0, generator.uniform(0, 25), (32, 32))
            yield (
                Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).convert("RGB"),
                labels[index],
            )


def crops(count: int = 10_000) -> Labelled:
    """Crops near one of 60 places, turned, mirrored, recoloured, at 32 px."""
    generator = np.random.default_rng(1)
    hopper = Path(matplotlib.get_data_path()) / "sample_data" / "grace_hopper.jpg"
    photos = [Image.fromarray(photo) for photo in load_sample_images().images]
    photos.append(Image.open(hopper).convert("RGB"))
    for label in generator.integers(0, 60, count):
        photo, place = photos[label // 20], label % 20
        width, height = photo.size[0] / 5, photo.size[1] / 4
        x = (place % 5 + generator.normal(0.5, 0.35)) * width
        y = (place // 5 + generator.normal(0.5, 0.35)) * height
        half = math.exp(generator.uniform(math.log(25), math.log(65)))
        wide = photo.crop(square(x, y, 2 * half)).rotate(generator.uniform(-20, 20), BICUBIC)
        crop = wide.crop(square(2 * half, 2 * half, half)).resize((32, 32), BICUBIC)
        pixels = np.asarray(crop) / 255
        if generator.random() < 0.5:
            pixels = pixels[:, ::-1]
        pixels = pixels ** math.exp(generator.normal(0, 0.35)) * np.exp(
            generator.normal(0, 0.12, 3)
        )
        pixels = pixels + generator.normal(0, generator.uniform(0, 0.05), pixels.shape)
        yield Image.fromarray((pixels.clip(0, 1) * 255).astype(np.uint8)), int(label) // 6


def square(x: float, y: float, half: float) -> tuple[int, int, int, int]:
    return int(x - half), int(y - half), int(x + half), int(y + half)


def glyphs(count: int = 24_000) -> Labelled:
    """Letters, small or capital, in many fonts, turned, shifted, dimmed and noisy, at 32 px."""
    generator = np.random.default_rng(2)
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    fonts = [
        [ImageFont.truetype(str(folder / f"{name}.ttf"), size) for size in (16, 20, 24)]
        for name in FONTS
    ]
    for label in generator.integers(0, 26, count):
        letters = string.ascii_lowercase if generator.random() < 0.5 else string.ascii_uppercase
        font = fonts[generator.integers(len(fonts))][generator.integers(3)]
        image = Image.new("RGB", (32, 32), colour(generator, 0, 110))
        x, y = 16 + generator.integers(-3, 4, 2)
        ImageDraw.Draw(image).text(
            (int(x), int(y)), letters[label], font=font, anchor="mm",
            fill=colour(generator, 120, 256),
        )  # fmt: skip
        pixels = np.asarray(image.rotate(generator.uniform(-25, 25), BICUBIC))
        pixels = 255 - pixels if generator.random() < 0.5 else pixels
        pixels = pixels * generator.uniform(0.4, 1)
        pixels = pixels + generator.normal(0, generator.uniform(0, 40), pixels.shape)
        yield Image.fromarray(pixels.clip(0, 255).astype(np.uint8)), int(label)


def colour(generator: np.random.Generator, low: int, high: int) -> tuple[int, int, int]:
    red, green, blue = (int(value) for value in generator.integers(low, high, 3))
    return red, green, blue


def cifar10(folder: Path, split: str) -> Labelled:
    """CIFAR-10 as parquet, in the order of the file."""
    table = pq.read_table(folder / f"{split}.parquet")
    for row in table.select(table.column_names[:2]).to_pylist():
        image, label = row.values()
        yield Image.open(io.BytesIO(image["bytes"])).convert("RGB"), int(label)
