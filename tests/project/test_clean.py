"""`make clean` removes what its help says, and never a release, a ledger or a person's files."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dpprobe.analysis.law_record import LAYERS
from dpprobe.analysis.long_tail_record import LONG_TAIL
from dpprobe.audit.record import AUDITS
from dpprobe.fairness.imbalance_record import IMBALANCE
from dpprobe.fairness.record import FAIRNESS
from dpprobe.release.ledger import LEDGER_FILE
from dpprobe.results.network_record import NETWORKS_FOLDER
from dpprobe.results.search_record import SEARCHES

KEPT = (
    f"data/digits/{LEDGER_FILE}",
    "data/photographs/a.png",
    "data/mine/train.parquet",
    "images/lesions/benign/a.png",
    "results/releases/first/bundle.json",
    "results/own_images/releases/first/bundle.json",
    "results/notes.txt",
    "weights/vit.safetensors",
)
OF_THE_DEFAULT_STUDY = (
    "data/digits/dataset.json",
    "data/digits/train.parquet",
    "results/cells/digits/metrics.json",
    "results/mlflow.db",
    "results/report.html",
)
OF_OTHERS = (
    ".snakemake/metadata/x",
    "data/own_images/lesions/dataset.json",
    "data/own_images/lesions/test.parquet",
    "data/downloads/scans/receipt.json",
    "results/own_images/cells/lesions/metrics.json",
    "results/own_images/report.html",
)


def cleaned(root: Path, repository: Path, *words: str) -> set[str]:
    """Makes all of the files, cleans, and returns those that are left."""
    for name in (*KEPT, *OF_THE_DEFAULT_STUDY, *OF_OTHERS):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")
    subprocess.run([sys.executable, repository / "envs/clean.py", *words], cwd=root, check=True)
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


def test_clean_removes_the_default_study_alone(tmp_path: Path, repository: Path) -> None:
    assert cleaned(tmp_path, repository) == {*KEPT, *OF_OTHERS}
    assert not (tmp_path / "results/cells").exists()


def test_clean_all_keeps_releases_ledgers_and_other_files(tmp_path: Path, repository: Path) -> None:
    assert cleaned(tmp_path, repository, "--all") == set(KEPT)
    assert not (tmp_path / "results/own_images/cells").exists()


def test_a_link_to_a_folder_elsewhere_is_not_followed(tmp_path: Path, repository: Path) -> None:
    (tmp_path / "elsewhere/cells").mkdir(parents=True)
    (tmp_path / "results").mkdir()
    (tmp_path / "results/cells").symlink_to(tmp_path / "elsewhere/cells")
    cleaned(tmp_path, repository)
    assert (tmp_path / "elsewhere/cells").is_dir()


def test_all_that_rules_write_is_known(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(repository / "envs")
    clean = importlib.import_module("clean")

    text = "".join(path.read_text() for path in (repository / "workflow/rules").glob("*.smk"))
    named = set(re.findall(r"<results>/([a-z_]+(?:\.html)?)\b", text)) - {"releases"}
    constants = {AUDITS, FAIRNESS, IMBALANCE, LAYERS, LONG_TAIL, NETWORKS_FOLDER, SEARCHES}
    assert len(named) > 15
    assert named | constants <= clean.WRITTEN
    assert set(clean.DEFAULT_DATASETS) <= set(
        re.findall(r"^  (\w+):$", (repository / "config.yaml").read_text(), re.M)
    )
