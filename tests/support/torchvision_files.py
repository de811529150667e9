"""Small datasets in torchvision's file formats, with matching checksums.

torchvision's code contains the real files' checksums. A fixture replaces them in torchvision's
classes, where both the download and torchvision's own check read them.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dpprobe.data.sources import torchvision_datasets

EUROSAT_CLASSES = (
    "AnnualCrop",
    "Forest",
    "HerbaceousVegetation",
    "Highway",
    "Industrial",
    "Pasture",
    "PermanentCrop",
    "Residential",
    "River",
    "SeaLake",
)
PLACES = ("/b/bow_window/indoor", "/a/airfield", "/a/airplane_cabin")
NAMES = ("MNIST", "FashionMNIST", "CIFAR10", "CIFAR100", "EuroSAT", "Places365")


def serve_dataset(
    name: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    per_class: int = 2,
    class_names: Sequence[str] | None = None,
) -> tuple[int, int, int]:
    """Writes the files that are downloaded for `name`, and makes torchvision expect them.

    Args:
      name: one of NAMES.
      folder: receives the files, under their own names.
      monkeypatch: restores the checksums.
      per_class: training rows per class (EuroSAT: all rows per class); one test row each.
      class_names: by default the class names of CIFAR and of Places365.

    Returns:
      Training rows, test rows (EuroSAT: all rows, 0) and classes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if name.endswith("MNIST"):
        return _idx(name, folder, monkeypatch, per_class)
    if name == "EuroSAT":
        return _eurosat(folder, monkeypatch, per_class)
    if name == "Places365":
        return _places(folder, monkeypatch, per_class, class_names or PLACES)
    names = class_names or [f"class {label:02d}" for label in range(100)][: int(name[5:])]
    return _cifar(name, folder, monkeypatch, per_class, names)


