"""bench/gpu.py: its studies are valid, steps end at their limits, and logs become rows."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
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


def test_jobs_are_timed_by_rule(tmp_path: Path) -> None:
    for split in ("train", "test"):
        parquet.write_table(pa.table({"label": [0] * 30}), tmp_path / f"{split}.parquet")
    folder = tmp_path / "study" / "results" / "benchmarks"
    for name, seconds, end in (
        ("train_heads/cifar10/vit/eps-1", 5, 130),
        ("extract_features/cifar10/vit/train/shard-0-of-2", 10, 110),
        ("extract_features/cifar10/vit/test/shard-0-of-2", 8, 112),
    ):
        path = folder / f"{name}.tsv"
        path.parent.mkdir(parents=True)
        path.write_text(f"s\th:m:s\n{seconds}\t0:00:10\n")
        os.utime(path, (end, end))
    rows = list(gpu.read_jobs("", tmp_path, "study"))
    assert [row.what for row in rows] == ["study: extract_features vit", "study: train_heads"]
    assert rows[0].measured == "12.0 s from first to last of 2, the longest 10.0 s, 5 rows/s"


def test_outcomes_of_tests_are_counted() -> None:
    log = "FAILED a\n1 failed, 2 passed, 3 deselected, 1 error in 3 s\n"
    assert list(gpu.read_tests(log, Path(), "tests")) == [gpu.Row("tests passed", "2", "4")]


def test_this_python_runs_the_steps(tmp_path: Path) -> None:
    step = 60, ["-c", "import sys; print(f'| a | b |\\n|--|--|\\n| x | {sys.executable} |')"]
    rows = gpu.run_step("heads", (*step, gpu.read_tables), tmp_path, tmp_path, left=60)
    assert rows[1].measured == f"b {sys.executable}"
