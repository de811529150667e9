"""Explains train and test parts without rows, with the fraction that would fill them."""

from __future__ import annotations

from dpprobe.data.options import DatasetOptions
from dpprobe.study.study import Study

FRACTIONS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)  # of test examples, that an error proposes


def empty_parts(study: Study, name: str, rows: tuple[int, int]) -> list[str]:
    """Lists splits without rows, with the fraction that would give them some."""
    dataset = (study.datasets | study.public_datasets)[name]
    key = "datasets" if name in study.datasets else "public_datasets"
    faults = []
    for split, count in zip(("train", "test"), rows, strict=True):
        if count:
            continue
        written = getattr(dataset, "test_fraction", None)
        if dataset.has_test() or written is None:
            remedy = f"complete the source, or correct what says which rows are {split} rows"
        else:
            remedy = _fraction_that_does(dataset, study.features.shards, split=split)
            remedy = f"test_fraction {written:g} leaves it no rows; {remedy}"
        faults.append(f"config: {key}.{name}: its {split} part is empty: {remedy}")
    return faults


def _fraction_that_does(dataset: DatasetOptions, shards: int, *, split: str) -> str:
    """Names the fraction, nearest to the written one, that gives both parts enough rows."""
    order = FRACTIONS if split == "test" else FRACTIONS[::-1]
    for fraction in order:
        rows = dataset.model_copy(update={"test_fraction": fraction}).used_rows()
        if rows and min(rows) >= shards:
            return f"write {fraction:g}, which makes {rows[0]:,} train and {rows[1]:,} test rows"
    return "add rows"
