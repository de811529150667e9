"""The sources that a dataset may name, each with the module that reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpprobe.data.options import DatasetOptions
from dpprobe.wrong_keys_and_values import read_options

SOURCES: dict[str, str] = {
    "csv": "dpprobe.data.csv_manifest",
    "embeddings": "dpprobe.data.embeddings",
    "huggingface": "dpprobe.data.huggingface",
    "imagefolder": "dpprobe.data.imagefolder",
    "parquet": "dpprobe.data.parquet",
    "sklearn": "dpprobe.data.sklearn_datasets",
    "torchvision": "dpprobe.data.torchvision_datasets",
    "url": "dpprobe.data.url",
    "webdataset": "dpprobe.data.webdataset",
}


def dataset_options(values: Mapping[str, Any]) -> DatasetOptions:
    """Reads a dataset's serialised options; raises ConfigError with one line per fault."""
    return read_options(SOURCES, "source", values, DatasetOptions)  # type: ignore[type-abstract]
