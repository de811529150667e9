"""A folder of one's own images through the study that the README names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import yaml
from PIL import Image

from .conftest import Workspace


def write_images(folder: Path, rows: int) -> None:
    """Two classes that differ in the direction of their stripes; sizes and modes vary."""
    generator = np.random.default_rng(0)
    for name in ("across", "along"):
        (folder / name / "deeper").mkdir(parents=True)
        for row in range(rows):
            side = int(generator.integers(24, 60))
            stripes = (np.arange(side) // 4 % 2 * 180).astype(np.float64)
            image = np.tile(stripes, (side, 1)) + generator.uniform(0, 70, size=(side, side))
            pixels = (image if name == "along" else image.T).astype(np.uint8)
            mode = "RGB" if row % 2 else "L"
            path = folder / name / ("deeper" if row % 3 else ".") / f"{row:03d}.png"
            Image.fromarray(pixels).convert(mode).save(path)


def test_a_folder_of_images(workspace: Workspace, repository: Path) -> None:
    study: dict[str, Any] = yaml.safe_load((repository / "config/own_images.yaml").read_text())
    write_images(workspace.directory / "images/lesions", rows=60)
    study |= {"epsilons": [8], "seeds": 2}
    workspace.run(study)
    results = workspace.directory / study["results_dir"]
    table = pq.read_table(results / "summary/lesions.parquet").to_pandas()
    assert set(table["train_rows"]) == {96}
    assert table[table["method"] == "nonprivate"]["accuracy"].min() > 0.9
    assert "Nothing to be done" in workspace.run(study).stdout

    deep = workspace.directory / "images/lesions/along/deeper/001.png"
    Image.open(deep).transpose(Image.Transpose.ROTATE_90).save(deep)
    planned = workspace.planned(study)
    assert planned["prepare_data"] == 1, "an image replaced in place is noticed"
