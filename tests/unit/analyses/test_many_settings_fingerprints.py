"""What decides laws and audits changes their fingerprints, and samples keep their labels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dpprobe.analyses.audit.measure import _Task
from dpprobe.analyses.audit.options import AuditOptions
from dpprobe.analyses.representation_law.law_networks import LawTask
from dpprobe.analyses.representation_law.options import RepresentationLawOptions
from dpprobe.artifacts import hash_value
from tests.support.audits import plan_of
from tests.support.training_jobs import make_job
from tests.unit.analyses.audit.test_measure import ATTACKED
from tests.unit.analyses.audit.test_measure import METHODS as AUDITED
from tests.unit.analyses.representation_law.test_law_networks import CONVOLUTIONAL, METHODS, VIT


def test_whatever_decides_laws_changes_their_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "dpprobe.analyses.representation_law.law_networks"
    monkeypatch.setattr(f"{module}.SplitTable", lambda path: SimpleNamespace(fingerprint=path.name))
    monkeypatch.setattr(f"{module}.sha256_file", str)
    chosen: dict[str, Any] = {}
    monkeypatch.setattr(LawTask, "_read_chosen", lambda *_: chosen)
    task = LawTask(
        networks=[("one", "1"), ("two", "1")],
        results=Path("r"),
        dataset="d",
        backbone_name="net",
        tables={"train": Path("a"), "test": Path("b")},
        backbone=VIT,
        methods=METHODS,
        seed=0,
        options=RepresentationLawOptions(rows=120),
        device="cpu",
    )
    local = VIT.model_copy(update={"weights_file": "w.pt"})
    changes: list[dict[str, Any]] = [
        {},
        {"networks": [("one", "2"), ("two", "1")]},
        {"networks": [("one", "1")]},
        {"networks": [("two", "1"), ("two", "1")]},
        {"dataset": "e"},
        {"backbone_name": "b"},
        {"tables": {"train": Path("c"), "test": Path("b")}},
        {"results": Path("s")},
        {"tables": {"train": Path("a"), "test": Path("c")}},
        {"backbone": CONVOLUTIONAL},
        {"backbone": local},
        {"methods": METHODS | {"one": METHODS["lora"]}},
        {"seed": 1},
        {"options": RepresentationLawOptions(rows=121)},
        {"device": "cuda"},
    ]
    monkeypatch.setattr(type(VIT), "input_files", lambda self: ["w"] if self is local else [])
    prints = [replace(task, **change)._hash_inputs() for change in changes]
    chosen["learning_rate"] = 0.5
    assert len({*prints, task._hash_inputs()}) == len(changes) + 1


def test_a_sample_of_images_keeps_its_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "dpprobe.analyses.representation_law.law_networks"
    monkeypatch.setattr(f"{module}.decode_image", lambda image, **_: image.row)
    images = [SimpleNamespace(row=row) for row in range(90)]
    table: Any = SimpleNamespace(
        rows=90,
        split="test",
        read_images=lambda start, stop: images[start:stop],
        read_labels=lambda: np.arange(90) * 3,
    )
    backbone: Any = SimpleNamespace(transform=lambda row: torch.full((1, 2, 2), float(row)))
    task = LawTask(
        networks=[],
        results=Path("r"),
        dataset="d",
        backbone_name="net",
        tables={},
        seed=0,
        backbone=VIT,
        methods={},
        options=RepresentationLawOptions(rows=89),
        device="cpu",
    )
    for count in (20, 89, 90, 91):
        few = replace(task, options=RepresentationLawOptions(rows=count))
        rows = few._read_rows(table, backbone)
        places = rows.images[:, 0, 0, 0].numpy()
        assert len(places) == min(count, 90)
        assert (np.diff(places) > 0).all()
        assert rows.labels.tolist() == (3 * places).tolist()


def test_whatever_decides_an_audit_changes_its_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpprobe.analyses.audit.measure.identity_device", str)
    store: Any = SimpleNamespace(dimension=8, num_classes=3, multi_label=False, fingerprint="f")
    plan = plan_of(AUDITED["full"], 300)
    task = _Task(
        job=make_job(methods=AUDITED),
        audit=AuditOptions(membership=ATTACKED.membership),
        method="full",
        plan=plan,
        train=store,
        audits=Path("a"),
        device="cpu",
    )
    changes: list[dict[str, Any]] = [
        {},
        {"job": make_job(methods=AUDITED, dataset="e")},
        {"method": "small"},
        {"job": make_job(methods=AUDITED, backbone="b")},
        {"plan": plan_of(AUDITED["full"], 301)},
        {"job": make_job(methods=AUDITED, epsilon="5")},
        {"audit": AuditOptions(runs=20)},
        {"job": make_job(methods=AUDITED, study_seed=1)},
        {"device": "cuda"},
        {"job": make_job(methods=AUDITED | {"full": AUDITED["small"]})},
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
