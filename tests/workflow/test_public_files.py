"""Heads use public files as starts or statistics; the workflow makes such files if it can."""

from __future__ import annotations

import json
import os
import shutil
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tests.support.digits_file import digits_file

from .conftest import PREPARED, Template, Workspace


def test_a_public_dataset_lends_its_covariance(
    workspace: Workspace, small: dict[str, Any], template: Template
) -> None:
    template(workspace, small, *PREPARED)
    lender = digits_file(workspace.directory / "lender.parquet", mirrored=True)
    lender["test_fraction"] = 0.5
    manifest = "results/features/lender/{backbone}/train/manifest.json"
    start = workspace.directory / "digits-pixels.safetensors"
    save_file({"weights": np.zeros((10, 64), np.float32)}, start)
    small |= {"public_datasets": {"lender": lender}}
    small["methods"] = {
        "lent": {"head": "feature_covariance", "public_covariance": manifest},
        "started": {
            "head": "momentum",
            "init": "file",
            "init_file": "{dataset}-{backbone}.safetensors",
        },
    }
    workspace.run(small, "heads")
    statement = json.loads((workspace.cell("lent", "2") / "privacy.json").read_text())
    assert [item["name"] for item in statement["mechanisms"]] == ["centre", "gradients"]
    written = manifest.format(backbone="pixels")
    assert list(statement["public_files"]) == [written]
    declared = {"by": "small", "options": {"public_covariance": written}}
    assert statement["declared_public"] == declared
    own = json.loads((workspace.cell("started", "2") / "privacy.json").read_text())
    assert list(own["public_files"]) == ["digits-pixels.safetensors"]
    record = json.loads((workspace.cell("lent", "2") / "metrics.json").read_text())
    assert record["summary"]["accuracy"]["mean"] > 0.5
    assert not (workspace.directory / "results/cells/lender").exists()
    assert not (workspace.directory / "results/features/lender/pixels/test").exists()
    assert "Nothing to be done" in workspace.run(small, "heads").stdout

    save_file({"weights": np.ones((10, 64), np.float32)}, start)
    os.utime(start, (1e9, 1e9))  # as after a restore
    kept = (workspace.cell("lent", "2") / "heads.safetensors").read_bytes()
    before = (workspace.cell("started", "2") / "heads.safetensors").read_bytes()
    workspace.run(small, "heads")
    assert (workspace.cell("lent", "2") / "heads.safetensors").read_bytes() == kept
    assert (workspace.cell("started", "2") / "heads.safetensors").read_bytes() != before


def test_private_data_that_was_copied_is_refused_by_the_job(
    workspace: Workspace, small: dict[str, Any], template: Template
) -> None:
    template(workspace, small, "heads")

    def refused(method: dict[str, Any], reason: str) -> None:
        changed = small | {"methods": {"some": method}}
        result = workspace.run(changed, "heads", check=False)
        assert result.returncode != 0
        assert reason in result.stdout
        assert not workspace.cell("some", "2").exists()

    # the same images as the private dataset, from another source and with another split
    lender = digits_file(workspace.directory / "lender.parquet")
    small["public_datasets"] = {"lender": lender | {"test_fraction": 0.5, "split_seed": 7}}
    workspace.run(small, "heads")
    results = workspace.directory / "results"
    shutil.copytree(results / "features/digits/pixels/train", workspace.directory / "copy")
    shutil.copy(workspace.cell("sgd", "2") / "heads.safetensors", workspace.directory / "start")
    refused(
        {"head": "feature_covariance", "public_covariance": "copy/manifest.json"},
        "some: public_covariance copy/manifest.json: features of the private dataset digits; ",
    )
    refused(
        {"head": "sgd", "init": "file", "init_file": "start"},
        "some: init_file start: heads that sgd trained on private rows of digits at epsilon 2",
    )
    lent = "results/features/lender/pixels/train/manifest.json"
    refused(
        {"head": "feature_covariance", "public_covariance": lent},
        f"some: public_covariance {lent}: rows of the private dataset digits: ",
    )
