"""Jobs that train small heads on stored features, for tests."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dpprobe.heads.registry import method_options
from dpprobe.privacy.risk import read_budget
from dpprobe.privacy.target import Terms
from dpprobe.results.summary import summarise_cells
from dpprobe.training.cell_task import Asked
from dpprobe.training.head_job import train_job
from dpprobe.training.plan_file import write_plans
from dpprobe.training.tasks import JobFiles, Request, open_job
from tests.support.classifiers import DELTA, FAST, ROWS, make_rows
from tests.support.feature_stores import write_split

DEFAULT = Request(
    dataset="toy",
    backbone="none",
    epsilon="4",
    methods={},
    terms=Terms(epsilon=4.0, delta=1e-4),
    asked=Asked(study="unit", seeds=2, study_seed=0),
)


def change_job(job: Request, **changes: Any) -> Request:
    """Changes values of a job's request, of its terms and of the options for each cell."""
    of_terms = {name: changes[name] for name in _names(Terms) & changes.keys()}
    of_cells = {name: changes[name] for name in _names(Asked) & changes.keys()}
    if "epsilon" in of_terms:
        of_terms["epsilon"] = read_budget(changes["epsilon"])
    own = {name: changes[name] for name in _names(Request) & changes.keys()}
    assert changes.keys() == of_terms.keys() | of_cells.keys() | own.keys()
    terms, asked = replace(job.terms, **of_terms), replace(job.asked, **of_cells)
    return replace(job, terms=terms, asked=asked, **own)


def _names(kind: Any) -> set[str]:
    return {field.name for field in fields(kind)}


def make_job(**changes: Any) -> Request:
    """Returns a job of two seeds at epsilon 4 on the dataset `toy`, with changes."""
    return change_job(DEFAULT, **changes)


def plan_job(job: Request, n: int, plans: Path, cache: Path) -> Path:
    """Writes the plans of a job for n units; returns their file."""
    target = job.terms.make_target(n)
    write_plans(job.methods, target, output=plans, cache=cache, seeds=job.asked.seeds)
    return plans


def list_files(folder: Path, plans: Path, **given: Any) -> JobFiles:
    """Returns the files of a job on the splits in a folder; cells are written into its `cells`."""
    places: dict[str, Any] = {
        "train": folder / "train/manifest.json",
        "test": folder / "test/manifest.json",
        "results": folder,
        "private": ("toy",),
    }
    return JobFiles(plans=plans, **places | given)


def run_job(
    folder: Path,
    job: Request,
    plans: Path,
    *,
    device: str = "cpu",
    memory_mb: int = 1000,
    **given: Any,
) -> None:
    """Trains a job on the splits in a folder, and writes cells into its `cells`."""
    opened = open_job(job, list_files(folder, plans, **given))
    train_job(opened, device=device, memory_mb=memory_mb, threads=torch.get_num_threads())


def write_results(folder: Path, *epsilons: str, **changes: Any) -> None:
    """Writes features, cells and summary of a study with one dataset and one method."""
    job = make_job(methods={"momentum": method_options(FAST)}, delta=DELTA, **changes)
    stores = folder / "features" / job.dataset / job.backbone
    manifests: dict[str, Any] = {
        split: write_split(stores / split, *make_rows(seed))
        for seed, split in enumerate(("train", "test"))
    }
    for epsilon in epsilons:
        plans = folder / f"calibration/{job.dataset}/eps-{epsilon}.json"
        each = change_job(job, epsilon=epsilon)
        run_job(folder, each, plan_job(each, ROWS, plans, folder / "calibration"), **manifests)
    cells = sorted(folder.glob("cells/**/metrics.json"))
    summarise_cells(cells, folder / f"summary/{job.dataset}.parquet", study="unit")


def watch_renames(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Returns a list to which the new path of each renamed file is added from now on."""
    renamed: list[Path] = []
    replace = Path.replace

    def watched(path: Path, target: Path) -> Path:
        renamed.append(Path(target))
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", watched)
    return renamed
