"""What a workflow must know of the papers' tables before anything is made. Light: no arrays."""

from __future__ import annotations

from dpprobe import resources
from dpprobe.artifacts import sha256_file

TABLES = (
    "foundation_features_table2",
    "foundation_features_table3",
    *(f"large_scale_transfer_table{number}" for number in (1, 2, 3, 4, 8, 9)),
    "features_second_order_headline",
)


def published_digest() -> str:
    """Changes with the published numbers, so that what shows them is made again."""
    return sha256_file(resources.RESOURCES / "published.yaml")
