"""Arrays in safetensors files."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpprobe.files.json_files import check_not_newer
from dpprobe.files.plain_files import require_plain_file
from dpprobe.json_values import canonical_json, parse_strict

if TYPE_CHECKING:
    import numpy.typing as npt

_LONGEST_HEADER = 1 << 22  # bytes of a safetensors header; enough for some ten thousand tensors


def hash_arrays(arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """Returns the SHA-256 (hex) of the names, types, shapes and values of arrays."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape} ".encode())
        digest.update(arrays[name].tobytes())
    return digest.hexdigest()


def pack_tensors(arrays: Mapping[str, npt.NDArray[Any]], metadata: dict[str, str]) -> bytes:
    """Returns the content of a safetensors file with arrays, which may be views."""
    import numpy as np  # late, because planning imports this module
    from safetensors.numpy import save  # late, because planning imports this module

    # `save` would ignore strides
    return save({key: np.ascontiguousarray(each) for key, each in arrays.items()}, metadata)


def pack_arrays(arrays: Mapping[str, npt.NDArray[Any]], described: Mapping[str, Any]) -> bytes:
    """Returns the content of a safetensors file with arrays and their description."""
    return pack_tensors(arrays, {"dpprobe": canonical_json(described)})


def read_arrays(
    path: Path, *, kind: str, version: int, largest: float = math.inf
) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Reads a file made by `pack_arrays`, which may come from strangers.

    Raises OSError or ValueError for a faulty file, DataError for a newer version.
    """
    from safetensors import SafetensorError, safe_open  # late, as above

    require_plain_file(path, largest)
    require_short_header(path)
    try:
        with safe_open(path, framework="numpy") as file:
            described: dict[str, Any] = parse_strict((file.metadata() or {})["dpprobe"])
            check_not_newer(path, described, kind=kind, version=version)
            return described, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(str(error)) from error


def require_short_header(path: Path) -> None:
    """Raises OSError for a safetensors file whose header takes minutes to read."""
    require_plain_file(path)
    with path.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
    # the library itself refuses a header that is longer than its file
    if _LONGEST_HEADER < size <= path.stat().st_size:
        raise OSError(f"a header of {size:,} bytes, more than {_LONGEST_HEADER:,}")
