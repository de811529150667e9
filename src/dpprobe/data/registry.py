"""The sources that a dataset may name, each with the module that reads it."""

from __future__ import annotations

SOURCES: dict[str, str] = {
    "csv": "dpprobe.data.csv_manifest",
    "huggingface": "dpprobe.data.huggingface",
    "imagefolder": "dpprobe.data.imagefolder",
    "parquet": "dpprobe.data.parquet",
    "sklearn": "dpprobe.data.sklearn_datasets",
    "torchvision": "dpprobe.data.torchvision_datasets",
    "url": "dpprobe.data.url",
}
