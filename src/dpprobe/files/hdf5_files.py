"""Opens HDF5 files, which may come from strangers, without following references to other files.

With external links, external storage and virtual datasets an HDF5 file can present any file of this
machine as its own numbers. A few kilobytes can declare terabytes of a fill value. So all links and
datasets are checked before the caller reads the first value.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpprobe.extras import OptionalModule
from dpprobe.files.plain_files import require_plain_file, require_proportion

if TYPE_CHECKING:
    import h5py
else:
    h5py = OptionalModule("h5py")

# The most groups and datasets per file, and levels of groups; more would take minutes to check.
_MOST_LINKS, _DEEPEST = 100_000, 32
_LONGEST_TEXT = 1 << 20
_BLOCK_BYTES, _FEWEST_ROWS, _MOST_ROWS = 1 << 28, 8, 1024  # for reading texts in parts


@contextmanager
def open_hdf5(path: Path, **options: Any) -> Iterator[h5py.File]:
    """Opens a plain file to read; raises OSError if it refers to other files or objects.

    Also raises OSError for devices or pipes, and for datasets far larger than the file's bytes.
    """
    require_plain_file(path)
    with h5py.File(path, "r", **options) as file:
        _check_links(path, file)
        yield file


def _check_links(path: Path, file: h5py.File) -> None:
    pending, count = [(file.id, 1)], 0
    seen = {h5py.h5o.get_info(file.id).addr}
    while pending:
        group, level = pending.pop()
        if level > _DEEPEST:
            raise OSError(f"it has more than {_DEEPEST} levels of groups")
        for name in group:
            count += 1
            if count > _MOST_LINKS:
                raise OSError(f"it has more than {_MOST_LINKS:,} arrays and groups")
            shown = name.decode(errors="replace")
            if group.links.get_info(name).type != h5py.h5l.TYPE_HARD:
                raise OSError(f"{shown!r} is a link to another place; copy the array into the file")
            member = h5py.h5o.open(group, name)
            if (place := h5py.h5o.get_info(member).addr) in seen:
                continue
            seen.add(place)
            if isinstance(member, h5py.h5g.GroupID):
                pending.append((member, level + 1))
            elif isinstance(member, h5py.h5d.DatasetID):
                dataset = h5py.Dataset(member)
                if dataset.external is not None or dataset.is_virtual:
                    raise OSError(
                        f"{shown!r} has its numbers in other files; copy the array into the file"
                    )
                chunk = math.prod(dataset.chunks or ()) * dataset.dtype.itemsize
                require_proportion(path, shown, max(dataset.nbytes, chunk))


def read_column(dataset: h5py.Dataset) -> np.ndarray:
    """Reads a column; raises OSError if texts are too long, or together far larger than the file.

    Many rows may share one text of the file, so the number of rows does not bound the memory.
    """
    if dataset.dtype.kind != "O":
        return np.asarray(dataset[:])
    path, rows, total = Path(dataset.file.filename), len(dataset), 0
    if h5py.check_string_dtype(dataset.dtype) is None:
        raise OSError(f"{dataset.name!r:.60} has neither numbers nor strings")
    # A text may be as long as the file.
    step = min(max(_BLOCK_BYTES // path.stat().st_size, _FEWEST_ROWS), _MOST_ROWS)
    values = np.empty(rows, dtype=object)
    for start in range(0, rows, step):
        block = values[start : start + step] = dataset[start : start + step]
        lengths = [len(text) for text in block]
        if max(lengths) > _LONGEST_TEXT:
            raise OSError(f"{dataset.name!r:.60}: a string of more than {_LONGEST_TEXT:,} bytes")
        require_proportion(path, dataset.name, total := total + sum(lengths))
    return values
