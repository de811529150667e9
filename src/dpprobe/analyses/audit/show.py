"""Figures and report section of audits.

One figure draws lower bounds on epsilon against the claims. Another figure draws true positives of
membership attacks against false positives, with the area that epsilon rules out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from dpprobe.analyses.analysis import Page
from dpprobe.analyses.audit.audit_record import (
    ATTACK_NAMES,
    AuditRecord,
    Control,
    NoControl,
    WhiteBox,
    at_least,
)
from dpprobe.errors import DataError, NothingToShow
from dpprobe.exhibits import style
from dpprobe.privacy.limits import rounded_up
from dpprobe.privacy.risk import budget_order
from dpprobe.study.ablations import keep_unique

# The lowest value on the logarithmic axis of bounds, as a share of the smallest claim.
_FOOT = 0.06
# The largest ratio of the horizontal positions of adjacent methods that have equal claims.
_LARGEST_STEP = 1.09
_BROKEN = "#D55E00"
_LEAST_RATE = 1e-4  # where the axes of membership attacks begin
_BESIDE_STYLE = (0, (2, 1.5))
_NAMES = {**ATTACK_NAMES, "rarest_classes": "rarest classes"}

Tested = tuple[AuditRecord, WhiteBox]


def make_section(paths: Sequence[Path], page: Page) -> list[dict[str, Any]]:
    """Reads records; returns the section's parts, one per dataset, with audits and attacks."""
    records = sorted(
        map(AuditRecord.read, paths),
        key=lambda item: (item.backbone, item.method, budget_order(item.epsilon)),
    )
    audited = {record.dataset for record in records}
    return [
        _make_part(dataset, [record for record in records if record.dataset == dataset])
        for dataset in page.datasets
        if dataset in audited
    ]


def plot_audit(*, audits: Sequence[Path], dataset: str) -> Figure:
    """Draws the bounds of a dataset's white-box audits against the claims, one panel per backbone.

    Methods with equal claims are drawn side by side below the line of claims. A bound at or near 0
    is a triangle at the foot of the axis. An infinite bound is a triangle at the top. Rings mark
    refuted claims.

    Raises:
      NothingToShow: if no record has a white-box audit.
    """
    records = map(AuditRecord.read, audits)
    tested = [(record, record.white_box) for record in records if record.white_box]
    if not tested:
        raise NothingToShow(f"{dataset}: no white-box audit to draw; audit a cell with a finite ε")
    backbones = keep_unique(record.backbone for record, _ in tested)
    methods = keep_unique(record.method for record, _ in tested)
    looks = dict(zip(methods, style.choose_looks(len(methods)), strict=True))
    claims = sorted({record.claim.epsilon_target for record, _ in tested})
    nearest = min((high / low for low, high in pairwise(claims)), default=2.0)
    step = min(_LARGEST_STEP, nearest ** (0.8 / len(methods)))
    foot = _FOOT * min(claims)
    bounds = [box.epsilon_lower for _, box in tested if math.isfinite(box.epsilon_lower)]
    top = 1.5 * max([*claims, *bounds])
    figure, grid = style.panel_grid(len(backbones), legend=len(methods) + 2)
    for axes, backbone in zip(grid, backbones, strict=True):
        mine = [item for item in tested if item[0].backbone == backbone]
        for place, (method, (colour, (_, marker))) in enumerate(looks.items()):
            points = [item for item in mine if item[0].method == method]
            aside = step ** (place - (len(looks) - 1) / 2)
            _draw_bounds(axes, points, aside, colour, marker, (foot, top))
        _claim_line(axes, claims, (foot, top))
        axes.set_title(backbone, fontsize=9)
    style.label_outer_panels(grid, "lower bound on ε (log scale)")
    figure.legend(handles=_make_handles(looks), loc="outside right upper", handlelength=2.2)
    boxes = [box for _, box in tested]
    # `panels=1` puts the long caption on a separate line, even above several panels.
    style.title_figure(
        figure, f"{dataset}: bounds of audits against claims", _describe_power(boxes), panels=1
    )
    return figure


def _draw_bounds(
    axes: Axes,
    items: Sequence[Tested],
    aside: float,
    colour: str,
    marker: str,
    ends: tuple[float, float],
) -> None:
    """Draws a method's bounds at x = claim * `aside`; a bound beyond `ends` is a triangle."""
    foot, top = ends
    for record, box in items:
        place = [record.claim.epsilon_target * aside]
        bound = min(max(box.epsilon_lower, foot), top)
        axes.plot(
            place,
            [bound],
            color=colour,
            linestyle="none",
            markersize=6,
            clip_on=False,
            zorder=4,
            marker="v" if bound == foot else "^" if bound == top else marker,
        )
        if not box.holds:
            axes.plot(
                place,
                [bound],
                color=_BROKEN,
                clip_on=False,
                linestyle="none",
                marker="o",
                markersize=12,
                markerfacecolor="none",
                zorder=5,
            )


def _claim_line(axes: Axes, claims: Sequence[float], limits: tuple[float, float]) -> None:
    """Draws claims as a step line, and shades bounds that are impossible for correct mechanisms."""
    between = [math.sqrt(low * high) for low, high in pairwise(claims)]
    ends = [claims[0] / 1.5, claims[-1] * 1.5]
    edges = [ends[0], *between, ends[1]]
    axes.stairs(claims, edges, baseline=None, color=style.NEUTRAL, linewidth=1.2)
    axes.stairs(
        [limits[1]] * len(claims), edges, baseline=claims, fill=True, color=_BROKEN, alpha=0.08
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*ends)
    axes.set_ylim(limits)
    axes.set_xticks(claims, [f"{value:g}" for value in claims])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("claimed ε (log scale)", fontsize=8.5)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter("")
    axes.grid(axis="both")


