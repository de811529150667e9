"""Facts of each published number: the command, weights and recipe of its run.

The facts are in `reproduction.yaml` in this folder, and are reviewed by hand. This module checks
that the file names each published number exactly once.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, model_validator

from dpprobe.errors import ConfigError
from dpprobe.exhibits.published import Key, Number, Published, Text
from dpprobe.options import Options
from dpprobe.wrong_keys_and_values import validate_options

FILE = "reproduction.yaml"
PATH = Path(__file__).with_name(FILE)
Place = tuple[str, str, str, str]  # paper, table, row, column


class Weights(Options):
    """The weights with which published numbers were made.

    Attributes:
      access: "public": in the catalog; "public file": of a network that no library has.
      stated: False if the paper does not state its weights.
      backbone: options of a backbone with equal weights.
      nearest: the most similar backbone of the catalog, for weights that are not public.
    """

    title: Text
    access: Literal["public", "public file", "public for JAX", "private", "none needed"]
    stated: bool = True
    backbone: dict[str, Any] = Field({})
    nearest: Text | None = None

    @model_validator(mode="after")
    def _check_access(self) -> Weights:
        if self.access == "private" and self.backbone:
            raise ValueError("backbone: weights that are not public match none; write nearest")
        return self


class Ours(Options):
    """The cells of one study that may be compared with numbers.

    Attributes:
      methods: names or patterns of methods, in order of preference.
      dataset: the dataset's name in published results; None for the number's dataset.
      epsilon: the epsilon to compare, if not the number's epsilon.
      take: which of several methods is compared: the first, or the lowest or highest result.
      base: the name or pattern of the method from which a change is measured.
      base_backbone: the backbone of `base`, if the change is a change of backbones.
    """

    study: Text
    methods: tuple[Text, ...] = Field(min_length=1)
    backbone: Text | None = None
    dataset: Key | None = None
    epsilon: float | None = Field(None, gt=0)
    take: Literal["first", "lowest", "highest"] = "first"
    base: Text | None = None
    base_backbone: Text | None = None


class Entry(Options):
    """Numbers of one table that one run makes.

    Attributes:
      columns: columns of the rows; all columns if empty.
      study: the file of the study; None if no study makes the numbers, and `missing` says why.
      target: the target of the workflow, before `--configfile`.
      command: a command that measures the numbers in place of a study.
      networks: the networks that `command` measures, by row; other networks may follow the row's
        own network, to compare speed-ups.
      recipe: options of the published method.
      stands_in: the part of the study that replaces a published part, for the numbers' rows.
      reasons: reasons for the difference between the published number and ours.
      missing: other requirements of the run, or why the project cannot make the numbers.
      met: why dpprobe has the published numbers without a study.
    """

    paper: Key
    table: Text
    rows: tuple[Text, ...] = Field(min_length=1)
    columns: tuple[Key, ...] = ()
    study: Text | None = None
    target: Text | None = None
    command: Text | None = None
    networks: dict[Text, tuple[Text, ...]] = Field({})
    weights: Key | None = None
    recipe: dict[str, Any] = Field({})
    ours: tuple[Ours, ...] = ()
    stands_in: Text | None = None
    reasons: tuple[Text, ...] = ()
    missing: Text | None = None
    met: Text | None = None

    @model_validator(mode="after")
    def _check_command(self) -> Entry:
        if not any((self.study, self.missing, self.command, self.met)):
            raise ValueError("missing: absent; without a study say why nothing runs it")
        return self

    def covers(self, number: Number) -> bool:
        return (
            (number.paper, number.table) == (self.paper, self.table)
            and number.row in self.rows
            and (not self.columns or number.column in self.columns)
        )


class Needs(Options):
    """Hours, and gigabytes of data, weights, features and networks, that a study takes."""

    hours: Text
    gigabytes: str = ""


class Kept(Options):
    """A result whose cells no longer exist, as printed on a page of `bench/results`.

    Attributes:
      mean, deviation: mean and standard deviation over seeds, in percent, as printed on the page.
      page: the file of the page, which prints mean and deviation.
    """

    study: Text
    dataset: Key
    backbone: Text
    backbone_options: dict[str, Any]
    method: Text
    head: Text
    options: dict[str, Any]
    epsilon: float = Field(gt=0)
    delta: float = Field(gt=0, lt=1)
    train_rows: int = Field(ge=1)
    mean: Annotated[str, Field(pattern=r"^\d+\.\d+$")]
    deviation: Annotated[str, Field(pattern=r"^\d+\.\d+$")]
    seeds: int = Field(ge=2)
    page: Text


class Facts(Options):
    """The content of the file.

    Attributes:
      notes: by study, differences from the published setting that affect all its numbers.
      parts: by the name of a dataset in studies, the published dataset that contains it.
      needs: by the file of a study, its hours and gigabytes.
    """

    notes: dict[str, Text] = Field({})
    parts: dict[str, Key] = Field({})
    needs: dict[str, Needs] = Field({})
    weights: dict[Key, Weights] = Field({})
    kept: tuple[Kept, ...] = ()
    entries: tuple[Entry, ...]

    @model_validator(mode="after")
    def _check_names(self) -> Facts:
        for entry in self.entries:
            where = f"{entry.paper}, table {entry.table}, {entry.rows[0]}"
            if entry.weights is not None and entry.weights not in self.weights:
                raise ValueError(f"{where}: no weights {entry.weights!r}; add them")
        return self

    def by_number(self, published: Published) -> dict[Place, Entry]:
        """Returns the entry of each published number.

        Raises:
          ConfigError: with a line for each number that is not in exactly one entry, and for each
            entry with a row or column that is not published.
        """
        faults = []
        entries: dict[Place, Entry] = {}
        for number in published.numbers:
            covering = [entry for entry in self.entries if entry.covers(number)]
            if len(covering) != 1:
                count = f"in {len(covering)} entries" if covering else "in no entry"
                faults.append(f"{FILE}: {', '.join(place(number))}: {count}; write it in one")
            entries |= {place(number): entry for entry in covering}
        for entry in self.entries:
            faults += [f"{FILE}: {fault}" for fault in _unknown(entry, published)]
        if faults:
            raise ConfigError("\n".join(faults))
        return entries


def _unknown(entry: Entry, published: Published) -> list[str]:
    numbers = published.select_numbers(paper=entry.paper, table=entry.table)
    where = f"{entry.paper}, {entry.table}"
    rows, columns = {n.row for n in numbers}, {n.column for n in numbers}
    return [
        *(f"{where}: no published row {row!r}" for row in entry.rows if row not in rows),
        *(f"{where}: no column {key!r}" for key in entry.columns if key not in columns),
    ]


def place(number: Number) -> Place:
    return number.paper, number.table, number.row, number.column


def parse(values: Mapping[str, Any]) -> Facts:
    """Checks the values of the file; raises ConfigError, with a line for each fault."""
    return validate_options(Facts, values, FILE)


@functools.cache
def read() -> Facts:
    return parse(yaml.safe_load(PATH.read_text(encoding="utf-8")))
