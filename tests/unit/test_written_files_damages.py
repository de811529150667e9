"""Damaged records of written files, and files that changed since."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from dpprobe import artifacts, run_marks, written_files


def test_damaged_records_of_written_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    results, record = tmp_path / "results", tmp_path / "results/.written/a.json"
    monkeypatch.setattr(written_files, "_EXTRA", set())
    monkeypatch.setenv(run_marks.MARKED, json.dumps([str(results)]))
    names = [f"cells/{name}" for name in ("b.json", "a.json", "c", "gone", "e")]
    paths = [results / name for name in names]
    for path in (*paths[:3], *paths[4:], results / "z", results / "y"):
        artifacts.write_text(path, "[1]" if path.name == "b.json" else path.name)
    artifacts.write_record(paths[1], {"x": 1}, paths[2], paths[4])
    for path in (results / "z", results / "y", paths[1]):
        written_files.add_file(path)
    absent = [results / "cells/none.json", results / "cells/.done"]  # a mark is touched later
    absent[1].touch()
    job = written_files.JobRecord(results / "logs/a.log", [*paths[:2], *absent])
    job.finish()
    files = json.loads(record.read_text())["files"]
    assert {name: each.get("output") for name, each in files.items()} == {
        "cells/a.json": None,
        "cells/b.json": None,
        "cells/c": "cells/a.json",
        "cells/e": "cells/a.json",
        "y": "cells/a.json",
        "z": "cells/a.json",
    }
    damages: list[Any] = [{"bytes": 3}, 3, None, [], {}]
    for damage in damages:
        artifacts.write_record(
            record,
            {
                "format": written_files.FORMAT,
                "files": files | {"cells/c": damage, "cells/a.json/x": {"bytes": 1}},
            },
        )
        changed = written_files.list_changed(record, results)
        assert changed == [paths[2], paths[1] / "x"], damage
    wrong: list[Any] = [
        {"format": written_files.FORMAT},
        {"files": {}},
        {"format": "x", "files": {}},
    ]
    for values in wrong:
        artifacts.write_record(record, values)
        with pytest.raises(ValueError, match="lacks|not a"):
            written_files.read_written(record)
        assert written_files.list_changed(record, results) == [record]
    for content in (b"", b"{", b"[1]"):
        record.write_bytes(content)
        assert written_files.list_changed(record, results) == [record]
    with monkeypatch.context() as patch:
        patch.setattr(written_files, "read_json", Mock(side_effect=PermissionError(13, "closed")))
        with pytest.raises(PermissionError):
            written_files.list_changed(record, results)
    job.finish()
    for path in (paths[0], results / "y"):
        path.write_text("changed")
    paths[2].unlink()
    paths[2].symlink_to("nowhere")
    (results / "z").unlink()
    (results / "z").mkdir()
    caplog.clear()
    written_files.JobRecord(results / "logs/a.log", paths[:2])
    told = [text.replace(str(results), "").partition(":")[0] for text in caplog.messages]
    assert told == ["/cells/b.json", "/cells/c", "/y"]
    assert [path.is_symlink() or path.exists() for path in (*paths[:3], results / "z")] == [
        False,
        True,
        False,
        True,
    ]
    assert [*json.loads(record.read_text())["files"]] == ["z"], "of no folder of this job"
