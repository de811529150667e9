"""Opens HDF5 files, which may come from strangers, without following them to other files.

By external links, external storage and virtual datasets an HDF5 file can present any file of this
machine as its own numbers. A few kilobytes can declare terabytes of a fill value. All links and
datasets are checked before the caller reads the first value.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpprobe.artifacts import require_plain_file, require_proportion
from dpprobe.extras import OptionalModule

if TYPE_CHECKING:
    import h5py
else:
    h5py = OptionalModule("h5py")

_MOST_LINKS = 100_000  # groups and datasets of one file; more would take minutes to check


@contextmanager
def open_hdf5(path: Path, **options: Any) -> Iterator[h5py.File]:
    """Opens a file to read; raises OSError if it refers to other files or objects, or is no file.

    Also raises OSError if a dataset is much larger than the file's bytes can be.
    """
    require_plain_file(path)
    with h5py.File(path, "r", **options) as file:
        _check_links(path, file)
        yield file


def _check_links(path: Path, file: h5py.File) -> None:
    pending, count = [file.id], 0
    seen = {h5py.h5o.get_info(file.id).addr}
    while pending:
        group = pending.pop()
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
                pending.append(member)
            elif isinstance(member, h5py.h5d.DatasetID):
                dataset = h5py.Dataset(member)
                if dataset.external is not None or dataset.is_virtual:
                    raise OSError(
                        f"{shown!r} has its numbers in other files; copy the array into the file"
                    )
                require_proportion(path, shown, dataset.nbytes)
