"""A dataset is downloaded once, and again only if necessary."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support.misbehaving_server import Server, serve

from .conftest import Workspace

pytestmark = pytest.mark.slow


@pytest.fixture
def server() -> Iterator[Server]:
    with serve() as running:
        yield running


def archive(shade: int) -> bytes:
    """Returns a zip of twenty images of two classes."""
    stream = io.BytesIO()
    generator = np.random.default_rng(shade)
    with zipfile.ZipFile(stream, "w") as file:
        for row in range(20):
            pixels = generator.integers(0, 256, (8, 8), dtype=np.uint8)
            image = io.BytesIO()
            Image.fromarray(pixels).save(image, format="PNG")
            file.writestr(f"scans/{'sick' if row % 2 else 'well'}/{row:02}.png", image.getvalue())
    return stream.getvalue()


def study_of(small: dict[str, Any], address: str, content: bytes) -> dict[str, Any]:
    scans = {
        "source": "url",
        "files": [{"url": address, "sha256": hashlib.sha256(content).hexdigest()}],
        "layout": {"source": "imagefolder", "path": "scans/scans", "embed": True},
        "expect": {"classes": 2},
    }
    # Only after the download is it known that a batch exceeds the number of rows.
    return small | {"datasets": {"scans": scans}, "delta": 1e-3, "features": {"shards": 1}}


def test_downloads_are_reused_and_repeated_only_when_needed(
    workspace: Workspace, small: dict[str, Any], server: Server
) -> None:
    content = archive(0)
    study = study_of(small, server.put("/scans.zip", content), content)
    study["methods"]["sgd"]["batch_size"] = 4
    workspace.run(study, "heads")
    folder = workspace.directory / "data/downloads/scans"
    receipt = json.loads((folder / "receipt.json").read_text())
    assert [file["name"] for file in receipt["files"]] == ["scans.zip"]
    info = json.loads((workspace.directory / "data/scans/dataset.json").read_text())
    assert info["class_names"] == ["sick", "well"]
    # `expect` does not change the tables
    study["datasets"]["scans"]["expect"] = {"train": 16, "test": 4, "classes": 2}
    assert "Nothing to be done" in workspace.run(study, "heads").stdout

    # Another split of the same files, or a lost receipt, causes no download.
    asked = len(server.visits_of("/scans.zip"))
    study["datasets"]["scans"]["layout"]["split_seed"] = 1
    assert "download_data" not in workspace.planned(study, "data")
    (folder / "receipt.json").unlink()
    workspace.run(study, "data")
    assert len(server.visits_of("/scans.zip")) == asked

    # Another file causes a download.
    content = archive(1)
    other = study_of(small, server.put("/scans.zip", content), content)
    assert workspace.planned(other, "data")["download_data"] == 1
    workspace.run(other, "data")
    assert len(server.visits_of("/scans.zip")) > asked
    again = json.loads((workspace.directory / "data/scans/dataset.json").read_text())
    assert again["fingerprint"] != info["fingerprint"]


def test_facts_of_the_download_are_checked_after_it(
    workspace: Workspace, small: dict[str, Any], server: Server
) -> None:
    content = archive(0)
    study = study_of(small, server.put("/scans.zip", content), content) | {"delta": 0.5}
    result = workspace.run(study, "heads", check=False)
    assert result.returncode != 0
    assert "delta 0.5 is above 1/n" in result.stdout
    result = workspace.run(study | {"delta": 1e-3}, "heads", check=False)
    assert result.returncode != 0
    assert "batch_size" in result.stdout
    assert not (workspace.directory / "results/cells/scans/pixels/sgd").exists()
