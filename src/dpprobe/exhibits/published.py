"""Published numbers of other works, from the tables in `resources/published.yaml`."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import Field

from dpprobe import project_files
from dpprobe.files.plain_files import sha256_file
from dpprobe.options import Options

FILE = "published.yaml"
Text = Annotated[str, Field(min_length=1)]
Metric = Literal[
    "accuracy", "auc", "accuracy change", "throughput", "speed-up", "epochs", "dimension"
]
Tuning = Literal["full", "last layer", "blocks", "from scratch"]
# Figures of heads on frozen features omit published results with these kinds of tuning.
_NETWORKS_TUNED = ("full", "blocks")
# Epsilon: inf without privacy, 0 for zero-shot without private images; two numbers are a range.
Epsilon = (
    Annotated[float, Field(ge=0)]
    | tuple[Annotated[float, Field(gt=0)], Annotated[float, Field(gt=0)]]
)
# The number of tuned last blocks, or a range of numbers for which one result is published.
Blocks = (
    Annotated[int, Field(ge=1)] | tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]]
)
Key = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]


class Citation(Options):
    """The work in which a number was published; `note` explains missing fields."""

    short: Text = Field(description="The name in legends and tables.")
    authors: Text
    title: Text | None
    year: int | None = Field(ge=1900, le=2100)
    venue: Text | None
    note: Text | None = None


class Facts(Options):
    """Facts about a table, a row or a column; each fact may be absent."""

    citation: Key | None = None
    dataset: Key | None = None
    metric: Metric | None = None
    epsilon: Epsilon | None = None
    delta: float | None = Field(None, gt=0, lt=1)
    model: Text | None = None
    tuning: Tuning | None = None
    blocks: Blocks | None = None
    learning_rate: Literal["constant", "tuned"] | None = None
    train_rows: int | None = Field(
        None, ge=1, description="Training images, if only a part of the dataset was used."
    )
    optimiser: Literal["momentum", "lamb", "adam"] | None = None
    batch_size: int | None = Field(None, ge=1)


class Column(Facts):
    """One column of a printed table."""

    title: Text


class Row(Facts):
    """One row of a printed table, with its values by column, without blanks."""

    row: Text
    values: dict[Key, int | float | Literal["random chance"]] = Field(min_length=1)
    inferred: dict[Literal["epsilon", "delta"], tuple[Key, ...]] = Field(
        {},
        description="For each fact that the paper does not state, the columns that use the row's "
        "own value.",
    )


class PrintedTable(Facts):
    """One table of one paper."""

    paper: Key = Field(description="Citation key of the source from which the numbers were read.")
    table: Text = Field(description="The table's number, or its place in the text.")
    title: Text
    metric: Metric
    columns: dict[Key, Column] = Field(min_length=1)
    rows: tuple[Row, ...] = Field(min_length=1)


class Number(Facts):
    """One published number and its place in a paper; facts that the paper omits are None.

    Attributes:
      value: percent for an accuracy or its change, a fraction for an AUC, images per second and
        core for throughput; NaN if the paper has words.
      printed: the paper's text if the text is not a number, or a whole number.
      citation: the work with the original result; `paper` is the work from which it was copied.
      epsilon: the privacy budget, inf without privacy, 0 for a zero-shot result; a pair is a range.
      train_rows: number of training images if only a part of the dataset was used, else None.
      inferred: facts that the paper states only for the row's source.
    """

    value: float = Field(allow_inf_nan=True)
    printed: str | None
    metric: Metric
    paper: str
    table: str
    row: str
    column: str
    column_title: str
    citation: Key
    inferred: tuple[str, ...] = ()

    @property
    def epsilon_range(self) -> tuple[float, float] | None:
        """The ends of the privacy budget, equal for one number; None without a private result."""
        if isinstance(self.epsilon, tuple):
            return self.epsilon
        single = self.single_epsilon
        return None if single is None else (single, single)

    @property
    def single_epsilon(self) -> float | None:
        """The privacy budget if it is one number between 0 and infinity, else None."""
        if isinstance(self.epsilon, float) and 0 < self.epsilon < math.inf:
            return self.epsilon
        return None

    @property
    def model_or_column(self) -> str | None:
        """The model (or the column) that distinguishes a result from a paper's other results."""
        return self.model or (None if self.column_title == "Accuracy" else self.column_title)

    @property
    def percent(self) -> float:
        """The value for figures, in percent even for an AUC."""
        return 100 * self.value if self.metric == "auc" else self.value

    @property
    def text(self) -> str:
        """The value as the paper prints it."""
        if self.printed is not None:
            return self.printed
        shortest = f"{self.value:g}"
        if self.metric in ("throughput", "speed-up", "epochs", "dimension"):
            return shortest
        digits = 2 if self.metric == "auc" else 1
        sign = "+" if self.metric == "accuracy change" and self.value > 0 else ""
        fixed = f"{self.value:.{digits}f}"
        return sign + (shortest if len(shortest) > len(fixed) else fixed)


