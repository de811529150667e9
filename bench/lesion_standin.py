"""Writes a folder of drawn skin lesions with a table of patients, to try a private study offline.

    python bench/lesion_standin.py images/lesions

The folder has no photographs. Benign lesions are round, of one brown, with a smooth rim. Malignant
lesions tend to be lopsided, of several colours, with a ragged rim, but the two classes overlap. One
image in eleven is malignant. Patients have 1 to 8 images, a sex and an age, which have nothing to
do with the pictures. Everything follows from fixed seeds.

`lesions.csv` lists the images. The folder `new_<name>` beside the folder has images of other
patients, to predict.
"""

from __future__ import annotations

import argparse
import hashlib
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from medical_standin import Patient, write_csv

COUNT, NEW = 3300, 12
MALIGNANT = 11  # one image in eleven is malignant
SIDE, DRAWN = 64, 128  # pixels per side of a picture, and of its drawing
CORNERS = 24  # corners of a lesion's outline
SHEET = 10  # pictures of each class on a sheet


def write_standin(folder: Path, *, count: int) -> None:
    """Writes files/*.jpg and lesions.csv, and a few pictures of new patients into `new_<name>`."""
    rows = list(_rows(count, after=0))
    for row in rows:
        _write(row, folder / row["file"])
    for row in _rows(NEW, after=len(rows)):
        _write(row, _new(folder) / Path(row["file"]).name)
    write_csv(folder / "lesions.csv", rows)


def write_sheet(file: Path) -> None:
    """Writes a picture with a row of malignant lesions above a row of as many benign lesions."""
    sheet = Image.new("RGB", (SHEET * (SIDE + 4), 2 * (SIDE + 4)), "white")
    for line, malignant in enumerate((True, False)):
        numbers = [n for n in range(SHEET * MALIGNANT) if (n % MALIGNANT == 0) == malignant]
        for place, number in enumerate(numbers[:SHEET]):
            picture = draw(_file(number), malignant=malignant)
            sheet.paste(picture, (place * (SIDE + 4) + 2, line * (SIDE + 4) + 2))
    file.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(file)


def _file(number: int) -> str:
    return f"files/{number:04}.jpg"


def _new(folder: Path) -> Path:
    return folder.with_name(f"new_{folder.name}")


def _write(row: dict[str, str], place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    draw(row["file"], malignant=row["diagnosis"] == "malignant").save(place, quality=90)


def _rows(count: int, *, after: int) -> Iterator[dict[str, str]]:
    """Yields a row per image, patient by patient; images and patients are numbered from `after`."""
    patient, left = Patient(after), 0
    for image in range(after, after + count):
        if not left:
            patient = Patient(patient.number + 1)
            left = patient.images
        left -= 1
        malignant = image % MALIGNANT == 0
        yield {
            "file": _file(image),
            "diagnosis": "malignant" if malignant else "benign",
            "patient": patient.name,
            "sex": patient.sex,
            "age": str(patient.age),
        }


def draw(name: str, *, malignant: bool) -> Image.Image:
    """Draws a lesion; the name seeds its random numbers."""
    random = np.random.default_rng(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]))
    skin = np.array([224, 184, 160]) + random.normal(0, 12, 3)
    picture = Image.new("RGB", (DRAWN, DRAWN), _colour(skin))
    pen = ImageDraw.Draw(picture)
    # The class shifts the signs that doctors look at: asymmetry, border, colour and size.
    shift = 1.0 if malignant else 0.0
    lopsided, ragged, spots = np.abs(random.normal(shift * np.array([0.8, 1.2, 2.0]), 1.0))
    brown = np.array([128, 84, 60]) + random.normal(0, 12, 3) - shift * random.uniform(0, 50)
    rim = _rim(
        random,
        size=random.uniform(22, 36) + shift * random.uniform(0, 16),
        lopsided=0.12 * lopsided,
        ragged=0.06 * ragged,
    )
    pen.polygon(rim, fill=_colour(brown))
    for _ in range(round(2 * spots)):
        middle = DRAWN / 2 + random.normal(0, 12, 2)
        radius = random.uniform(4, 10)
        shade = brown + random.normal(-15, 25, 3)
        pen.ellipse([*(middle - radius), *(middle + radius)], fill=_colour(shade))
    soft = picture.filter(ImageFilter.GaussianBlur(random.uniform(1, 3)))
    pixels = np.asarray(soft.resize((SIDE, SIDE), Image.Resampling.BOX), dtype=float)
    noisy = pixels + random.normal(0, 6, pixels.shape)
    return Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8))


def _rim(
    random: np.random.Generator, *, size: float, lopsided: float, ragged: float
) -> list[tuple[float, float]]:
    """Returns the corners of a lesion's outline, around the middle of the picture."""
    turned = random.uniform(0, 2 * math.pi)
    rim = []
    for corner in range(CORNERS):
        angle = 2 * math.pi * corner / CORNERS
        radius = size * (1 + lopsided * math.cos(angle - turned) + random.normal(0, ragged))
        radius = min(max(radius, 8.0), DRAWN / 2)
        rim.append((DRAWN / 2 + radius * math.cos(angle), DRAWN / 2 + radius * math.sin(angle)))
    return rim


def _colour(values: np.ndarray) -> tuple[int, int, int]:
    red, green, blue = (int(min(max(value, 0), 255)) for value in values)
    return red, green, blue


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="folder to write, such as images/lesions")
    parser.add_argument("--count", type=int, default=COUNT, help="number of images")
    parser.add_argument("--sheet", type=Path, metavar="FILE", help="a picture of some lesions")
    options = parser.parse_args()
    write_standin(options.folder, count=options.count)
    print(f"{options.folder}/lesions.csv: {options.count} images")
    if options.sheet:
        write_sheet(options.sheet)
    print(f"{_new(options.folder)}: {NEW} more")


if __name__ == "__main__":
    main()
