"""The base of records: JSON files that name their format and version."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from dpprobe.artifacts import read_record, write_json
from dpprobe.errors import DataError


class Part(BaseModel):
    """A part of a record: frozen, and closed to keys it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Record(Part):
    """A whole record; those that derive from it give `format` and `format_version` defaults."""

    def write(self, path: Path) -> None:
        """Writes the record, whole or not at all."""
        write_json(path, self.model_dump(mode="json", by_alias=True))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads a record.

        Raises:
          DataError: when the file is missing, or is not a record of today's version.
        """
        kind, version = (cls.model_fields[key].default for key in ("format", "format_version"))
        values = read_record(path, kind=kind, version=version)
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            message = f"{path}: {place}: {first['msg'].lower()}; delete it and run again"
            raise DataError(message) from None
