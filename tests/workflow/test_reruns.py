"""A change of the study recomputes only the affected cells."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpprobe.files.json_files import read_json
from dpprobe.results.cell_files import HISTORY_FILE, METRICS_FILE, PREDICTIONS_FILE, WEIGHTS_FILE

from .conftest import SMALL, Template, Workspace, contents, copy_code, count_rules


@pytest.fixture(scope="module")
def trained(module_workspace: Callable[[str], Workspace], template: Template) -> Workspace:
    """Returns a small study with trained heads."""
    workspace = module_workspace("reruns")
    template(workspace, SMALL, "heads")
    return workspace


def record(cell: Path) -> dict[str, Any]:
    return read_json(cell / METRICS_FILE)


def train_log(workspace: Workspace, epsilon: str) -> str:
    folder = workspace.directory / "results/logs/train_heads/digits/pixels"
    return (folder / f"eps-{epsilon}.log").read_text()


def test_an_added_method_retrains_no_other(trained: Workspace, small: dict[str, Any]) -> None:
    before = contents(trained.cell("sgd", "2"))
    small["methods"]["full"] = {"head": "sgd", "batch_size": "full", "steps": 3, "epochs": None}
    trained.run(small, "heads")
    assert contents(trained.cell("sgd", "2")) == before
    assert record(trained.cell("full", "2"))["cell"]["method"] == "full"
    log = train_log(trained, "2")
    assert "sgd: reused" in log
    assert "full: training seeds 0, 1" in log
    assert "Nothing to be done" in trained.run(small, "heads").stdout


def test_an_added_seed_retrains_no_other(trained: Workspace, small: dict[str, Any]) -> None:
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


def test_figures_of_a_removed_backbone_go_and_its_features_stay(
    trained: Workspace, small: dict[str, Any]
) -> None:
    results = trained.directory / "results"
    figures = [results / f"figures/digits/tsne_{name}.png" for name in ("other", "pixels")]
    small["backbones"]["other"] = {"family": "pixels", "size": 4}
    trained.run(small, "results/figures/digits/tsne_other.png")
    assert figures[0].exists()
    del small["backbones"]["other"]
    said = trained.run(small, "results/figures/digits/tsne_pixels.png").stdout
    assert "that the study no longer has" in said
    assert [figure.exists() for figure in figures] == [False, True]
    assert (results / "features/digits/other/test/manifest.json").exists()


def test_adding_an_epsilon_starts_no_other_job(trained: Workspace, small: dict[str, Any]) -> None:
    trained.run(small, "heads")
    small["epsilons"] = [2, 4]
    planned = trained.planned(small, "heads")
    assert planned["train_heads"] == planned["calibrate"] == 1
    assert set(planned) == {"train_heads", "calibrate", "heads"}
    trained.run(small, "heads")
    assert record(trained.cell("sgd", "4"))["realised_epsilon"] <= 4


def edit_accuracy(path: Path) -> None:
    edited = re.sub(r'"accuracy": 0\.\d+', '"accuracy": 0.999', path.read_text())
    path.write_text(edited)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


OF_CELL = "are made again, results/cells/digits/pixels/sgd/eps-2"
LOST = f"missing and {OF_CELL}/{{}}"
MISSING = "Missing output files: results/cells/digits/pixels/sgd/eps-2/metrics.json"
DAMAGED = f"dpprobe: damaged cells {OF_CELL}/metrics.json"
DAMAGES: tuple[tuple[str, Callable[[Path], None], str], ...] = (
    (METRICS_FILE, Path.unlink, MISSING),
    *((name, Path.unlink, LOST.format(name)) for name in (WEIGHTS_FILE, HISTORY_FILE)),
    (METRICS_FILE, edit_accuracy, f"{DAMAGED} first: changed after it was written"),
    (METRICS_FILE, cut_short, f"{DAMAGED} first: not valid JSON"),
    (WEIGHTS_FILE, cut_short, f"{DAMAGED} first: heads.safetensors has"),
    (PREDICTIONS_FILE, cut_short, f"{DAMAGED} first: predictions.parquet has"),
)


def test_a_plain_run_makes_lost_files_edited_records_and_files_of_another_size_again(
    trained: Workspace, small: dict[str, Any]
) -> None:
    """Rules name two files of a cell; a run checks the other files at its start."""
    trained.run(small, "heads")
    cell = trained.cell("sgd", "2")
    before = without_time(cell)
    for name, damage, told in DAMAGES:
        content = (cell / name).read_bytes()
        damage(cell / name)
        assert not (cell / name).exists() or (cell / name).read_bytes() != content
        output = trained.run(small, "heads").stdout
        assert told in output
        assert count_rules(output)["train_heads"] == 1
        assert without_time(cell) == before
    assert "Nothing to be done" in trained.run(small, "heads").stdout


def timeless(record_bytes: bytes) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(record_bytes)
    return {key: value for key, value in values.items() if key not in ("seconds", "record_sha256")}


def without_time(cell: Path) -> dict[str, Any]:
    """Returns the contents of a cell's files, without values that differ between equal runs."""
    found = contents(cell)
    return {**found, METRICS_FILE: timeless(found[METRICS_FILE])}


