"""bench/gpu.py has valid studies, its steps end at their time limits, and its logs become rows."""

from __future__ import annotations

import argparse
import json
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
