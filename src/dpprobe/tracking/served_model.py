"""One head as a model that MLflow loads: features in, probabilities out. Nothing is pickled."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import load_file, save

from dpprobe.artifacts import read_json, write_json
from dpprobe.heads.registry import method_options
from dpprobe.privacy.private_mark import mark_metadata
from dpprobe.results.cell_record import (
    STATEMENT_FILE,
    WEIGHTS_FILE,
    CellRecord,
    check_file,
    read_statement,
)

if TYPE_CHECKING:
    from dpprobe.heads.fitted import Heads

HEAD_FILE = "head.safetensors"
FACTS_FILE = "head.json"


@dataclass(frozen=True)
class Head:
    """A trained head.

    Attributes:
      facts: class_names, dimension, link, options, and the guarantee.
    """

    heads: Heads
    facts: dict[str, Any]

    def predict(self, features: Any, params: dict[str, Any] | None = None) -> np.ndarray:  # noqa: ARG002
        """Returns probabilities [n, classes] of feature rows [n, dimension], not normalised.

        They are a softmax over the classes, or a sigmoid for each label if a row may have several.
        Methods whose scores are no logits give the scores themselves.
        """
        from dpprobe.heads.scoring import compute_probabilities  # imports torch

        rows = np.ascontiguousarray(np.asarray(features), dtype=np.float32)
        return compute_probabilities(self.heads, rows, self.facts["link"])


def write_head(folder: Path, cell: Path, record: CellRecord, *, seed_index: int = 0) -> None:
    """Writes the head of one seed, with what is needed to use it."""
    tensors = load_file(check_file(cell / WEIGHTS_FILE))
    folder.mkdir(parents=True, exist_ok=True)
    chosen = {name: np.ascontiguousarray(values[seed_index]) for name, values in tensors.items()}
    metadata = mark_metadata(record.cell.model_dump(), record.options)
    (folder / HEAD_FILE).write_bytes(save(chosen, metadata=metadata))
    statement = read_statement(cell / STATEMENT_FILE)
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
    """Reads what `write_head` wrote."""
    from dpprobe.heads.scoring import one_head  # torch, which writing a head does not need

    facts = read_json(folder / FACTS_FILE)
    tensors = load_file(folder / HEAD_FILE)
    weights = tensors.pop("weights")
    heads = one_head(weights, tensors, method_options(facts["options"]).normalize)
    return Head(heads=heads, facts=facts)


def _load_pyfunc(data_path: str) -> Head:
    """Loads the model for MLflow, which calls this function by its name."""
    return load_head(Path(data_path))
