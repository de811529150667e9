"""Files at web addresses, verified by SHA-256: an image folder, or a CSV manifest.

An archive `name.zip` is unpacked into the folder `name`; other files stay as they are. `layout` are
the options of the image folder or manifest, with paths relative to the download folder.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from pydantic import Field, field_validator, model_validator

from dpprobe import json_values
from dpprobe.data.downloads import archives
from dpprobe.data.downloads.addresses import Address, Sha256
from dpprobe.data.downloads.download_receipt import Fetched, check_receipt
from dpprobe.data.option_paths import with_paths
from dpprobe.data.options import (
    DatasetOptions,
    Downloads,
    NamedPeople,
    PublicSplit,
    check_downloads,
)
from dpprobe.data.registry import SOURCES, dataset_options
from dpprobe.data.train_test_split import SplitOptions
from dpprobe.errors import ConfigError
from dpprobe.options import Options as Block

# The option for a layout's folder, to which all other paths are relative.
LAYOUTS = {"csv": "root", "imagefolder": "path"}
# Options common to all sources, which are written outside `layout`.
COMMON = frozenset(DatasetOptions.model_fields) - {"source"}
RESERVED = ("receipt.json",)


class File(Block):
    """One file to fetch."""

    url: Address = Field(
        description="Address of the file, http or https, without user name and password; write "
        "both into ~/.netrc."
    )
    sha256: Sha256 = Field(description="SHA-256 of the file, 64 lower-case hexadecimal digits.")
    name: str | None = Field(
        None,
        description="Name of the file in the download folder; if absent, the last part of "
        "the address.",
    )

    @model_validator(mode="after")
    def _check_name(self) -> File:
        name = self.file_name
        if not name or "/" in name or "\\" in name or name.startswith(".") or name in RESERVED:
            raise ValueError(
                f"name: {name!r} cannot be a file name; choose another `name`, without / and "
                "without a leading dot"
            )
        return self

    @property
    def file_name(self) -> str:
        """The file's name in the download folder."""
        if self.name is not None:
            return self.name
        return unquote(urlsplit(self.url).path.rpartition("/")[2])

    @property
    def content_folder(self) -> str | None:
        """The folder that an archive is unpacked into; None for other files."""
        return archives.folder_name(self.file_name)


