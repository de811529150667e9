"""A release as a model that MLflow loads: images in, classes and probabilities out.

The model's files are those of the bundle, and nothing is pickled. `dpprobe.release.predict`
computes the probabilities, as it does for the command line.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpprobe.data.table import EncodedImage, decode_image
from dpprobe.errors import ConfigError, DataError
from dpprobe.release.bundle import BundleFacts, read_bundle
from dpprobe.release.prediction_table import label_of, value_columns

if TYPE_CHECKING:
    import numpy.typing as npt
    import pandas as pd
    from PIL import Image

    from dpprobe.release.predict import Predictor

COLUMN = "image"  # of the input
VECTORS = "vector"  # the same, where the head takes vectors
CHECKPOINT = "checkpoint"  # param of a prediction
CHECKPOINT_VARIABLE = "DPPROBE_CHECKPOINT"
CHUNK = 256  # images that are in memory at once
SHOWN = 40  # characters of an input that an error quotes


class ServedRelease:
    """A bundle, ready to classify images.

    Attributes:
      facts: bundle.json.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.facts = read_bundle(folder).facts
        self._predictors: dict[Path | None, Predictor] = {}

    def predict(self, images: pd.DataFrame, params: Mapping[str, Any] | None = None) -> Any:
        """Returns a DataFrame of the class and the probabilities of each image.

        Args:
          images: with a column `image`: paths on this machine, encoded images as bytes, or as
            text in base64. For a head of vectors, a column `vector` with lists of numbers.
          params: `checkpoint`, the file of the backbone's weights, where the bundle needs one; in
            its absence that of DPPROBE_CHECKPOINT.

        Raises:
          DataError: naming the row that has no image, or none that can be decoded.
          ConfigError: when the weights' file is not named.
        """
        predictor = self._make_predictor(params or {})
        if self.facts.backbone.takes_vectors:
            rows = stack_vectors(images[VECTORS].tolist(), self.facts.dimension)
            return make_table(predictor.predict_vectors(rows), self.facts)
        values = images[COLUMN].tolist()
        parts = [np.empty((0, len(self.facts.class_names)), np.float32)]
        for start in range(0, len(values), CHUNK):
            chunk = enumerate(values[start : start + CHUNK], start)
            parts.append(predictor.predict_images([read_image(value, row) for row, value in chunk]))
        return make_table(np.concatenate(parts), self.facts)

    def _make_predictor(self, params: Mapping[str, Any]) -> Predictor:
        from dpprobe.release.predict import Predictor  # imports torch

        checkpoint = self._find_checkpoint(params)
        if checkpoint not in self._predictors:
            self._predictors[checkpoint] = Predictor.load_bundle(self.folder, checkpoint=checkpoint)
        return self._predictors[checkpoint]

    def _find_checkpoint(self, params: Mapping[str, Any]) -> Path | None:
        """Returns the file of the backbone's weights; None where the bundle needs none."""
        backbone = self.facts.backbone
        if backbone.checkpoint is None:
            return None
        named = params.get(CHECKPOINT) or os.environ.get(CHECKPOINT_VARIABLE)
        if not named:
            raise ConfigError(
                f"{self.facts.name}: its backbone's weights, {backbone.checkpoint} of SHA-256 "
                f"{backbone.weights_sha256}, are not in the bundle; set {CHECKPOINT_VARIABLE}, or "
                f"the param {CHECKPOINT}, to their file"
            )
        return Path(named)


def stack_vectors(vectors: Sequence[Any], dimension: int) -> npt.NDArray[np.float32]:
    """Stacks lists of numbers; raises DataError naming the first of another length."""
    for row, vector in enumerate(vectors):
        if np.shape(vector) != (dimension,):
            raise DataError(
                f"row {row}: give a list of {dimension} numbers, not {np.shape(vector)}"
            )
    return np.array(vectors, np.float32).reshape(-1, dimension)


def read_image(value: Any, row: int) -> Image.Image:
    """Decodes one input by the decoder that the training images went through.

    Raises:
      DataError: naming the row, when it is no image.
    """
    path = None
    if isinstance(value, bytes):
        data = value
    # Path.is_file refuses a text as long as an image in base64.
    elif isinstance(value, str) and os.path.isfile(value):  # noqa: PTH113
        path, data = value, Path(value).read_bytes()
    elif isinstance(value, str):
        data = _from_base64(value, row)
    else:
        raise DataError(f"row {row}: {value!r}; give a path, bytes, or text in base64")
    image = EncodedImage(row, data, path, str(row), hashlib.sha256(data).digest())
    try:
        return decode_image(image, split="image")
    except DataError as error:
        if path is None and isinstance(value, str):
            raise _neither_error(value, row) from error
        raise


def _from_base64(text: str, row: int) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        raise _neither_error(text, row) from None


def _neither_error(text: str, row: int) -> DataError:
    shown = text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
    return DataError(f"row {row}: {shown!r}: no such file here, and no image in base64")


def make_table(probabilities: npt.NDArray[np.float32], facts: BundleFacts) -> pd.DataFrame:
    """Makes the output: `class`, then a column per class.

    Where an image may have several labels, `class` joins those above 1/2 by "|".
    """
    import pandas as pd

    columns = value_columns(facts.class_names, facts.head.link)
    scores = pd.DataFrame(probabilities, columns=columns)
    scores.insert(0, "class", [label_of(values, facts) for values in probabilities])
    return scores


def _load_pyfunc(data_path: str) -> ServedRelease:
    """Loads the model for MLflow, which calls this function by its name."""
    return ServedRelease(Path(data_path))
