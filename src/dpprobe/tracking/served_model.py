"""One head as a model that MLflow loads: features in, probabilities out. Nothing is pickled."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpprobe.artifacts import read_json, write_json
from dpprobe.results.record import STATEMENT_FILE, WEIGHTS_FILE, CellRecord

if TYPE_CHECKING:
    from dpprobe.heads import Heads

HEAD_FILE = "head.safetensors"
FACTS_FILE = "head.json"


@dataclass(frozen=True)
class Head:
    """A trained head.

    Attributes:
      facts: class_names, dimension, link, options, and the privacy promise.
    """

    heads: Heads
    facts: dict[str, Any]

    def predict(self, features: Any, params: dict[str, Any] | None = None) -> np.ndarray:  # noqa: ARG002
        """Probabilities [n, classes] of feature rows [n, dimension], not normalised.

        Softmax over the classes, or each label's own where a row may have several. Of methods whose
        scores are no logits the scores themselves.
        """
        from dpprobe.heads.scoring import scores

        rows = np.ascontiguousarray(np.asarray(features), dtype=np.float32)
        found = scores(self.heads, rows)[0].astype(np.float64)
        if self.facts["link"] == "softmax":
            found = np.exp(found - found.max(axis=1, keepdims=True))
            found /= found.sum(axis=1, keepdims=True)
        elif self.facts["link"] == "sigmoid":
            found = 1 / (1 + np.exp(-found))
        return found.astype(np.float32)


def write_head(folder: Path, cell: Path, record: CellRecord, *, seed_index: int = 0) -> None:
    """Writes the head of one seed, with what is needed to use it.

    Args:
      cell: the cell's folder.
      record: its metrics.json.
    """
    from safetensors.numpy import load_file, save_file

    from dpprobe.heads.registry import method_options

    tensors = load_file(cell / WEIGHTS_FILE)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: np.ascontiguousarray(values[seed_index]) for name, values in tensors.items()},
        folder / HEAD_FILE,
    )
    statement = read_json(cell / STATEMENT_FILE)
    write_json(
        folder / FACTS_FILE,
        {
            "cell": record.cell.model_dump(),
            "seed_index": seed_index,
            "class_names": record.class_names,
            "dimension": record.dimension,
            "multi_label": record.multi_label,
            "link": method_options(record.options).link_on(record.multi_label),
            "options": record.options,
            "promise": statement["promise"],
            "release": statement["release"],
        },
    )


def load_head(folder: Path) -> Head:
    """What `write_head` wrote."""
    import torch
    from safetensors.numpy import load_file

    from dpprobe.heads import Heads
    from dpprobe.heads.registry import method_options
    from dpprobe.heads.rows import Transform

    facts = read_json(folder / FACTS_FILE)
    tensors = load_file(folder / HEAD_FILE)
    weights = tensors.pop("weights")
    arrays = {name: torch.from_numpy(values) for name, values in tensors.items()}
    transform = Transform(method_options(facts["options"]).normalize, arrays)
    heads = Heads(weights=weights[None], seeds=(0,), transforms=(transform,), steps=0)
    return Head(heads=heads, facts=facts)


def _load_pyfunc(data_path: str) -> Head:
    """What MLflow calls to load the model."""
    return load_head(Path(data_path))
