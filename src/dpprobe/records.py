"""Records: JSON files that name their format and version, as typed objects; where two differ."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from dpprobe.artifacts import read_record, write_json
from dpprobe.errors import DataError

ABSENT = "nothing"


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


class Difference(NamedTuple):
    """A place, as dotted keys, and the two values that stand there."""

    place: str
    first: Any
    second: Any


def first_difference(first: Any, second: Any, place: str = "") -> Difference | None:
    """Returns the first place where two JSON-compatible values differ; None where they are equal.

    A key that one side lacks has the value `ABSENT` there.
    """
    if first == second:
        return None
    if not isinstance(first, Mapping) or not isinstance(second, Mapping):
        return Difference(place, first, second)
    for key in dict.fromkeys([*first, *second]):
        inner = f"{place}.{key}" if place else str(key)
        pair = first.get(key, ABSENT), second.get(key, ABSENT)
        if difference := first_difference(*pair, inner):
            return difference
    return Difference(place, first, second)  # one lacks a key where the other has "nothing"
