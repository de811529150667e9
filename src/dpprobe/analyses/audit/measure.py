"""The audit job: audits all chosen methods of one (dataset, backbone, epsilon), cell by cell.

An audit trains its own heads and does not use the published heads. `white_box` tests a cell that
has a guarantee, on synthetic rows. `membership` attacks real rows, if the study has the option
`membership`. An audit writes scores of attacks first and its record last. So an audit is complete,
and is reused, if its record has an up-to-date fingerprint.

Methods share an audit job, because a small audit spends most of its time on starting Python. Each
epsilon has a separate audit job, so that a cluster audits epsilons in parallel.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from dpprobe.analyses.audit import membership, white_box
from dpprobe.analyses.audit.audit_record import (
    RECORD_SUFFIX,
    SCORES_SUFFIX,
    AuditRecord,
    Claim,
    Evidence,
    audit_path,
    power_in_words,
)
from dpprobe.analyses.audit.options import AuditOptions
from dpprobe.code_version import code_version
from dpprobe.devices import identity_device, resolve_device
from dpprobe.errors import DataError, DpprobeError
from dpprobe.features.feature_store import FeatureStore
from dpprobe.files.plain_files import sha256_file
from dpprobe.files.result_store import locate_stored, publish_files
from dpprobe.files.table_files import write_table
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.training_set import TrainingSet
from dpprobe.json_values import hash_value
from dpprobe.privacy.accountants import gaussian_mu, is_gaussian
from dpprobe.privacy.plan import Plan, plan_identity
from dpprobe.privacy.randomness import cell_seed
from dpprobe.results.cell_record import CellName
from dpprobe.training.fit_inputs import FitInputs
from dpprobe.training.public_file_check import PrivateData
from dpprobe.training.tasks import Request, make_failure, read_job_plans
from dpprobe.versions import VERSIONS

logger = logging.getLogger("dpprobe")

SCORES = pa.schema([("attack", pa.string()), ("member", pa.bool_()), ("score", pa.float64())])


def audit_cells(
    request: Request,
    audit: AuditOptions,
    *,
    train: Path,
    plans: Path,
    audits: Path,
    private_datasets: Sequence[str],
    device: str,
    memory_mb: int,
) -> None:
    """Computes all audits of a job that are missing or stale.

    Raises:
      DataError: if a plan is for another job; raised before anything is trained.
      DpprobeError: with all methods that failed, after all other methods have been audited.
    """
    store = FeatureStore(train)
    inputs = FitInputs(store, request.terms.unit)
    methods, calibrated = read_job_plans(
        plans,
        request.located_methods(),
        request.terms.make_target(inputs.n),
        inputs,
        asked=request.asked,
    )
    tasks = [
        AuditTask(
            name=request.name_cell(name),
            options=options,
            audit=audit,
            study_seed=request.asked.study_seed,
            plan=calibrated.plans[name],
            train=store,
            audits=audits,
            device=inputs.place_fit(options, device).rows,
        )
        for name, options in methods.items()
        if name not in calibrated.failures
    ]
    stale = [task for task in tasks if not task.is_current()]
    if stale and audit.membership:
        private = PrivateData(
            dataset=request.dataset,
            backbone=request.backbone,
            class_names=store.class_names,
            manifests=(train,),
            datasets=private_datasets,
            results=audits.parent,
        )
        for task in stale:
            inputs = replace(inputs, public=inputs.public.join(private.check_public(task.options)))
    errors: dict[str, DpprobeError] = {}
    for place in sorted({task.device for task in stale}, key="cpu".__ne__):
        rows = None
        if audit.membership:
            rows = inputs.read_rows(device=resolve_device(place), memory_mb=memory_mb)
        for task in (each for each in stale if each.device == place):
            try:
                task.audit_cell(rows)
            except DpprobeError as error:
                method = task.name.method
                logger.warning("%s failed; the reason follows at the end of the job", method)
                errors[method] = error
    if calibrated.failures or errors:
        raise make_failure(calibrated.failures, errors)
    for task in tasks:
        task.publish_audit()


@dataclass(frozen=True, kw_only=True)
class AuditTask:
    """The audit of one cell."""

    name: CellName
    options: MethodOptions
    audit: AuditOptions
    study_seed: int
    plan: Plan
    train: FeatureStore
    audits: Path
    device: str

    @cached_property
    def identity(self) -> dict[str, Any]:
        """All values on which the audit's results and seeds depend."""
        values = {
            "use": "audit",
            "versions": [VERSIONS["training"], VERSIONS["audit"]],
            "cell": list(self.name.key),
            "options": self.options.identity_options(),
            "public": [sha256_file(Path(path)) for path in self.options.input_files()],
            "plan": plan_identity(self.plan.to_dict()),
            "audit": self.audit.model_dump(mode="json", exclude={"methods", "epsilons"}),
            "study_seed": self.study_seed,
            "shape": [self.train.dimension, self.train.num_classes, self.train.multi_label],
        }
        if self.audit.membership:
            values["rows"] = self.train.fingerprint
            values["device"] = identity_device(self.device)
        return values

    @cached_property
    def public_identity(self) -> dict[str, Any]:
        """The identity without values of private rows; seeds of white-box audits derive from it."""
        return {key: value for key, value in self.identity.items() if key not in ("rows", "device")}

    def is_current(self) -> bool:
        """Returns True if the store has a readable record of the audit, and its scores."""
        record, scores = self._stored_files
        try:
            fingerprint = AuditRecord.read(record).fingerprint
        except DataError:
            return False
        return fingerprint == self.fingerprint and scores.is_file()

    def publish_audit(self) -> None:
        """Links the files of the stored audit into their final folder."""
        record, scores = self._stored_files
        folder = audit_path(self.audits, self.name.key, RECORD_SUFFIX).parent
        publish_files(record.parent, folder, [record.name, scores.name])

    @cached_property
    def fingerprint(self) -> str:
        return hash_value(self.identity)

    @property
    def _stored_files(self) -> tuple[Path, Path]:
        """The record and the scores in the store."""
        folder = locate_stored(self.audits.parent, self.fingerprint)
        record, scores = (
            folder / audit_path(self.audits, self.name.key, suffix).name
            for suffix in (RECORD_SUFFIX, SCORES_SUFFIX)
        )
        return record, scores

    def audit_cell(self, rows: TrainingSet | None) -> None:
        parts: dict[str, Any] = {"white_box": None, "controls": [], "membership": None}
        scores: list[Mapping[str, Any]] = []
        label = f"{self.name.method}, epsilon {self.name.epsilon}"
        if self.plan.private:
            box, columns = white_box.audit_plan(
                self.options.trained_head,
                self.plan,
                dimension=self.train.dimension,
                num_classes=self.train.num_classes,
                multi_label=self.train.multi_label,
                runs=self.audit.runs,
                confidence=self.audit.confidence,
                seed=cell_seed(self.public_identity, 0),
                controls=self.audit.controls,
                progress_label=f"audit of {label}",
            )
            parts |= box
            scores.append(columns)
        if rows is not None and self.audit.membership:
            parts["membership"], columns = membership.attack_membership(
                self.options.trained_head,
                self.plan,
                rows,
                seed=cell_seed(self.identity, 1),
                progress_label=f"membership in {label}",
                **self.audit.membership.model_dump(),
            )
            scores.append(columns)
        record = self._make_record(parts)
        record_file, scores_file = self._stored_files
        write_table(scores_file, _make_score_table(scores))
        record.write(record_file, scores_file)
        if record.white_box:
            logger.info(
                "%s: epsilon is at least %.3g at confidence %g; the claim is %.3g",
                label,
                record.white_box.epsilon_lower,
                record.white_box.confidence,
                record.claim.epsilon,
            )

    def _make_record(self, parts: Mapping[str, Any]) -> AuditRecord:
        return AuditRecord.model_validate(
            {
                **self.name.model_dump(),
                "fingerprint": self.fingerprint,
                "claim": claim_of_plan(self.plan),
                "plan": self.plan.to_dict(),
                **parts,
                "evidence": Evidence(
                    date=datetime.now(UTC).date().isoformat(),
                    code=f"dpprobe {code_version()}, audit {VERSIONS['audit']}",
                    power=power_in_words(parts["white_box"]),
                ),
            }
        )


def claim_of_plan(plan: Plan) -> Claim:
    sampled = any(mechanism.sample_rate < 1 for mechanism in plan.mechanisms)
    exact = plan.private and is_gaussian(plan.mechanisms) and plan.selection is None
    return Claim(
        epsilon=plan.realised_epsilon if plan.private else math.inf,
        epsilon_target=plan.epsilon,
        delta=plan.delta,
        mu=gaussian_mu(plan.mechanisms) if exact else None,
        sampled=sampled,
        priced_by=plan.priced_by,
    )


def _make_score_table(scores: list[Mapping[str, Any]]) -> pa.Table:
    parts = [
        pa.table({name: np.asarray(part[name]) for name in SCORES.names}).cast(SCORES)
        for part in scores
    ]
    return pa.concat_tables(parts) if parts else SCORES.empty_table()
