"""Packs a head that was drawn into the files of a bundle, all but the signature."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dpprobe.heads.fitted import Heads
from dpprobe.heads.options import MethodOptions
from dpprobe.release.bundle import BundleFacts, HeadFacts, write_bundle, write_sums
from dpprobe.release.model_card import write_card
from dpprobe.release.page import write_page
from dpprobe.release.release_statement import published_options


def describe_head(
    options: MethodOptions, heads: Heads, *, method: str, multi_label: bool
) -> HeadFacts:
    """Describes the first of the heads for bundle.json.

    Args:
      method: its name in the study.
    """
    return HeadFacts(
        options=published_options(options),
        method=method,
        chosen=dict(heads.chosen[0]) if heads.chosen else None,
        class_priors=None if heads.priors is None else tuple(heads.priors[0].tolist()),
        link=options.link_on(multi_label),
    )


def pack_head(
    folder: Path, facts: BundleFacts, heads: Heads, *, statement: Mapping[str, Any]
) -> None:
    """Writes the first of the heads with its facts, statement, card, page and sums.

    Args:
      folder: it exists and is empty.
    """
    arrays = {name: np.asarray(values[0]) for name, values in heads.released_arrays().items()}
    write_bundle(folder, facts, weights=heads.weights[0], arrays=arrays, statement=dict(statement))
    write_card(folder, facts, statement)
    write_page(folder, facts, statement)
    write_sums(folder)
