"""Small datasets in the formats that the catalog's sources really have, and servers of them.

Each builder makes one entry's files and returns what a study writes beside `catalog:` to get these
in place of the real ones: addresses of a local server, checksums, a folder. Where checksums stand
in torchvision, they are replaced there.
"""

from __future__ import annotations

import csv
import functools
import gzip
import hashlib
import io
import json
import pickle
import struct
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from dpprobe.data import torchvision_datasets
from dpprobe.study.catalog import DatasetEntry
from tests.support.hub_server import TOKEN, Hub, Repository, ask_only
from tests.support.torchvision_files import fetch_from


@dataclass(frozen=True, kw_only=True)
class Small:
    """A small dataset: what a study writes to get it, and what must come out."""

    values: Mapping[str, Any]
    train: int
    test: int
    classes: int


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a builder works: a folder for itself, the web's folder and address, the Hub."""

    folder: Path
    web: Path
    url: str
    hub: Hub
    patch: pytest.MonkeyPatch


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Says nothing."""


@contextmanager
def serve_folder(folder: Path) -> Iterator[str]:
    """Serves a folder's files; gives the address."""
    handler = functools.partial(_Quiet, directory=str(folder))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Pictures:
    """Pictures of noise, no two alike."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(4)

    def pixels(self, *shape: int) -> np.ndarray:
        return self._random.integers(0, 256, shape, dtype=np.uint8)

    def file(self, *, kind: str = "JPEG", grey: bool = False) -> bytes:
        stream = io.BytesIO()
        Image.fromarray(self.pixels(*(8, 8) if grey else (8, 8, 3))).save(stream, format=kind)
        return stream.getvalue()


def _md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


def _tar(files: Mapping[str, bytes], *, mode: str = "w") -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as packed:  # type: ignore[call-overload]
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            packed.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def _zip(files: Mapping[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as packed:
        for name, data in files.items():
            packed.writestr(name, data)
    return stream.getvalue()


def _publish(place: Place, name: str, data: bytes) -> str:
    """Puts a file on the web; its MD5."""
    (place.web / name).write_bytes(data)
    return _md5(data)


def _idx(kind: str, entry: DatasetEntry, place: Place) -> Small:
    """MNIST's format: big-endian headers, then the bytes, packed with gzip."""
    import torchvision.datasets

    pictures, classes = _Pictures(), entry.sizes.classes
    resources = []
    for part, each in (("train", 3), ("t10k", 2)):
        labels = np.tile(np.arange(classes, dtype=np.uint8), each)
        images = pictures.pixels(len(labels), 28, 28)
        contents = {
            f"{part}-images-idx3-ubyte.gz": struct.pack(">IIII", 2051, len(labels), 28, 28)
            + images.tobytes(),
            f"{part}-labels-idx1-ubyte.gz": struct.pack(">II", 2049, len(labels))
            + labels.tobytes(),
        }
        for name, data in contents.items():
            resources.append((name, _publish(place, name, gzip.compress(data))))
    place.patch.setattr(getattr(torchvision.datasets, kind), "resources", resources)
    fetch_from(place.url, place.patch)
    return Small(values={}, train=3 * classes, test=2 * classes, classes=classes)


def _cifar(
    kind: str, entry: DatasetEntry, place: Place, *, files: Mapping[str, int], label: str, meta: str
) -> Small:
    """CIFAR's format: pickles of rows of 3,072 bytes, packed with tar and gzip."""
    import torchvision.datasets

    cls = getattr(torchvision.datasets, kind)
    assert entry.class_names is not None
    pictures, classes = _Pictures(), entry.sizes.classes
    contents: dict[str, Any] = {
        name: {
            "data": pictures.pixels(each * classes, 3072),
            label: np.tile(np.arange(classes), each).tolist(),
        }
        for name, each in files.items()
    }
    contents[meta] = {cls.meta["key"]: list(entry.class_names)}
    packed = {name: pickle.dumps(value, protocol=2) for name, value in contents.items()}
    folder = cls.base_folder
    archive = _tar({f"{folder}/{name}": data for name, data in packed.items()}, mode="w:gz")
    place.patch.setattr(cls, "tgz_md5", _publish(place, cls.filename, archive))
    for attribute in ("train_list", "test_list"):
        listed = [[name, _md5(packed[name])] for name, _ in getattr(cls, attribute)]
        place.patch.setattr(cls, attribute, listed)
    place.patch.setattr(cls, "meta", {**cls.meta, "md5": _md5(packed[meta])})
    test = files[cls.test_list[0][0]]
    train = sum(files.values()) - test
    fetch_from(place.url, place.patch)
    return Small(values={}, train=train * classes, test=test * classes, classes=classes)