class Published(Options):
    """The content of `resources/published.yaml`."""

    citations: dict[Key, Citation]
    tables: tuple[PrintedTable, ...]

    @functools.cached_property
    def numbers(self) -> tuple[Number, ...]:
        return tuple(
            _make_number(table, row, key)
            for table in self.tables
            for row in table.rows
            for key in table.columns
            if key in row.values
        )

    def of_table(self, paper: str, table: str) -> PrintedTable:
        return next(each for each in self.tables if (each.paper, each.table) == (paper, table))

    def select_numbers(self, **wanted: Any) -> list[Number]:
        return [
            number
            for number in self.numbers
            if all(getattr(number, name) == value for name, value in wanted.items())
        ]

    def mark_points(self, dataset: str, metric: str, *, networks: bool = False) -> list[Number]:
        """Returns the private results to mark in a figure of a dataset, sorted by epsilon.

        Each result has one finite epsilon or a range. If a work has several results for one model
        (or column) at one epsilon (sweeps, ablations), only the best is returned. Results on a part
        of the dataset are omitted, because they are not comparable.

        Args:
          networks: True to mark published fine-tuned networks too.
        """
        best: dict[tuple[Any, ...], Number] = {}
        for number in self.select_numbers(dataset=dataset, metric=metric, train_rows=None):
            if number.epsilon_range is None or math.isnan(number.value):
                continue
            if number.tuning in _NETWORKS_TUNED and not networks:
                continue
            key = (number.citation, number.model_or_column, number.epsilon)
            if key not in best or number.value > best[key].value:
                best[key] = number
        left = [number for number in best.values() if not _is_surpassed(number, best.values())]
        return sorted(left, key=lambda number: number.epsilon_range or (0.0, 0.0))


def _is_surpassed(number: Number, others: Iterable[Number]) -> bool:
    """True if the number's model has a better result for a range that contains its epsilon."""
    low, high = number.epsilon_range or (0.0, 0.0)
    return any(
        (other.citation, other.model_or_column) == (number.citation, number.model_or_column)
        and other.value > number.value
        and isinstance(other.epsilon, tuple)
        and other.epsilon[0] <= low
        and high <= other.epsilon[1]
        for other in others
    )


def _make_number(table: PrintedTable, row: Row, key: str) -> Number:
    """Makes a `Number`; takes each fact from the column, else from the row, else from the table."""
    column = table.columns[key]
    value = row.values[key]
    facts: dict[str, Any] = {}
    for name in Facts.model_fields:
        values = (getattr(part, name) for part in (column, row, table))
        facts[name] = next((fact for fact in values if fact is not None), None)
    facts["citation"] = facts["citation"] or table.paper
    return Number(
        value=math.nan if isinstance(value, str) else value,
        printed=None if isinstance(value, float) else str(value),
        paper=table.paper,
        table=table.table,
        row=row.row,
        column=key,
        column_title=column.title,
        inferred=tuple(fact for fact, keys in row.inferred.items() if key in keys),
        **facts,
    )


@functools.cache
def read_published() -> Published:
    return Published.model_validate(project_files.read_yaml(FILE))


def published_datasets() -> set[str]:
    return {number.dataset for number in read_published().numbers if number.dataset}


def published_digest() -> str:
    """Hashes the published numbers; figures and tables depend on this hash."""
    return sha256_file(project_files.resource_path(FILE))


def write_bibliography(published: Published) -> str:
    """Writes the citations as BibTeX."""
    entries = []
    for key, citation in sorted(published.citations.items()):
        fields = {
            "author": " and ".join(citation.authors.split(", ")),
            "title": f"{{{citation.title}}}" if citation.title else None,
            "year": citation.year,
            "howpublished": citation.venue,
            "note": citation.note,
        }
        lines = [f"  {name} = {{{value}}}," for name, value in fields.items() if value is not None]
        entries.append("\n".join([f"@misc{{{key},", *lines, "}"]))
    return "\n\n".join(entries) + "\n"
