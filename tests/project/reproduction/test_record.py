"""The record of completed runs is read from results folders, and contains no dates or paths."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from dpprobe.errors import DataError
from dpprobe.files.json_files import write_json
from dpprobe.study.study import Study
from dpprobe.study.study_file import load_study
from reproduction import record
from tests.support.paper_tables import paper_cell
from tests.support.small_study import STUDY

SGD = {"head": "sgd", "batch_size": 32, "epochs": 2}


def study(**changes: Any) -> Study:
    return load_study(STUDY | {"study": "mine"} | changes)


def test_a_record_has_options_and_the_published_name(tmp_path: Path) -> None:
    paper_cell(tmp_path, epsilon="0.5", options=SGD)
    of = study(papers={"datasets": {"digits": "cifar10"}})
    (found,) = record.record_study(of, tmp_path, file="config/mine.yaml").results()
    assert (found.study, found.dataset, found.backbone) == ("mine", "cifar10", "pixels")
    assert (found.epsilon, found.private, found.seeds) == (0.5, True, 3)
    assert found.options == SGD
    assert found.backbone_options["family"] == "pixels"
    assert found.mean == pytest.approx(sum(found.values) / 3)
    assert found.passes == pytest.approx(2, rel=0.02)
    assert not found.network


def test_a_cell_that_pld_did_not_price_has_its_noise_and_pld_s_price(tmp_path: Path) -> None:
    path = paper_cell(tmp_path, epsilon="0.5", options=SGD).with_name("privacy.json")
    (by_pld,) = record.record_study(study(), tmp_path, file=None).results()
    assert (by_pld.noise, by_pld.pld_epsilon) == (None, None)
    statement = json.loads(path.read_text())
    statement["mechanisms"][0] |= {"name": "gradients", "noise_multiplier": 5.67}
    statement["checks"] = {"pld (dp-accounting 0.6.0)": 0.41, "prv (opacus 1.6.0)": 0.42}
    write_json(path, statement)
    written = record.record_study(study(accountant="rdp_2017"), tmp_path, file=None)
    written.write(tmp_path / "record.json")
    (found,) = record.read_reproduced(tmp_path / "record.json").results()
    assert (found.noise, found.pld_epsilon) == (5.67, 0.41)


def test_infinity_and_areas_survive_json(tmp_path: Path) -> None:
    paper_cell(tmp_path, epsilon="inf", multi_label=True, headline="auc")
    written = record.record_study(study(), tmp_path, file=None)
    written.write(tmp_path / "record.json")
    (found,) = record.read_reproduced(tmp_path / "record.json").results()
    assert found == written.results()[0]
    assert (found.epsilon, found.private, found.metric) == (math.inf, False, "auc")


def test_a_study_replaces_its_cells_and_leaves_others(tmp_path: Path) -> None:
    paper_cell(tmp_path / "a", epsilon="1")
    paper_cell(tmp_path / "a", epsilon="10")
    paper_cell(tmp_path / "b", epsilon="2")
    paper_cell(tmp_path / "b", epsilon="10", seeds=5)
    first = record.record_study(study(), tmp_path / "a", file=None)
    other = record.record_study(study(study="other"), tmp_path / "a", file=None)
    again = record.record_study(study(), tmp_path / "b", file=None)
    both = first.with_parts(other).with_parts(again)
    assert [(r.study, r.epsilon, r.seeds) for r in both.results()] == [
        ("mine", 1.0, 3),
        ("mine", 2.0, 3),
        ("mine", 10.0, 5),
        ("other", 1.0, 3),
        ("other", 10.0, 3),
    ]


def test_a_folder_without_cells_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no cell of study mine; run it first"):
        record.record_study(study(), tmp_path, file=None)


def test_the_projects_record_has_no_place_of_a_machine() -> None:
    text = record.FILE.read_text(encoding="utf-8")
    assert "seconds" not in text
    assert '"/' not in text
