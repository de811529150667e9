"""The sources that a dataset may name, each with the module that reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpprobe.data.options import DatasetOptions
from dpprobe.wrong_keys_and_values import read_options

SOURCES: dict[str, str] = {
    "csv": "dpprobe.data.sources.csv_manifest",
    "embeddings": "dpprobe.data.sources.embeddings",
    "huggingface": "dpprobe.data.sources.huggingface",
    "imagefolder": "dpprobe.data.sources.imagefolder",
    "parquet": "dpprobe.data.sources.parquet",
    "sklearn": "dpprobe.data.sources.sklearn_datasets",
    "torchvision": "dpprobe.data.sources.torchvision_datasets",
    "url": "dpprobe.data.sources.url",
    "webdataset": "dpprobe.data.sources.webdataset",
}


def dataset_options(values: Mapping[str, Any]) -> DatasetOptions:
    """Reads a dataset's serialised options; raises ConfigError with one line per fault."""
    return read_options(SOURCES, "source", values, DatasetOptions)  # type: ignore[type-abstract]
