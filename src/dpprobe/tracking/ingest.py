"""Copies cells and results of a whole study into MLflow; docs/tracking.md describes the pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from pathlib import Path

from mlflow.entities import DatasetInput

from dpprobe.analyses.audit.audit_record import AuditRecord
from dpprobe.analyses.fairness.fairness_record import FairnessRecord
from dpprobe.data.table import read_info
from dpprobe.files.json_files import read_json
from dpprobe.results.cell_record import ACCURACY, read_cell, read_measures
from dpprobe.results.summary import read_grid
from dpprobe.tracking.baseline_runs import dataset_run, list_baseline_runs
from dpprobe.tracking.runs import (
    RUN_COLOUR,
    CellFile,
    RunContents,
    cell_run,
    dataset_input,
    pick_colour,
    study_run,
    summary_run,
)
from dpprobe.tracking.views import (
    ALL_VIEW,
    BASELINES_VIEW,
    COMPARED,
    PRIVATE_VIEW,
    VIEW_KEY,
    ExperimentContents,
    cells_experiment,
    nearest_to_one,
    studies_experiment,
    summary_experiment,
)
from dpprobe.tracking.writer import Destination, Writer, leave_receipt, open_writer

STUDY_FOLDER = "_study"  # folder of a study's artifacts and receipt; no dataset has this name


def update_dataset(
    to: Destination,
    *,
    dataset: str,
    metrics_files: Sequence[Path],
    dataset_info: Path,
    figures: Sequence[Path],
    planes: Mapping[str, Path],
    tables: Sequence[Path],
    audits: Sequence[Path] = (),
    fairness: Sequence[Path] = (),
    zero_shot: Sequence[Path] = (),
    few_shot: Sequence[Path] = (),
) -> None:
    """Brings MLflow up to date with the cells and the baselines of one dataset.

    A run with an up-to-date result_key and content_hash is reused. A run whose cell has changed is
    replaced, and unfinished runs left by a crash are deleted. Runs of cells that are no longer in
    the study remain, with the tag `current` = "false", and the ready-made views omit them. Runs of
    other studies do not change.

    Args:
      figures, tables: files for the run of the whole dataset. Only one run has them, so that the
        size of the artifacts is proportional to the number of cells.
      planes: each backbone's t-SNE figure, for the same run.
    """
    study, info = to.study, read_info(dataset_info)
    cell_files = [(path, read_cell(path)) for path in sorted(metrics_files)]
    shared_tags = {"study": study, "dataset_fingerprint": info.fingerprint}
    if info.untested_classes:
        shared_tags["untested_classes"] = f"{len(info.untested_classes)} of {info.num_classes}"
    measure = read_measures(cell_files).get(dataset, ACCURACY)
    source = dataset_input(dataset, info)
    groups = {(read := FairnessRecord.read(path)).backbone: (path, read) for path in fairness}
    baselines = list_baseline_runs(
        zero_shot, few_shot, study=study, shared_tags=shared_tags, source=source
    )
    cells = _list_cell_runs(
        cell_files,
        study,
        shared_tags,
        source,
        audits=audits,
        groups=groups,
        compared={run.params["backbone"] for run in baselines},
    )
    summaries = _list_summary_runs(cell_files, study, shared_tags, source)
    attached = [
        *((path, "figures") for path in (*figures, *planes.values())),
        *((path, "tables") for path in tables),
        *((path, "fairness") for path in fairness),
    ]
    whole = dataset_run(
        baselines,
        dataset=dataset,
        study=study,
        shared_tags=shared_tags,
        artifacts=attached,
        source=source,
        finished=max(
            (run.finished for run in [*cells, *baselines]), default=dataset_info.stat().st_mtime
        ),
    )
    with open_writer(to, dataset) as writer:
        shown = cells_experiment(dataset, writer.location, cells, baselines, measure)
        writer.links = {"cells": writer.find_page(shown)}
        summary = summary_experiment(dataset, writer.location, summaries, measure)
        page = writer.find_page(summary)
        pages = {"summary": page, "charts": f"{page}&compareRunsMode=CHART"}
        writer.links |= {"charts": pages["charts"]}
        # written first, because other descriptions link to this run
        writer.write(summary, [whole], outdates=lambda _: False, describe=False)
        if attached:
            writer.links["figures and tables"] = writer.link_artifacts(summary, whole.key)
        for backbone, picture in sorted(planes.items()):
            writer.links[f"t-SNE of {backbone}"] = writer.link_artifacts(
                summary, whole.key, f"/figures/{picture.name}"
            )
        pages |= _write_cells(writer, shown, [*cells, *baselines], has_baselines=bool(baselines))
        writer.write(summary, summaries, outdates=lambda key: key != whole.key)
    leave_receipt(to, writer, dataset=dataset, pages=pages)


def _list_cell_runs(
    cell_files: Sequence[CellFile],
    study: str,
    shared_tags: Mapping[str, str],
    source: DatasetInput,
    *,
    audits: Sequence[Path],
    groups: Mapping[str, tuple[Path, FairnessRecord]],
    compared: Set[str],
) -> list[RunContents]:
    """Describes the runs of cells; cells on the backbones `compared` are shown with baselines."""
    audited = {(audit := AuditRecord.read(path)).key: (path, audit) for path in audits}
    shown = nearest_to_one(record.cell.epsilon for _, record in cell_files)
    runs = []
    for path, record in cell_files:
        cell = record.cell
        beside = cell.backbone in compared and cell.epsilon == shown
        tags = {**shared_tags, **({COMPARED: "true"} if beside else {})}
        _, fairness = groups.get(cell.backbone, (None, None))
        runs.append(cell_run(path, record, study, tags, source, audited.get(cell.key), fairness))
    return runs


def _list_summary_runs(
    cell_files: Sequence[CellFile],
    study: str,
    shared_tags: Mapping[str, str],
    source: DatasetInput,
) -> list[RunContents]:
    """Describes one run per backbone and method."""
    curves: dict[tuple[str, str], list[CellFile]] = {}
    for path, record in cell_files:
        curves.setdefault((record.cell.backbone, record.cell.method), []).append((path, record))
    return [
        summary_run(group, study, {**shared_tags, RUN_COLOUR: pick_colour(index)}, source)
        for index, group in enumerate(curves.values())
    ]


def _write_cells(
    writer: Writer,
    shown: ExperimentContents,
    runs: Sequence[RunContents],
    *,
    has_baselines: bool,
) -> dict[str, str]:
    """Writes the experiment of cells and baselines; returns the URLs of its views."""
    page = writer.write(shown, runs)
    pages = {
        "cells": page,
        "private": page.replace(VIEW_KEY, PRIVATE_VIEW),
        "all": page.replace(VIEW_KEY, ALL_VIEW),
    }
    if has_baselines:
        pages["baselines"] = page.replace(VIEW_KEY, BASELINES_VIEW)
        pages["baseline_charts"] = f"{pages['baselines']}&compareRunsMode=CHART"
    return pages


def ingest_study(
    to: Destination,
    *,
    report: Path,
    summaries: Sequence[Path],
    dataset_infos: Mapping[str, Path],
    figures: Sequence[Path],
    tables: Sequence[Path],
) -> None:
    """Brings MLflow up to date with the whole study: one run, with the study's report and tables.

    Tables in a subfolder of `tables` keep the subfolder; see `update_dataset` for the arguments.
    """
    files = [(report, "")]
    for path in tables:
        folder = path.parent.name
        files.append((path, "tables" if folder == "tables" else f"tables/{folder}"))
    files += [(path, "figures") for path in figures]
    run = study_run(to.study, read_grid(summaries), dataset_infos, files)
    with open_writer(to, STUDY_FOLDER) as writer:
        for name in dataset_infos:
            if (written := to.receipt.parent / f"{name}.json").is_file():
                pages = read_json(written)["pages"]
                writer.links |= {
                    f"{words} of {name}": pages[words] for words in ("cells", "charts")
                }
        pages = {"studies": writer.write(studies_experiment(writer.location, run), [run])}
        for name in writer.retire_datasets(dataset_infos):
            # if a study names the dataset again, the missing receipt makes tracking run again
            (to.receipt.parent / f"{name}.json").unlink(missing_ok=True)
    leave_receipt(to, writer, dataset=STUDY_FOLDER, pages=pages)
