"""Small datasets in the real formats of the catalog's sources, and servers for them.

Each builder makes the files of one catalog entry. It returns the options that a study writes next
to `catalog:` to use these files instead of the real ones: addresses of a local server, checksums,
a folder. Checksums in torchvision's code are patched.
"""

from __future__ import annotations

import csv
import functools
import gzip
import hashlib
import io
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from dpprobe.study.catalog import DatasetEntry
from tests.support.hub_server import TOKEN, Hub, Repository, ask_only
from tests.support.misbehaving_server import Server
from tests.support.torchvision_files import fetch_from, serve_dataset


@dataclass(frozen=True, kw_only=True)
class Small:
    """A small dataset: the options with which a study uses it, and the expected counts."""

    values: Mapping[str, Any]
    train: int
    test: int
    classes: int


@dataclass(frozen=True, kw_only=True)
class Place:
    """Resources of a builder: its own folder, a web server, the Hub."""

    folder: Path
    web: Server
    hub: Hub
    patch: pytest.MonkeyPatch


class _Pictures:
    """Makes pictures of noise, all different."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(4)

    def file(self, *, grey: bool = False) -> bytes:
        stream, shape = io.BytesIO(), (8, 8) if grey else (8, 8, 3)
        pixels = self._random.integers(0, 256, shape, dtype=np.uint8)
        Image.fromarray(pixels).save(stream, format="JPEG")
        return stream.getvalue()


def _zip(files: Mapping[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as packed:
        for name, data in files.items():
            packed.writestr(name, data)
    return stream.getvalue()


def serve_torchvision(kind: str, entry: DatasetEntry, place: Place) -> Small:
    """Serves the files of one of torchvision's datasets, with the entry's classes."""
    per_class = 5 if kind == "EuroSAT" else 2
    train, test, classes = serve_dataset(
        kind, place.folder, place.patch, per_class=per_class, class_names=entry.class_names
    )
    for path in place.folder.iterdir():
        place.web.put(f"/{path.name}", path.read_bytes())
    fetch_from(place.web.url("/"), place.patch)
    if kind == "EuroSAT":  # without a test split
        train, test = 40, 10
    return Small(values={}, train=train, test=test, classes=classes)


def _archive(entry: DatasetEntry, place: Place, files: Mapping[str, bytes]) -> dict[str, Any]:
    """Serves an entry's only archive in place of the original; returns the option `files`."""
    (written,) = entry.options["files"]
    data = _zip(files)
    # The original's address also ends without a file name.
    url = place.web.put("/file_downloaded", data)
    return {"files": [{**written, "url": url, "sha256": hashlib.sha256(data).hexdigest()}]}


def plantdisease(entry: DatasetEntry, place: Place) -> Small:
    """Makes a zip with a folder per class and one folder that is no class of PlantVillage."""
    pictures = _Pictures()
    assert entry.class_names is not None
    root = "Plant_leave_diseases_dataset_without_augmentation"
    files = {
        f"{root}/{name}/image ({number}).JPG": pictures.file()
        for name in (*entry.class_names, "Background_without_leaves")
        for number in range(1, 6)
    }
    return Small(values=_archive(entry, place, files), train=152, test=38, classes=38)


def chest_xray(entry: DatasetEntry, place: Place) -> Small:
    """Makes a zip of greyscale JPEG files in train and test, with files that macOS adds."""
    pictures = _Pictures()
    files = {
        f"chest_xray/{part}/{name}/{name}-{part}-{number}.jpeg": pictures.file(grey=True)
        for part, rows in (("train", 6), ("test", 3))
        for name in ("NORMAL", "PNEUMONIA")
        for number in range(rows)
    }
    files["chest_xray/.DS_Store"] = b"\0"
    files["chest_xray/train/PNEUMONIA/.DS_Store"] = b"\0"
    files["__MACOSX/chest_xray/train/._NORMAL"] = b"\0"
    return Small(values=_archive(entry, place, files), train=12, test=6, classes=2)


# Class, file name and patient of each image, in the archive's style.
RADIOGRAPHS = [
    *(("NORMAL", f"IM-{n:04d}-0001.jpeg", f"IM-{n:04d}") for n in range(100, 112)),
    ("NORMAL", "NORMAL2-IM-0100-0001-0002.jpeg", "IM-0100"),
    *(("PNEUMONIA", f"person{n}_bacteria_{9 * n}.jpeg", f"person{n}") for n in range(1, 13)),
    *(("PNEUMONIA", f"person{n}_virus_{9 * n}_1.jpeg", f"person{n}") for n in range(10, 18)),
]


