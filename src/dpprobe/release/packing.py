"""Packs a trained head into a bundle."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dpprobe.files.atomic_writes import flush_to_disk, write_text
from dpprobe.heads.fitted import Heads
from dpprobe.heads.options import MethodOptions
from dpprobe.release.bundle import (
    CARD_FILE,
    PAGE_FILE,
    BundleFacts,
    HeadFacts,
    StudentFacts,
    published_options,
    write_bundle,
    write_sums,
)
from dpprobe.release.documents.model_card import make_card
from dpprobe.release.documents.page import make_page
from dpprobe.release.signing import sign_bundle


def describe_head(
    options: MethodOptions, heads: Heads, *, method: str, multi_label: bool
) -> HeadFacts:
    """Describes the first head for bundle.json; `method` is the name of the method in the study."""
    return HeadFacts(
        options=published_options(options),
        method=method,
        chosen=dict(heads.chosen[0]) if heads.chosen else None,
        class_priors=None if heads.priors is None else tuple(heads.priors[0].tolist()),
        student=None if heads.gains is None else _describe_student(*heads.gains[0].tolist()),
        link=options.link_on(multi_label),
    )


def _describe_student(gain: float, threshold: float) -> StudentFacts:
    return StudentFacts(gain=gain, threshold=threshold, used=gain > threshold)


def pack_head(
    partial: Path,
    folder: Path,
    facts: BundleFacts,
    heads: Heads,
    *,
    statement: Mapping[str, Any],
    sign_key: Path | None,
) -> None:
    """Writes the bundle of the first head, and flushes all files to the disk.

    Files are first written to the folder `partial`, which is renamed to `folder` at the end.
    """
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    arrays = {name: np.asarray(values[0]) for name, values in heads.released_arrays().items()}
    write_bundle(partial, facts, weights=heads.weights[0], arrays=arrays, statement=statement)
    write_text(partial / CARD_FILE, make_card(facts, statement))
    write_text(partial / PAGE_FILE, make_page(facts, statement))
    write_sums(partial)
    if sign_key is not None:
        sign_bundle(partial, sign_key)
    flush_to_disk(partial)
    partial.rename(folder)
    flush_to_disk(folder.parent)
