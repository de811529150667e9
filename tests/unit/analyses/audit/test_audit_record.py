"""The record of an audited cell."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from dpprobe.analyses.audit.audit_record import AuditRecord, Membership
from dpprobe.errors import DataError
from dpprobe.files.json_files import read_json, write_json
from tests.support.audit_records import CONTROLS, MEMBERSHIP, WHITE_BOX, write_audit


def test_a_record_reads_back_as_it_was_written(tmp_path: Path) -> None:
    path = write_audit(tmp_path, controls=CONTROLS, membership=MEMBERSHIP)
    record = AuditRecord.read(path)
    record.write(tmp_path / "again.json")
    assert read_json(tmp_path / "again.json") == read_json(path)
    assert record.key == ("digits", "pixels", "sgd", "1")
    assert record.white_box is not None
    assert (record.white_box.inside, record.white_box.outside) == (488, 512)


def test_infinity_is_written_as_inf_and_nan_as_null(tmp_path: Path) -> None:
    record = AuditRecord.read(write_audit(tmp_path, controls=CONTROLS))
    assert record.white_box is not None
    changes = {"epsilon_lower": math.inf, "caught_factor": math.nan}
    box = record.white_box.model_copy(update=changes)
    path = tmp_path / "broken.json"
    record.model_copy(update={"white_box": box}).write(path)
    values = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(name))
    assert values["white_box"]["epsilon_lower"] == "inf"
    assert values["white_box"]["caught_factor"] is None
    assert AuditRecord.read(path).white_box.epsilon_lower == math.inf  # type: ignore[union-attr]


def test_a_record_of_another_form_is_refused_by_its_place(tmp_path: Path) -> None:
    path = write_audit(tmp_path)
    write_json(path, read_json(path) | {"white_box": {**WHITE_BOX, "runs": "many"}})
    with pytest.raises(DataError, match=r"white_box.runs.*; delete it and run again") as caught:
        AuditRecord.read(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_summaries_show_lira_on_all_rows() -> None:
    record = Membership.model_validate(MEMBERSHIP)
    shown = record.find_attack()
    assert shown is not None
    assert (shown.rows, shown.attack, shown.auc) == ("all", "lira", 0.5312)
    assert record.model_copy(update={"rows": record.rows[:2]}).find_attack() is None


def test_a_sentence_tells_of_no_larger_bound_than_was_measured(tmp_path: Path) -> None:
    record = AuditRecord.read(write_audit(tmp_path))
    assert "epsilon to be at least 0.712 at 95% confidence" in str(record.in_words)
    assert record.model_copy(update={"white_box": None}).in_words is None
