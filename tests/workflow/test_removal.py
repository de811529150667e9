"""Training without near-duplicates of public images: rows, cells, reruns and a switch back."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from .conftest import PREPARED, Template, Workspace

EXACT, CHANGED = 30, 10
FIGURES = [f"results/figures/{name}/overlap_pixels.png" for name in ("digits", "digits_all_rows")]


def planted(path: Path) -> dict[str, Any]:
    """Writes public images: copies of some digits, slightly changed copies, and noise."""
    digits = np.rint(load_digits().images * 255 / 16).astype(np.uint8)
    copies, changed = digits[:EXACT].copy(), digits[EXACT : EXACT + CHANGED].copy()
    changed[:, 0, 0] += 3  # a corner that is black in nearly all digits
    noise = np.random.default_rng(1).integers(0, 256, (200, 8, 8), dtype=np.uint8)
    images = []
    for pixels in np.concatenate([copies, changed, noise]):
        content = io.BytesIO()
        Image.fromarray(pixels).save(content, "png")
        images.append({"bytes": content.getvalue(), "path": None})
    labels = np.arange(len(images)) % 10
    pq.write_table(pa.table({"image": images, "label": labels}), path)
    return {"source": "parquet", "train": path.name, "class_names": list("abcdefghij")}


@pytest.fixture
def small(small: dict[str, Any]) -> dict[str, Any]:
    """Two shards a split: those without a removed row are copied."""
    return small | {"features": {"shards": 2}}


def rows(workspace: Workspace, dataset: str, split: str) -> dict[str, bytes]:
    table = pq.read_table(workspace.directory / f"data/{dataset}/{split}.parquet")
    return dict(zip(table["id"].to_pylist(), table["image_sha256"].to_pylist(), strict=True))


def logs(workspace: Workspace, dataset: str) -> list[Path]:
    """The logs of the extraction of a dataset's four shards."""
    paths = [*(workspace.directory / "results/logs/extract_features" / dataset).rglob("*.log")]
    assert len(paths) == 4
    return paths


def is_copied(log: Path) -> bool:
    return "the same rows, copied" in log.read_text()


def statement(workspace: Workspace) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((workspace.cell("sgd", "2") / "privacy.json").read_text())
    return content


def test_a_study_trains_without_near_duplicates(
    workspace: Workspace, small: dict[str, Any], template: Template
) -> None:
    template(workspace, small, *PREPARED)
    seen = planted(workspace.directory / "seen.parquet")
    before = {split: rows(workspace, "digits", split) for split in ("train", "test")}
    small |= {"public_datasets": {"seen": seen}}
    small["overlap"] = {"public": ["seen"], "threshold": 0.9999, "remove": "pixels"}
    workspace.run(small, "heads", "overlaps", *FIGURES)

    # The planted rows are gone, from both splits, and no others.
    planted_ids = {f"digits-{row:04d}" for row in range(EXACT + CHANGED)}
    counts = {}
    for split, all_rows in before.items():
        left = rows(workspace, "digits", split)
        gone = all_rows.keys() - left.keys()
        assert left == {name: all_rows[name] for name in all_rows if name not in gone}
        assert rows(workspace, "digits_all_rows", split) == all_rows
        counts[split] = len(gone)
        assert len(gone) == sum(int(name.split("-")[-1]) < EXACT + CHANGED for name in all_rows)
        assert gone
    assert sum(counts.values()) == EXACT + CHANGED == len(planted_ids)
    n = len(before["train"]) - counts["train"]
    stated = statement(workspace)
    assert stated["n"] == n
    check = stated["public_data"]["near_duplicate_check"]
    assert [check[split]["near"] for split in before] == [0, 0]
    removed = check["removed"]
    assert [removed[split]["near"] for split in before] == [*counts.values()]
    assert removed["train"]["exact"] + removed["test"]["exact"] == EXACT
    assert any(line.startswith("which rows n counts") for line in stated["public"])
    metrics = json.loads((workspace.cell("sgd", "2") / "metrics.json").read_text())
    assert (metrics["n"], metrics["rows"]["test"]) == (n, len(before["test"]) - counts["test"])
    assert all(map(is_copied, logs(workspace, "digits_all_rows")))  # nothing was extracted twice

    # A threshold that changes no row keeps every head, and passes no image through a backbone.
    heads = workspace.cell("sgd", "2") / "heads.safetensors"
    kept = heads.read_bytes()
    small["overlap"]["threshold"] = 0.9998
    assert workspace.planned(small, "heads")["extract_features"] == 0
    workspace.run(small, "heads")
    assert heads.read_bytes() == kept
    assert statement(workspace)["public_data"]["near_duplicate_check"]["threshold"] == 0.9998
    assert "Nothing to be done" in workspace.run(small, "heads", "overlaps").stdout

    # One that leaves the changed copies makes other cells, of another n.
    small["overlap"]["threshold"] = 1.0
    workspace.run(small, "heads")
    assert heads.read_bytes() != kept
    assert statement(workspace)["n"] > n

    # Without removal all rows are there again, and again none is extracted.
    del small["overlap"]["remove"]
    workspace.run(small, "heads")
    assert statement(workspace)["n"] == len(before["train"])
    assert rows(workspace, "digits", "train") == before["train"]
    assert all(map(is_copied, logs(workspace, "digits")))


@pytest.mark.parametrize(
    ("overlap", "message"),
    [
        ({"remove": "other"}, "overlap.remove: 'other' is not in this study"),
        ({"remove": "pixels"}, "overlap.remove: digits_all_rows would be the name of all rows"),
    ],
)
def test_faults_are_told_at_the_start(
    workspace: Workspace, small: dict[str, Any], overlap: dict[str, Any], message: str
) -> None:
    small["public_datasets"] = {"digits_all_rows": planted(workspace.directory / "seen.parquet")}
    small["overlap"] = {"public": ["digits_all_rows"], **overlap}
    result = workspace.run(small, "heads", "--dry-run", check=False)
    assert result.returncode != 0
    assert message in result.stdout