class Options(DatasetOptions):
    """Files at addresses: together an image folder or a CSV manifest."""

    source: Literal["url"] = "url"
    files: tuple[File, ...] = Field(
        min_length=1,
        description="Files to download; archives (.zip, .tar, .tar.gz, ...) are unpacked.",
    )
    downloads: Downloads = None
    layout: dict[str, Any] = Field(
        description="Layout of the files: `source: imagefolder` or csv with its options. Paths are "
        "relative to the download folder, where the archive x.zip has become the folder x."
    )

    @field_validator("layout")
    @classmethod
    def _check_layout(cls, value: dict[str, Any]) -> dict[str, Any]:
        try:
            _check_keys(value)
            options = dataset_options(value)
        except ConfigError as error:
            raise ValueError("; ".join(str(error).splitlines())) from None
        with_paths(options.model_dump(mode="json"), options.paths, _require_inside)
        return value

    @model_validator(mode="after")
    def _check_together(self) -> Options:
        names = [
            name for file in self.files for name in (file.file_name, file.content_folder) if name
        ]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(
                    f"files: two files would be saved as {name}; give one of them another `name`"
                )
        return self

    def check_files(self) -> None:
        check_downloads(self.downloads)

    def download_params(self) -> dict[str, Any]:
        """Returns the files' names and hashes, without addresses, which may change."""
        return {
            "files": [
                {"name": file.file_name, "sha256": file.sha256, "folder": file.content_folder}
                for file in self.files
            ]
        }

    def preparation_params(self) -> dict[str, Any]:
        # Addresses do not affect the tables, and may contain tokens.
        return {**super().preparation_params(), **self.download_params()}

    def image_params(self) -> dict[str, Any]:
        # Moving files to another address does not change the images.
        files = sorted(file.sha256 for file in self.files)
        layout = self._parse_layout().image_params()
        return {**super().image_params(), "files": files, "layout": layout}

    def has_test(self) -> bool:
        """Returns True if a manifest has a test split; False for image folders (not yet known)."""
        layout = self._parse_layout()
        return layout.source != "imagefolder" and layout.has_test()

    def public_split(self) -> PublicSplit:
        """Returns the layout's split, with a short hash of the files' hashes in the key."""
        layout = self._parse_layout()
        split = layout.describe_split(own_test=self.has_test())
        return replace(
            split,
            key=f"{split.key}, files {json_values.hash_value(self.download_params())[:12]}",
            fault=split.fault and f"layout: {split.fault}",
            images_fault=split.images_fault and f"layout: {split.images_fault}",
        )

    def explain_labels_used(self) -> str | None:
        fault = self._parse_layout().explain_labels_used()
        return fault and f"layout: {fault}"

    def judges_companions(self) -> bool:
        return True  # the layout's source does

    def multi_label(self) -> bool:
        return self._parse_layout().multi_label()

    def count_classes(self) -> int | None:
        layout = self._parse_layout()
        return self.expect.classes if layout.source == "imagefolder" else layout.count_classes()

    def named_people(self) -> NamedPeople:
        return self._parse_layout().named_people()

    def named_ids(self) -> str | None:
        return self._parse_layout().named_ids()

    def _parse_layout(self) -> SplitOptions:
        options = dataset_options(self.layout)
        assert isinstance(options, SplitOptions)  # all sources in LAYOUTS can be split
        return options

    def locate_layout(self, downloaded: Path) -> DatasetOptions:
        """Returns the layout's options, with its folder inside the download folder."""
        layout = self._parse_layout()
        key = LAYOUTS[layout.source]
        return layout.model_copy(update={key: str(downloaded / getattr(layout, key))})


def _check_keys(layout: dict[str, Any]) -> None:
    source = layout.get("source")
    if source not in LAYOUTS:
        raise ConfigError(f"layout.source: {source!r}: choose one of: {', '.join(sorted(LAYOUTS))}")
    for key in sorted(COMMON & layout.keys()):
        raise ConfigError(f"layout.{key}: belongs next to `layout`, not inside it; move it")


def _require_inside(path: str, key: str) -> str:
    place = PurePosixPath(path)
    if place.is_absolute() or ".." in place.parts or path.startswith("~"):
        raise ValueError(
            f"{key}: {path!r} lies outside the download folder; write a path relative to it"
        )
    return path


def download(options: Options, directory: Path) -> list[Fetched]:
    """Downloads the files, and unpacks archives.

    Raises DownloadError for a file that cannot be fetched, or has a wrong checksum. Raises
    DataError for an archive that cannot be unpacked.
    """
    from dpprobe.data.downloads import fetch as downloads  # slow import: requests

    fetched = []
    for file in options.files:
        path = directory / file.file_name
        checksum = downloads.Checksum("sha256", file.sha256)
        received = downloads.fetch_file(file.url, path, checksum=checksum, folder=options.downloads)
        fetched.append(received)
        _unpack_file(file, directory, received.sha256)
    return fetched


def _unpack_file(file: File, directory: Path, sha256: str) -> None:
    if (folder := file.content_folder) is not None:
        archives.extract_archive(directory / file.file_name, directory / folder, sha256=sha256)


def prepare(options: Options, directory: Path, *, downloaded: Path) -> None:
    """Writes the split tables of the files in `downloaded`.

    Raises ConfigError if the files do not match `layout`, and DataError for missing files or faulty
    rows.
    """
    receipt = check_receipt(downloaded, params=options.download_params())
    hashes = {file.name: file.sha256 for file in receipt.files}
    for file in options.files:
        _unpack_file(file, downloaded, hashes[file.file_name])
    try:
        layout = options.locate_layout(downloaded)
        layout.check_files()
        module = importlib.import_module(SOURCES[layout.source])
        module.prepare(layout, directory, recorded=options)
    except ConfigError as error:
        raise ConfigError(f"layout: {error}") from error
