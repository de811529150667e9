"""`make clean` removes what its help lists, but never a release, a ledger or a user's files."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dpprobe.analyses.audit.audit_record import AUDITS
from dpprobe.analyses.fairness.fairness_record import FAIRNESS
from dpprobe.analyses.imbalance.imbalance_record import IMBALANCE
from dpprobe.analyses.long_tail.long_tail_record import LONG_TAIL
from dpprobe.analyses.representation_law.law_record import LAYERS
from dpprobe.analysis_registry import load_analyses
from dpprobe.data import table
from dpprobe.data.downloads import download_receipt
from dpprobe.features.shard_manifest import MANIFEST_FORMAT
from dpprobe.privacy import noise_calibration
from dpprobe.results.cell_record import CELL_FORMAT
from dpprobe.results.network_record import NETWORKS_FOLDER
from dpprobe.results.search_record import SEARCHES
from dpprobe.study.reserved_names import LEDGER_FILE, WRITTEN
from dpprobe.training import plan_file
from tests.conftest import REPOSITORY
from tests.support.script_modules import load_script

DATASET = '{"format": "dpprobe-dataset", "splits": {}}'
CELL = f'{{"format": "{CELL_FORMAT}"}}'
RECEIPT = '{"format": "dpprobe-download", "files": [{"name": "a.zip"}, {"name": "../mine.zip"}]}'
UNPACKED = '{"archive": "a.zip", "sha256": "0"}'

# Files and their contents; "x" if the content does not matter.
KEPT = {
    "data/downloads/scans/x.extracted.json": UNPACKED,
    # another program's file, next to a user's tables
    "data/hospital/dataset.json": '{"name": "Hospital", "labels": {"0": "background"}}',
} | dict.fromkeys(
    (
        f"data/digits/{LEDGER_FILE}",
        "data/photographs/a.png",
        "data/mine/train.parquet",
        "images/lesions/benign/a.png",
        "results/releases/first/bundle.json",
        "results/own_images/releases/first/bundle.json",
        "results/notes.txt",
        "weights/vit.safetensors",
        "data/hospital/train.parquet",
        "data/hospital/test.parquet",
        "data/hospital/downloads/photo1.png",
        "data/downloads/by_hand/images.zip",
        "data/downloads/mine.zip",
        "data/downloads/scans/mine.png",
        # the ledger of a dataset that has the same name as the folder of downloads
        f"data/downloads/downloads/{LEDGER_FILE}",
        # a user's folder, with names that studies write too
        "results/my_paper/figures/f.png",
        "results/my_paper/summary/x.parquet",
        "results/figures/f.pptx",
        # a user put a bundle among results: the whole folder stays
        "results/own_images/tables/kept/bundle.json",
        "results/own_images/tables/accuracy.csv",
        "logs/server.log",
        "logs/slurm/notes.txt",
        "benchmarks/mine.tsv",
    ),
    "x",
)
OF_THE_DEFAULT_STUDY = {
    "data/digits/dataset.json": DATASET,
    "data/digits/train.parquet": "x",
    "results/cells/digits/pixels/sgd/eps-2/metrics.json": CELL,
    "results/cells/digits/pixels/.eps-2.done": "",
    "results/figures/digits/accuracy.png": "x",
    "results/tracking/releases/first.json": "{}",
    "results/mlflow.db": "x",
    "results/report.html": "x",
}
OF_OTHERS = {
    ".snakemake/metadata/x": "x",
    "data/own_images/lesions/dataset.json": DATASET,
    "data/own_images/lesions/test.parquet": "x",
    "data/downloads/scans/receipt.json": RECEIPT,
    "data/downloads/scans/a.zip": "x",
    "data/downloads/scans/.a.extracted.json": UNPACKED,
    "data/downloads/scans/a/image.png": "x",
    "data/downloads/downloads/dataset.json": DATASET,
    "data/downloads/downloads/train.parquet": "x",
    "data/downloads/downloads/downloads/receipt.json": RECEIPT,
    "results/own_images/cells/lesions/vit/sgd/eps-2/metrics.json": CELL,
    "results/own_images/report.html": "x",
    "logs/slurm/train_heads/digits/17.log": "x",
}
EMPTY = ("data/empty", "results/empty", "results/my_paper/empty")


def fill(root: Path, files: Mapping[str, str]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)


def clean(root: Path, *words: str) -> str:
    """Runs `make clean` and returns its output."""
    command = [sys.executable, str(REPOSITORY / "tools/clean.py"), *words]
    return subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout


def files_in(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("words", "kept", "gone"),
    [
        ((), {*KEPT, *OF_OTHERS}, "cells"),
        (("--all",), set(KEPT), "own_images/cells"),
    ],
)
def test_clean_removes_the_default_study_or_all_and_keeps_releases_and_other_files(
    tmp_path: Path, words: tuple[str, ...], kept: set[str], gone: str
) -> None:
    fill(tmp_path, {**KEPT, **OF_THE_DEFAULT_STUDY, **OF_OTHERS})
    for name in EMPTY:
        (tmp_path / name).mkdir(parents=True)
    clean(tmp_path, *words)
    assert all((tmp_path / name).is_dir() for name in EMPTY)
    assert files_in(tmp_path) == kept
    assert not (tmp_path / "results" / gone).exists()


OTHER_STUDIES: list[dict[str, Any]] = [
    {".snakemake/dpprobe/a-0.json": {"_run": {"study": {"results_dir": "results", "study": "w"}}}},
    {"results/tracking/_study.json": {"format": "dpprobe-tracking", "study": "w"}},
    {
        "results/cells/photos/pixels/sgd/eps-2/metrics.json": {
            "format": CELL_FORMAT,
            "cell": {"dataset": "photos"},
        }
    },
]


@pytest.mark.parametrize("other", OTHER_STUDIES)
def test_clean_leaves_the_results_of_a_study_without_results_dir(
    tmp_path: Path, other: Mapping[str, object]
) -> None:
    files = {name: json.dumps(content) for name, content in other.items()}
    fill(tmp_path, {**OF_THE_DEFAULT_STUDY, **files})
    before = {name for name in files_in(tmp_path) if not name.startswith("data/")}
    said = clean(tmp_path)
    assert files_in(tmp_path) == before
    assert "results stays: " in said
    assert "study w" in said or "a study of photos" in said
    clean(tmp_path, "--all")
    assert not any(name.startswith("results/cells") for name in files_in(tmp_path))


@pytest.mark.parametrize("words", [(), ("--all",)])
@pytest.mark.parametrize("name", ["cells", "features", "mlartifacts", "tables", "tracking"])
def test_a_study_called_as_what_studies_write_keeps_its_releases(
    tmp_path: Path, name: str, words: tuple[str, ...]
) -> None:
    """Earlier versions accepted these names, which are also subfolders of the default study."""
    release = f"results/{name}/releases/first/bundle.json"
    cell = f"results/{name}/cells/{name}/vit/sgd/eps-2/metrics.json"
    fill(tmp_path, {release: "x", cell: CELL, **OF_THE_DEFAULT_STUDY})
    clean(tmp_path, *words)
    assert (tmp_path / release).is_file()
    assert (tmp_path / cell).is_file() == (not words)


def test_a_run_that_made_no_record_is_known_by_its_snapshot(tmp_path: Path) -> None:
    log = "results/mine/logs/prepare_data/scans.log"
    snapshot = {"_run": {"study": {"results_dir": "results/mine"}}}
    fill(tmp_path, {log: "x"})
    assert "1 files that are not certainly dpprobe's" in clean(tmp_path, "--all")
    fill(tmp_path, {".snakemake/dpprobe/a-0.json": json.dumps(snapshot)})
    assert "stayed" not in clean(tmp_path, "--all")
    assert not files_in(tmp_path)


@pytest.mark.parametrize("inner", ["data", "data/linked", "results", "results/cells"])
def test_cleaning_does_not_follow_links(tmp_path: Path, inner: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    files = {**OF_THE_DEFAULT_STUDY, **OF_OTHERS}
    fill(elsewhere, {f"{inner}/{name.partition('/')[2]}": text for name, text in files.items()})
    before = files_in(elsewhere)
    place = tmp_path / "here"
    (place / inner).parent.mkdir(parents=True)
    (place / inner).symlink_to(elsewhere / inner)
    clean(place)
    clean(place, "--all")
    assert files_in(elsewhere) == before
    assert (place / inner).is_symlink()


def test_all_that_rules_write_is_known() -> None:
    script = load_script(REPOSITORY / "tools/clean.py")
    text = "".join(path.read_text() for path in (REPOSITORY / "workflow").rglob("*.smk"))
    named = set(re.findall(r"<results>/([a-z_]+(?:\.html)?)\b", text)) - {"releases"}
    constants = {AUDITS, FAIRNESS, IMBALANCE, LAYERS, LONG_TAIL, NETWORKS_FOLDER, SEARCHES}
    named |= {analysis.folder for analysis in load_analyses() if analysis.measurement}
    assert len(named) > 15
    assert named | constants <= WRITTEN
    config = (REPOSITORY / "config.yaml").read_text()
    assert set(script.DATASETS) <= set(re.findall(r"^  (\w+):$", config, re.M))
    assert f"\nstudy: {script.STUDY}\n" in config
    # the records by which the script recognises a study
    formats = {CELL_FORMAT, MANIFEST_FORMAT, plan_file.FORMAT, noise_calibration.FORMAT}
    assert set(script.MARKS.values()) == formats
    receipt = download_receipt.Receipt.model_fields["format"].default
    assert (table.FORMAT, receipt) == ("dpprobe-dataset", "dpprobe-download")
