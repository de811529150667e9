"""Facts of each published number: the command, weights and recipe of its run.

`reproduction.yaml` beside this module has it, reviewed by hand; here it is checked against the
published numbers, each of which it must name exactly once.
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
    """The weights that the published numbers were made with.

    Attributes:
      stated: False where the paper does not say which weights it took.
      backbone: options that a backbone of the same weights has.
      nearest: the backbone of the catalog that comes nearest where they are not public.
    """

    title: Text
    access: Literal["public", "public for JAX", "private", "none needed"]
    stated: bool = True
    backbone: dict[str, Any] = Field({})
    nearest: Text | None = None

    @model_validator(mode="after")
    def _check_access(self) -> Weights:
        if self.access == "private" and self.backbone:
            raise ValueError("backbone: weights that are not public match none; write nearest")
        return self


class Ours(Options):
    """The cells of one study that may stand beside numbers.

    Attributes:
      methods: names or patterns, in the order of choice.
      dataset: as published results name it; the number's where None.
      epsilon: where the number has none, or another is to stand beside it.
      take: of several methods, the first there is, or the lowest or highest result.
      base: the name or pattern of what a change is measured from, taken in the same way.
      base_backbone: its backbone, where a change is of backbones.
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
      columns: of these rows; all that they have where empty.
      study: the file that runs them; None where none of the project does, and `missing` says why.
      target: of the workflow, before `--configfile`.
      command: in place of a study, what measures them; `networks` names by row what it measures,
        the network itself and others whose speed-up may stand beside the published one.
      recipe: options of the published method.
      stands_in: the part of the study that stands for a published one; the numbers' rows say it.
      reasons: for the difference between the published number and ours.
      missing: what else it takes, or why nothing here runs it.
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

    @model_validator(mode="after")
    def _check_command(self) -> Entry:
        if self.study is None and self.missing is None and self.command is None:
            raise ValueError("missing: absent; without a study say why nothing runs it")
        return self

    def covers(self, number: Number) -> bool:
        """Returns True if a number is one of this entry's."""
        return (
            (number.paper, number.table) == (self.paper, self.table)
            and number.row in self.rows
            and (not self.columns or number.column in self.columns)
        )


class Kept(Options):
    """A result whose cells are no longer at hand, as a page of `bench/results` keeps it.

    Attributes:
      mean, deviation: percent, as printed there; the standard deviation is over seeds.
      page: the file, which has both numbers.
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
    """The whole file.

    Attributes:
      notes: by study, what in its run is not as published, whatever the number.
      parts: by the name of a dataset in studies, the published one that it is a part of.
    """

    notes: dict[str, Text] = Field({})
    parts: dict[str, Key] = Field({})
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
          ConfigError: with a line for each number that no entry or more than one names, and for
            each entry with a row or column that is not published.
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
    """Returns the paper, table, row and column of a number."""
    return number.paper, number.table, number.row, number.column


def parse(values: Mapping[str, Any]) -> Facts:
    """Checks the content of such a file.

    Raises:
      ConfigError: with a line for each thing that is wrong.
    """
    return validate_options(Facts, values, FILE)


@functools.cache
def read() -> Facts:
    """Reads the facts that come with the project."""
    return parse(yaml.safe_load(PATH.read_text(encoding="utf-8")))
