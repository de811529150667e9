"""Tells a public covariance of private rows from one of others, by the rows themselves.

Two rows count as one where they are equal as float16, the type of stored features. A few rows in
common are pictures that both data sets have; many mean that the one was made from the other.
A row that was changed in any way is another one here, and one of zeros is nobody's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch

from dpprobe.errors import PrivacyError
from dpprobe.heads.training_set import RowSource, TrainingSet

# The largest part of either's distinct rows that both may have.
MOST_SHARED = 0.01
_BLOCK_ROWS = 4096


def check_other_rows(public: RowSource, private: TrainingSet, *, written: str) -> None:
    """Raises PrivacyError where public rows are, for a good part, the private ones.

    Args:
      written: the path of the public rows as the study has it.
    """
    known = private.cached("row keys", lambda: _keys(block for _, block in private.blocks()))
    blocks = (torch.from_numpy(block) for _, block in public.blocks(_BLOCK_ROWS))
    keys = _keys(blocks)
    shared = len(np.intersect1d(keys, known, assume_unique=True))
    if shared > MOST_SHARED * min(len(keys), len(known)):
        raise PrivacyError(
            f"public_covariance {written}: {shared} of its {len(keys)} different rows are rows of "
            "the private training set; name features of other, public images"
        )


def _keys(blocks: Iterator[torch.Tensor]) -> npt.NDArray[np.uint64]:
    """Returns a hash of each different row, in rising order."""
    digests = []
    for block in blocks:
        # + 0: a negative zero becomes zero
        rows = (block.to(torch.float16) + 0).cpu().numpy()
        rows = rows[rows.any(axis=1)]
        digests.append(b"".join(hashlib.blake2b(row, digest_size=8).digest() for row in rows))
    return np.unique(np.frombuffer(b"".join(digests), dtype=np.uint64))
