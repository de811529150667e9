"""bench/gpu.py: its studies are valid, steps end at their limits, and logs become rows."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import pytest

import gpu
from dpprobe.study.study_file import load_study


def asked(device: str, data: Path) -> argparse.Namespace:
    steps = ["tests", "study", "tune", "extract", "heads", "fine_tune", "exact", "features"]
    return argparse.Namespace(device=device, data=data, steps=steps, images=10)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_studies_of_all_steps_are_valid(device: str, tmp_path: Path) -> None:
    steps = gpu.list_steps(asked(device, tmp_path), tmp_path)
    for name in ("study", "tune"):
        path = tmp_path / f"{name}.yaml"
        assert str(path) in steps[name][1]
        study = load_study(json.loads(path.read_text()))
        assert study.device == device


def test_a_step_ends_at_its_limit_with_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "SHOWN_SECONDS", 0.2)
    print_and_wait = (
        "import os, time, dpprobe\n"
        "print('| case | rows | ratio |\\n|---|---|---|\\n| A | 5 | 1.2 |', flush=True)\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
        "time.sleep(600)"
    )
    step = 600, ["-c", print_and_wait], gpu.read_tables
    rows = gpu.run_step("heads", step, tmp_path, tmp_path, left=5)
    assert rows[0][0] == "heads: stopped at its limit"
    assert rows[1:] == [gpu.Row("heads: A", "rows 5; ratio 1.2")]
    assert "| A | 5 | 1.2 |" in capsys.readouterr().out
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_step_that_fails_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step = 60, ["-c", "raise SystemExit('no data')"], gpu.read_tables
    (row,) = gpu.run_step("heads", step, tmp_path, tmp_path, left=60)
    assert row[0] == "heads: exit status 1"
    assert "no data" in capsys.readouterr().out
