"""Made-up records of representation laws in the job's format, for tests of code that reads them."""

from __future__ import annotations

from typing import Any

from dpprobe.analyses.representation_law.law_record import MEASURES, LawRecord

LAYERS = 5


def series(
    measure: str, split: str, *, start: float, rho: float, first: bool = True
) -> dict[str, Any]:
    """Returns values that follow a law exactly; layer 0 is None unless `first`."""
    values = [start * rho**layer if layer or first else None for layer in range(LAYERS + 1)]
    law = {"rho": rho, "low": 0.98 * rho, "high": 1.02 * rho, "r_squared": 0.99, "layers": LAYERS}
    residual = measure.startswith("residual")
    return {
        "measure": measure,
        "split": split,
        "values": values,
        "law": law,
        "fault": None,
        "shuffled": [None if value is None else 2 * start for value in values],
        "noise": [0.7] * (LAYERS + 1) if residual and split == "train" else None,
        "null": {**law, "rho": 1.0, "low": 0.9, "high": 1.1},
    }


def network(
    method: str | None = None,
    epsilon: str | None = None,
    setting: str = "frozen",
    tuned: str | None = None,
    blocks: int | None = None,
    *,
    rho: float = 0.8,
    first: bool = True,
) -> dict[str, Any]:
    """Returns a network's laws; for separability rho is inverted."""
    left_out = [
        {"layer": layer, "split": split, "measures": list(MEASURES), "reason": "0/0"}
        for layer, split in enumerate(("train", "test"))
    ]
    made = [
        series(
            measure,
            split,
            start=0.9,
            first=first,
            rho=1 / rho if measure == "separability" else rho,
        )
        for measure in MEASURES
        for split in ("train", "test")
    ]
    return {
        "method": method,
        "epsilon": epsilon,
        "setting": setting,
        "tuned": tuned,
        "blocks": blocks,
        "widths": [8] * (LAYERS + 1),
        "series": made,
        "left_out": [] if first else left_out,
    }


def tuned_networks() -> list[dict[str, Any]]:
    """Returns the networks of two settings: methods constant_<k> and searched_<k>."""
    return [
        network(
            f"{setting}_{k}",
            epsilon,
            setting,
            tuned,
            k,
            rho=0.8 - 0.03 * k - (0.05 if setting == "searched" else 0.0),
        )
        for setting in ("constant", "searched")
        for epsilon in ("1", "8")
        for k, tuned in enumerate(("head", "last 1 block", "last 2 blocks"))
    ]


def law_record(*networks: dict[str, Any], **changes: Any) -> LawRecord:
    """Returns a record of the networks; by default of a frozen and twelve tuned ones."""
    values = {
        "dataset": "digits",
        "backbone": "pixels",
        "layers": LAYERS,
        "token": "pooled",
        "train_rows": 1000,
        "test_rows": 500,
        "classes": 10,
        "rcond": 1e-10,
        "shuffles": 3,
        "seed": 0,
        "networks": networks or [network(), *tuned_networks()],
        "fingerprint": "f",
        "seconds": 5.0,
    }
    return LawRecord.model_validate(values | changes)
