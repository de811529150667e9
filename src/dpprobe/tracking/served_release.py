"""A release as an MLflow model, which takes images and returns classes and probabilities.

The model's files are the files of the bundle, and no file is pickled. MLflow and
`dpprobe predict` compute probabilities with one module, `dpprobe.release.predict`.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpprobe.data.table import EncodedImage, decode_image
from dpprobe.errors import ConfigError, DataError
from dpprobe.release.bundle import Bundle, read_bundle
from dpprobe.release.prediction_table import label_of, name_set, value_columns
from dpprobe.release.probabilities import SetRule

if TYPE_CHECKING:
    import numpy.typing as npt
    import pandas as pd
    from PIL import Image

    from dpprobe.data.images.image_files import ScaledDecoding
    from dpprobe.release.predict import Predictor

COLUMN = "image"  # column of the input
VECTORS = "vector"  # column of the input, if the head takes vectors
CHECKPOINT = "checkpoint"  # parameter of a prediction
CHECKPOINT_VARIABLE = "DPPROBE_CHECKPOINT"
CHUNK = 256  # number of images in memory at once
SHOWN = 40  # number of characters of an input that an error shows


class ServedRelease:
    """A bundle that classifies images."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bundle = read_bundle(folder)
        self.facts = self.bundle.facts
        self._predictors: dict[tuple[Path, ...], Predictor] = {}

    def predict(self, images: pd.DataFrame, params: Mapping[str, Any] | None = None) -> Any:
        """Returns a DataFrame of the class and the probabilities of each image.

        Args:
          images: a table with a column `image`: paths on this machine, or encoded images as bytes
            or as base64 text. For a head of vectors, a column `vector` with lists of numbers.
          params: `checkpoint`, the file of the backbone's weights, if the bundle needs a
            checkpoint; by default the file that DPPROBE_CHECKPOINT names. A joined backbone may
            need several files, separated as in PATH.
        """
        predictor = self._make_predictor(params or {})
        if self.facts.backbone.takes_vectors:
            rows = stack_vectors(images[VECTORS].tolist(), self.facts.dimension)
            return make_table(predictor.predict_vectors(rows), self.bundle)
        values = images[COLUMN].tolist()
        parts = [np.empty((0, len(self.facts.class_names)), np.float32)]
        for start in range(0, len(values), CHUNK):
            chunk = enumerate(values[start : start + CHUNK], start)
            pictures = [read_image(value, row, predictor.backbone.scaled) for row, value in chunk]
            parts.append(predictor.predict_images(pictures))
        return make_table(np.concatenate(parts), self.bundle)

    def _make_predictor(self, params: Mapping[str, Any]) -> Predictor:
        from dpprobe.release.predict import Predictor  # imports torch

        checkpoint = self._find_checkpoint(params)
        if checkpoint not in self._predictors:
            self._predictors[checkpoint] = Predictor.load_bundle(self.folder, checkpoint=checkpoint)
        return self._predictors[checkpoint]

    def _find_checkpoint(self, params: Mapping[str, Any]) -> tuple[Path, ...]:
        backbone = self.facts.backbone
        wanting = [one for one in backbone.parts if one.checkpoint is not None]
        if not wanting:
            return ()
        named = params.get(CHECKPOINT) or os.environ.get(CHECKPOINT_VARIABLE)
        if not named:
            files = " and ".join(
                f"{one.checkpoint} of SHA-256 {one.weights_sha256}" for one in wanting
            )
            raise ConfigError(
                f"{self.facts.name}: its backbone's weights, {files}, are not in the bundle; set "
                f"{CHECKPOINT_VARIABLE}, or the parameter {CHECKPOINT}, to their path"
            )
        return tuple(map(Path, named.split(os.pathsep) if backbone.members else [named]))


def stack_vectors(vectors: Sequence[Any], dimension: int) -> npt.NDArray[np.float32]:
    """Stacks lists of numbers; raises DataError, with the row, for a list of another length."""
    rows = np.empty((len(vectors), dimension), np.float32)
    for row, vector in enumerate(vectors):
        try:
            numbers = np.asarray(vector, np.float32)
        except (TypeError, ValueError) as error:
            raise DataError(f"row {row}: give a list of {dimension} numbers ({error})") from error
        if numbers.shape != (dimension,):
            raise DataError(f"row {row}: give a list of {dimension} numbers, not {numbers.shape}")
        rows[row] = numbers
    return rows


def read_image(value: Any, row: int, scaled: ScaledDecoding | None) -> Image.Image:
    """Decodes one input as training images are decoded; raises DataError with the row."""
    if isinstance(value, bytes):
        return _decode_bytes(value, row, scaled)
    if not isinstance(value, str):
        raise DataError(f"row {row}: {value!r}; pass a path, bytes, or text in base64")
    # Path.is_file raises an error for a text as long as an image in base64.
    if os.path.isfile(value):  # noqa: PTH113
        return _decode_bytes(Path(value).read_bytes(), row, scaled, path=value)
    try:
        return _decode_bytes(base64.b64decode(value, validate=True), row, scaled)
    except (ValueError, DataError) as error:
        shown = value if len(value) <= SHOWN else f"{value[:SHOWN]}..."
        raise DataError(
            f"row {row}: {shown!r}: not a file on this machine, and not an image in base64"
        ) from error


def _decode_bytes(
    data: bytes, row: int, scaled: ScaledDecoding | None, path: str | None = None
) -> Image.Image:
    image = EncodedImage(row, data, path, str(row), hashlib.sha256(data).digest())
    return decode_image(image, split="image", scaled=scaled)


def make_table(probabilities: npt.NDArray[np.float32], bundle: Bundle) -> pd.DataFrame:
    """Makes the output table: `class` (several labels joined by "|"), then one column per class.

    With calibrated probabilities, adds `set`, a set of classes with 90% coverage, and `abstain`.
    """
    import pandas as pd

    facts, rule = bundle.facts, SetRule.choose_rule(bundle.calibration)
    columns = value_columns(facts.class_names, bundle.link)
    scores = pd.DataFrame(probabilities, columns=columns)
    scores.insert(0, "class", [label_of(values, facts) for values in probabilities])
    if rule is not None:
        sets = [name_set(values, rule, facts.class_names) for values in probabilities]
        scores["set"] = [names for names, _ in sets]
        scores["abstain"] = [abstain for _, abstain in sets]
    return scores


def _load_pyfunc(data_path: str) -> ServedRelease:
    """Loads the model; MLflow calls this function by name."""
    return ServedRelease(Path(data_path))
