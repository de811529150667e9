"""Files at plain addresses, verified by their SHA-256, that together are one of the local sources.

An archive `name.zip` is unpacked into the folder `name`; other files stay as they are, and so does
a plain tar that `layout` reads as a shard. `layout` then says what they are: the options of an
image folder, of parquet files, of a CSV manifest or of tar shards, with paths relative to the
download folder.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path, PurePosixPath
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from pydantic import Field, field_validator, model_validator

from dpprobe import artifacts
from dpprobe.data import archives
from dpprobe.data.addresses import check_address
from dpprobe.data.download_receipt import Fetched, check_receipt
from dpprobe.data.option_paths import with_paths
from dpprobe.data.options import DatasetOptions, Limit, check_several_labels
from dpprobe.data.patient_sides import Unit
from dpprobe.data.registry import SOURCES, dataset_options
from dpprobe.data.tar_shards import SUFFIX
from dpprobe.data.train_test_split import SplitOptions
from dpprobe.errors import ConfigError
from dpprobe.options import Options as Block

# The local sources.
LAYOUTS = ("csv", "imagefolder", "parquet", "webdataset")
# The options of every source; written beside `layout`, not in it.
COMMON = frozenset(DatasetOptions.model_fields) - {"source"}
SHA256_PATTERN = "^[0-9a-f]{64}$"
RESERVED = ("receipt.json",)


class File(Block):
    """One file to fetch."""

    url: str = Field(
        description="http or https, without user and password, which belong into ~/.netrc."
    )
    sha256: str = Field(
        description="SHA-256 of the file, 64 lower-case hexadecimal digits.",
        json_schema_extra={"pattern": SHA256_PATTERN},
    )
    name: str | None = Field(
        None,
        description="Name of the file in the download folder; if absent, the last part of "
        "the address.",
    )
    extract: bool | None = Field(
        None,
        description="Unpack the file. If absent: yes for .zip, .tar, .tar.gz, .tgz, ...; but with "
        "`layout` webdataset, plain .tar files are read without unpacking.",
    )

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: str) -> str:
        return check_address(value)

    @field_validator("sha256")
    @classmethod
    def _check_sha256(cls, value: str) -> str:
        if re.fullmatch(SHA256_PATTERN, value) is None:
            raise ValueError(
                f"{value!r} is not a SHA-256; write its 64 lower-case hexadecimal digits, as "
                "sha256sum prints them"
            )
        return value

    @model_validator(mode="after")
    def _check_name(self) -> File:
        name = self.file_name
        if not name or "/" in name or "\\" in name or name.startswith(".") or name in RESERVED:
            raise ValueError(
                f"name: {name!r} cannot be a file's name; write another `name`, without / and "
                "without a dot at its start"
            )
        if self.extract and archives.folder_name(name) is None:
            suffixes = ", ".join((archives.ZIP_SUFFIX, *archives.TAR_SUFFIXES))
            raise ValueError(f"extract: {name} does not have the suffix of an archive ({suffixes})")
        return self

    @property
    def file_name(self) -> str:
        """The name in the download folder."""
        if self.name is not None:
            return self.name
        return unquote(urlsplit(self.url).path.rpartition("/")[2])

    @property
    def content_folder(self) -> str | None:
        """The folder for its content; None where it is no archive, or is not to be unpacked."""
        return None if self.extract is False else archives.folder_name(self.file_name)


class Options(DatasetOptions):
    """Files at addresses: together an image folder, parquet files, a CSV manifest or tar shards."""

    source: Literal["url"] = "url"
    files: tuple[File, ...] = Field(
        description="Files to download.", json_schema_extra={"minItems": 1}
    )
    layout: dict[str, Any] = Field(
        description="Layout of the files: `source: imagefolder`, parquet, csv or webdataset with "
        "its options. Paths are relative to the download folder, where name.zip has become the "
        "folder name."
    )
    several_labels: bool = Field(
        False,
        description="True if the parquet files of `layout` have lists of labels; dpprobe needs "
        "this before the download.",
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
        if not self.files:
            raise ValueError("files: empty; write at least one")
        names = [
            name
            for file in self.files
            for name in (file.file_name, self.unpacked_into(file))
            if name
        ]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(
                    f"files: two of them would be saved as {name}; give one of them another `name`"
                )
        known = self._known_labels()
        if self.several_labels and known is False:
            raise ValueError("several_labels: this layout has one label per row; remove it")
        return self

    def check_files(self) -> None:
        """Passes: before the download there is nothing to look for."""

    def download_params(self) -> dict[str, Any]:
        """Returns the files by content: their addresses may change."""
        return {
            "files": [
                {
                    "name": file.file_name,
                    "sha256": file.sha256,
                    "folder": self.unpacked_into(file),
                }
                for file in self.files
            ]
        }

    def unpacked_into(self, file: File) -> str | None:
        """Returns the folder that a file is unpacked into; None where it stays as it is."""
        shard = self.layout.get("source") == "webdataset" and file.file_name.endswith(SUFFIX)
        return None if file.extract is None and shard else file.content_folder

    def preparation_params(self) -> dict[str, Any]:
        params = super().preparation_params()
        # Neither decides the tables, and an address may hold a token.
        return {**params, **self.download_params()}

    def image_params(self) -> dict[str, Any]:
        # The same files at another address are the same images.
        files = sorted(file.sha256 for file in self.files)
        layout = self._parse_layout().image_params()
        return {**super().image_params(), "files": files, "layout": layout}

    def image_files(self) -> tuple[str, ...]:
        if self.layout["source"] not in ("parquet", "webdataset"):
            return ()
        return tuple(f"sha256 {file.sha256}" for file in self.files if not self.unpacked_into(file))

    def row_limit(self) -> Limit:
        return self._parse_layout().row_limit()

    def has_test(self) -> bool:
        """Returns the layout's answer; False for image folders, of which only the files tell."""
        layout = self._parse_layout()
        return layout.source != "imagefolder" and layout.has_test()

    def release_fault(self) -> str | None:
        if fault := self.subsample_fault():
            return fault
        fault = self._parse_layout().split_fault(own_test=self.has_test())
        return None if fault is None else f"layout: {fault}"

    def images_fault(self) -> str | None:
        fault = self._parse_layout().images_fault()
        return None if fault is None else f"layout: {fault}"

    def split_rule(self) -> str:
        return self._parse_layout().rule_of_split(own_test=self.has_test())

    def split_key(self) -> str:
        """Returns the layout's key, and the files by a short hash: their places name rows."""
        key = self._parse_layout().key_of_split(own_test=self.has_test())
        return f"{key}, files {artifacts.hash_value(self.download_params())[:12]}"

    def split_follows_names(self) -> bool:
        layout = self._parse_layout()
        return layout.source != "imagefolder" and layout.split_follows_names()

    def names_rows(self) -> bool:
        return self._parse_layout().names_rows()

    def count_rows(self) -> tuple[int, int] | None:
        return self.expected_rows()

    def multi_label(self) -> bool:
        """Returns the layout's answer; of parquet files `several_labels`, which must fit them."""
        known = self._known_labels()
        return self.several_labels if known is None else known

    def count_classes(self) -> int | None:
        named = getattr(self._parse_layout(), "class_names", None)
        if named is None:
            named = getattr(self._parse_layout(), "label_columns", None)
        return self.expect.classes if named is None else len(named)

    def group_names(self) -> tuple[str, ...]:
        return self._parse_layout().group_names()

    def named_unit(self) -> Unit | None:
        return self._parse_layout().named_unit()

    def names_units(self) -> bool:
        return self._parse_layout().names_units()

    def unit_name(self) -> str | None:
        return self._parse_layout().unit_name()

    def images_per_patient(self) -> int | None:
        return self._parse_layout().images_per_patient()

    def _parse_layout(self) -> SplitOptions:
        options = dataset_options(self.layout)
        assert isinstance(options, SplitOptions)  # each of LAYOUTS is
        return options

    def _known_labels(self) -> bool | None:
        """Returns True if rows have several labels; None where only the files tell."""
        layout = self._parse_layout()
        return None if layout.source == "parquet" else layout.multi_label()

    def locate_layout(self, downloaded: Path) -> DatasetOptions:
        """Returns the layout's options, its paths inside the download folder."""

        def move_path(path: str, _: str, fate: str) -> str:
            return str(downloaded / path) if fate == "moves" else path

        layout = self._parse_layout()
        return dataset_options(with_paths(layout.model_dump(mode="json"), layout.paths, move_path))


