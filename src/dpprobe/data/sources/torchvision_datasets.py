"""Datasets of torchvision, downloaded by dpprobe with torchvision's addresses and checksums.

Arrays (MNIST, FashionMNIST, CIFAR10, CIFAR100) become PNG without loss; JPEG files of EuroSAT and
Places365 stay unchanged. EuroSAT has no test split, and is read as an image folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import urljoin

from pydantic import Field

from dpprobe.data import train_test_split
from dpprobe.data.downloads import archives
from dpprobe.data.downloads.download_receipt import Fetched, check_receipt
from dpprobe.data.images.image_files import encode_png
from dpprobe.data.options import Downloads, check_downloads
from dpprobe.data.sources import imagefolder
from dpprobe.data.train_test_split import SplitOptions, SplitSeed, TestFraction
from dpprobe.errors import ConfigError, DataError
from dpprobe.options import resolve_path

ARRAYS = ("MNIST", "FashionMNIST", "CIFAR10", "CIFAR100")
# EuroSAT's address and checksum, copied from a method of torchvision; a test compares them.
EUROSAT_URL = (
    "https://huggingface.co/datasets/torchgeo/eurosat/resolve/"
    "c877bcd43f099cd0196738f714544e355477f3fd/EuroSAT.zip"
)
EUROSAT_MD5 = "c8fa014336c82ac7804f0398fcb19387"
# Numbers of training rows, test rows and classes of each dataset.
SIZES: dict[str, tuple[int, int, int]] = {
    "MNIST": (60_000, 10_000, 10),
    "FashionMNIST": (60_000, 10_000, 10),
    "CIFAR10": (50_000, 10_000, 10),
    "CIFAR100": (50_000, 10_000, 100),
    "Places365": (1_803_460, 36_500, 365),
}
# Number of rows per class of EuroSAT, in the order of class names.
EUROSAT_ROWS = (3000, 3000, 3000, 2500, 2500, 2000, 2500, 3000, 2500, 3000)
# The folders that torchvision makes in its root, which a study's `path` must contain.
FOLDERS: dict[str, tuple[str, ...]] = {
    "MNIST": ("MNIST/raw",),
    "FashionMNIST": ("FashionMNIST/raw",),
    "CIFAR10": ("cifar-10-batches-py",),
    "CIFAR100": ("cifar-100-python",),
    "EuroSAT": ("eurosat/2750",),
    "Places365": ("data_256_standard", "val_256"),
}
PLACES_SPLITS = {"train": "train-standard", "test": "val"}
# The largest file of MNIST and Fashion-MNIST, unpacked, has 47,040,016 bytes.
LARGEST_IDX = 64 << 20
Name = Literal["MNIST", "FashionMNIST", "CIFAR10", "CIFAR100", "EuroSAT", "Places365"]


class Options(SplitOptions):
    """A dataset of torchvision."""

    source: Literal["torchvision"] = "torchvision"
    name: Name = Field(
        description="The dataset's name in torchvision; Places365 in its 256 pixel version."
    )
    path: str | None = Field(
        None,
        min_length=1,
        description="A folder into which torchvision downloaded the dataset (torchvision's "
        "`root`); if absent, dpprobe downloads the files.",
    )
    downloads: Downloads = None
    test_fraction: TestFraction = 0.2
    split_seed: SplitSeed = 0

    def image_params(self) -> dict[str, Any]:
        return {name: value for name, value in super().image_params().items() if name != "path"}

    def check_files(self) -> None:
        check_downloads(self.downloads)
        for folder in self._list_folders():
            if not folder.is_dir():
                raise ConfigError(
                    f"path: no folder {folder}; name the folder into which torchvision "
                    f"downloaded {self.name}, or remove path to download it"
                )

    def download_params(self) -> dict[str, Any] | None:
        return None if self.path is not None else {"source": self.source, "name": self.name}

    def input_files(self) -> tuple[str, ...]:
        return tuple(str(folder) for folder in self._list_folders())

    def list_source_files(self) -> Iterator[tuple[str, Path]]:
        for folder in self._list_folders():
            yield from ((str(file), file) for file in folder.rglob("*") if not file.is_dir())
        if self.path is not None and self.name == "Places365":
            root = resolve_path(self.path)
            yield from ((file.name, file) for file in root.glob("*places365*.txt"))

    def has_test(self) -> bool:
        return self.name != "EuroSAT"

    def count_rows(self) -> tuple[int, int] | None:
        if self.expect.train is not None and self.expect.test is not None:
            return self.expect.train, self.expect.test
        if self.name != "EuroSAT":
            return SIZES[self.name][:2]
        if self.split_by == "id":
            return None  # ids are file names, which are unknown before the download
        return train_test_split.count_rows(EUROSAT_ROWS, self.test_fraction)

    def count_classes(self) -> int:
        known = len(EUROSAT_ROWS) if self.name == "EuroSAT" else SIZES[self.name][2]
        return self.expect.classes or known

    def _list_folders(self) -> list[Path]:
        if self.path is None:
            return []
        return [resolve_path(self.path) / name for name in FOLDERS[self.name]]


class Remote(NamedTuple):
    """A file to fetch, with torchvision's MD5."""

    url: str
    md5: str

    @property
    def file(self) -> str:
        return self.url.rpartition("/")[2]


