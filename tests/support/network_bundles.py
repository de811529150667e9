"""Bundles of heads with random weights on any backbone, for tests of code that uses the bundles."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpprobe.backbones.backbone import Runtime
from dpprobe.backbones.loading import load_backbone
from dpprobe.backbones.registry import backbone_options
from dpprobe.heads.registry import method_options
from dpprobe.release.bundle import HeadFacts, read_bundle
from tests.support.bundles import describe_backbone, write_example, write_files

# Predictions read only these parts of a statement's block `calibration`.
CALIBRATED: dict[str, Any] = {
    "scale": 3.0,
    "offset": 0.0,
    "sets": [{"coverage": 0.9, "threshold": 0.25}, {"coverage": 0.99, "threshold": 0.01}],
}


def write_release(
    folder: Path,
    backbone: Mapping[str, Any],
    *,
    classes: tuple[str, ...] = ("naevus", "melanoma", "keratosis"),
    head: Mapping[str, Any] | None = None,
    link: str | None = None,
    multi_label: bool = False,
    dtype: str = "float32",
    precision: str = "float32",
    dimension: int | None = None,
    arrays: Mapping[str, npt.NDArray[np.float32]] | None = None,
    scale: float = 1.0,
    calibration: Mapping[str, Any] | None = None,
) -> Path:
    """Writes a bundle with a description of the loaded backbone; returns its folder."""
    options = backbone_options(backbone)
    loaded = load_backbone(options, runtime=Runtime(device="cpu", precision=precision))  # type: ignore[arg-type]
    width = loaded.dimension or dimension
    assert width is not None
    method = method_options(head or {"head": "feature_covariance", "normalize": "l2"})
    checkpoint = backbone.get("checkpoint")
    example = read_bundle(write_example(folder.with_name(f"{folder.name}-example")))
    described = describe_backbone(
        loaded,
        name="mine",
        options=options.extraction_params(),
        precision=precision,
        dtype=dtype,
        checkpoint=checkpoint and Path(checkpoint).name,
        versions={"timm": "1.0"},
    )
    facts = example.facts.model_copy(
        update={
            "class_names": classes,
            "multi_label": multi_label,
            "dimension": width,
            "backbone": described,
            "head": HeadFacts(
                options=method.model_dump(mode="json"),
                method="mine",
                chosen=None,
                link=link or method.link_on(multi_label),
            ),
        }
    )
    weights = np.random.default_rng(1).normal(scale=scale, size=(len(classes), width + 1))
    more = {} if calibration is None else {"calibration": dict(calibration)}
    return write_files(
        folder,
        facts,
        weights=weights.astype(np.float32),
        arrays=arrays or {},
        statement={**example.statement, **more},
    )
