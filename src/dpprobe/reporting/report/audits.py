"""The report's section on audits: claims beside the bounds that attacks show, and their power."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from dpprobe.analyses.audit.audit_record import (
    Attack,
    AuditRecord,
    Control,
    Membership,
    NoControl,
    WhiteBox,
    at_least,
)
from dpprobe.privacy.limits import epsilon_value
from dpprobe.results.summary import rounded_up

ROWS = {"all": "all", "mislabelled": "mislabelled", "rarest_classes": "rarest classes"}
ATTACKS = {"loss": "loss threshold", "lira": "LiRA", "rmia": "RMIA"}


def read_audits(paths: Iterable[Path], *, order: Sequence[str]) -> list[dict[str, Any]]:
    """Reads records, a part a dataset; none for a dataset without.

    Args:
      order: of the datasets.
    """
    records = sorted(
        map(AuditRecord.read, paths),
        key=lambda item: (item.backbone, item.method, epsilon_value(item.epsilon)),
    )
    audited = {record.dataset for record in records}
    return [
        _make_part(dataset, [record for record in records if record.dataset == dataset])
        for dataset in order
        if dataset in audited
    ]


def _make_part(dataset: str, records: Sequence[AuditRecord]) -> dict[str, Any]:
    """Writes the tables of one dataset."""
    attacked = [(record, record.membership) for record in records if record.membership]
    return {
        "dataset": dataset,
        "cells": [
            _white_box_row(record, record.white_box) for record in records if record.white_box
        ],
        "attacks": [
            _attack_row(record, membership, attack)
            for record, membership in attacked
            for attack in membership.rows
        ],
        "intervals": attacked[0][1].interval if attacked else "",
    }


def _white_box_row(record: AuditRecord, tested: WhiteBox) -> dict[str, Any]:
    """Writes the row of a cell's white-box audit."""
    return {
        "backbone": record.backbone,
        "method": record.method,
        "epsilon": record.epsilon,
        "claim": f"{rounded_up(record.claim.epsilon):g}",
        "bound": _format_bound(tested.epsilon_lower),
        "parametric": _format_bound(tested.parametric_epsilon_lower),
        "direct": _format_bound(tested.direct_epsilon_lower),
        "bundle": _format_bound(tested.bundle.epsilon_lower if tested.bundle else None),
        "noise": _format_factor(tested.noise_factor),
        "caught": _format_factor(tested.caught_factor),
        "holds": tested.holds,
        "right": f"{100 * tested.accuracy:.1f}",
        "runs": tested.runs,
        "confidence": f"{100 * tested.confidence:g}",
        "test": tested.test,
        "canary": tested.canary,
        "rows": tested.rows,
        "power": record.evidence.power,
        "date": record.evidence.date,
        "controls": [_control_row(control) for control in record.controls],
    }


def _control_row(control: Control | NoControl) -> dict[str, Any]:
    name = control.name.replace("_", " ")
    if isinstance(control, NoControl):
        return {"name": name, "text": f"not applicable: {control.not_applicable}", "caught": None}
    text = f"ε ≥ {_format_bound(control.epsilon_lower)}, {'caught' if control.caught else 'MISSED'}"
    return {"name": name, "text": text, "caught": control.caught}


def _attack_row(record: AuditRecord, membership: Membership, attack: Attack) -> dict[str, Any]:
    """Writes the row of one membership attack."""
    low_high = attack.auc_interval
    return {
        "backbone": record.backbone,
        "method": record.method,
        "epsilon": record.epsilon,
        "rows": ROWS[attack.rows],
        "attack": ATTACKS[attack.attack],
        "units": attack.units,
        "auc": f"{attack.auc:.3f}",
        "interval": f"[{low_high[0]:.3f}, {low_high[1]:.3f}]" if low_high else "",
        "rates": [
            {
                "reached": _format_rate(attack.tpr_at_fpr.get(rate)),
                "allowed": _format_rate(membership.allowed.tpr_at_fpr.get(rate)),
            }
            for rate in ("0.001", "0.01")
        ],
    }


def _format_bound(value: float | None) -> str:
    return "" if value is None else at_least(value).replace("inf", "∞")


def _format_factor(value: float | None) -> str:
    if value is None:
        return "none"
    return f"{value:.3g}".replace("inf", "∞")


def _format_rate(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.3g}"
