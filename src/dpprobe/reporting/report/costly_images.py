"""The report's section on the test images that privacy costs most, where the study shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpprobe.reporting.costly_images import read_costly_images


def read_costly(paths: Sequence[Path], *, order: Sequence[str]) -> list[dict[str, Any]]:
    """Reads records, <dataset>.json each, a part a dataset; none for a dataset without.

    Args:
      order: of the datasets.
    """
    records = {path.stem: read_costly_images(path) for path in paths}
    return [
        {
            "dataset": dataset,
            "test_rows": record["test_rows"],
            "multi_label": record["multi_label"],
            "left_out": record["left_out"],
            "cells": [_cell_table(part, record["thumbnails"]) for part in record["parts"]],
        }
        for dataset in order
        if (record := records.get(dataset)) is not None
    ]


def _cell_table(part: Mapping[str, Any], thumbnails: Mapping[str, str]) -> dict[str, Any]:
    """Writes the table of one private cell."""
    images = part["images"]
    shown = sum(image["drop"] for image in images) / len(images) if images else 0.0
    return {
        **{name: part[name] for name in ("epsilon", "backbone", "method", "reference", "seeds")},
        "average": _format_points(part["average"]),
        "shown": _format_points(shown),
        "unseen": None if part["unseen"] is None else _format_points(part["unseen"]),
        "images": [_image_row(image, thumbnails, part["seeds"]) for image in images],
    }


def _image_row(
    image: Mapping[str, Any], thumbnails: Mapping[str, str], seeds: int
) -> dict[str, Any]:
    """Writes the row of one image."""
    error = image["error"]
    return {
        "id": image["id"],
        "thumbnail": thumbnails[image["id"]],
        "classes": ", ".join(image["classes"]) or "none",
        "judged": f"{image['judged']}: {'present' if image['present'] else 'absent'}",
        "reference": _format_points(image["reference"]),
        "private": _format_points(image["private"]),
        "drop": _format_points(image["drop"])
        + ("" if error is None else f" ± {_format_points(error)}"),
        "reference_right": f"{image['reference_right']} of {seeds}",
        "private_right": f"{image['private_right']} of {seeds}",
        "taken_for": image["taken_for"] or "",
    }


def _format_points(value: float) -> str:
    return f"{100 * value:.1f}"
