"""The options of tar shards: paths, and which members are images, labels and names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import ClassVar

from pydantic import Field, field_validator, model_validator

from dpprobe.data.images import tar_shards
from dpprobe.data.option_paths import Paths, each_once, list_patterns, match_files
from dpprobe.data.options import Embed
from dpprobe.data.people.alike_names import find_name_fault
from dpprobe.data.people.companion_options import CompanionOptions
from dpprobe.data.people.group_columns import GroupColumns
from dpprobe.data.people.patient_sides import UnitOptions
from dpprobe.data.train_test_split import SplitName, SplitSeed, TestFraction
from dpprobe.errors import ConfigError, DataError
from dpprobe.options import real_path, resolve_path


class ShardOptions(CompanionOptions, UnitOptions):
    """The options of tar shards, without the code that reads samples."""

    paths: ClassVar = ("train", "test")

    train: Paths = Field(
        min_length=1,
        description="Training shards: a folder of .tar files, a file, a glob pattern, or a list.",
    )
    test: Paths | None = Field(
        None,
        min_length=1,
        description="Test shards, in the form of `train`; if absent, dpprobe splits the training "
        "shards.",
    )
    label_column: str | None = Field(
        None,
        min_length=1,
        description="Field of key.json with the label: a name of `class_names` or its number from "
        "0. If absent, key.cls holds the label.",
    )
    several_labels: bool = Field(
        False, description="True if the label field is a list of 0 and 1, one number per class."
    )
    class_names: tuple[str, ...] = Field(
        min_length=2,
        description="All classes in the order of their numbers. The names are published with the "
        "weights, so take them from a public list, not from the labels.",
    )
    id_column: str | None = Field(
        None,
        min_length=1,
        description="Field of key.json with unique ids; if absent, the key is the id.",
    )
    shard_in_id: bool = Field(
        False,
        description="Build ids from the shard's name and the key; needed if different shards use "
        "the same keys.",
    )
    group_columns: GroupColumns = ()
    embed: Embed = False
    test_fraction: TestFraction = 0.2
    split_seed: SplitSeed = 0

    @field_validator("class_names")
    @classmethod
    def _check_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if fault := find_name_fault(value):
            raise ValueError(fault)
        return value

    @model_validator(mode="after")
    def _check_together(self) -> ShardOptions:
        if self.several_labels and self.label_column is None:
            raise ValueError(
                "several_labels needs label_column; name the field of key.json that holds the "
                "labels"
            )
        if self.id_column is not None and self.shard_in_id:
            raise ValueError("shard_in_id: id_column already names the ids; remove one of the two")
        return self

    def check_files(self) -> None:
        for name in self.list_splits():
            first = self.list_shards(name)[0]
            try:
                tar_shards.check_first(first)
            except DataError as error:
                raise ConfigError(f"{name}: {error}") from error

    def multi_label(self) -> bool:
        return self.several_labels

    def count_classes(self) -> int:
        return len(self.class_names)

    def input_files(self) -> tuple[str, ...]:
        return tuple(str(path) for name in self.list_splits() for path in self.list_shards(name))

    def image_files(self) -> tuple[str, ...]:
        return tuple(
            str(real_path(path)) for name in self.list_splits() for path in self.list_shards(name)
        )

    def side_options(self, *, own_test: bool) -> set[str]:
        if own_test:
            return {"train", "test"}
        if self.unit_column is not None:
            return {"unit_column"}
        return {"shard_in_id"} if self.id_column is None else {"id_column"}

    def list_shards(self, name: SplitName) -> list[Path]:
        """Lists a split's shards by pattern and name; raises ConfigError if a pattern has none."""
        shards: list[Path] = []
        for pattern in list_patterns(getattr(self, name)):
            path = resolve_path(pattern)
            folder = path.is_dir()
            matches = tar_shards.list_tars(path) if folder else match_files(path)
            if not matches:
                place = f"in the folder {pattern}" if folder else pattern
                if "{" in pattern and ".." in pattern:
                    raise ConfigError(
                        f"{name}: no .tar file {pattern}: braces are not expanded; write "
                        f"{re.sub('{[^}]*}', '*', pattern)}, or a list of shards"
                    )
                raise ConfigError(
                    f"{name}: no .tar file {place}; correct the path or put the shards there"
                )
            if folder and (inner := [sub for sub in path.glob("*/*") if tar_shards.is_tar(sub)]):
                raise ConfigError(
                    f"{name}: {pattern} also has shards in a folder, such as {inner[0]}; name both "
                    f"({pattern}/*.tar, {inner[0].parent}/*.tar), or move the inner shards away"
                )
            if others := [path.name for path in matches if path.suffix != tar_shards.SUFFIX]:
                raise ConfigError(
                    f"{name}: {pattern}: {others[0]} is not a plain .tar file; unpack it if "
                    "it is compressed (gunzip), or name only the shards (*.tar)"
                )
            shards.extend(matches)
        return each_once(name, shards)