def test_a_record_of_another_cell_is_made_again(trained: Workspace, small: dict[str, Any]) -> None:
    small["epsilons"] = [2, 4]
    trained.run(small, "heads")
    first, second = (trained.cell("sgd", epsilon) / METRICS_FILE for epsilon in ("2", "4"))
    before = [without_time(path.parent) for path in (first, second)]
    texts = first.read_bytes(), second.read_bytes()
    first.write_bytes(texts[1])
    second.write_bytes(texts[0])
    assert "dpprobe: damaged cells are made again" in trained.run(small, "heads").stdout
    assert [without_time(path.parent) for path in (first, second)] == before


def test_deleted_damaged_files_are_remade_with_equal_bytes(
    trained: Workspace, small: dict[str, Any]
) -> None:
    small["epsilons"] = [2, 4]
    trained.run(small, "heads")
    here = trained.directory
    places = [
        trained.cell("sgd", "2") / PREDICTIONS_FILE,
        trained.cell("sgd", "4") / METRICS_FILE,
        here / "results/features/digits/pixels/test/shard-00000-of-00001.h5",
        here / "results/features/digits/pixels/train/manifest.json",
        here / "results/calibration/digits/eps-2.json",
        here / "data/digits/train.parquet",
    ]
    before = {path: path.read_bytes() for path in places}
    for path in places:
        content = bytearray(before[path])
        content[len(content) // 2] = ord("#")
        path.write_bytes(bytes(content))
    assert trained.dpprobe("doctor").returncode == 1
    told = trained.dpprobe("doctor", "--fix")
    assert told.returncode == 0, told.stdout
    assert told.stdout.count("; deleted; run `dpprobe run ") == len(places)
    assert not any(path.exists() for path in places)
    # Snakemake makes a missing table only if a target needs it
    trained.run(small, "heads", "data/digits/train.parquet")
    for path in places:
        if path.name == METRICS_FILE:
            assert timeless(path.read_bytes()) == timeless(before[path])
        else:
            assert path.read_bytes() == before[path], path
    found = trained.dpprobe("doctor")
    assert found.returncode == 0, found.stdout


@pytest.fixture
def clone(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a copy of the code that runs use, with scripts newer than all results."""
    folder = copy_code(repository, tmp_path / "clone")
    later = time.time() + 60
    for script in (folder / "scripts").iterdir():
        os.utime(script, (later, later))
    monkeypatch.setenv("PYTHONPATH", str(folder / "src"))
    return folder


def test_a_raised_version_reruns_its_stage_but_a_newer_script_does_not(
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