def fetch_from(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes downloads use another server, with the same file names."""
    original = torchvision_datasets.list_remotes

    def list_remotes(name: str) -> list[torchvision_datasets.Remote]:
        return [each._replace(url=f"{url.rstrip('/')}/{each.file}") for each in original(name)]

    monkeypatch.setattr(torchvision_datasets, "list_remotes", list_remotes)


def _md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def _class(name: str) -> Any:
    import torchvision.datasets

    return getattr(torchvision.datasets, name)


def _pixels(label: int, number: int, *shape: int) -> np.ndarray:
    return np.random.default_rng([label, number]).integers(0, 256, shape, dtype=np.uint8)


def _rows(
    classes: int, per_class: int, *shape: int, first: int = 0
) -> tuple[np.ndarray, list[int]]:
    pairs = [(label, first + number) for number in range(per_class) for label in range(classes)]
    images = np.stack([_pixels(label, number, *shape) for label, number in pairs])
    return images, [label for label, _ in pairs]


def _idx(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, per_class: int
) -> tuple[int, int, int]:
    resources = []
    for part, rows, first in (("train", per_class, 0), ("t10k", 1, 1000)):
        images, labels = _rows(10, rows, 28, 28, first=first)
        numbers = np.asarray(labels, dtype=np.uint8)
        for kind, array in (("images-idx3", images), ("labels-idx1", numbers)):
            header = bytes([0, 0, 8, array.ndim])
            header += b"".join(size.to_bytes(4, "big") for size in array.shape)
            packed = gzip.compress(header + array.tobytes(), mtime=0)
            file = f"{part}-{kind}-ubyte.gz"
            (folder / file).write_bytes(packed)
            resources.append((file, _md5(packed)))
    monkeypatch.setattr(_class(name), "resources", resources)
    return 10 * per_class, 10, 10


def _cifar(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, per_class: int, names: Sequence[str]
) -> tuple[int, int, int]:
    cls, classes = _class(name), len(names)
    key = "labels" if name == "CIFAR10" else "fine_labels"
    files: dict[str, bytes] = {}
    images, labels = _rows(classes, per_class, 3, 32, 32)
    batches = [entry[0] for entry in cls.train_list]
    for number, batch in enumerate(batches):
        chosen = range(number, len(labels), len(batches))
        data = images[list(chosen)].reshape(-1, 3072)
        files[batch] = pickle.dumps({"data": data, key: [labels[row] for row in chosen]})
    images, labels = _rows(classes, 1, 3, 32, 32, first=1000)
    test = cls.test_list[0][0]
    files[test] = pickle.dumps({"data": images.reshape(-1, 3072), key: labels})
    files[cls.meta["filename"]] = pickle.dumps({cls.meta["key"]: list(names)})
    packed = _tar({f"{cls.base_folder}/{file}": content for file, content in files.items()}, "w:gz")
    (folder / cls.filename).write_bytes(packed)
    monkeypatch.setattr(cls, "tgz_md5", _md5(packed))
    monkeypatch.setattr(cls, "train_list", [[file, _md5(files[file])] for file in batches])
    monkeypatch.setattr(cls, "test_list", [[test, _md5(files[test])]])
    digest = _md5(files[cls.meta["filename"]])
    monkeypatch.setattr(cls, "meta", {**cls.meta, "md5": digest})
    return classes * per_class, classes, classes


def _tar(files: dict[str, bytes], mode: str) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as packed:  # type: ignore[call-overload]
        for file, content in files.items():
            info = tarfile.TarInfo(file)
            info.size = len(content)
            packed.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def _jpeg(label: int, number: int) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(_pixels(label, number, 16, 16, 3)).save(stream, format="JPEG")
    return stream.getvalue()


def _eurosat(folder: Path, monkeypatch: pytest.MonkeyPatch, per_class: int) -> tuple[int, int, int]:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as packed:
        for label, each in enumerate(EUROSAT_CLASSES):
            for number in range(1, per_class + 1):
                packed.writestr(f"2750/{each}/{each}_{number}.jpg", _jpeg(label, number))
    (folder / "EuroSAT.zip").write_bytes(stream.getvalue())
    monkeypatch.setattr(torchvision_datasets, "EUROSAT_MD5", _md5(stream.getvalue()))
    return 10 * per_class, 0, 10


def _places(
    folder: Path, monkeypatch: pytest.MonkeyPatch, per_class: int, places: Sequence[str]
) -> tuple[int, int, int]:
    cls = _class("Places365")
    train = {
        f"{place}/{number:08d}.jpg": label
        for label, place in enumerate(places)
        for number in range(1, per_class + 1)
    }
    val = {f"Places365_val_{label + 1:08d}.jpg": label for label in range(len(places))}
    lists = {
        "categories_places365.txt": {place: label for label, place in enumerate(places)},
        "places365_train_standard.txt": train,
        "places365_val.txt": val,
    }
    texts = {
        file: "".join(f"{what} {label}\n" for what, label in rows.items()).encode()
        for file, rows in lists.items()
    }
    archives = {
        "filelist_places365-standard.tar": texts,
        "train_256_places365standard.tar": {
            f"data_256{file}": _jpeg(label, number)
            for number, (file, label) in enumerate(train.items())
        },
        "val_256.tar": {f"val_256/{file}": _jpeg(label, 1000) for file, label in val.items()},
    }
    packed = {file: _tar(members, "w") for file, members in archives.items()}
    for file, content in packed.items():
        (folder / file).write_bytes(content)
    devkit, images, tests = ((file, _md5(content)) for file, content in packed.items())
    monkeypatch.setattr(cls, "_DEVKIT_META", {"standard": devkit})
    files = {("train-standard", True): images, ("val", True): tests}
    monkeypatch.setattr(cls, "_IMAGES_META", files)
    digests = [(file, _md5(content)) for file, content in texts.items()]
    monkeypatch.setattr(cls, "_CATEGORIES_META", digests[0])
    monkeypatch.setattr(cls, "_FILE_LIST_META", {"train-standard": digests[1], "val": digests[2]})
    return len(train), len(val), len(places)
