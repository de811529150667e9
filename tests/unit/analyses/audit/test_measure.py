"""The audit job reuses up-to-date audits and repeats stale ones; the attacks are stubs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from dpprobe.analyses.audit import membership, white_box
from dpprobe.analyses.audit.audit_record import (
    RECORD_SUFFIX,
    SCORES_SUFFIX,
    AuditRecord,
    Membership,
    audit_path,
    power_in_words,
)
from dpprobe.analyses.audit.measure import AuditTask, audit_cells, claim_of_plan
from dpprobe.analyses.audit.options import AuditOptions, MembershipOptions
from dpprobe.errors import DownloadError, DpprobeError, PrivacyError
from dpprobe.files.json_files import read_json, write_json
from dpprobe.heads import auto_rule
from dpprobe.heads.facts import DataFacts
from dpprobe.heads.plan_check import check_plan
from dpprobe.heads.public_inputs import PublicInputs
from dpprobe.heads.registry import method_options
from dpprobe.heads.training_set import TrainingSet
from dpprobe.json_values import hash_value
from dpprobe.privacy.plan import Mechanism
from dpprobe.training.fit_inputs import FitInputs
from dpprobe.training.public_file_check import PrivateData
from tests.support.audit_records import CONTROLS, MEMBERSHIP, WHITE_BOX
from tests.support.audits import plan_of
from tests.support.auto_rules import raise_rule
from tests.support.mechanisms import best_of, gaussians, made_plan
from tests.support.training_jobs import make_job, plan_job
from tests.unit.training.test_head_job import CLASSES, DIMENSION, METHODS, ROWS, write_features

ATTACKED = AuditOptions(runs=20, membership=MembershipOptions(shadows=8, rows=50))


Result = tuple[dict[str, Any], dict[str, Any]]  # parts of the record, and columns of scores


@dataclass
class _Attacks:
    """Replaces both attacks, and records the arguments of their calls."""

    white: list[dict[str, Any]] = field(default_factory=list)
    members: list[dict[str, Any]] = field(default_factory=list)
    failures: dict[str, DpprobeError] = field(default_factory=dict)

    def audit(self, method: Any, plan: Any, **asked: Any) -> Result:
        for name, error in self.failures.items():
            if name in asked["progress_label"]:
                raise error
        self.white.append({"method": method, "plan": plan, **asked})
        runs = asked["runs"]
        scores = {
            "attack": ["all releases"] * runs,
            "member": np.arange(runs) % 2 == 0,
            "score": np.arange(runs, dtype=np.float64),
        }
        controls = CONTROLS if asked["controls"] else ()
        return {"white_box": {**WHITE_BOX, "runs": runs}, "controls": controls}, scores

    def attack(self, method: Any, plan: Any, data: Any, **asked: Any) -> Result:
        self.members.append({"method": method, "plan": plan, "data": data, **asked})
        scores = {"attack": ["lira", "lira"], "member": [True, False], "score": [1.0, -1.0]}
        return MEMBERSHIP, scores


@pytest.fixture
def attacks(monkeypatch: pytest.MonkeyPatch) -> _Attacks:
    both = _Attacks()
    monkeypatch.setattr(white_box, "audit_plan", both.audit)
    monkeypatch.setattr(membership, "attack_membership", both.attack)
    return both


@dataclass(frozen=True)
class _Audits:
    """Audits on one folder's features."""

    folder: Path
    calibration: Path

    def run(
        self,
        audit: AuditOptions,
        *,
        edit: Callable[[Path], None] = lambda _: None,
        device: str = "cpu",
        **changes: Any,
    ) -> None:
        job = make_job(**{"methods": METHODS, "seeds": 1} | changes)
        plans = self.folder / f"plans-{job.epsilon}.json"
        plan_job(job, ROWS["train"], plans, self.calibration)
        edit(plans)
        audit_cells(
            job,
            audit,
            train=self.folder / "train/manifest.json",
            plans=plans,
            audits=self.folder / "audit",
            private_datasets=["toy"],
            device=device,
            memory_mb=1000,
        )

    def path(self, method: str, suffix: str = RECORD_SUFFIX, *, epsilon: str = "4") -> Path:
        return audit_path(self.folder / "audit", ("toy", "none", method, epsilon), suffix)

    def record(self, method: str, **where: Any) -> AuditRecord:
        return AuditRecord.read(self.path(method, **where))


