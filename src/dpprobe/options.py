"""The base class of all blocks of a study's configuration, and registries of blocks by name."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
)
from pydantic.json_schema import SkipJsonSchema
from pydantic_core.core_schema import CoreSchema, no_info_after_validator_function

from dpprobe.errors import ConfigError

_LONGEST_NAME = 80  # file names have at most 255 characters, and may join three names
# Snakemake refuses paths that end in 20 repetitions of a text, because rules might call each other.
_REPETITION = re.compile(r"(.+?)\1{19}")
NAME_PATTERN = r"[a-z0-9][a-z0-9_]*"
# Other characters break paths: Snakemake formats paths, MLflow makes URIs, `~` is not expanded.
_FOLDER_CHARACTERS = r"[^/\s{}~?#%*\[\]\"'`$\\:;,&<>|]"
FOLDER_PATTERN = rf"/?{_FOLDER_CHARACTERS}+(/{_FOLDER_CHARACTERS}+)*/?"


def _reject_repetition(name: str) -> str:
    if repetition := _REPETITION.search(name):
        raise ValueError(
            f"{name!r} repeats {repetition[1]!r} 20 times, which Snakemake refuses; rename it"
        )
    return name


Name = Annotated[
    str,
    Field(
        pattern=f"^{NAME_PATTERN}$",
        max_length=_LONGEST_NAME,
        description="Lower-case letters, digits and underscores; the name becomes part of paths.",
    ),
    AfterValidator(_reject_repetition),
]
Folder = Annotated[
    str,
    Field(pattern=f"^{FOLDER_PATTERN}$"),
    AfterValidator(lambda value: str(PurePosixPath(value))),
]


@dataclass(frozen=True)
class AtMost:
    """An upper bound on a number in a study; `why` is the reason given in the error."""

    limit: int
    why: str

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return no_info_after_validator_function(self._check_value, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {**handler(schema), "maximum": self.limit}

    def _check_value(self, value: float) -> float:
        if value > self.limit:
            raise ValueError(self.describe_fault(value))
        return value

    def describe_fault(self, value: float) -> str:
        return f"{value:,.12g}: at most {self.limit:,} are allowed: {self.why}; use fewer"


ItemT = TypeVar("ItemT")


def reject_repeats(values: tuple[ItemT, ...]) -> tuple[ItemT, ...]:
    """Returns a list's values as a tuple; raises ValueError, with the value, if one is repeated."""
    if len(set(values)) < len(values):
        twice = next(value for value in values if values.count(value) > 1)
        raise ValueError(f"{twice} appears twice in the list; remove one")
    return values


BlockT = TypeVar("BlockT", bound="Options")


class Options(BaseModel):
    """A block of the configuration: immutable, and only with keys that its class declares."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    # Maps other blocks' keys to this block's key (and value) with the same purpose.
    COUNTERPARTS: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def suggest_key(cls, key: str) -> str | None:
        """Returns this block's key that has the same purpose as another block's key, if any."""
        words = cls.COUNTERPARTS.get(key)
        return words if words and words.partition(":")[0] in cls.model_fields else None

    def block(self, kind: type[BlockT]) -> BlockT | None:
        """Returns a block of an analysis or a release part, by the class of its options."""
        return next((block for block in vars(self).values() if isinstance(block, kind)), None)

    def _derive(self, **values: Any) -> None:
        """Sets options that follow from other options, without marking them as written by the user.

        Only for validators, which end before the block is used; then the block is immutable (like
        a frozen dataclass after `__post_init__`).
        """
        for name, value in values.items():
            object.__setattr__(self, name, value)


# All registries by selecting key, such as `head`; errors list the options that accept a wrong key.
REGISTRIES: dict[str, Mapping[str, str]] = {}


def options_class(registry: Mapping[str, str], name: str) -> type[Options]:
    cls: type[Options] = importlib.import_module(registry[name]).Options
    return cls


def written_keys(cls: type[BaseModel]) -> list[str]:
    """Lists the keys of a block that a study may set."""
    return [
        field
        for field, info in cls.model_fields.items()
        if not any(type(each) is SkipJsonSchema for each in info.metadata)
    ]


def takes_key(registry: Mapping[str, str], name: str, key: Any) -> bool:
    """Returns True if the options registered under `name` have the key `key`."""
    return key in written_keys(options_class(registry, name))


def registered_name(registry: Mapping[str, str], key: str, name: Any) -> str:
    """Returns `name`; raises ValueError, with the known names, if it is not registered."""
    if isinstance(name, str) and name in registry:
        return name
    known = ", ".join(sorted(registry))
    raise ValueError(f"unknown {key} {name!r}; choose one of: {known}")


def by_registry(
    registry: Mapping[str, str],
    key: str,
    complete: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
) -> BeforeValidator:
    """Makes a pydantic validator that reads a mapping as the `Options` selected by its `key`.

    `complete` first fills in options that are missing in the mapping.
    """

    REGISTRIES[key] = registry

    def validate_value(value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        values = value if complete is None else complete(value)
        name = registered_name(registry, key, values.get(key))
        return options_class(registry, name).model_validate(dict(values))

    return BeforeValidator(validate_value)


def real_path(path: Path) -> Path:
    """Resolves all links in a path; unlike `Path.resolve`, accepts a link to itself."""
    return Path(os.path.realpath(path))


def resolve_path(path: str) -> Path:
    """Expands `~` in a path; raises ConfigError for `~name` if there is no user of this name."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{path!r}: no home folder for the name after ~; write ./~") from error
