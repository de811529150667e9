"""Names from outside cannot break out of their line on terminals or in logs."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import tempfile
import unicodedata
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dpprobe.errors import ConfigError, DataError, DpprobeError
from dpprobe.files.logs import job_log, last_error
from dpprobe.shown_text import Lines, join_lines, one_line
from tests.support.command_line import run_main
from tests.support.shards import png

FORGED = "a\nb: 0 damaged\t\x1b[2J\u2028"
SHOWN = r"a\nb: 0 damaged\t\x1b[2J\u2028"
CONTROLS = st.sampled_from(["\n", "\r", "\x1b[2J", "\x85", "\u2028", "\t", "\x9b2J", "\u202e"])
NAMES = st.lists(st.text(max_size=5) | CONTROLS, min_size=1).map("".join)


def is_plain(line: str) -> bool:
    """Returns True if a line has no control characters, line ends, surrogates or bidi marks."""
    return not any(
        unicodedata.category(each) in ("Cc", "Cs", "Zl", "Zp")
        or unicodedata.bidirectional(each) in ("LRE", "RLE", "LRO", "RLO", "PDF")
        for each in line
    )


def test_a_name_in_a_line_cannot_begin_another(caplog: pytest.LogCaptureFixture) -> None:
    assert one_line(FORGED) == SHOWN
    logger = logging.getLogger("dpprobe")
    logger.warning("%s: class %s of %d", Path(FORGED), FORGED, 3)
    logger.warning("%s", FORGED)
    logger.warning("%s", join_lines(["two", FORGED]))
    assert [record.getMessage() for record in caplog.records] == [
        f"{SHOWN}: class {SHOWN} of 3",
        SHOWN,
        f"two\n{SHOWN}",
    ]


@given(names=st.lists(NAMES, min_size=1, max_size=4))
def test_an_error_has_as_many_lines_as_it_was_made_of(names: list[str]) -> None:
    alone = str(DataError(f"{names[0]}: no file"))
    assert is_plain(alone)
    joined = str(ConfigError(join_lines([alone, *names])))
    again = str(DpprobeError(join_lines([joined]) + f"; {names[0]}"))
    for text in (joined, again):
        assert isinstance(text, Lines)
        lines = text.split("\n")
        assert len(lines) == 1 + len(names)
        assert all(map(is_plain, lines))


@given(names=st.lists(NAMES, min_size=1, max_size=3))
@example(["", "["])
@settings(max_examples=30, deadline=None)
def test_a_log_of_a_job_has_the_error_that_was_raised(names: list[str]) -> None:
    forged = [f"{name}\n12:00:00 ERROR {name}" for name in names]
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stderr(io.StringIO()) as terminal,
    ):
        path = Path(folder, "job.log")
        with pytest.raises(SystemExit), job_log(path):
            raise DataError(join_lines(forged))
        log = path.read_text(encoding="utf-8")
    assert last_error(log) == join_lines(forged)
    for text in (log.rpartition("another attempt")[0], terminal.getvalue()):
        assert len(text.rstrip("\n").split("\n")) == len(names)


_CONTROLS = ["\n", "\r", "\x1b[2J", "\t", "\x9b", "\u202e", os.fsdecode(b"\xe9")]
# Commands that take paths.
COMMANDS = (
    "init {}",
    "init {}.csv",
    "init {}.csv --root {}",
    "init images --output {}.yaml",
    "check {}.yaml",
    "run --configfile {}.yaml",
    "run --profile {} --default-storage-prefix={}",
    "plan --n 9 --classes 2 --epsilon 1 --figure {}",
    "plan {}",
    "results {}",
    "doctor {}",
    "ledger {}",
    "verify {}",
    "predict {} x.png",
    "passport {} --published 2026-01-01",
    "compare {} {} --epsilon 1 --configfile {}.yaml",
    "site keys {} --configfile {}.yaml",
)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("there", ["nothing", "folder", "file"])
def test_no_command_lets_a_path_forge_a_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str, there: str
) -> None:
    """Output changes only in the name's control characters, each replaced by one mark."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "execve", lambda *_: sys.exit("starts snakemake"))
    for name in ("cat", "dog"):
        Path("images", name).mkdir(parents=True)
        for number in range(8):
            Path("images", name, f"{number}.png").write_bytes(png(number))
    plain, forged = ("".join(["a", *marks, "dpprobe: b"]) for marks in ("_" * 7, _CONTROLS))
    shown = {}
    for name in (plain, forged):
        for word in command.split():
            path = tmp_path / word.format(name)
            if "{}" in word and word[0] != "-" and there != "nothing":
                path.mkdir(exist_ok=True) if there == "folder" else path.write_text("key: 1\n")
        words = [word.format(name) for word in command.split()]
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            status = run_main(monkeypatch, *words)
        shown[name] = f"{status}\n{out.getvalue()}".split("\n")
        for path in tmp_path.iterdir():
            if not path.is_dir():
                path.unlink()
            elif path.name != "images":
                path.rmdir()
    assert len(shown[forged]) == len(shown[plain]), shown
    assert all(map(is_plain, shown[forged])), shown
