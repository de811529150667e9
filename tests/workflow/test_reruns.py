"""What a change of the study costs: only the cells it touches."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpprobe.results.cell_record import HISTORY_FILE, METRICS_FILE, WEIGHTS_FILE

from .conftest import SMALL, Template, Workspace, count_rules

# All that a run reads of the repository.
CODE = ("Snakefile", "workflow", "scripts", "profiles", "envs", "resources", "src")


@pytest.fixture(scope="module")
def trained(module_workspace: Callable[[str], Workspace], template: Template) -> Workspace:
    """A small study whose heads are trained."""
    workspace = module_workspace("reruns")
    template(workspace, SMALL, "heads")
    return workspace


def record(cell: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((cell / "metrics.json").read_text())
    return values


def contents(cell: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(cell.iterdir())}


def train_log(workspace: Workspace, epsilon: str) -> str:
    folder = workspace.directory / "results/logs/train_heads/digits/pixels"
    return (folder / f"eps-{epsilon}.log").read_text()


def test_adding_a_method_trains_that_method_alone(
    trained: Workspace, small: dict[str, Any]
) -> None:
    before = contents(trained.cell("sgd", "2"))
    small["methods"]["full"] = {"head": "sgd", "batch_size": "full", "steps": 3, "epochs": None}
    trained.run(small, "heads")
    assert contents(trained.cell("sgd", "2")) == before
    assert record(trained.cell("full", "2"))["cell"]["method"] == "full"
    log = train_log(trained, "2")
    assert "sgd: kept" in log
    assert "full: training seeds 0, 1" in log
    assert "Nothing to be done" in trained.run(small, "heads").stdout


def test_adding_a_seed_trains_that_seed_alone(trained: Workspace, small: dict[str, Any]) -> None:
    trained.run(small, "heads")
    before = record(trained.cell("sgd", "2"))
    small["seeds"] = 3
    trained.run(small, "heads")
    after = record(trained.cell("sgd", "2"))
    assert [seed["index"] for seed in after["seeds"]] == [0, 1, 2]
    assert after["seeds"][:2] == before["seeds"]
    assert after["fingerprint"] == before["fingerprint"]
    assert after["content_hash"] != before["content_hash"]
    assert "training seeds 2" in train_log(trained, "2")
    small["seeds"] = 2
    trained.run(small, "heads")
    assert record(trained.cell("sgd", "2"))["seeds"] == before["seeds"]


def test_adding_an_epsilon_starts_no_other_job(trained: Workspace, small: dict[str, Any]) -> None:
    trained.run(small, "heads")
    small["epsilons"] = [2, 4]
    planned = trained.planned(small, "heads")
    assert planned["train_heads"] == planned["calibrate"] == 1
    assert set(planned) == {"train_heads", "calibrate", "heads"}
    trained.run(small, "heads")
    assert record(trained.cell("sgd", "4"))["realised_epsilon"] <= 4


def test_changing_a_hyperparameter_retrains_that_cell(
    trained: Workspace, small: dict[str, Any]
) -> None:
    trained.run(small, "heads")
    before = record(trained.cell("sgd", "2"))
    small["methods"]["sgd"]["learning_rate"] = 0.5
    trained.run(small, "heads")
    after = record(trained.cell("sgd", "2"))
    assert after["fingerprint"] != before["fingerprint"]
    assert after["options"]["learning_rate"] == 0.5


def test_a_damaged_cell_is_trained_again(trained: Workspace, small: dict[str, Any]) -> None:
    trained.run(small, "heads")
    cell = trained.cell("sgd", "2")
    before = contents(cell)
    damaged = bytearray((cell / "heads.safetensors").read_bytes())
    damaged[-1] ^= 1
    (cell / "heads.safetensors").write_bytes(bytes(damaged))
    (trained.directory / "results/features/digits/pixels/train/manifest.json").unlink()
    trained.run(small, "heads", "results/features/digits/pixels/train/manifest.json")
    after = contents(cell)
    assert after["heads.safetensors"] == before["heads.safetensors"]


@pytest.mark.parametrize("name", [METRICS_FILE, WEIGHTS_FILE, HISTORY_FILE])
def test_a_lost_file_of_a_cell_is_made_again(
    trained: Workspace, small: dict[str, Any], name: str
) -> None:
    """Snakemake knows of two files of a cell, and asks for none of them once others are made."""
    trained.run(small, "heads")
    cell = trained.cell("sgd", "2")
    before = contents(cell)
    (cell / name).unlink()
    output = trained.run(small, "heads").stdout
    assert f"missing and are made again, results/cells/digits/pixels/sgd/eps-2/{name}" in output
    assert count_rules(output)["train_heads"] == 1
    assert contents(cell).keys() == before.keys()
    assert contents(cell)[WEIGHTS_FILE] == before[WEIGHTS_FILE]
    assert "Nothing to be done" in trained.run(small, "heads").stdout


@pytest.fixture
def clone(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the code, with scripts younger than any result; runs from its Snakefile use it."""
    folder = tmp_path / "clone"
    for name in CODE:
        source = repository / name
        if source.is_dir():
            shutil.copytree(source, folder / name)
        else:
            folder.mkdir(exist_ok=True)
            shutil.copy(source, folder)
    later = time.time() + 60
    for script in (folder / "scripts").iterdir():
        os.utime(script, (later, later))
    monkeypatch.setenv("PYTHONPATH", str(folder / "src"))
    return folder


def test_a_younger_script_redoes_nothing_and_a_raised_version_its_stage(
    trained: Workspace, small: dict[str, Any], clone: Path
) -> None:
    trained.run(small, "heads")
    cloned = Workspace(repository=clone, directory=trained.directory)
    assert "Nothing to be done" in cloned.run(small, "--dry-run", "heads").stdout
    assert cloned.planned(small, "heads", "--rerun-triggers", "code"), "the scripts are not younger"
    versions = clone / "src/dpprobe/versions.py"
    raised, count = re.subn(
        r'"training": (\d+)', lambda match: f'"training": {int(match[1]) + 1}', versions.read_text()
    )
    assert count == 1
    versions.write_text(raised)
    assert set(cloned.planned(small, "heads")) == {"train_heads", "heads"}