def is_tested(patient: str) -> bool:
    """Splits by name with a plain formula: 52 bits of the SHA-256 of seed 0 and name."""
    digest = hashlib.sha256(f"0\n{patient}".encode()).hexdigest()
    return int(digest[:13], 16) / 16**13 < 0.2


def chest_xray_patients(entry: DatasetEntry, place: Place) -> Small:
    """Makes the same archive, with patients in both parts of the authors' split."""
    pictures = _Pictures()
    files = {
        f"chest_xray/{'test' if row % 4 == 0 else 'train'}/{label}/{name}": pictures.file(grey=True)
        for row, (label, name, _) in enumerate(RADIOGRAPHS)
    }
    files |= {"chest_xray/.DS_Store": b"\0", "chest_xray/train/PNEUMONIA/.DS_Store": b"\0"}
    tested = sum(is_tested(patient) for _, _, patient in RADIOGRAPHS)
    train = len(RADIOGRAPHS) - tested
    return Small(values=_archive(entry, place, files), train=train, test=tested, classes=2)


def imagenet(entry: DatasetEntry, place: Place) -> Small:
    """Makes gated parquet files in the Hub's format, and ReaL's list of labels."""
    pictures = _Pictures()
    names = ["tench, Tinca tinca", "goldfish, Carassius auratus", "great white shark, man-eater"]
    features = {"image": {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}

    def table(paths: Sequence[str], labels: Sequence[int]) -> bytes:
        images = [{"bytes": pictures.file(), "path": path} for path in paths]
        rows = pa.table({"image": images, "label": pa.array(labels, pa.int64())})
        stream = io.BytesIO()
        pq.write_table(rows.replace_schema_metadata(metadata), stream)
        return stream.getvalue()

    files = {
        f"data/train-{part:05d}-of-00294.parquet": table(
            [f"n01440764_{part}{row}_n01440764.JPEG" for row in range(3)], [0, 1, 2]
        )
        for part in range(2)
    }
    # Neither the files nor their rows are sorted by image number.
    numbers = ([4, 1, 6], [2, 5, 3])
    for part, some in enumerate(numbers):
        paths = [f"ILSVRC2012_val_{number:08d}_n01440764.JPEG" for number in some]
        files[f"data/validation-{part:05d}-of-00014.parquet"] = table(paths, [0, 1, 2])
    files["data/test-00000-of-00028.parquet"] = b"not asked for"
    options = entry.options
    place.hub.repositories[options["repo"]] = Repository(
        files, commit=options["revision"], gated=True
    )
    place.patch.setenv("HF_TOKEN", TOKEN)
    real = json.dumps([[number % 3] if number != 2 else [] for number in range(1, 7)]).encode()
    labels = {"url": place.web.put("/real.json", real), "sha256": hashlib.sha256(real).hexdigest()}
    ask_only(place.hub.url, place.patch)
    return Small(values={"accepted_labels": labels}, train=6, test=6, classes=3)


def _write_csv(path: Path, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    opened: Callable[..., Any] = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([columns, *rows])


FINDINGS = (
    "No Finding",
    "Enlarged Cardiomediastinum",
    "Cardiomegaly",
    "Lung Opacity",
    "Lung Lesion",
    "Edema",
    "Consolidation",
    "Pneumonia",
    "Atelectasis",
    "Pneumothorax",
    "Pleural Effusion",
    "Pleural Other",
    "Fracture",
    "Support Devices",
)


def _findings(row: int) -> list[str]:
    """Returns the labels of a row: every finding is 1, 0, -1 and blank in turn."""
    return [("1.0", "0.0", "-1.0", "")[(row + place) % 4] for place in range(len(FINDINGS))]


def chexpert(entry: DatasetEntry, place: Place) -> Small:  # noqa: ARG001
    """Makes the folder of the small version, with its two tables and the table of patients."""
    pictures = _Pictures()
    columns = ["Path", "Sex", "Age", "Frontal/Lateral", "AP/PA", *FINDINGS]
    patients = []
    for part, first, rows in (("train", 1, 8), ("valid", 64541, 4)):
        table = []
        for row in range(rows):
            patient = f"patient{first + row:05d}"
            path = f"CheXpert-v1.0-small/{part}/{patient}/study1/view1_frontal.jpg"
            image = place.folder / path
            image.parent.mkdir(parents=True)
            image.write_bytes(pictures.file(grey=True))
            sex = "Female" if row % 2 else "Male"
            table.append([path, sex, 15 + 20 * (row % 4), "Frontal", "AP", *_findings(row)])
            # One patient is missing from the table of patients.
            if row != 1:
                patients.append([patient, sex, 50, "White" if row % 3 else "Asian", "Unknown"])
        _write_csv(place.folder / f"CheXpert-v1.0-small/{part}.csv", columns, table)
    columns = ["PATIENT", "GENDER", "AGE_AT_CXR", "PRIMARY_RACE", "ETHNICITY"]
    _write_csv(place.folder / "chexpert_demo.csv", columns, patients)
    return Small(values={"root": str(place.folder)}, train=8, test=4, classes=5)


def mimic_cxr(entry: DatasetEntry, place: Place) -> Small:  # noqa: ARG001
    """Makes the gzipped tables of MIMIC-CXR-JPG and MIMIC-IV, and the folders of images."""
    pictures, root = _Pictures(), place.folder
    splits, labels, patients, admissions = [], [], [], []
    for row in range(14):
        subject, study, dicom = 10000032 + row, 50414267 + row, f"02aa804e-{row:08d}"
        part = "train" if row < 8 else "validate" if row < 10 else "test"
        splits.append([dicom, study, subject, part])
        image = root / f"files/p{str(subject)[:2]}/p{subject}/s{study}/{dicom}.jpg"
        if part != "validate":
            image.parent.mkdir(parents=True)
            image.write_bytes(pictures.file(grey=True))
        # The real data also has a report without labels, and patients without an admission.
        if row != 3:
            labels.append([subject, study, *_findings(row)])
        patients.append([subject, "F" if row % 2 else "M", 18 + 9 * (row % 8), 2180])
        for stay in range(row % 3):
            kind = "Medicaid" if stay == 0 else "Other"
            admissions.append([subject, 22595853 + stay, kind, "ENGLISH", "WHITE"])
    for name, words, rows in (
        ("mimic-cxr-2.0.0-split", "dicom_id study_id subject_id split", splits),
        ("hosp/patients", "subject_id gender anchor_age anchor_year", patients),
        ("hosp/admissions", "subject_id hadm_id insurance language race", admissions),
    ):
        _write_csv(root / f"{name}.csv.gz", words.split(), rows)
    columns = ["subject_id", "study_id", *FINDINGS]
    _write_csv(root / "mimic-cxr-2.0.0-chexpert.csv.gz", columns, labels)
    return Small(values={"root": str(root)}, train=8, test=4, classes=5)


# Grades of both eyes, by patient, in the competition's training and test images.
EYES = {
    "train": {10 + n: (n % 5, (n + 1) % 5) for n in range(10)},
    "test": {1: (0, 0), 2: (1, 2), 3: (3, 4)},
}


def eyepacs(entry: DatasetEntry, place: Place) -> Small:  # noqa: ARG001
    """Makes both folders of images, and Kaggle's tables of training labels and of test labels."""
    pictures, root = _Pictures(), place.folder
    for part, file, columns in (
        ("train", "trainLabels.csv", ["image", "level"]),
        ("test", "retinopathy_solution.csv", ["image", "level", "Usage"]),
    ):
        rows = []
        (root / part).mkdir()
        for patient, grades in EYES[part].items():
            for eye, grade in zip(("left", "right"), grades, strict=True):
                (root / f"{part}/{patient}_{eye}.jpeg").write_bytes(pictures.file())
                usage = "Public" if patient == 2 else "Private"
                rows.append([f"{patient}_{eye}", grade, usage][: len(columns)])
        _write_csv(root / file, columns, rows)
    return Small(values={"root": str(root)}, train=20, test=6, classes=5)


TORCHVISION = {
    "cifar10": "CIFAR10",
    "cifar100": "CIFAR100",
    "eurosat": "EuroSAT",
    "fashion_mnist": "FashionMNIST",
    "mnist": "MNIST",
    "places365": "Places365",
}
OTHERS = {
    "chest_xray": chest_xray,
    "chest_xray_patients": chest_xray_patients,
    "chexpert": chexpert,
    "eyepacs": eyepacs,
    "imagenet": imagenet,
    "mimic_cxr": mimic_cxr,
    "plantdisease": plantdisease,
}
BUILDERS: dict[str, Callable[[DatasetEntry, Place], Small]] = {
    **OTHERS,
    **{name: functools.partial(serve_torchvision, kind) for name, kind in TORCHVISION.items()},
}
