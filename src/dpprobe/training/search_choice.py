"""The values that a search over a method's options chose, as its file has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpprobe.artifacts import read_json
from dpprobe.errors import DataError


def read_choice(path: Path | None) -> dict[str, Any]:
    """Returns the values of the best trial; none without a search.

    Raises:
      DataError: for a file that is not a search's.
    """
    if path is None:
        return {}
    try:
        return dict(read_json(path)["best"]["values"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: not a search ({error!r}); delete it and run again") from None
