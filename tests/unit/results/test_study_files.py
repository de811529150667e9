"""Paths of the files of a study's stages."""

from __future__ import annotations

from dpprobe.results.study_files import StudyFiles
from dpprobe.study.study_file import load_study
from tests.support.small_study import STUDY, changed


def test_each_stage_s_files_lie_in_its_folder() -> None:
    files = StudyFiles(load_study(changed("features", {"shards": 2})), data="d", results="r")
    assert files.list_tables("digits") == [
        "d/digits/train.parquet",
        "d/digits/test.parquet",
        "d/digits/dataset.json",
    ]
    assert files.list_shards("digits", "pixels", "test") == [
        "r/features/digits/pixels/test/shard-00000-of-00002.h5",
        "r/features/digits/pixels/test/shard-00001-of-00002.h5",
    ]
    assert len(files.list_shards("digits", "pixels")) == 4
    assert files.list_features("digits")[2] == "r/features/digits/pixels/train/manifest.json"
    assert files.list_calibrations("digits")[0] == "r/calibration/digits/eps-0.5.json"
    assert files.list_embeddings("digits") == ["r/embeddings/digits/pixels/tsne.parquet"]
    assert files.list_summaries() == ["r/summary/digits.parquet"]


def test_cells_have_files_by_their_names() -> None:
    files = StudyFiles(load_study(STUDY), results="r")
    cells = files.list_study_cells("digits")
    assert cells is files.list_study_cells("digits")  # thousands of cells are computed once
    named = files.list_cells(cells, ["metrics.json"])
    assert "r/cells/digits/pixels/sgd/eps-0.5/metrics.json" in named
    assert len(named) == len(cells)
    assert set(named) < set(files.list_cells(cells))
    assert len(files.list_cells(cells)) == 5 * len(cells)
    assert files.list_networks(cells) == []


def test_networks_have_files_for_each_seed() -> None:
    tuned = changed("methods.tuned", {"head": "fine_tune", "tune": "head"})
    files = StudyFiles(load_study(tuned | {"seeds": 2}), results="r")
    cells = [cell for cell in files.list_study_cells() if cell.method == "tuned"][:1]
    folder = "r/networks/digits/pixels/tuned/eps-0.5"
    assert files.list_networks(cells, ["result.json"]) == [
        f"{folder}/seed-0/result.json",
        f"{folder}/seed-1/result.json",
    ]


SEVERAL = STUDY | {
    "datasets": dict.fromkeys(("digits", "wine"), STUDY["datasets"]["digits"]),
    "seeds": 2,
    "public_datasets": {"other": {"source": "torchvision", "name": "MNIST"}},
    "backbones": {
        "pixels": {"family": "pixels"},
        "clip": {"family": "open_clip", "model": "ViT-B-32-quickgelu.openai"},
    },
    "overlap": {"public": ["other"]},
    "few_shot": {},
    "epsilons": [10, "inf"],
}


def test_checks_of_near_duplicates_have_private_splits_first_and_files_per_backbone() -> None:
    files = StudyFiles(load_study(SEVERAL), results="r")
    assert files.list_overlap_splits("wine") == [
        ("wine", "train"),
        ("wine", "test"),
        ("other", "train"),
        ("other", "test"),
    ]
    assert files.list_overlaps("wine") == [
        f"r/overlap/wine/{backbone}.{ending}"
        for backbone in ("pixels", "clip")
        for ending in ("json", "parquet")
    ]
    assert StudyFiles(load_study(STUDY)).list_overlaps("digits") == []


def test_texts_and_zero_shot_are_of_backbones_only_with_texts() -> None:
    files = StudyFiles(load_study(SEVERAL), results="r")
    assert files.list_texts("wine") == ["r/features/wine/clip/text.safetensors"]
    assert files.list_zero_shot("wine") == [
        "r/zero_shot/wine/clip/metrics.json",
        "r/zero_shot/wine/clip/predictions.parquet",
    ]
    records = [f"r/zero_shot/{name}/clip/metrics.json" for name in ("digits", "wine")]
    assert files.list_zero_shot_records() == records
    assert files.list_zero_shot_records("wine") == records[1:]
    shots = [f"r/few_shot/{name}/clip.json" for name in ("digits", "wine")]
    assert files.list_few_shot_records() == shots
    assert files.list_few_shot_records("wine") == shots[1:]
    assert files.list_summaries() == ["r/summary/digits.parquet", "r/summary/wine.parquet"]
