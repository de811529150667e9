"""Figure of membership attacks: true against false positives, and the area epsilon rules out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from dpprobe.analyses.audit.audit_record import ATTACK_NAMES, AuditRecord
from dpprobe.errors import DataError
from dpprobe.exhibits import style

_LEAST = 1e-4
_BESIDE_STYLE = (0, (2, 1.5))


def plot_membership(
    *, audit: Path, ceiling: Path | None, dataset: str, backbone: str, method: str, epsilon: str
) -> Figure:
    """Draws membership attacks on one cell and on its non-private baseline."""
    return membership_roc(
        _read_membership(audit),
        title=f"{dataset}, {method} on {backbone}, ε = {epsilon}",
        beside=_read_membership(ceiling) if ceiling else None,
    )


def _read_membership(audit: Path) -> Any:
    return AuditRecord.read(audit).model_dump(mode="json")["membership"]


def membership_roc(
    membership: Mapping[str, Any], *, title: str, beside: Mapping[str, Any] | None = None
) -> Figure:
    """Draws the attacks on a cell's heads on logarithmic axes, one colour per attack.

    The shaded area is impossible under the plan: more true positives than the best attack. Bands
    are 95% intervals. Each curve begins at the rate that enough false positives can measure.

    Args:
      beside: the attacks on the non-private baseline, drawn as dashed lines.

    Raises:
      DataError: if the record has no attack on all rows.
    """
    curves = _curves_by_attack(membership)
    if not curves:
        raise DataError(f"{title}: no membership attack on all rows; audit them")
    figure = Figure(figsize=(5.6, 6.0), layout="constrained")
    axes = figure.add_subplot()
    fpr = np.array(membership["roc"]["fpr"])
    allowed = np.array(membership["roc"]["allowed"])
    _draw_bounds(axes, fpr, allowed)
    colours = dict(zip(ATTACK_NAMES, style.COLOURS, strict=False))
    for name, curve in curves.items():
        label = f"{ATTACK_NAMES[name]}, AUC {_find_auc(membership, name):.3f}"
        axes.plot(fpr, _rates_or_nan(curve["tpr"]), color=colours[name], label=label)
        axes.fill_between(
            fpr, _rates_or_nan(curve["low"]), _rates_or_nan(curve["high"]),
            color=colours[name], alpha=0.15, linewidth=0,
        )  # fmt: skip
    for name, curve in _curves_by_attack(beside).items() if beside else ():
        assert beside is not None
        label = f"nonprivate: {ATTACK_NAMES[name]}, AUC {_find_auc(beside, name):.3f}"
        axes.plot(
            np.array(beside["roc"]["fpr"]), _rates_or_nan(curve["tpr"]),
            color=colours[name], linestyle=_BESIDE_STYLE, linewidth=1.1, label=label,
        )  # fmt: skip
    _finish_axes(axes, figure)
    style.title_axes(axes, title, _write_caption(membership))
    return figure


def _draw_bounds(
    axes: Axes, fpr: npt.NDArray[np.float64], allowed: npt.NDArray[np.float64]
) -> None:
    """Shades the area above the best attack under the plan, and draws the line of guessing."""
    if allowed.min() < 1:
        axes.fill_between(
            fpr, allowed, 1.0, color="#8C8C8C", alpha=0.28, linewidth=0,
            label="forbidden by epsilon", zorder=0,
        )  # fmt: skip
        axes.plot(fpr, allowed, color=style.NEUTRAL, linewidth=1.0)
    axes.plot(fpr, fpr, color=style.NEUTRAL, linestyle=(0, (1, 2)), linewidth=1.0, label="chance")


def _finish_axes(axes: Axes, figure: Figure) -> None:
    axes.set(xscale="log", yscale="log", xlim=(_LEAST, 1.0), ylim=(_LEAST, 1.0))
    for axis, name in ((axes.xaxis, "false positives"), (axes.yaxis, "true positives")):
        axis.set_major_formatter(FuncFormatter(lambda rate, _: f"{100 * rate:g}%"))
        axis.set_label_text(name)
    axes.grid(True)
    figure.legend(loc="outside lower center", ncols=2, handlelength=2.8)


def _curves_by_attack(membership: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {
        curve["attack"]: curve for curve in membership["roc"]["curves"] if curve["rows"] == "all"
    }


def _find_auc(membership: Mapping[str, Any], attack: str) -> float:
    (entry,) = (
        one for one in membership["rows"] if one["rows"] == "all" and one["attack"] == attack
    )
    return float(entry["auc"])


def _rates_or_nan(values: list[float | None]) -> npt.NDArray[np.float64]:
    """Returns rates with NaN for None, and a rate below the logarithmic axis for 0."""
    rates = np.array(values, dtype=np.float64)
    return np.where(rates == 0, _LEAST / 10, rates)


def _write_caption(membership: Mapping[str, Any]) -> str:
    units = next(one["units"] for one in membership["rows"] if one["rows"] == "all")
    heads = membership["targets"]
    return (
        f"all attacked rows: {units}, in or out of {heads} heads with probability 1/2; "
        f"{membership['shadows']} shadows each\nbands: 95% CI over heads and examples. Not "
        "private: attacks on real examples"
    )
