"""Figure and report section of audits: lower bounds on epsilon from attacks, against the claims."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dpprobe.analyses.analysis import Page
from dpprobe.analyses.audit.audit_record import (
    ATTACK_NAMES,
    AuditRecord,
    Control,
    NoControl,
    WhiteBox,
    at_least,
)
from dpprobe.errors import NothingToShow
from dpprobe.exhibits import style
from dpprobe.privacy.risk import budget_order
from dpprobe.results.summary import rounded_up
from dpprobe.study.ablations import keep_unique

# Bounds below this share of the smallest claim are drawn at the foot of the logarithmic axis.
_FOOT = 0.06
# Methods with the same claim are drawn side by side, each at most by this factor further right.
_LARGEST_STEP = 1.09
_BROKEN = "#D55E00"
_NAMES = {**ATTACK_NAMES, "rarest_classes": "rarest classes"}

Tested = tuple[AuditRecord, WhiteBox]


def plot_audit(*, audits: Sequence[Path], dataset: str) -> Figure:
    """Draws the bounds of a dataset's audits against the claims."""
    return audit_figure([AuditRecord.read(path) for path in audits], dataset=dataset)


def make_section(paths: Sequence[Path], page: Page) -> list[dict[str, Any]]:
    """Reads records into one part per dataset: white-box audits, then membership attacks."""
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


def audit_figure(records: Iterable[AuditRecord], *, dataset: str) -> Figure:
    """Draws the bounds of white-box audits against the claims, one panel per backbone.

    Methods with the same claim are drawn side by side, below one step of the line of claims. A
    bound at or near 0 is a triangle at the foot of the axis. Rings mark refuted claims.

    Args:
      records: of the cells of one dataset; records without a white-box audit are left out.

    Raises:
      NothingToShow: if no record has a white-box audit.
    """
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
    highest = max(
        [*claims, *(box.epsilon_lower for _, box in tested if math.isfinite(box.epsilon_lower))]
    )
    figure, grid = style.panel_grid(len(backbones), legend=len(methods) + 2)
    for axes, backbone in zip(grid, backbones, strict=True):
        mine = [item for item in tested if item[0].backbone == backbone]
        for place, (method, (colour, (_, marker))) in enumerate(looks.items()):
            points = [item for item in mine if item[0].method == method]
            aside = step ** (place - (len(looks) - 1) / 2)
            _draw_bounds(axes, points, aside, colour, marker, foot)
        _claim_line(axes, claims, highest, foot)
        axes.set_title(backbone, fontsize=9)
    style.label_outer_panels(grid, "lower bound on ε (log scale)")
    figure.legend(handles=_make_handles(looks), loc="outside right upper", handlelength=2.2)
    boxes = [box for _, box in tested]
    # always on two lines, because the label is long
    style.title_figure(
        figure, f"{dataset}: bounds of audits against claims", _describe_power(boxes), panels=1
    )
    return figure


def _draw_bounds(
    axes: Axes, items: Sequence[Tested], aside: float, colour: str, marker: str, foot: float
) -> None:
    """Draws a method's bounds at each claim times `aside`; bounds at the foot are triangles."""
    for record, box in items:
        place = record.claim.epsilon_target * aside
        bound = box.epsilon_lower
        if math.isfinite(bound):
            axes.plot(
                [place], [max(bound, foot)], color=colour, linestyle="none",
                marker="v" if bound <= foot else marker, markersize=6, clip_on=False, zorder=4,
            )  # fmt: skip
        if not box.holds:
            axes.plot(
                [place], [box.epsilon_lower], color=_BROKEN,
                linestyle="none", marker="o", markersize=12, markerfacecolor="none", zorder=5,
            )  # fmt: skip


def _claim_line(axes: Axes, claims: Sequence[float], highest: float, foot: float) -> None:
    """Draws the claims as a line of steps, and shades the area no correct mechanism reaches."""
    between = [math.sqrt(low * high) for low, high in pairwise(claims)]
    ends = [claims[0] / 1.5, claims[-1] * 1.5]
    edges, top = [ends[0], *between, ends[1]], highest * 1.5
    axes.stairs(claims, edges, baseline=None, color=style.NEUTRAL, linewidth=1.2)
    axes.stairs([top] * len(claims), edges, baseline=claims, fill=True, color=_BROKEN, alpha=0.08)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*ends)
    axes.set_ylim(foot, top)
    axes.set_xticks(claims, [f"{value:g}" for value in claims])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("claimed ε (log scale)", fontsize=8.5)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter("")
    axes.grid(axis="both")


def _make_handles(looks: dict[str, style.Look]) -> list[Line2D]:
    dots = [(method, colour, marker) for method, (colour, (_, marker)) in looks.items()]
    return [
        *style.make_dot_handles([*dots, ("0, or near it", style.NEUTRAL, "v")]),
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
