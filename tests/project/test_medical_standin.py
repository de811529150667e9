"""The stand-in for CheXpert follows the rules of CheXpert's catalog entry."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from PIL import Image

from dpprobe.study.study_checks import check_study
from dpprobe.study.study_file import load_study
from tests.conftest import REPOSITORY
from tests.support.programs import run_program

ROWS = 400


@pytest.fixture(scope="module")
def standin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a stand-in folder made of small pictures, light at the top and dark at the bottom."""
    root = tmp_path_factory.mktemp("standin")
    pictures = []
    for row in range(ROWS):
        pixels = np.full((8, 8, 3), 40, np.uint8)
        pixels[:4] = 180 + row % 40
        Image.fromarray(pixels).save(stream := io.BytesIO(), "PNG")
        pictures.append({"bytes": stream.getvalue(), "path": None})
    table = pa.table({"image": pictures, "label": [row % 10 for row in range(ROWS)]})
    pq.write_table(table, root / "cifar.parquet")
    script, images = REPOSITORY / "bench/medical_standin.py", root / "cifar.parquet"
    run_program([sys.executable, script, "--images", images, "--folder", root / "chexpert"])
    return root / "chexpert"


@pytest.mark.parametrize("name", ["medical_standin", "medical_fairness"])
def test_the_catalog_reads_it(standin: Path, name: str) -> None:
    values: dict[str, Any] = yaml.safe_load((REPOSITORY / f"config/{name}.yaml").read_text())
    values["datasets"] = {"chexpert": values["datasets"]["chexpert"] | {"root": str(standin)}}
    values["backbones"] = {"pixels": {"family": "pixels"}}
    del values["methods"]["sgd"]  # the batches of sgd are larger than this dataset
    study = load_study(values)
    check_study(study)
    dataset = study.datasets["chexpert"]
    assert study.dataset_unit("chexpert") == "patient"
    assert set(dataset.list_groups()) == {"group_age", "group_sex", "group_race"}  # type: ignore[attr-defined]