def _check_keys(layout: dict[str, Any]) -> None:
    source = layout.get("source")
    if source not in LAYOUTS:
        raise ConfigError(f"layout.source: {source!r}: write one of: {', '.join(sorted(LAYOUTS))}")
    for key in sorted(COMMON & layout.keys()):
        raise ConfigError(f"layout.{key}: belongs beside `layout`, not inside it; move it")


def _require_inside(path: str, key: str, _: str) -> str:
    place = PurePosixPath(path)
    if place.is_absolute() or ".." in place.parts or path.startswith("~"):
        raise ValueError(
            f"{key}: {path!r} lies outside the download folder; write a path relative to it"
        )
    return path


def download(options: Options, directory: Path) -> list[Fetched]:
    """Fetches the files, and unpacks the archives among them.

    Raises:
      DownloadError: for a file that cannot be fetched or is another one.
      DataError: for an archive that cannot be unpacked.
    """
    from dpprobe.data import downloads  # heavy: requests

    fetched = []
    for file in options.files:
        path = directory / file.file_name
        checksum = downloads.Checksum("sha256", file.sha256)
        received = downloads.fetch_file(file.url, path, checksum=checksum)
        fetched.append(received)
        _unpack_file(options, file, directory, received.sha256)
    return fetched


def _unpack_file(options: Options, file: File, directory: Path, sha256: str) -> None:
    folder = options.unpacked_into(file)
    if folder is not None:
        archives.extract_archive(directory / file.file_name, directory / folder, sha256=sha256)


def prepare(options: Options, directory: Path, *, downloaded: Path) -> None:
    """Writes the split tables of the files in `downloaded`.

    Raises:
      ConfigError: when the files are not laid out as `layout` says.
      DataError: when a file is missing, or a row is not what it should be.
    """
    receipt = check_receipt(downloaded, params=options.download_params())
    for file in options.files:
        _unpack_file(options, file, downloaded, receipt.find_sha256(file.file_name))
    try:
        layout = options.locate_layout(downloaded)
        layout.check_files()
        check_several_labels(declared=options.multi_label(), actual=layout.multi_label())
    except ConfigError as error:
        raise ConfigError(f"layout: {error}") from error
    module = importlib.import_module(SOURCES[layout.source])
    module.prepare(layout, directory, recorded=options)
