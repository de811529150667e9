"""Made-up records of audits in the format of the audit job, for tests of code that reads them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dpprobe.analyses.audit.audit_record import RECORD_SUFFIX, audit_path, power_in_words
from dpprobe.files.json_files import write_json
from dpprobe.privacy.limits import INFINITE

FPR = np.logspace(-4, 0, 9)
WHITE_BOX: dict[str, Any] = {
    "test": "paired likelihood ratio of all releases",
    "canary": "a row at the clip bound, of another label",
    "rows": "eight synthetic rows beside it",
    "group": 1,
    "runs": 1000,
    "in": 488,
    "out": 512,
    "confidence": 0.95,
    "accuracy": 0.614,
    "epsilon_lower": 0.71299,
    "holds": True,
    "tests": [
        {"name": "releases", "p_value": 0.4},
        {"name": "variance", "p_value": 0.03},
        {"name": "sensitivity", "p_value": 1.0},
    ],
    "level": 0.0005,
    "number_factor": 1.6,
    "noise_factor": 1.31,
    "caught_factor": 1.52,
    "cut_caught": 3.0,
    "replayed": None,
    "probability": 0.95,
    "direct_epsilon_lower": 0.12,
    "bundle": {"accuracy": 0.55, "epsilon_lower": 0.0},
    "sensitivity_used": {"gradients": 1.0},
    "seconds": 2.5,
}
CONTROLS: tuple[dict[str, Any], ...] = (
    {
        "name": "noise_off",
        "breaks": "no release has noise",
        "runs": 1000,
        "refuted_by": ["variance", "low_bits"],
        "p_value": 0.0,
        "level": 0.0005,
        "caught": True,
    },
    {
        "name": "half_noise",
        "breaks": "half the noise",
        "runs": 1000,
        "refuted_by": ["variance"],
        "p_value": 1e-30,
        "level": 0.0005,
        "caught": True,
    },
    {"name": "half_sample_rate", "not_applicable": "no mechanism samples"},
)
ATTACK: dict[str, Any] = {
    "rows": "all",
    "attack": "lira",
    "units": 200,
    "members": 6400,
    "non_members": 6400,
    "auc": 0.5312,
    "auc_interval": [0.521, 0.542],
    "tpr_at_fpr": {"0.001": 0.0023, "0.01": 0.0151},
    "intervals": {"0.001": [0.001, 0.004], "0.01": None},
}
MEMBERSHIP: dict[str, Any] = {
    "shadows": 64,
    "targets": 64,
    "units": 200,
    "n": 1000,
    # summaries omit the first two
    "rows": [
        {**ATTACK, "rows": "mislabelled", "tpr_at_fpr": {"0.001": None, "0.01": 0.2}},
        {**ATTACK, "attack": "loss", "auc": 0.51},
        ATTACK,
    ],
    "not_applicable": [{"rows": "rarest_classes", "reason": "all are as frequent"}],
    "interval": "95%, heads and units drawn again",
    "roc": {"fpr": [0.0, 1.0], "allowed": [0.0, 1.0], "curves": []},
    "allowed": {"balanced_accuracy": 0.7, "tpr_at_fpr": {"0.001": 0.004, "0.01": 0.03}},
    "seconds": 1.5,
    "shadows_per_second": 43.0,
}


def write_audit(
    results: Path,
    *,
    dataset: str = "digits",
    backbone: str = "pixels",
    method: str = "sgd",
    epsilon: str = "1",
    white_box: Mapping[str, Any] | None = WHITE_BOX,
    controls: tuple[Mapping[str, Any], ...] = (),
    membership: Mapping[str, Any] | None = None,
) -> Path:
    """Writes a record below the results folder, and returns its path."""
    path = audit_path(results / "audit", (dataset, backbone, method, epsilon), RECORD_SUFFIX)
    claim = epsilon if epsilon == INFINITE else float(epsilon)
    write_json(
        path,
        {
            "format": "dpprobe-audit",
            "format_version": 3,
            "dataset": dataset,
            "backbone": backbone,
            "method": method,
            "epsilon": epsilon,
            "fingerprint": "0" * 64,
            "claim": {
                "epsilon": claim,
                "epsilon_target": claim,
                "delta": 1e-5,
                "mu": None,
                "sampled": False,
                "priced_by": "none",
            },
            "plan": {},
            "white_box": white_box and dict(white_box),
            "controls": list(controls),
            "membership": membership and dict(membership),
            "evidence": {
                "date": "2026-01-31",
                "code": "dpprobe 0.1.0, audit 1",
                "power": power_in_words(white_box),
            },
        },
    )
    return path


def membership_record(*, groups: tuple[str, ...] = ("all",)) -> dict[str, Any]:
    """Returns a record in which every attack has twice as many true as false positives."""
    low, tpr, high = (np.minimum(factor * FPR, 1.0).tolist() for factor in (1.5, 2.0, 2.5))
    pairs = [{"rows": rows, "attack": each} for rows in groups for each in ("loss", "lira", "rmia")]
    curve = {"tpr": [None, *tpr[1:]], "low": [None, *low[1:]], "high": [None, *high[1:]]}
    return {
        "shadows": 31,
        "targets": 32,
        "rows": [
            pair | {"units": 70 if pair["rows"] == "all" else 12, "auc": 0.61 + place / 100}
            for place, pair in enumerate(pairs)
        ],
        "roc": {
            "fpr": FPR.tolist(),
            "allowed": np.minimum(4.0 * FPR, 1.0).tolist(),
            "curves": [pair | curve for pair in pairs],
        },
    }
