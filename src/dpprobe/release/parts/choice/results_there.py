"""Reads all results of a dataset's units in a study's results folder, also of earlier studies.

A study's file may change while results remain. Somebody may have looked at a cell that the study no
longer lists, or at a cell of former options, which only the store has. Folders of datasets that the
study no longer lists count too, because their units may be the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dpprobe.analysis_registry import load_analyses
from dpprobe.errors import DpprobeError
from dpprobe.files.json_files import read_json
from dpprobe.files.result_store import list_unpublished
from dpprobe.privacy.accountants import Fits
from dpprobe.results.best_head_price import fits_of_statement
from dpprobe.results.cell_files import METRICS_FILE, STATEMENT_FILE
from dpprobe.results.cell_record import read_statement
from dpprobe.study.study import Cell, Study
from dpprobe.study.study_checks import shared_images

FORMER = " of former options "  # between a method's name and the start of a stored cell's key


def list_sharing(study: Study, dataset: str, joined: Collection[str] = ()) -> list[str]:
    """Lists a dataset, then the study's datasets that share units with this dataset.

    Datasets share units by `same_units_as`, or if they have the same images, such as subsamples and
    copies with rare classes; also indirectly. `joined` are datasets whose ledgers are added to this
    dataset's ledger.
    """
    sharing, waiting = {dataset: None}, [dataset, *joined]
    while waiting:
        name = waiting.pop()
        options = study.datasets.get(name)
        near = {other for other, each in study.datasets.items() if each.same_units_as == name}
        if options is not None:
            near |= {other for other in study.datasets if other == options.same_units_as}
            near |= {other for other, _ in shared_images(options, study)}
        new = [other for other in {*near, name} if other in study.datasets and other not in sharing]
        sharing |= dict.fromkeys(new)
        waiting += new
    return [dataset, *(name for name in study.datasets if name in sharing and name != dataset)]


def list_unlisted(study: Study) -> list[str]:
    """Lists datasets that have a folder of results, but are not in the study."""
    return sorted(
        {
            path.name
            for folder in ("cells", *(analysis.folder for analysis in _unpriced()))
            for path in Path(study.results_dir, folder).glob("[!.]*")
            if path.is_dir() and path.name not in study.datasets
        }
    )


def read_cells(study: Study, datasets: Sequence[str]) -> Iterator[tuple[Cell, Fits | None]]:
    """Yields the cells in the results folder, then cells that only the store has.

    None stands for the fits of a cell that is not private or has no statement.
    """
    for dataset in datasets:
        for folder in sorted(Path(study.results_dir, "cells", dataset).glob("*/[!.]*/eps-*")):
            if folder.is_dir() and any(folder.iterdir()):
                backbone, method, epsilon = folder.parts[-3:]
                cell = Cell(dataset, backbone, method, epsilon.removeprefix("eps-"))
                yield cell, _read_fits(folder / STATEMENT_FILE)
    for stored in list_unpublished(Path(study.results_dir)):
        with suppress(OSError, ValueError, KeyError, TypeError):  # not a cell: a network or audit
            cell = Cell(**read_json(stored / METRICS_FILE)["cell"])
            if cell.dataset in datasets:
                former = f"{cell.method}{FORMER}{stored.name[:8]}"
                yield cell._replace(method=former), _read_fits(stored / STATEMENT_FILE)


def _read_fits(path: Path) -> Fits | None:
    try:
        statement = read_statement(path)
        return fits_of_statement(statement) if statement["private"] is True else None
    except (DpprobeError, KeyError, TypeError, ValueError):
        return None


def list_unpriced(study: Study, datasets: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields dataset and name of results of analyses that use training units without privacy.

    A result counts if the study lists it, or if its file exists.
    """
    for dataset in datasets:
        for analysis in _unpriced():
            if dataset in study.datasets:
                yield from ((dataset, name) for name in analysis.list_unpriced(study, dataset))
            folder = Path(study.results_dir, analysis.folder, dataset)
            for path in sorted(folder.rglob("[!.]*")):
                if path.is_file() and analysis.reveals(path):
                    backbone = path.relative_to(folder).parts[0].partition(".")[0]
                    yield dataset, f"{backbone}/{analysis.unpriced}"


def _unpriced() -> list[Any]:
    return [analysis for analysis in load_analyses() if analysis.unpriced]
