"""Zero-shot: open_clip's own answers on the same weights, from stored features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from safetensors.numpy import save_file

from dpprobe.analyses.baseline_record import read_zero_shot
from dpprobe.analyses.zero_shot.measure import classify_zero_shot
from dpprobe.artifacts import canonical_json
from dpprobe.backbones import loading
from dpprobe.backbones.backbone import Runtime
from dpprobe.backbones.registry import backbone_options
from dpprobe.data import prompts, table
from dpprobe.features import text_embeddings
from dpprobe.features.text_embeddings import write_text_embeddings
from tests.support import tiny_clip
from tests.unit.analyses.tsne.test_measure import write_store

CPU = Runtime(device="cpu")
CLASSES = ("airplane", "cat", "dog", "ship")


def write_text(path: Path, weights: np.ndarray, **changes: Any) -> Path:
    """A text artifact as `features.text_embeddings` writes it."""
    facts = {
        "format": "dpprobe-text",
        "format_version": 1,
        "class_names": CLASSES[: len(weights)],
        "set": "simple",
        "templates": ["{c}"],
        "words": CLASSES[: len(weights)],
        "logit_scale": 100.0,
        "logit_bias": None,
        "fingerprint": "t",
        "weights_sha256": "w",
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"dpprobe": canonical_json(facts | changes)}
    save_file({"weights": weights.astype(np.float32)}, path, metadata=metadata)
    return path


def _run(folder: Path, manifest: Path, text_file: Path, **changes: Any) -> dict[str, Any]:
    options = {"dataset": "pets", "backbone": "clip", "model": "tiny", "metric": None, "seed": 0}
    classify_zero_shot(
        manifest,
        text_file,
        metrics=folder / "metrics.json",
        predictions=folder / "p.parquet",
        **options | changes,
    )
    return read_zero_shot(folder / "metrics.json")


def _scores(folder: Path) -> np.ndarray:
    return np.stack(pq.read_table(folder / "p.parquet")["scores"].to_numpy())


@pytest.mark.parametrize("model", ["tiny-quickgelu", "tiny-resnet"])
@pytest.mark.parametrize("chosen", ["photo", "ensemble7"])
def test_scores_are_open_clip_s_own(
    model: str, chosen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "configs").mkdir()
    tiny_clip.register(tmp_path / "configs", monkeypatch)
    described = table.DatasetInfo(
        class_names=CLASSES, multi_label=False, groups=(), fingerprint="f", splits={}, source={}
    )
    monkeypatch.setattr(text_embeddings, "read_info", lambda _path: described)
    options = backbone_options({"family": "open_clip", "model": model, "pretrained": False})
    write_text_embeddings(
        tmp_path / "text.safetensors",
        options=options,
        info=tmp_path / "dataset.json",
        chosen=chosen,
        prompt_names={},
        runtime=CPU,
    )
    pixels = np.random.default_rng(0).integers(0, 255, (12, 64, 64, 3)).astype(np.uint8)
    images = [Image.fromarray(array) for array in pixels]
    backbone = loading.load_backbone(options, runtime=CPU)
    features = backbone.forward(torch.stack([backbone.transform(image) for image in images]))
    labels = np.arange(12) % 4
    manifest = write_store(tmp_path / "s", np.asarray(features), labels, class_names=CLASSES)
    record = _run(tmp_path, manifest, tmp_path / "text.safetensors")

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        theirs, _, preprocess = open_clip.create_model_and_transforms(model)
        theirs.eval()
        classifier = open_clip.build_zero_shot_classifier(
            theirs,
            open_clip.get_tokenizer(model),
            CLASSES,
            templates=[lambda c, t=t: t.format(c=c) for t in prompts.read_templates(chosen)],
        )
        encoded = theirs.encode_image(torch.stack([preprocess(i) for i in images]), normalize=True)
        expected = (theirs.logit_scale.exp() * encoded @ classifier).numpy()
    found = _scores(tmp_path)
    assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()
    assert (found.argmax(1) == expected.argmax(1)).all()
    assert record["metrics"]["accuracy"] == (expected.argmax(1) == labels).mean()


def test_scores_are_scaled_cosines_and_a_zero_row_has_none(tmp_path: Path) -> None:
    features = np.array([[3.0, 0.0], [0.0, -2.0], [1.0, 1.0], [0.0, 0.0]])
    weights = np.array([[1.0, 0.0], [0.0, 1.0]])
    names = CLASSES[:2]
    manifest = write_store(tmp_path / "s", features, np.array([0, 1, 0, 1]), class_names=names)
    record = _run(tmp_path, manifest, write_text(tmp_path / "t", weights, logit_scale=50.0))
    half = 50 / 2**0.5
    expected = np.array([[50, 0], [0, -50], [half, half], [0, 0]])
    assert np.allclose(_scores(tmp_path), expected, atol=1e-4)
    assert record["private"] is False
    assert record["metrics"]["accuracy"] == 0.5


def test_each_patient_counts_once(tmp_path: Path) -> None:
    """One patient of thirty images that are right, thirty of one image that is wrong."""
    units = ["long"] * 30 + [f"p{row}" for row in range(30)]
    labels = np.zeros(60, dtype=np.int64)
    features = np.eye(4)[[0] * 30 + [1] * 30]
    manifest = write_store(tmp_path / "s", features, labels, class_names=CLASSES, units=units)
    record = _run(tmp_path, manifest, write_text(tmp_path / "t", np.eye(4)))
    assert record["metrics"]["accuracy"] == pytest.approx(1 / 31)
    assert record["units"] == {"test": 31}
    assert record["rows"] == {"test": 60}
    entry = record["summary"]["accuracy"]
    assert entry["interval"].endswith("over test patients")
    column = pq.read_table(tmp_path / "p.parquet")["unit"].to_pylist()
    assert column == [0] * 30 + list(range(1, 31))
