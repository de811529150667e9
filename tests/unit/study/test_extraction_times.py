"""Networks are timed before a run if many images wait for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpprobe.backbones.backbone import Runtime
from dpprobe.backbones.hub_files import HubFile
from dpprobe.features.extraction_time import Rate
from dpprobe.study import extraction_times
from dpprobe.study.extraction_times import FEWEST_IMAGES, describe_times
from dpprobe.study.reserved_names import locate_features
from dpprobe.study.study_file import load_study
from tests.support.shards import png
from tests.support.small_study import STUDY

SLOW = [Rate(per_second=0.5, device="cpu", side=518)]
VIT = {"family": "timm", "model": "test_vit", "checkpoint": "test_vit.pth"}


def test_networks_with_many_images_and_weights_here_are_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed: list[str] = []

    def time_one(options: Any, runtime: Runtime) -> list[Rate]:
        assert runtime.device == "cpu"
        timed.append(options.model)
        return SLOW

    monkeypatch.setattr(extraction_times, "time_network", time_one)
    for dataset, count in {"few": FEWEST_IMAGES // 4, "many": FEWEST_IMAGES}.items():
        for name in ("cat", "dog"):
            (tmp_path / dataset / name).mkdir(parents=True)
            for number in range(count):
                (tmp_path / dataset / name / f"{number}.png").write_bytes(png(number))
    source = {"source": "imagefolder", "path": str(tmp_path / "many")}
    values = {
        **STUDY,
        "results_dir": str(tmp_path / "results"),
        "device": "cpu",
        "backbones": {"vit": VIT, "pixels": {"family": "pixels"}},
        "datasets": {"many": source, "few": {**source, "path": str(tmp_path / "few")}},
    }
    study = load_study(values)
    (line,) = describe_times(study)
    assert line.startswith("backbones.vit: many: extracting the features of 400 images takes about")
    assert timed == ["test_vit"]
    fetched = {"vit": [HubFile("weights", "no/such-repository", ("model.safetensors",))]}
    assert list(describe_times(study, fetched)) == []
    for split in ("train", "test"):
        path = Path(locate_features(study.results_dir, "many", "vit", split))
        path.parent.mkdir(parents=True)
        path.touch()
    assert list(describe_times(study)) == []
    assert timed == ["test_vit"]
