"""The record of our runs, small enough for git: results of studies.

Results folders are not in the repository, so the page is made from the record, which a command
writes from results folders. The record has no dates and no paths of a machine. The file is JSON
with one line per backbone, method and cell, so that a changed result changes one line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpprobe.errors import DataError
from dpprobe.files.atomic_writes import write_text
from dpprobe.files.json_files import read_json, read_record
from dpprobe.heads.gradient_options import GRADIENTS
from dpprobe.heads.registry import NETWORKS
from dpprobe.privacy.limits import epsilon_value
from dpprobe.reporting.paper_tables.common import Run
from dpprobe.results.cell_results import CellResult, read_cell_results
from dpprobe.study.comparisons import describe_backbones
from dpprobe.study.published_names import published_names
from dpprobe.study.study import Study
from reproduction.facts import Kept

FORMAT, FORMAT_VERSION = "dpprobe-reproduced", 1
FILE = Path(__file__).with_name("reproduced.json")
THROUGHPUT = Path(__file__).parents[1] / "results" / "throughput.json"
LINE_DEPTH = 4  # file, studies, a study, its cells


@dataclass(frozen=True, kw_only=True)
class Result:
    """One cell that was run, with the facts that the page shows.

    Attributes:
      dataset: the dataset's name in `resources/published.yaml`.
      backbone_options, options: the options of the backbone and of the method.
      metric: the headline metric's name; values, mean, low and high are fractions.
      network: True if a part of the backbone was trained.
      passes: passes over the training images in gradient steps; None if unknown.
      noise: the noise multiplier of a gradient step; None if PLD computed the cell's epsilon.
      pld_epsilon: PLD's epsilon, if another accountant computed the cell's epsilon.
      page: the page of `bench/results` that has the result, if the cells no longer exist.
      text: the mean as `page` prints it, with its standard deviation.
    """

    study: str
    dataset: str
    backbone: str
    backbone_options: Mapping[str, Any]
    method: str
    head: str
    options: Mapping[str, Any]
    epsilon: float
    delta: float | None
    private: bool
    network: bool
    metric: str
    values: tuple[float, ...]
    mean: float
    low: float | None
    high: float | None
    train_rows: int
    seeds: int
    passes: float | None = None
    noise: float | None = None
    pld_epsilon: float | None = None
    page: str | None = None
    text: str | None = None


@dataclass(frozen=True, kw_only=True)
class Record:
    """The results of all our runs, by study."""

    studies: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def results(self) -> list[Result]:
        """Returns the results of all cells, in the order of the record."""
        return [
            _result(name, study, cell)
            for name, study in self.studies.items()
            for cell in study["cells"]
        ]

    def with_parts(self, other: Record) -> Record:
        """Returns this record with studies of another record replaced or added.

        Keeps this record's cells that the other lacks, if the study's options are equal.
        """
        studies = {
            name: _with_earlier_cells(study, self.studies.get(name, {}))
            for name, study in other.studies.items()
        }
        return Record(studies=dict(sorted({**self.studies, **studies}.items())))

    def write(self, path: Path) -> None:
        record = {"format": FORMAT, "format_version": FORMAT_VERSION, "studies": self.studies}
        write_text(path, _format_lines(record, depth=LINE_DEPTH) + "\n")


def _format_lines(value: Any, *, depth: int, indent: str = "") -> str:
    """Formats a value as JSON that puts each member below `depth` levels on one line."""
    if depth == 0 or not value or not isinstance(value, Mapping | list | tuple):
        return json.dumps(value, allow_nan=False, ensure_ascii=False)
    inner, named = indent + " ", isinstance(value, Mapping)
    members = value.items() if isinstance(value, Mapping) else (("", each) for each in value)
    lines = [
        inner
        + (f"{json.dumps(name, ensure_ascii=False)}: " if named else "")
        + _format_lines(member, depth=depth - 1, indent=inner)
        for name, member in members
    ]
    start, end = "{}" if named else "[]"
    return "\n".join([start, ",\n".join(lines), indent + end])


def _with_earlier_cells(study: Mapping[str, Any], before: Mapping[str, Any]) -> Mapping[str, Any]:
    """Adds the cells of an earlier record of a study, unless the study's options have changed."""
    if any(before.get(part) != study[part] for part in ("backbones", "methods")):
        return study
    cells = {_place(cell): cell for cell in [*before["cells"], *study["cells"]]}
    return {**study, "cells": [cell for _, cell in sorted(cells.items())]}