def _make_handles(looks: dict[str, style.Look]) -> list[Line2D]:
    dots = [(method, colour, marker) for method, (colour, (_, marker)) in looks.items()]
    return [
        *style.make_dot_handles([*dots, ("0 or close to 0", style.NEUTRAL, "v")]),
        Line2D([], [], color=style.NEUTRAL, linewidth=1.2, label="the claim"),
    ]


def _describe_power(boxes: Sequence[WhiteBox]) -> str:
    runs = sorted({box.runs for box in boxes})
    spread = f"{runs[0]:,}" if len(runs) == 1 else f"{runs[0]:,} to {runs[-1]:,}"
    confidence = min(box.confidence for box in boxes)
    factors = [box.caught_factor for box in boxes if box.caught_factor is not None]
    text = f"{spread} runs per cell, {100 * confidence:g}% confidence"
    if len(factors) < len(boxes):
        return f"{text};\nsome audits are too weak to catch any error in the noise"
    low, high = (f"{factor:.3g}" for factor in (min(factors), max(factors)))
    between = low if low == high else f"{low} to {high}"
    return f"{text};\nwould catch noise too small by {between}"


def _make_part(dataset: str, records: Sequence[AuditRecord]) -> dict[str, Any]:
    attacked = [(record, record.membership) for record in records if record.membership]
    return {
        "dataset": dataset,
        "cells": [record for record in records if record.white_box],
        "attacks": [
            (record, membership, attack)
            for record, membership in attacked
            for attack in membership.rows
        ],
        "intervals": attacked[0][1].interval if attacked else "",
        "names": _NAMES,
        "claim": lambda epsilon: f"{rounded_up(epsilon):g}",
        "bound": lambda value: at_least(value).replace("inf", "∞"),
        "factor": lambda value: "none" if value is None else f"{value:.3g}".replace("inf", "∞"),
        "rate": lambda value: "" if value is None else f"{100 * value:.3g}",
        "control": _describe_control,
    }


def _describe_control(control: Control | NoControl) -> str:
    name = control.name.replace("_", " ")
    if isinstance(control, NoControl):
        return f"{name} not applicable: {control.not_applicable}"
    tests = ", ".join(control.refuted_by).replace("_", " ")
    if control.caught:
        return f"{name} caught by {tests} (p = {control.p_value:.2g})"
    return Markup("{} <strong>MISSED (p = {:.2g})</strong>").format(name, control.p_value)


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

    Points in the shaded area are impossible under the plan: they exceed the best attack. Bands
    are 95% intervals. Curves begin at the lowest rate with enough false positives.

    Args:
      beside: the attacks on the non-private baseline, drawn as dashed lines.

    Raises:
      DataError: if the record has no attack on all rows.
    """
    curves = _curves_by_attack(membership)
    if not curves:
        raise DataError(f"{title}: no membership attack on all rows; audit the cell again")
    figure = Figure(figsize=(5.6, 6.0), layout="constrained")
    axes = figure.add_subplot()
    fpr = np.array(membership["roc"]["fpr"])
    allowed = np.array(membership["roc"]["allowed"])
    _draw_allowed(axes, fpr, allowed)
    colours = dict(zip(ATTACK_NAMES, style.COLOURS, strict=False))
    for name, curve in curves.items():
        label = f"{ATTACK_NAMES[name]}, AUC {_find_auc(membership, name):.3f}"
        axes.plot(fpr, _rates_or_nan(curve["tpr"]), color=colours[name], label=label)
        axes.fill_between(
            fpr,
            _rates_or_nan(curve["low"]),
            _rates_or_nan(curve["high"]),
            color=colours[name],
            alpha=0.15,
            linewidth=0,
        )
    for name, curve in _curves_by_attack(beside).items() if beside else ():
        assert beside is not None
        label = f"nonprivate: {ATTACK_NAMES[name]}, AUC {_find_auc(beside, name):.3f}"
        axes.plot(
            np.array(beside["roc"]["fpr"]),
            _rates_or_nan(curve["tpr"]),
            color=colours[name],
            linestyle=_BESIDE_STYLE,
            linewidth=1.1,
            label=label,
        )
    _finish_axes(axes, figure)
    style.title_axes(axes, title, _write_caption(membership))
    return figure


def _draw_allowed(
    axes: Axes, fpr: npt.NDArray[np.float64], allowed: npt.NDArray[np.float64]
) -> None:
    """Shades the area above the best attack under the plan, and draws the line of guessing."""
    if allowed.min() < 1:
        axes.fill_between(
            fpr,
            allowed,
            1.0,
            color="#8C8C8C",
            alpha=0.28,
            linewidth=0,
            label="forbidden by epsilon",
            zorder=0,
        )
        axes.plot(fpr, allowed, color=style.NEUTRAL, linewidth=1.0)
    axes.plot(fpr, fpr, color=style.NEUTRAL, linestyle=(0, (1, 2)), linewidth=1.0, label="chance")


def _finish_axes(axes: Axes, figure: Figure) -> None:
    axes.set(xscale="log", yscale="log", xlim=(_LEAST_RATE, 1.0), ylim=(_LEAST_RATE, 1.0))
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
    return np.where(rates == 0, _LEAST_RATE / 10, rates)


def _write_caption(membership: Mapping[str, Any]) -> str:
    units = next(one["units"] for one in membership["rows"] if one["rows"] == "all")
    heads = membership["targets"]
    return (
        f"all attacked rows: {units}, in or out of {heads} heads with probability 1/2; "
        f"{membership['shadows']} shadows each\nbands: 95% CI over heads and examples. Not "
        "private: attacks on real examples"
    )