def mnist(entry: DatasetEntry, place: Place) -> Small:
    return _idx("MNIST", entry, place)


def fashion_mnist(entry: DatasetEntry, place: Place) -> Small:
    return _idx("FashionMNIST", entry, place)


def cifar10(entry: DatasetEntry, place: Place) -> Small:
    files = {f"data_batch_{number}": 1 for number in range(1, 6)} | {"test_batch": 2}
    return _cifar("CIFAR10", entry, place, files=files, label="labels", meta="batches.meta")


def cifar100(entry: DatasetEntry, place: Place) -> Small:
    files = {"train": 2, "test": 1}
    return _cifar("CIFAR100", entry, place, files=files, label="fine_labels", meta="meta")


def eurosat(entry: DatasetEntry, place: Place) -> Small:
    """A zip of JPEG files in the folder 2750, one folder a class."""
    pictures = _Pictures()
    assert entry.class_names is not None
    files = {
        f"2750/{name}/{name}_{number}.jpg": pictures.file()
        for name in entry.class_names
        for number in range(1, 6)
    }
    md5 = _publish(place, "EuroSAT.zip", _zip(files))
    place.patch.setattr(torchvision_datasets, "EUROSAT_MD5", md5)
    fetch_from(place.url, place.patch)
    return Small(values={}, train=40, test=10, classes=10)


def places365(entry: DatasetEntry, place: Place) -> Small:
    """The development kit's lists and two archives of images."""
    from torchvision.datasets import Places365

    pictures = _Pictures()
    names = entry.class_names
    assert names is not None
    train = {f"{name}/00000001.jpg": label for label, name in enumerate(names)}
    test = {f"Places365_val_{row:08d}.jpg": row - 1 for row in range(1, len(names) + 1)}
    lists = {
        "categories_places365.txt": "".join(f"{name} {k}\n" for k, name in enumerate(names)),
        "places365_train_standard.txt": "".join(f"{path} {k}\n" for path, k in train.items()),
        "places365_val.txt": "".join(f"{path} {k}\n" for path, k in test.items()),
    }
    texts = {name: text.encode() for name, text in lists.items()}
    archives = {
        "filelist_places365-standard.tar": _tar(texts),
        "train_256_places365standard.tar": _tar(
            {f"data_256{path}": pictures.file() for path in train}
        ),
        "val_256.tar": _tar({f"val_256/{path}": pictures.file() for path in test}),
    }
    md5 = {name: _publish(place, name, data) for name, data in archives.items()}
    md5 |= {name: _md5(data) for name, data in texts.items()}

    def renewed(pair: tuple[str, str]) -> tuple[str, str]:
        return pair[0], md5.get(pair[0], pair[1])

    for attribute in ("_DEVKIT_META", "_FILE_LIST_META", "_IMAGES_META"):
        table = getattr(Places365, attribute)
        place.patch.setattr(
            Places365, attribute, {key: renewed(pair) for key, pair in table.items()}
        )
    place.patch.setattr(Places365, "_CATEGORIES_META", renewed(Places365._CATEGORIES_META))
    rows = len(names)
    fetch_from(place.url, place.patch)
    return Small(values={}, train=rows, test=rows, classes=rows)


def _archive(entry: DatasetEntry, place: Place, files: Mapping[str, bytes]) -> dict[str, Any]:
    """Puts an entry's one archive on the web, in place of the original."""
    (written,) = entry.options["files"]
    data = _zip(files)
    # The original's address ends in no name, either.
    _publish(place, "file_downloaded", data)
    url = f"{place.url}/file_downloaded"
    return {"files": [{**written, "url": url, "sha256": hashlib.sha256(data).hexdigest()}]}