def _place(cell: Mapping[str, Any]) -> tuple[str, str, str, float]:
    epsilon = epsilon_value(cell["epsilon"])
    return cell["dataset"], cell["backbone"], cell["method"], epsilon


def read_reproduced(path: Path = FILE) -> Record:
    """Reads a record, empty if the file is missing; raises DataError for another kind of file."""
    if not path.exists():
        return Record()
    values = read_record(path, kind=FORMAT, version=FORMAT_VERSION)
    try:
        record = Record(studies=values["studies"])
        record.results()
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: not a record of results ({error!r}); write it again") from None
    return record


def record_study(study: Study, folder: Path, *, file: str | None) -> Record:
    """Reads the results folder of a study.

    Args:
      file: the path of the study's file in the project; None if the project has no such file.

    Raises:
      DataError: if the folder has no cell.
    """
    metrics = sorted(folder.glob("cells/*/*/*/eps-*/metrics.json"))
    if not metrics:
        raise DataError(f"{folder}: no cell of study {study.study}; run it first")
    run = Run(
        study=study.study,
        cells=read_cell_results(metrics),
        names=published_names(study),
        backbones=describe_backbones(study),
    )
    cells = sorted(run.cells, key=lambda c: (c.dataset, c.backbone, c.method, c.epsilon))
    values = {
        "file": file,
        "backbones": {
            name: run.backbones[name]
            for name in sorted({cell.backbone for cell in cells})
            if name in run.backbones
        },
        "methods": {cell.method: dict(cell.options) for cell in cells},
        "cells": [_plain(run, cell) | _second_price(study, folder, cell) for cell in cells],
    }
    return Record(studies={run.study: values})


def _plain(run: Run, cell: CellResult) -> dict[str, Any]:
    return {
        "dataset": run.published_name(cell.dataset),
        "backbone": cell.backbone,
        "method": cell.method,
        "head": cell.head,
        "epsilon": f"{cell.epsilon:g}",
        "delta": cell.delta,
        "private": cell.private,
        "metric": cell.measure.headline,
        "values": list(cell.values),
        "mean": cell.mean,
        "low": cell.low,
        "high": cell.high,
        "train_rows": cell.train_rows,
        "passes": None if cell.epochs is None else round(cell.epochs, 4),
    }


def _second_price(study: Study, folder: Path, cell: CellResult) -> dict[str, float]:
    """Reads a step's noise and PLD's epsilon, if another accountant computed a cell's epsilon."""
    if study.accountant == "pld" or not cell.private:
        return {}
    place = Path(cell.dataset, cell.backbone, cell.method, f"eps-{cell.epsilon:g}")
    statement = read_json(folder / "cells" / place / "privacy.json")
    noise = [m["noise_multiplier"] for m in statement["mechanisms"] if m["name"] == GRADIENTS]
    prices = [price for name, price in statement["checks"].items() if name.startswith("pld")]
    return {"noise": noise[0], "pld_epsilon": prices[0]} if noise and prices else {}


def _result(name: str, study: Mapping[str, Any], cell: Mapping[str, Any]) -> Result:
    options = study["methods"][cell["method"]]
    return Result(
        **{
            **cell,
            "study": name,
            "epsilon": epsilon_value(cell["epsilon"]),
            "values": tuple(cell["values"]),
            "seeds": len(cell["values"]),
            "backbone_options": study["backbones"].get(cell["backbone"], {}),
            "options": options,
            "network": options["head"] in NETWORKS
            or options.get("base", {}).get("head") in NETWORKS,
        }
    )


def read_throughput() -> dict[str, dict[str, Any]]:
    """Reads what `bench/throughput.py` measured, by network."""
    return dict(read_json(THROUGHPUT))


def kept_result(kept: Kept) -> Result:
    """Makes a result from the facts that a page of `bench/results` has."""
    return Result(
        study=kept.study,
        dataset=kept.dataset,
        backbone=kept.backbone,
        backbone_options=kept.backbone_options,
        method=kept.method,
        head=kept.head,
        options={"head": kept.head, **kept.options},
        epsilon=kept.epsilon,
        delta=kept.delta,
        private=math.isfinite(kept.epsilon),
        network=False,
        metric="accuracy",
        values=(),
        mean=float(kept.mean) / 100,
        low=None,
        high=None,
        train_rows=kept.train_rows,
        seeds=kept.seeds,
        page=kept.page,
        text=f"{kept.mean} (standard deviation {kept.deviation})",
    )


def all_results(record: Record, kept: Iterable[Kept]) -> Sequence[Result]:
    """Returns the results of a record's cells, then results that only pages have."""
    return [*record.results(), *(kept_result(item) for item in kept)]
