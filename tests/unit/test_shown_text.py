"""Names from outside stay within their line, on terminals and in logs."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from dpprobe.shown_text import one_line

FORGED = "a\nb: 0 damaged\t\x1b[2J\u2028"
SHOWN = r"a\nb: 0 damaged\t\x1b[2J\u2028"


def test_a_name_in_a_line_cannot_begin_another(caplog: pytest.LogCaptureFixture) -> None:
    assert one_line(FORGED) == SHOWN
    logger = logging.getLogger("dpprobe")
    logger.warning("%s: class %s of %d", Path(FORGED), FORGED, 3)
    logger.warning("%s", "two\nlines")  # of a whole message
    assert [record.getMessage() for record in caplog.records] == [
        f"{SHOWN}: class {SHOWN} of 3",
        "two\nlines",
    ]