def plantdisease(entry: DatasetEntry, place: Place) -> Small:
    """A zip of one folder a class, one of them no class of PlantVillage."""
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
    """A zip of grey JPEG files under train and test, with what macOS adds."""
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


def imagenet(entry: DatasetEntry, place: Place) -> Small:
    """Parquet files as the Hub makes them, gated, and ReaL's list."""
    pictures = _Pictures()
    names = ["tench, Tinca tinca", "goldfish, Carassius auratus", "great white shark, man-eater"]
    features = {
        "image": {"_type": "Image"},
        "label": {"names": names, "_type": "ClassLabel"},
    }
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
    # Neither the files nor their rows stand in the order of the images' numbers.
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
    _publish(place, "real.json", real)
    labels = {"url": f"{place.url}/real.json", "sha256": hashlib.sha256(real).hexdigest()}
    ask_only(place.hub.url, place.patch)
    return Small(values={"accepted_labels": labels}, train=6, test=6, classes=3)


def _write_csv(path: Path, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    opened: Callable[..., Any] = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wt", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([columns, *rows])


FINDINGS = (
    "No Finding", "Enlarged Cardiomediastinum", "Cardiomegaly", "Lung Opacity", "Lung Lesion",
    "Edema", "Consolidation", "Pneumonia", "Atelectasis", "Pneumothorax", "Pleural Effusion",
    "Pleural Other", "Fracture", "Support Devices",
)  # fmt: skip


def _findings(row: int) -> list[str]:
    """Every finding is 1, 0, -1 and blank in turn."""
    return [("1.0", "0.0", "-1.0", "")[(row + place) % 4] for place in range(len(FINDINGS))]


def chexpert(entry: DatasetEntry, place: Place) -> Small:  # noqa: ARG001
    """The small version's folder, its two tables and the table of patients."""
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
            # One patient is not in the table of patients.
            if row != 1:
                patients.append([patient, sex, 50, "White" if row % 3 else "Asian", "Unknown"])
        _write_csv(place.folder / f"CheXpert-v1.0-small/{part}.csv", columns, table)
    _write_csv(
        place.folder / "chexpert_demo.csv",
        ["PATIENT", "GENDER", "AGE_AT_CXR", "PRIMARY_RACE", "ETHNICITY"],
        patients,
    )
    return Small(values={"root": str(place.folder)}, train=8, test=4, classes=5)


def mimic_cxr(entry: DatasetEntry, place: Place) -> Small:  # noqa: ARG001
    """The tables of MIMIC-CXR-JPG and MIMIC-IV, packed, and the folders of images."""
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
        # A report without labels, and patients without an admission, are real.
        if row != 3:
            labels.append([subject, study, *_findings(row)])
        patients.append([subject, "F" if row % 2 else "M", 18 + 9 * (row % 8), 2180])
        for stay in range(row % 3):
            kind = "Medicaid" if stay == 0 else "Other"
            admissions.append([subject, 22595853 + stay, kind, "ENGLISH", "WHITE"])
    _write_csv(
        root / "mimic-cxr-2.0.0-split.csv.gz",
        ["dicom_id", "study_id", "subject_id", "split"],
        splits,
    )
    _write_csv(
        root / "mimic-cxr-2.0.0-chexpert.csv.gz", ["subject_id", "study_id", *FINDINGS], labels
    )
    _write_csv(
        root / "hosp/patients.csv.gz",
        ["subject_id", "gender", "anchor_age", "anchor_year"],
        patients,
    )
    _write_csv(
        root / "hosp/admissions.csv.gz",
        ["subject_id", "hadm_id", "insurance", "language", "race"],
        admissions,
    )
    return Small(values={"root": str(root)}, train=8, test=4, classes=5)


BUILDERS: dict[str, Callable[[DatasetEntry, Place], Small]] = {
    builder.__name__: builder
    for builder in (
        chest_xray, chexpert, cifar10, cifar100, eurosat, fashion_mnist, imagenet, mimic_cxr,
        mnist, places365, plantdisease,
    )
}  # fmt: skip
