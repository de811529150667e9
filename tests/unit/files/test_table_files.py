"""Tables that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from dpprobe.errors import DataError
from dpprobe.files import disk_errors, table_files


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(5, "Input/output error"), "Input/output error"),
        (OSError("plain\nsecond"), "plain"),
        (pa.ArrowInvalid("bad\nfile"), "bad"),
        (pa.ArrowException(), r"ArrowException\(\)"),
        (UnicodeDecodeError("utf-8", b"x", 0, 1, "odd"), ".*position 0: odd"),
    ],
)
def test_a_damaged_table_is_reported_in_a_line(tmp_path: Path, error: Exception, said: str) -> None:
    (tmp_path / "a").touch()
    explained = table_files.explain_parquet(tmp_path / "a", DataError, "table")
    with pytest.raises(DataError, match=rf"^table \({said}\); replace it$"), explained:
        raise error
    with pytest.raises(type(error)), disk_errors.explain_full_disk(Path("here"), "copying"):
        raise error
    assert disk_errors.explain_unwritable(error) is None


def test_a_programmer_s_error_in_a_table_is_not_the_table_s(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(KeyError), table_files.explain_parquet(tmp_path / "a", DataError, "table"):
        raise KeyError("x")
