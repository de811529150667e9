"""The t-SNE plane as one HTML file: zoom, classes to hide, and, where allowed, the images.

The picture is not private, and thumbnails are private images themselves: they are there only where
the study says `tsne.thumbnails: true`. Without them the page holds neither ids nor images.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from dpprobe.analyses.tsne.measure import read_embedding
from dpprobe.artifacts import write_text
from dpprobe.data.table import SplitTable
from dpprobe.exhibits.class_colours import CIRCLES, CLASS_COLOURS
from dpprobe.exhibits.html_page import content_policy
from dpprobe.exhibits.thumbnails import data_uri, make_thumbnails
from dpprobe.resources import resource_path

if TYPE_CHECKING:
    from PIL import Image

logger = logging.getLogger("dpprobe")

THUMBNAIL = 32  # pixels per side
ACROSS = 64  # thumbnails side by side


def write_backbone_page(
    *, embedding: Path, images: Path | None, dataset: str, backbone: str, split: str, page: Path
) -> None:
    """Writes the page of one (dataset, backbone); it asks for nothing from outside.

    Args:
      embedding: written by `analysis.tsne`.
      images: the split table with the images of the rows; None leaves them out.

    Raises:
      DataError: when the embedding is not one, or the table holds other rows.
    """
    table, facts = read_embedding(embedding)
    ids = table["id"].to_pylist()
    data = {
        "names": facts["class_names"],
        "x": _round_values(table["x"].to_numpy()),
        "y": _round_values(table["y"].to_numpy()),
        "label": table["label"].to_pylist(),
        "colours": CLASS_COLOURS,
        "circles": CIRCLES,
        "side": THUMBNAIL,
        "across": ACROSS,
    }
    sprite = ""
    if images is not None and ids:
        data["id"] = ids
        sprite = data_uri(_join_images(SplitTable(images), ids))
    template = resource_path("tsne")
    style = (template / "style.css").read_text(encoding="utf-8")
    script = (template / "script.js").read_text(encoding="utf-8")
    environment = Environment(
        loader=FileSystemLoader(template), autoescape=True, undefined=StrictUndefined
    )
    text = environment.get_template("page.html.j2").render(
        title=f"{dataset} {split}, {backbone}",
        facts=facts,
        method=facts.get("method"),
        legend=facts.get("legend", "class"),
        thumbnails=bool(sprite),
        sprite=sprite,
        style=Markup(style),
        script=Markup(script),
        policy=content_policy(style, script),
        # "<" would end the block that holds the data.
        data=Markup(json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")),
    )
    write_text(page, text)


def _round_values(values: np.ndarray) -> list[float]:
    return [round(float(value), 3) for value in values]


def _join_images(table: SplitTable, ids: Sequence[str]) -> Image.Image:
    """Joins the images of these rows in one, `ACROSS` in a line, in the order of the ids."""
    from PIL import Image  # here, since a page without thumbnails needs no images

    lines = -(-len(ids) // ACROSS)
    sheet = Image.new("RGB", (ACROSS * THUMBNAIL, lines * THUMBNAIL), "white")
    for position, small in make_thumbnails(table, ids, side=THUMBNAIL):
        column, line = position % ACROSS, position // ACROSS
        left = column * THUMBNAIL + (THUMBNAIL - small.width) // 2
        top = line * THUMBNAIL + (THUMBNAIL - small.height) // 2
        sheet.paste(small, (left, top))
    return sheet
