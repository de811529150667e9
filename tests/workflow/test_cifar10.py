"""Part of the real CIFAR-10 runs through a real MobileNetV2, from local copies to the summary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from dpprobe.files.json_files import read_json

from .conftest import Workspace


@pytest.mark.slow
def test_a_slice_of_cifar10(workspace: Workspace, repository: Path, copies: Path) -> None:
    study: dict[str, Any] = yaml.safe_load((repository / "config/cifar10_sgd.yaml").read_text())
    study["datasets"]["cifar10"]["limit"] = {"train": 800, "test": 400}
    study |= {"epsilons": [2, "inf"], "seeds": 2, "results_dir": "results", "data_dir": "data"}
    study["features"]["shards"] = 2
    workspace.run(study, "summaries", files=[copies])

    # records describe the copies, not the catalog's sources
    table = read_json(workspace.directory / "data/cifar10/dataset.json")
    given = yaml.safe_load(copies.read_text())["copies"]
    assert (table["catalog"], table["source"]["source"]) == ("cifar10", "parquet")
    assert table["source"]["train"] == given["datasets"]["cifar10"]["train"]
    results = workspace.directory / "results"
    manifest = read_json(results / "features/cifar10/mobilenetv2/train/manifest.json")
    assert (manifest["rows"], manifest["dimension"]) == (800, 1280)
    assert manifest["weights_sha256"] == given["backbones"]["mobilenetv2"]["checkpoint_sha256"]
    assert manifest["backbone_options"]["model"] == "mobilenetv2_100"
    rows = pq.read_table(results / "summary/cifar10.parquet").to_pandas()
    means = rows.groupby(["method", "epsilon_token"])["accuracy"].mean()
    # 800 rows reach less than 50,000 (63-67% private, 77% not; here 43 and 68), but more than 10%
    assert means["nonprivate", "inf"] > 0.62
    assert 0.35 < means["sgd", "2"] < means["sgd", "inf"]
    assert means["sgd", "inf"] < means["nonprivate", "inf"] + 0.01
    statement = read_json(results / "cells/cifar10/mobilenetv2/sgd/eps-2/privacy.json")
    assert statement["n"] == 800
    assert statement["mechanisms"][0]["sample_rate"] == 32 / 800
    assert statement["mechanisms"][0]["count"] == 500  # 20 epochs of 25 steps
    assert statement["public_data"]["weights_sha256"] == manifest["weights_sha256"]
