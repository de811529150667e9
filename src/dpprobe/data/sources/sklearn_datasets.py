"""Images that are part of scikit-learn and need no download.

A row's id is its position in scikit-learn's fixed order.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from dpprobe.data import train_test_split
from dpprobe.data.images.image_files import encode_png
from dpprobe.data.train_test_split import SplitOptions, SplitSeed, TestFraction

if TYPE_CHECKING:
    import numpy as np

# Numbers of rows per class, to check a study without importing scikit-learn.
CLASS_ROWS: dict[str, tuple[int, ...]] = {
    "digits": (178, 182, 177, 183, 181, 182, 181, 179, 174, 180),
}
# The largest grey value of scikit-learn's digits.
DIGITS_MAX = 16


class Options(SplitOptions):
    """A dataset of scikit-learn: `digits`, 1,797 handwritten digits of 8 x 8 grey pixels."""

    source: Literal["sklearn"] = "sklearn"
    name: Literal["digits"] = Field("digits", description="Name of scikit-learn's dataset.")
    test_fraction: TestFraction = 0.2
    split_seed: SplitSeed = 0

    def check_files(self) -> None:
        """Checks nothing, because the images are part of scikit-learn."""

    def has_test(self) -> bool:
        return False

    def count_rows(self) -> tuple[int, int]:
        sizes = CLASS_ROWS[self.name]
        if self.split_by == "class":
            return train_test_split.count_rows(sizes, self.test_fraction)
        tested = self.choose_test(_make_ids(sum(sizes)), ())
        return tested.count(False), tested.count(True)

    def count_classes(self) -> int:
        return len(CLASS_ROWS[self.name])

    def class_rows(self) -> dict[str, int] | None:
        """Counts the training rows of each class; None if ids choose the test rows."""
        if self.split_by == "id":
            return None
        return {
            str(label): rows - train_test_split.count_test(rows, self.test_fraction)
            for label, rows in enumerate(CLASS_ROWS[self.name])
        }


def _make_ids(rows: int) -> list[str]:
    return [f"digits-{row:04d}" for row in range(rows)]


def prepare(options: Options, directory: Path) -> None:
    """Writes the split tables of a dataset of scikit-learn."""
    from sklearn.datasets import load_digits

    from dpprobe.data import table, table_writer  # slow import: numpy and pyarrow

    images, labels = load_digits(return_X_y=True)
    ids, labels = _make_ids(len(labels)), labels.tolist()
    tested = options.choose_test(ids, labels)
    parts = {
        name: [row for row, test in enumerate(tested) if test == (name == "test")]
        for name in table.SPLITS
    }
    table_writer.write_dataset(
        directory,
        table_writer.batch_images(
            parts, lambda _, row: (ids[row], labels[row], _encode_digit(images[row]))
        ),
        options=options,
        class_names=[str(label) for label in range(options.count_classes())],
        rows=len(ids),
    )


def _encode_digit(pixels: np.ndarray) -> bytes:
    import numpy as np
    from PIL import Image

    grey = np.rint(pixels.reshape(8, 8) * 255 / DIGITS_MAX).astype(np.uint8)
    return encode_png(Image.fromarray(grey))
