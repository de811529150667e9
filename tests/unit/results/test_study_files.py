"""Where the files of a study's stages lie."""

from __future__ import annotations

from dpprobe.results.study_files import StudyFiles
from dpprobe.study.study_file import load_study
from tests.support.small_study import STUDY, changed


def test_each_stage_s_files_lie_in_its_folder() -> None:
    files = StudyFiles(load_study(changed("features", {"shards": 2})), data="d", results="r")
    assert files.list_tables("digits") == [
        "d/digits/train.parquet", "d/digits/test.parquet", "d/digits/dataset.json",
    ]  # fmt: skip
    assert files.list_shards("digits", "pixels", "test") == [
        "r/features/digits/pixels/test/shard-00000-of-00002.h5",
        "r/features/digits/pixels/test/shard-00001-of-00002.h5",
    ]
    assert len(files.list_shards("digits", "pixels")) == 4
    assert files.list_features("digits")[2] == "r/features/digits/pixels/train/manifest.json"
    assert files.list_calibrations("digits")[0] == "r/calibration/digits/eps-0.5.json"
    assert files.list_embeddings("digits") == ["r/embeddings/digits/pixels/tsne.parquet"]
    assert files.list_summaries() == ["r/summary/digits.parquet"]


def test_cells_share_the_mark_of_their_job() -> None:
    files = StudyFiles(load_study(STUDY), results="r")
    cells = files.list_study_cells("digits")
    assert cells is files.list_study_cells("digits")  # of thousands of cells computed once
    named = files.list_cells(cells, ["metrics.json"])
    assert "r/cells/digits/pixels/sgd/eps-0.5/metrics.json" in named
    assert len(named) == len(cells)
    assert files.list_marks(cells) == [
        "r/cells/digits/pixels/.eps-0.5.done",
        "r/cells/digits/pixels/.eps-1.done",
        "r/cells/digits/pixels/.eps-inf.done",
    ]
    assert files.list_networks(cells) == files.list_network_marks(cells) == []


def test_networks_have_files_and_marks_for_each_seed() -> None:
    tuned = changed("methods.tuned", {"head": "fine_tune", "tune": "head"})
    files = StudyFiles(load_study(tuned | {"seeds": 2}), results="r")
    cells = [cell for cell in files.list_study_cells() if cell.method == "tuned"][:1]
    assert files.list_marks(cells) == ["r/cells/digits/pixels/tuned/.eps-0.5.done"]
    folder = "r/networks/digits/pixels/tuned/eps-0.5"
    assert files.list_networks(cells, ["result.json"]) == [
        f"{folder}/seed-0/result.json", f"{folder}/seed-1/result.json",
    ]  # fmt: skip
    assert files.list_network_marks(cells) == [f"{folder}/.seed-0.done", f"{folder}/.seed-1.done"]
