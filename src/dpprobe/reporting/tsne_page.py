"""The t-SNE plane as one HTML file: zoom, classes to hide, and, where allowed, the images.

The picture is not private, and thumbnails are private images themselves: they are there only where
the study says `tsne.thumbnails: true`. Without them the page holds neither ids nor images.
"""

from __future__ import annotations

import base64
import io
import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from dpprobe.analysis.tsne import read_embedding
from dpprobe.artifacts import write_text
from dpprobe.data.table import SplitTable, decode
from dpprobe.errors import DataError
from dpprobe.reporting.colours import CIRCLES, CLASS_COLOURS
from dpprobe.reporting.html_page import content_policy

if TYPE_CHECKING:
    from PIL import Image

logger = logging.getLogger("dpprobe")

THUMBNAIL = 32  # pixels a side
ACROSS = 64  # thumbnails side by side
SPAN_ROWS = 2000  # images between two wanted ones that are read rather than skipped
QUALITY = 75


def write_tsne_page(
    embedding: Path, output: Path, *, template: Path, title: str, images: Path | None = None
) -> None:
    """Writes the page; it asks for nothing from outside.

    Args:
      embedding: written by `analysis.tsne`.
      template: folder of page.html.j2, style.css and script.js.
      images: the split table with the images of the rows; None leaves them out.

    Raises:
      DataError: when the embedding is not one, or the table holds other rows.
    """
    table, facts = read_embedding(embedding)
    ids = table["id"].to_pylist()
    data = {
        "names": facts["class_names"],
        "x": _rounded(table["x"].to_numpy()),
        "y": _rounded(table["y"].to_numpy()),
        "label": table["label"].to_pylist(),
        "colours": CLASS_COLOURS,
        "circles": CIRCLES,
        "side": THUMBNAIL,
        "across": ACROSS,
    }
    sprite = ""
    if images is not None and ids:
        data["id"] = ids
        sprite = _data_uri(_sprite(SplitTable(images), ids))
    style = (template / "style.css").read_text(encoding="utf-8")
    script = (template / "script.js").read_text(encoding="utf-8")
    environment = Environment(
        loader=FileSystemLoader(template), autoescape=True, undefined=StrictUndefined
    )
    page = environment.get_template("page.html.j2").render(
        title=title,
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
    write_text(output, page)


def _rounded(values: np.ndarray) -> list[float]:
    return [round(float(value), 3) for value in values]


def _sprite(table: SplitTable, ids: Sequence[str]) -> Image.Image:
    """Joins the images of these rows in one, `ACROSS` in a line, in the order of the ids."""
    from PIL import Image  # here, since a page without thumbnails needs no images

    places = {row_id: row for row, row_id in enumerate(table.ids())}
    missing = [row_id for row_id in ids if row_id not in places]
    if missing:
        raise DataError(
            f"{table.path}: {len(missing)} rows of the embedding are not in it; delete the "
            "embedding and run again"
        )
    order = {places[row_id]: position for position, row_id in enumerate(ids)}
    lines = -(-len(ids) // ACROSS)
    sheet = Image.new("RGB", (ACROSS * THUMBNAIL, lines * THUMBNAIL), "white")
    for start, stop in _spans(sorted(order)):
        for image in table.images(start, stop):
            position = order.get(image.row)
            if position is None:
                continue
            small = _thumbnail(decode(image, split=table.split))
            column, line = position % ACROSS, position // ACROSS
            left = column * THUMBNAIL + (THUMBNAIL - small.width) // 2
            top = line * THUMBNAIL + (THUMBNAIL - small.height) // 2
            sheet.paste(small, (left, top))
    return sheet


def _spans(rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yields ranges that hold all rows, apart where many other rows lie between."""
    start = last = rows[0]
    for row in rows[1:]:
        if row - last > SPAN_ROWS:
            yield start, last + 1
            start = row
        last = row
    yield start, last + 1


def _thumbnail(image: Image.Image) -> Image.Image:
    """Scales an image to 32 x 32 at most, its sides' ratio kept; small images are enlarged."""
    from PIL import Image  # here, as above; so is our module that imports it

    from dpprobe.backbones.images import convert

    shown = convert(image, "RGB")
    scale = THUMBNAIL / max(shown.size)
    size = (max(1, round(shown.width * scale)), max(1, round(shown.height * scale)))
    return shown.resize(size, Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS)


def _data_uri(sheet: Image.Image) -> str:
    stream = io.BytesIO()
    sheet.save(stream, format="JPEG", quality=QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(stream.getvalue()).decode()}"
