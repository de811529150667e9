"""Small pictures of a split's rows, for pages that may show them. They are private images."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dpprobe.data.table import SplitTable, decode_image
from dpprobe.errors import DataError

if TYPE_CHECKING:
    from PIL import Image

SPAN_ROWS = 2000  # images between two wanted ones that are read rather than skipped
QUALITY = 75


def make_thumbnails(
    table: SplitTable, ids: Sequence[str], *, side: int
) -> Iterator[tuple[int, Image.Image]]:
    """Yields the place of each id in the list, and its image, in the order of the table's rows.

    Args:
      side: pixels of an image's longer side.

    Raises:
      DataError: when the table does not hold all of them, or an image cannot be read.
    """
    places = {row_id: row for row, row_id in enumerate(table.read_ids())}
    missing = [row_id for row_id in ids if row_id not in places]
    if missing:
        raise DataError(
            f"{table.path}: {len(missing)} of {len(ids)} rows that are to be shown are not in it; "
            "delete what names them and run again"
        )
    wanted = {places[row_id]: position for position, row_id in enumerate(ids)}
    for start, stop in row_spans(sorted(wanted)):
        for image in table.read_images(start, stop):
            if image.row in wanted:
                yield wanted[image.row], _scale_image(decode_image(image, split=table.split), side)


def row_spans(rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yields ranges that hold all rows, apart where many other rows lie between."""
    if not rows:
        return
    start = last = rows[0]
    for row in rows[1:]:
        if row - last > SPAN_ROWS:
            yield start, last + 1
            start = row
        last = row
    yield start, last + 1


def data_uri(image: Image.Image) -> str:
    """Returns the image as a JPEG within an address."""
    stream = io.BytesIO()
    image.save(stream, format="JPEG", quality=QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(stream.getvalue()).decode()}"


def _scale_image(image: Image.Image, side: int) -> Image.Image:
    """Scales an image to `side` at most, its sides' ratio kept; small images are enlarged."""
    # here, since a page without thumbnails needs no images; so is our module that imports it
    from PIL import Image

    from dpprobe.backbones.image_preprocessing import convert_mode

    shown = convert_mode(image, "RGB")
    scale = side / max(shown.size)
    size = (max(1, round(shown.width * scale)), max(1, round(shown.height * scale)))
    return shown.resize(size, Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS)
