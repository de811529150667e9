"""A small study like those of the papers makes every table and figure."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dpprobe.files.json_files import read_json

from .conftest import Workspace

pytestmark = pytest.mark.slow

CLIP = "results/features/pets/clip/text.safetensors"
STUDY: dict[str, Any] = {
    "study": "pets",
    "datasets": {"pets": {"source": "imagefolder", "path": "pets", "prompts": "photo"}},
    "backbones": {"clip": {"family": "open_clip", "model": "ViT-S-32-alt", "pretrained": False}},
    "methods": {
        "small": {"head": "lamb", "batch_size": 8, "epochs": 2},
        "large": {"head": "lamb", "batch_size": 16, "epochs": 2},
        "full": {"head": "momentum", "epochs": 2},
        "ceiling": {"head": "nonprivate"},
    },
    "epsilons": [0.5],
    "delta": 1e-3,
    "seeds": 2,
    "few_shot": {"shots": [1, 4, "full"], "seeds": 2},
    "papers": {"datasets": {"pets": "cifar10"}},
    # each extraction first runs whole batches; small ones suffice for these few images
    "features": {"dtype": "float32", "batch_size": 4},
}


def _pets(folder: Path) -> None:
    """Writes noise images that are dark for one class and light for the other."""
    generator = np.random.default_rng(0)
    for split, count in (("train", 20), ("test", 10)):
        for name, level in (("cat", 60), ("dog", 160)):
            place = folder / split / name
            place.mkdir(parents=True)
            for index in range(count):
                pixels = generator.integers(level - 50, level + 50, (40, 40, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(place / f"{index}.png")


@pytest.fixture(scope="module")
def compared(module_workspace: Any) -> Workspace:
    """Returns the study with features and zero-shot results."""
    workspace: Workspace = module_workspace("papers")
    _pets(workspace.directory / "pets")
    workspace.run(STUDY, "zero_shot")
    return workspace


@pytest.fixture(scope="module")
def finished(compared: Workspace) -> Workspace:
    compared.run(STUDY, "zero_shot", "few_shot", "paper_tables", "figures", "tracking")
    return compared


def test_a_head_starts_at_the_text_embeddings(compared: Workspace) -> None:
    """`init_file` names the text rule's output; no other option is needed."""
    study = STUDY | {"backbones": {"clip": STUDY["backbones"]["clip"]}}
    start = {"head": "sgd", "batch_size": "full", "steps": 1, "init": "file", "init_file": CLIP}
    study["methods"] = {"start": start | {"learning_rate": 1e-6, "normalize": "l2"}}
    del study["few_shot"]
    compared.run(study, "heads", "zero_shot")
    results = compared.directory / "results"
    cell = read_json(results / "cells/pets/clip/start/eps-0.5/metrics.json")
    zero = read_json(results / "zero_shot/pets/clip/metrics.json")
    # After a tiny step the head equals the zero-shot classifier.
    assert cell["seeds"][0]["accuracy"] == zero["metrics"]["accuracy"]


def test_the_papers_tables_and_figures_hold_what_was_run(finished: Workspace) -> None:
    folder = finished.directory / "results/tables/papers"
    names = {path.stem for path in folder.iterdir()}
    assert names == {
        "foundation_features_table2",
        "foundation_features_table3",
        *(f"large_scale_transfer_table{number}" for number in (1, 2, 3, 4)),
        "large_scale_transfer_figure1b",
        "features_second_order_headline",
        "references",
    }
    assert len(list(folder.iterdir())) == 3 * (len(names) - 1) + 1
    with (folder / "foundation_features_table2.csv").open(newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["Data"] == "CIFAR-10"]
    assert rows[0]["CNN"] == "73.3"
    assert float(rows[0]["clip + small"]) >= 0
    assert rows[1]["clip + small"] == ""
    with (folder / "foundation_features_table3.csv").open(newline="") as stream:
        shots = list(csv.DictReader(stream))
    assert [row["Backbone"] for row in shots] == ["clip"]
    assert all(shots[0][column] for column in ("Zero-shot", "1-shot", "4-shot", "Full"))
    text = (folder / "large_scale_transfer_table2.md").read_text()
    assert "2^3" in text
    assert "dpprobe, large … small" in text
    figures = finished.directory / "results/figures"
    made = sorted(path.relative_to(figures).as_posix() for path in figures.rglob("*.*"))
    names = {f"pets/{name}" for name in ("accuracy", "by_batch_size", "time_cost", "tsne_clip")}
    assert made == sorted(f"{name}.{kind}" for name in names for kind in ("png", "svg"))


def test_a_rerun_plans_no_jobs_until_a_result_file_is_deleted(finished: Workspace) -> None:
    targets = ("zero_shot", "few_shot", "paper_tables", "figures")
    assert not finished.planned(STUDY, *targets)
    (finished.directory / "results/zero_shot/pets/clip/metrics.json").unlink()
    planned = finished.planned(STUDY, *targets)
    assert set(planned) - {"paper_tables", "zero_shot"} == {
        "classify_zero_shot",
        "write_paper_tables",
    }
