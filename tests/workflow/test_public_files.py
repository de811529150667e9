"""Heads that start from public files, which the workflow makes where it can."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from .conftest import Workspace


def test_a_public_dataset_lends_its_covariance(workspace: Workspace, small: dict[str, Any]) -> None:
    digits = {"source": "sklearn", "name": "digits", "test_fraction": 0.5, "split_seed": 7}
    manifest = "results/features/lender/{backbone}/train/manifest.json"
    start = workspace.directory / "digits-pixels.safetensors"
    save_file({"weights": np.zeros((10, 64), np.float32)}, start)
    small |= {"public_datasets": {"lender": digits}}
    small["methods"] = {
        "lent": {"head": "feature_covariance", "public_covariance": manifest},
        "started": {
            "head": "momentum", "init": "file", "init_file": "{dataset}-{backbone}.safetensors",
        },
    }  # fmt: skip
    workspace.run(small, "heads")
    statement = json.loads((workspace.cell("lent", "2") / "privacy.json").read_text())
    assert [item["name"] for item in statement["mechanisms"]] == ["centre", "gradients"]
    assert list(statement["public_files"]) == [manifest.format(backbone="pixels")]
    own = json.loads((workspace.cell("started", "2") / "privacy.json").read_text())
    assert list(own["public_files"]) == ["digits-pixels.safetensors"]
    record = json.loads((workspace.cell("lent", "2") / "metrics.json").read_text())
    assert record["summary"]["accuracy"]["mean"] > 0.5
    assert not (workspace.directory / "results/cells/lender").exists()
    assert not (workspace.directory / "results/features/lender/pixels/test").exists()
    assert "Nothing to be done" in workspace.run(small, "heads").stdout

    save_file({"weights": np.ones((10, 64), np.float32)}, start)
    kept = (workspace.cell("lent", "2") / "heads.safetensors").read_bytes()
    before = (workspace.cell("started", "2") / "heads.safetensors").read_bytes()
    workspace.run(small, "heads")
    assert (workspace.cell("lent", "2") / "heads.safetensors").read_bytes() == kept
    assert (workspace.cell("started", "2") / "heads.safetensors").read_bytes() != before


def test_a_missing_public_file_is_named_before_any_job(
    workspace: Workspace, small: dict[str, Any]
) -> None:
    small["methods"] = {"sgd": {"head": "sgd", "init": "file", "init_file": "nowhere.safetensors"}}
    result = workspace.run(small, "heads", check=False)
    assert result.returncode != 0
    assert "nowhere.safetensors" in result.stdout
    assert not (workspace.directory / "data").exists()
