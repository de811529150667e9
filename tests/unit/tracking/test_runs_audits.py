"""Audits in the runs of their cells."""

from __future__ import annotations

from dpprobe.artifacts import read_json, write_json
from tests.support.audit_records import MEMBERSHIP, WHITE_BOX, write_audit
from tests.support.tracked_study import Study

KEY = "study/digits/pixels/sgd/eps-0.5"


def test_bound_confidence_and_attack_are_metrics_of_the_cell_s_run(study: Study) -> None:
    study.ingest(audits=[write_audit(study.root, epsilon="0.5", membership=MEMBERSHIP)])
    run = study.runs()[KEY]
    assert {
        name: value
        for name, value in run.data.metrics.items()
        if name.startswith(("audit/", "attack/"))
    } == {
        "audit/epsilon_lower": 0.7123,
        "audit/confidence": 0.95,
        "audit/caught_factor": 1.52,
        "attack/auc": 0.5312,
        "attack/tpr_at_fpr_0.001": 0.0023,
    }
    note = run.data.tags["mlflow.note.content"]
    assert "at least 0.712 at 95% confidence" in note
    assert "a low bound is no certificate" in note
    assert "audit/eps-0.5.json" in study.artifacts(run)
    assert "audit/epsilon_lower" in str(study.view("digits"))


def test_an_audit_renews_the_run_of_its_cell_alone(study: Study) -> None:
    before = study.ingest()["runs"]
    path = write_audit(study.root, epsilon="0.5")
    receipt = study.ingest(audits=[path])
    assert (receipt["replaced"], receipt["created"]) == (1, 0)
    assert {key for key, run in receipt["runs"].items() if before[key] != run} == {KEY}
    assert study.ingest(audits=[path])["replaced"] == 0
    write_json(path, read_json(path) | {"white_box": {**WHITE_BOX, "epsilon_lower": 0.1}})
    assert study.ingest(audits=[path])["replaced"] == 1
    assert study.runs()[KEY].data.metrics["audit/epsilon_lower"] == 0.1


def test_without_audits_and_subgroups_no_run_tells_of_any(study: Study) -> None:
    study.ingest()
    told = ("audit/", "attack/", "fairness/")
    for run in study.runs().values():
        assert not any(name.startswith(told) for name in run.data.metrics)
    assert "audit/" not in str(study.view("digits"))