@pytest.fixture(scope="module")
def calibration(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("calibration")


@pytest.fixture
def audits(tmp_path: Path, calibration: Path) -> _Audits:
    write_features(tmp_path, splits=["train"])
    return _Audits(tmp_path, calibration)


def test_a_job_writes_the_record_and_the_scores_of_each_method(
    audits: _Audits, attacks: _Attacks
) -> None:
    audits.run(AuditOptions(runs=20, confidence=0.9, controls=True))
    for method in METHODS:
        record = audits.record(method)
        assert record.key == ("toy", "none", method, "4")
        assert record.white_box is not None
        assert record.white_box.runs == 20
        assert len(record.controls) == len(CONTROLS)
        assert record.membership is None
        assert record.evidence.power == power_in_words(WHITE_BOX)
        assert pq.read_table(audits.path(method, SCORES_SUFFIX)).num_rows == 20
    asked = attacks.white[0]
    assert asked["plan"].n == ROWS["train"]
    assert (asked["dimension"], asked["num_classes"], asked["multi_label"]) == (
        DIMENSION,
        CLASSES,
        False,
    )
    assert (asked["runs"], asked["confidence"], asked["controls"]) == (20, 0.9, True)
    assert len({call["seed"] for call in attacks.white}) == 2


def test_attacks_on_real_rows_have_the_device_of_their_fit(
    audits: _Audits, attacks: _Attacks, monkeypatch: pytest.MonkeyPatch
) -> None:
    places, read = [], FitInputs.read_rows

    def read_rows(self: FitInputs, *, device: str, memory_mb: int) -> TrainingSet:
        places.append(device)
        return read(self, device="cpu", memory_mb=memory_mb)

    monkeypatch.setattr(FitInputs, "read_rows", read_rows)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    for name in ("LEAST_STEP", "LEAST_FIT"):
        # reached by the full batch, not by the small batch
        monkeypatch.setattr(f"dpprobe.heads.fit_device.{name}", ROWS["train"] * DIMENSION * CLASSES)
    for device in ("cpu", "cuda", "cuda"):
        audits.run(ATTACKED, device=device)
    assert places == ["cpu", "cuda"]
    assert [call["method"].batch_size for call in attacks.members] == [30, "full", "full"]


def test_current_audits_are_kept_and_others_made_again(audits: _Audits, attacks: _Attacks) -> None:
    audits.run(AuditOptions(runs=20), methods={"full": METHODS["full"]})
    before = audits.path("full").stat().st_ino
    audits.run(AuditOptions(runs=20))
    assert audits.path("full").stat().st_ino == before
    assert len(attacks.white) == 2
    for more in ({}, {"confidence": 0.9}, {"confidence": 0.9, "controls": True}):
        attacks.white.clear()
        changed = AuditOptions(runs=30, **more)
        audits.run(changed)
        assert len(attacks.white) == 2
    stored = audits.folder / ".cells"
    for folder in stored.iterdir():
        if audits.path("full").samefile(next(folder.glob("*.json"))):
            next(folder.glob(f"*{SCORES_SUFFIX}")).unlink()
    audits.path("small").write_text("{}")  # a link to the stored file, which is overwritten
    attacks.white.clear()
    audits.run(changed)
    assert len(attacks.white) == 2


def test_real_rows_are_attacked_where_the_study_asks(audits: _Audits, attacks: _Attacks) -> None:
    audits.run(ATTACKED)
    asked = attacks.members[0]
    assert isinstance(asked["data"], TrainingSet)
    assert asked["data"].n == asked["plan"].n
    assert (asked["shadows"], asked["rows"], asked["targets"]) == (8, 50, None)
    assert asked["seed"] not in {call["seed"] for call in attacks.white}
    assert audits.record("full").membership == Membership.model_validate(MEMBERSHIP)
    scores = pq.read_table(audits.path("full", SCORES_SUFFIX)).to_pydict()
    assert scores["attack"] == ["all releases"] * 20 + ["lira"] * 2
    assert scores["member"][-2:] == [True, False]


def test_other_rows_make_attacks_again_and_leave_an_audit_without_them(
    audits: _Audits, attacks: _Attacks
) -> None:
    audits.run(ATTACKED)
    write_features(audits.folder, splits=["train"], shift=1.0)
    audits.run(ATTACKED)
    assert len(attacks.members) == 4
    # a release may state the white-box result, so it must not depend on the rows
    seeds = [call["seed"] for call in attacks.white]
    assert seeds[: len(seeds) // 2] == seeds[len(seeds) // 2 :]
    assert attacks.members[0]["seed"] != attacks.members[2]["seed"]
    audits.run(AuditOptions(runs=20))
    count = len(attacks.white)
    write_features(audits.folder, splits=["train"], shift=2.0)
    audits.run(AuditOptions(runs=20))
    assert len(attacks.white) == count


def test_a_cell_without_a_promise_is_attacked_only_on_real_rows(
    audits: _Audits, attacks: _Attacks
) -> None:
    methods = {"ceiling": method_options({"head": "nonprivate"}), "full": METHODS["full"]}
    audits.run(ATTACKED, methods=methods, epsilon="inf")
    assert attacks.white == []
    assert len(attacks.members) == 2
    record = audits.record("ceiling", epsilon="inf")
    assert record.white_box is None
    assert read_json(audits.path("ceiling", epsilon="inf"))["claim"]["epsilon"] == "inf"


def test_public_files_are_compared_for_all_methods_and_known_by_their_content(
    audits: _Audits, attacks: _Attacks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        PrivateData,
        "check_public",
        lambda _, options: PublicInputs(
            hashes=dict.fromkeys(options.public_files().values(), "equal")
        ),
    )
    first, last = str(audits.folder / "first"), str(audits.folder / "last")
    method = {"head": "sgd", "init": "file"}
    for text in ("before", "after"):  # only the last file changes
        Path(first).write_text("before")
        Path(last).write_text(text)
        starts = {"one": first, "two": last}
        audits.run(
            ATTACKED,
            methods={
                name: method_options(method | {"init_file": path}) for name, path in starts.items()
            },
        )
    assert [call["method"].init_file for call in attacks.members] == [first, last, last]
    assert all({*call["data"].public.hashes} == {first, last} for call in attacks.members[:2])


def test_a_method_that_fails_leaves_the_others_audited(audits: _Audits, attacks: _Attacks) -> None:
    lasting: dict[str, DpprobeError] = {"small": PrivacyError("nothing of the kind")}
    said = "small: nothing of the kind"
    busy = {"full": DownloadError("busy")}
    for failures, words in ((lasting | busy, f"{said}\nfull: busy"), (lasting, said)):
        attacks.failures = failures
        with pytest.raises(DpprobeError, match=f"^{words}$") as caught:
            audits.run(AuditOptions(runs=20))
        assert caught.value.passes == ("full" in failures), "one of them may pass"
    assert not audits.path("small").exists()
    attacks.failures = {}
    audits.run(AuditOptions(runs=20))
    assert audits.record("full").white_box is not None
    assert len(attacks.white) == 2, "the other method's audit was stored"

    def leave_out(path: Path) -> None:
        record = {key: value for key, value in read_json(path).items() if key != "sha256"}
        record["methods"]["small"] = {"error": "no such noise"}
        write_json(path, record | {"sha256": hash_value(record)})

    with pytest.raises(DpprobeError, match="^small: no such noise$"):
        audits.run(AuditOptions(runs=30), edit=leave_out)
    assert len(attacks.white) == 3, "the other method's"


def test_a_plan_that_was_edited_is_refused_before_anything_is_trained(
    audits: _Audits, attacks: _Attacks
) -> None:
    def edit(path: Path) -> None:
        record = read_json(path)
        record["methods"]["full"]["plan"]["realised_epsilon"] /= 2
        write_json(path, record)

    with pytest.raises(PrivacyError, match=re.escape("edited after dpprobe wrote it")):
        audits.run(AuditOptions(runs=20), edit=edit)
    assert attacks.white == []


def test_auto_is_audited_as_the_head_that_it_chose(
    audits: _Audits, attacks: _Attacks, monkeypatch: pytest.MonkeyPatch
) -> None:
    methods = {"auto": method_options({"head": "auto"})}
    audits.run(ATTACKED, methods=methods)
    facts = DataFacts(
        n=ROWS["train"],
        dimension=DIMENSION,
        classes=CLASSES,
        multi_label=False,
        epsilon=4.0,
        delta=1e-4,
        unit="image",
    )
    chosen = method_options(auto_rule.choose_head(facts))
    (white,), (member,) = attacks.white, attacks.members
    assert white["method"] == chosen == member["method"]
    check_plan(chosen, white["plan"])
    audits.run(ATTACKED, methods=methods)
    assert len(attacks.white) == 1, "a current audit is kept"
    raise_rule(monkeypatch)
    audits.run(ATTACKED, methods=methods)
    assert len(attacks.white) == 2, "another rule may have chosen otherwise"


@pytest.mark.parametrize(
    ("parts", "changes", "mu", "sampled"),
    [
        ([gaussians(2.0, count=4)], {}, 1.0, False),
        ([gaussians(2.0, 0.1, 4), gaussians(3.0, name="b")], {}, None, True),
        ([gaussians(2.0), gaussians(3.0, 0.1, name="b")], {}, None, True),
        ([gaussians(2.0, count=4)], {"selection": best_of(3.0)}, None, False),
    ],
)
def test_a_claim_is_the_realised_price_with_its_mu_if_gaussian(
    parts: list[Mechanism], changes: dict[str, Any], mu: float | None, sampled: bool
) -> None:
    plan = made_plan(parts, 100, epsilon=1.0, priced_by="somebody", **changes)
    claim = claim_of_plan(replace(plan, realised_epsilon=0.9))
    assert (claim.epsilon, claim.epsilon_target, claim.delta) == (0.9, 1.0, 1e-5)
    assert (claim.mu, claim.sampled, claim.priced_by) == (mu, sampled, "somebody")


def test_the_claim_of_a_plan_without_noise_is_infinite_epsilon() -> None:
    claim = claim_of_plan(made_plan([gaussians(0.0)], 100))
    assert (claim.epsilon, claim.mu, claim.sampled) == (math.inf, None, False)


# Everything that an audit depends on changes its identity.


def test_whatever_decides_an_audit_changes_its_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpprobe.analyses.audit.measure.identity_device", str)
    store: Any = SimpleNamespace(dimension=8, num_classes=3, multi_label=False, fingerprint="f")
    plan = plan_of(METHODS["full"], 300)
    task = AuditTask(
        name=make_job().name_cell("full"),
        options=METHODS["full"],
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
        {"plan": plan_of(METHODS["full"], 301)},
        {"name": make_job(epsilon="5").name_cell("full")},
        {"audit": AuditOptions(runs=20)},
        {"study_seed": 1},
        {"device": "cuda"},
        {"options": METHODS["small"]},
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
