"""Writes a stand-in for CheXpert, made of CIFAR-10 pictures by public rules, for offline studies.

CheXpert may not be passed on. The stand-in has CheXpert's files, columns and quirks: several
findings per image, some findings uncertain (-1) or blank, patients with 1 to 8 images, sex, age and
race. `{catalog: chexpert, root: <folder>}` reads the stand-in, and config/medical_standin.yaml is a
whole study.

Everything about a patient follows from the SHA-256 of a number, a finding from the picture's class.
Sex and age have nothing to do with the pictures, so no gap between sexes or ages is real. Patients
of race `rare` (one in 25) have pictures turned upside down with less contrast, as if from an older
scanner.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
from PIL import ImageEnhance, ImageOps

from dpprobe.data.images.image_files import open_image

ROOT = Path(__file__).resolve().parents[1]
CIFAR = ROOT / "data/cifar10/cifar10/train.parquet"  # the split table of config/cifar10_sgd.yaml
FOLDER = "CheXpert-v1.0-small"
# Classes of CIFAR-10 in their order: airplane, automobile, bird, cat, deer, dog, frog, horse, ship,
# truck.
FINDINGS: dict[str, frozenset[int]] = {
    "Atelectasis": frozenset({2, 3, 4, 5, 6, 7}),  # animals
    "Cardiomegaly": frozenset({3, 5}),  # cats and dogs
    "Consolidation": frozenset({0, 2}),  # airplanes and birds
    "Edema": frozenset({6, 8}),  # frogs and ships
    "Pleural Effusion": frozenset({0, 1, 9}),  # airplanes, automobiles and trucks
}
IMAGES = (1, 1, 2, 2, 3, 4, 6, 8)  # numbers of images of a patient, each equally likely
RACES = (("A", 60), ("B", 22), ("C", 12), ("rare", 4), ("", 2))  # percent; "" is unknown
UNCERTAIN = 0.03  # share of findings that are uncertain
TURNED, CONTRAST = 180, 0.35


@dataclass(frozen=True)
class Patient:
    """A patient, whose properties all follow from the number."""

    number: int

    def share(self, of: str) -> float:
        """Returns a number from 0 to 1, uniform over patients."""
        digest = hashlib.sha256(f"{of} {self.number}".encode()).digest()
        return int.from_bytes(digest[:8], "big") / 2**64

    @property
    def name(self) -> str:
        return f"patient{self.number:05d}"

    @property
    def images(self) -> int:
        return IMAGES[int(self.share("images") * len(IMAGES))]

    @property
    def sex(self) -> str:
        return "Female" if self.share("sex") < 0.41 else "Male"

    @property
    def age(self) -> int:
        return 18 + int(73 * self.share("age"))

    @property
    def race(self) -> str:
        place = 100 * self.share("race")
        for name, percent in RACES:
            place -= percent
            if place < 0:
                return name
        return RACES[-1][0]


def write_standin(images: Path, folder: Path, *, count: int) -> None:
    """Writes images, train.csv, valid.csv and chexpert_demo.csv below the folder.

    The last patients are in valid.csv, with about 234 images, or a tenth of fewer than 2,340.

    Args:
      images: parquet file of CIFAR-10, with columns image (struct with bytes) and label.
      count: number of images; all images if there are fewer.
    """
    rows = list(_rows(images, folder, count))
    names = [row["Path"].split("/")[2] for row in rows]
    cut = names.index(names[len(rows) - max(1, min(234, len(rows) // 10))])
    for name, part in (("train", rows[:cut]), ("valid", rows[cut:])):
        write_csv(folder / FOLDER / f"{name}.csv", part)
    last = int(names[-1].removeprefix("patient"))
    people = [Patient(number) for number in range(1, last + 1)]
    write_csv(
        folder / "chexpert_demo.csv",
        [{"PATIENT": person.name, "PRIMARY_RACE": person.race} for person in people],
    )


def _rows(images: Path, folder: Path, count: int) -> Iterator[dict[str, str]]:
    """Yields a row per image, and writes the image's file."""
    pictures = _pictures(images, count)
    number = 0
    while True:
        number += 1
        patient = Patient(number)
        for view in range(patient.images):
            picture = next(pictures, None)
            if picture is None:
                return
            data, label = picture
            path = f"{FOLDER}/train/{patient.name}/study1/view{view + 1}_frontal.jpg"
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(_older(data) if patient.race == "rare" else data)
            yield {
                "Path": path,
                "Sex": patient.sex,
                "Age": str(patient.age),
                "Frontal/Lateral": "Frontal",
                "AP/PA": "AP",
                **{name: _finding(name, label, patient, view) for name in FINDINGS},
            }


def _pictures(images: Path, count: int) -> Iterator[tuple[bytes, int]]:
    with pq.ParquetFile(images) as file:
        for batch in file.iter_batches(512, columns=["image", "label"]):
            for row in batch.to_pylist():
                if count <= 0:
                    return
                count -= 1
                yield row["image"]["bytes"], row["label"]


def _finding(name: str, label: int, patient: Patient, view: int) -> str:
    """Returns a finding as "1.0", "0.0", "-1.0" (uncertain) or blank (not mentioned)."""
    chance = patient.share(f"{name} {view}")
    if chance < UNCERTAIN:
        return "-1.0"
    if label in FINDINGS[name]:
        return "1.0"
    return "0.0" if chance < 0.3 else ""


def _older(data: bytes) -> bytes:
    turned = ImageOps.exif_transpose(open_image(data)).convert("RGB").rotate(TURNED)
    stream = io.BytesIO()
    ImageEnhance.Contrast(turned).enhance(CONTRAST).save(stream, "JPEG", quality=90)
    return stream.getvalue()


def write_csv(path: Path, rows: list[dict[str, str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=Path, default=CIFAR, help="parquet of CIFAR-10")
    parser.add_argument("--folder", type=Path, default=ROOT / "build/chexpert_standin")
    parser.add_argument("--count", type=int, default=20_000, help="number of images")
    options = parser.parse_args()
    if not options.images.is_file():
        parser.error(
            f"--images {options.images}: no such file; make it with `snakemake --cores all data "
            "--configfile config/cifar10_sgd.yaml`"
        )
    write_standin(options.images, options.folder, count=options.count)
    print(options.folder)


if __name__ == "__main__":
    main()
