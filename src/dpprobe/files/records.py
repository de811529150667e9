"""The base class of records, which are JSON files that name their format and version."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from dpprobe.errors import DataError
from dpprobe.files.json_files import read_record, write_record
from dpprobe.wrong_keys_and_values import explain_first


class RecordPart(BaseModel):
    """A part of a record: immutable, and only with keys that its class declares."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Record(RecordPart):
    """The content of a record file; subclasses set defaults for `format` and `format_version`."""

    def write(self, path: Path, *beside: Path) -> None:
        """Writes the record, completely or not at all, with the hashes of the files `beside`."""
        write_record(path, self.model_dump(mode="json", by_alias=True), *beside)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads a record; raises DataError if the file is missing or has another format version."""
        kind, version = (cls.model_fields[key].default for key in ("format", "format_version"))
        values = read_record(path, kind=kind, version=version)
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            fault = explain_first(error)
            raise DataError(f"{path}: {fault}; delete it and run again") from None


def locate_record(folder: Path | str, dataset: str, backbone: str, suffix: str = ".json") -> Path:
    """Returns the path of a record or its accompanying file, below the folder of all records."""
    return Path(folder, dataset, f"{backbone}{suffix}")
