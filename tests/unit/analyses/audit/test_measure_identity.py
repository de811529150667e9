"""What decides an audit changes its identity."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dpprobe.analyses.audit.measure import _Task
from dpprobe.analyses.audit.options import AuditOptions
from dpprobe.artifacts import hash_value
from tests.support.audits import plan_of
from tests.support.training_jobs import make_job
from tests.unit.analyses.audit.test_measure import ATTACKED
from tests.unit.analyses.audit.test_measure import METHODS as AUDITED


def test_whatever_decides_an_audit_changes_its_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpprobe.analyses.audit.measure.identity_device", str)
    store: Any = SimpleNamespace(dimension=8, num_classes=3, multi_label=False, fingerprint="f")
    plan = plan_of(AUDITED["full"], 300)
    task = _Task(
        name=make_job().name_cell("full"),
        options=AUDITED["full"],
        study_seed=0,
        audit=AuditOptions(membership=ATTACKED.membership),
        plan=plan,
        train=store,
        audits=Path("a"),
        device="cpu",
    )
    changes: list[dict[str, Any]] = [
        {},
        {"name": make_job(dataset="e").name_cell("full")},
        {"name": make_job().name_cell("small")},
        {"name": make_job(backbone="b").name_cell("full")},
        {"plan": plan_of(AUDITED["full"], 301)},
        {"name": make_job(epsilon="5").name_cell("full")},
        {"audit": AuditOptions(runs=20)},
        {"study_seed": 1},
        {"device": "cuda"},
        {"options": AUDITED["small"]},
        *(
            {"train": SimpleNamespace(**vars(store) | each)}
            for each in (
                {"dimension": 9},
                {"num_classes": 4},
                {"multi_label": True},
                {"fingerprint": "g"},
            )
        ),
    ]
    tasks = [replace(task, **change) for change in changes]
    assert len({hash_value(each.identity) for each in tasks}) == len(changes)
    public = [hash_value(each.public_identity) for each in tasks]
    alike = [place for place, each in enumerate(public) if each == public[0]]
    assert alike == [0, 8, 13], "neither the rows nor the device"
    assert {"versions", "public", "use"} <= task.identity.keys()
    chosen = replace(task, audit=AuditOptions(methods=["full"], membership=ATTACKED.membership))
    assert chosen.identity == task.identity