def list_remotes(name: str) -> list[Remote]:
    """Returns the files of a dataset, as listed in torchvision's class."""
    if name == "EuroSAT":
        return [Remote(EUROSAT_URL, EUROSAT_MD5)]
    cls = _dataset_class(name)
    if name in ("MNIST", "FashionMNIST"):
        return [Remote(urljoin(cls.mirrors[0], file), md5) for file, md5 in cls.resources]
    if name in ("CIFAR10", "CIFAR100"):
        return [Remote(cls.url, cls.tgz_md5)]
    files = [cls._DEVKIT_META["standard"]]
    files += [cls._IMAGES_META[(part, True)] for part in PLACES_SPLITS.values()]
    return [Remote(urljoin(cls._BASE_URL, file), md5) for file, md5 in files]


def _dataset_class(name: str) -> Any:
    import torchvision.datasets

    return getattr(torchvision.datasets, name)


def download(options: Options, directory: Path) -> list[Fetched]:
    """Downloads a dataset's files, compares them with torchvision's MD5, and unpacks them.

    Raises DownloadError if a file cannot be fetched or has a wrong checksum. Raises DataError for
    an archive that cannot be unpacked.
    """
    from dpprobe.data.downloads import fetch as downloads  # slow import: requests

    fetched = []
    for remote in list_remotes(options.name):
        checksum = downloads.Checksum("md5", remote.md5)
        file = downloads.fetch_file(
            remote.url, directory / remote.file, checksum=checksum, folder=options.downloads
        )
        fetched.append(file)
        _unpack_file(options, directory, file)
    return fetched


def _unpack_file(options: Options, directory: Path, file: Fetched) -> None:
    archive = directory / file.name
    folder = archives.folder_name(file.name)
    if folder is not None:
        place = "eurosat" if options.name == "EuroSAT" else folder
        archives.extract_archive(archive, directory / place, sha256=file.sha256)
        return
    path = directory / options.name / "raw" / archive.stem
    archives.decompress_file(archive, path, largest=LARGEST_IDX)


def _find_roots(options: Options, downloaded: Path | None) -> tuple[Path, dict[str, Path]]:
    """Returns torchvision's root, and the folders of the images of Places365."""
    if downloaded is None:
        assert options.path is not None
        root = resolve_path(options.path)
        images = dict(zip(PLACES_SPLITS, FOLDERS["Places365"], strict=True))
        return root, {part: root / folder for part, folder in images.items()}
    folders = [archives.folder_name(remote.file) for remote in list_remotes(options.name)]
    if options.name in ("CIFAR10", "CIFAR100"):
        return downloaded / str(folders[0]), {}
    if options.name != "Places365":
        return downloaded, {}
    devkit, train, test = (downloaded / str(folder) for folder in folders)
    return devkit, {"train": train / "data_256", "test": test / "val_256"}


def prepare(options: Options, directory: Path, *, downloaded: Path | None = None) -> None:
    """Writes the split tables of a dataset of torchvision.

    `downloaded` is the folder that `download` filled; None with `path`. Raises ConfigError if
    `path` lacks the dataset. Raises DataError for missing or damaged files, and for faulty rows.
    """
    if downloaded is None:
        options.check_files()
    else:
        receipt = check_receipt(downloaded, params=options.download_params())
        for file in receipt.files:
            _unpack_file(options, downloaded, file)
    root, images = _find_roots(options, downloaded)
    if options.name in ARRAYS:
        _prepare_arrays(options, directory, root)
    elif options.name == "EuroSAT":
        _prepare_eurosat(options, directory, root)
    else:
        _prepare_places(options, directory, root, images)


def _open_dataset(name: str, root: Path, **arguments: Any) -> Any:
    try:
        return _dataset_class(name)(root, download=False, **arguments)
    except (RuntimeError, OSError, EOFError, ValueError) as error:
        line = (str(error) or type(error).__name__).splitlines()[0].partition(" You can ")[0]
        raise DataError(
            f"{name} under {root}: torchvision cannot read it ({line}); delete the folder to "
            "download it again, or correct path"
        ) from error


def _prepare_arrays(options: Options, directory: Path, root: Path) -> None:
    from dpprobe.data import table, table_writer  # slow import: numpy and pyarrow

    parts = {
        name: _open_dataset(options.name, root, train=name == "train") for name in table.SPLITS
    }

    def read(split: str, row: int) -> tuple[str, int, bytes]:
        image, label = parts[split][row]
        return f"{split}-{row:08d}", int(label), encode_png(image)

    table_writer.write_dataset(
        directory,
        table_writer.batch_images({name: range(len(part)) for name, part in parts.items()}, read),
        options=options,
        class_names=parts["train"].classes,
        rows=sum(map(len, parts.values())),
        chosen_test=True,
    )


def _prepare_eurosat(options: Options, directory: Path, root: Path) -> None:
    layout = imagefolder.Options(
        path=str(root / "eurosat" / "2750"),
        embed=True,
        test_fraction=options.test_fraction,
        split_seed=options.split_seed,
        split_by=options.split_by,
    )
    imagefolder.prepare(layout, directory, recorded=options)


def _prepare_places(
    options: Options, directory: Path, root: Path, images: Mapping[str, Path]
) -> None:
    from dpprobe.data import table_writer  # slow import: numpy and pyarrow

    parts = {}
    for name, part in PLACES_SPLITS.items():
        dataset = _open_dataset("Places365", root, split=part, small=True)
        # torchvision's paths begin with the folder of torchvision's own download.
        rows = [
            (file.removeprefix(dataset.images_dir).lstrip("/"), int(label))
            for file, label in dataset.imgs
        ]
        parts[name] = images[name], rows
        numbers = dataset.class_to_idx
    table_writer.write_dataset(
        directory,
        table_writer.batch_files(parts),
        options=options,
        class_names=sorted(numbers, key=lambda each: int(numbers[each])),
        rows=sum(len(rows) for _, rows in parts.values()),
        chosen_test=True,
    )
