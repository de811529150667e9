"""Made-up records of zero-shot classifiers and few-shot probes, with chosen numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpprobe.analyses.baseline_record import FEW_SHOT, ZERO_SHOT
from dpprobe.files.json_files import write_json


def _summarise(value: float, metric: str = "accuracy") -> dict[str, Any]:
    names = ("std", "low", "high", "rows_low", "rows_high")
    parts = dict(
        zip(names, (0.01, value - 0.02, value + 0.02, value - 0.03, value + 0.03), strict=True)
    )
    return {metric: {"mean": value, "count": 3, "interval": "t", **parts}}


def write_zero_shot(
    root: Path, *, dataset: str = "digits", backbone: str = "pixels", **metrics: float
) -> Path:
    """Writes the record of a zero-shot classifier; the first metric is its headline."""
    path = root / f"zero_shot/{dataset}/{backbone}/metrics.json"
    headline, value = next(iter(metrics.items()))
    record = {
        **ZERO_SHOT,
        "dataset": dataset,
        "backbone": backbone,
        "note": "No training row is used.",
        "headline": headline,
        "summary": _summarise(value, headline),
        "metrics": metrics,
        "prompts": {"set": "photo", "templates": ["a photo of a {c}."]},
        "text_encoder": {"model": "ViT-B-32", "weights_sha256": "abc"},
    }
    write_json(path, record)
    return path


def write_few_shot(root: Path, accuracies: Mapping[int | None, float]) -> Path:
    """Writes the record of few-shot probes on the features of `pixels`, with accuracy by N."""
    path = root / "few_shot/digits/pixels.json"
    results = [
        {
            "shots": shots,
            "seeds": 3,
            "summary": _summarise(accuracy),
            "train_rows": [10 * (shots or 100) + more for more in (0, 2, 1)],
        }
        for shots, accuracy in accuracies.items()
    ]
    record = {
        **FEW_SHOT,
        "dataset": "digits",
        "backbone": "pixels",
        "note": "Not private.",
        "headline": "accuracy",
        "results": results,
    }
    write_json(path, record)
    return path
