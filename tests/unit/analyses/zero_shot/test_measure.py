"""Zero-shot scores from stored features equal open_clip's scores."""

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
from sklearn.metrics import roc_auc_score

from dpprobe.analyses.baseline_record import read_zero_shot
from dpprobe.analyses.zero_shot import measure as zero_shot
from dpprobe.analyses.zero_shot.measure import classify_zero_shot
from dpprobe.backbones import loading
from dpprobe.backbones.backbone import Runtime
from dpprobe.backbones.registry import backbone_options
from dpprobe.data import prompts, table
from dpprobe.features import text_embeddings
from dpprobe.features.text_embeddings import write_text_embeddings
from dpprobe.json_values import canonical_json
from tests.support import tiny_clip
from tests.support.clouds import clouds, further_columns
from tests.unit.analyses.tsne.test_measure import write_store

CPU = Runtime(device="cpu")
CLASSES = ("airplane", "cat", "dog", "ship")


def write_text(path: Path, weights: np.ndarray, **changes: Any) -> Path:
    """Writes a text artifact as `features.text_embeddings` does."""
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


# Clouds of several kinds: scikit-learn on cosines that are computed here.


def _clouds(folder: Path, *, several: bool, patients: int) -> Path:
    features, labels = clouds(80, 6, 3, several=several, apart=1.0)
    features[0] = 0.0
    units = [f"p{row * 7 % patients}" for row in range(80)] if patients else None
    more = further_columns(labels)
    return write_store(folder, features, labels, class_names=tuple("abc"), units=units, **more)


def _text(path: Path, **changes: Any) -> Path:
    return write_text(path, np.eye(3, 6), logit_scale=7.0, class_names=tuple("abc"), **changes)


@pytest.mark.parametrize("patients", [0, 30])
@pytest.mark.parametrize("bias", [None, -3.0])
@pytest.mark.parametrize("several", [False, True])
def test_metrics_are_scikit_learn_s_on_scaled_cosines(
    tmp_path: Path, several: bool, bias: float | None, patients: int
) -> None:
    manifest = _clouds(tmp_path / "s", several=several, patients=patients)
    record = _run(tmp_path, manifest, _text(tmp_path / "t", logit_bias=bias))
    features, labels = clouds(80, 6, 3, several=several, apart=1.0)
    features[0] = 0.0
    lengths = np.maximum(np.linalg.norm(features, axis=1), 1e-9)
    expected = 7.0 * features[:, :3] / lengths[:, None] + (bias or 0.0)
    np.testing.assert_allclose(_scores(tmp_path), expected, atol=1e-5)
    table = pq.read_table(tmp_path / "p.parquet")
    assert table["id"].to_pylist() == [f"row-{row}" for row in range(80)]
    assert np.array_equal(np.array(table["label"].to_pylist()), labels)
    for name, values in further_columns(labels)["groups"].items():
        assert table[name].to_pylist() == values
    units = np.arange(80) * 7 % (patients or 80)
    weights = 1 / np.bincount(units)[units]
    found = record["metrics"]
    if several:
        aucs = [
            roc_auc_score(column, scores, sample_weight=weights)
            for column, scores in zip(labels.T, expected.T, strict=True)
        ]
        assert found["auc"] == pytest.approx(np.mean(aucs))
        assert record["headline"] == "auc"
        assert record["auc_labels"] == 3
        right = (expected > 0) == labels
        assert ("accuracy" in found) == (bias is not None), "without a bias there is no threshold"
        if bias is not None:
            assert found["accuracy"] == pytest.approx(right.mean(axis=1) @ weights / weights.sum())
        else:
            ranked = {"auc", "mean_average_precision"}
            assert set(record["summary"]) == ranked
    else:
        hit = expected.argmax(axis=1) == labels
        assert found["accuracy"] == pytest.approx(hit @ weights / weights.sum())
        accepted = [[int(label), 2][: 1 + (row % 4 == 0)] for row, label in enumerate(labels)]
        hit = np.array([k in each for k, each in zip(expected.argmax(1), accepted, strict=True)])
        assert found["real_accuracy"] == pytest.approx(hit @ weights / weights.sum())
        assert ("expected_calibration_error" in found) == (bias is None)
    links = {(False, True): "softmax", (False, False): "none", (True, False): "sigmoid"}
    assert record["link"] == links.get((several, bias is None), "none")
    assert (record["logit_scale"], record["logit_bias"]) == (7.0, bias)
    assert record["units"] == ({"test": 30} if patients else None)
    assert ("unit" in table.column_names) == bool(patients)


def test_the_record_names_the_text_and_its_encoder(tmp_path: Path) -> None:
    manifest = _clouds(tmp_path / "s", several=False, patients=0)
    text = _text(tmp_path / "t", set="own", templates=["{c}", "a {c}"])
    record = _run(tmp_path, manifest, text, metric="macro_accuracy", model="big")
    assert record["prompts"] == {"set": "own", "templates": ["{c}", "a {c}"]}
    assert record["text"] == "t"
    assert record["text_encoder"] == {"model": "big", "weights_sha256": "w"}
    assert (record["dataset"], record["backbone"]) == ("pets", "clip")
    assert record["headline"] == "macro_accuracy"
    assert record["private"] is False
    assert _run(tmp_path, manifest, text, metric="accuracy")["headline"] == "accuracy"


def test_blocks_of_rows_give_the_same_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, text = _clouds(tmp_path / "s", several=False, patients=0), _text(tmp_path / "t")
    _run(tmp_path, manifest, text)
    whole = _scores(tmp_path)
    monkeypatch.setattr(zero_shot, "BLOCK_ROWS", 7)
    _run(tmp_path, manifest, text)
    np.testing.assert_allclose(_scores(tmp_path), whole, atol=1e-6)
