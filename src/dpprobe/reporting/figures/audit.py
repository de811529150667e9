"""The figure of audits: the bound that an attack shows against the claim."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from dpprobe.audit.record import AuditRecord, WhiteBox
from dpprobe.errors import DataError
from dpprobe.reporting.figures import style
from dpprobe.study.ablations import unique

# Bounds below this share of the smallest claim are drawn at it: the foot of the logarithmic axis.
_FOOT = 0.02

Tested = tuple[AuditRecord, WhiteBox]


def audit_figure(records: Iterable[AuditRecord], *, dataset: str, svg: Path, png: Path) -> None:
    """Draws the bounds of white-box audits against the claims, a panel a backbone.

    Filled marks are bounds without an assumption on the scores, hollow ones take them for normal.
    A bound of 0, or near it, stands at the foot of the axis, where a triangle points down.

    Args:
      records: of the cells of one dataset; those without a white-box audit are left out.

    Raises:
      DataError: when none was audited.
    """
    tested = [(record, record.white_box) for record in records if record.white_box]
    if not tested:
        raise DataError(f"{dataset}: no white-box audit to draw; audit a cell with a finite ε")
    backbones = unique(record.backbone for record, _ in tested)
    methods = unique(record.method for record, _ in tested)
    looks = dict(zip(methods, style.looks(len(methods)), strict=True))
    claims = [record.claim.epsilon for record, _ in tested]
    foot = _FOOT * min(claims)
    highest = max(
        [*claims, *(box.epsilon_lower for _, box in tested if math.isfinite(box.epsilon_lower))]
    )
    with mpl.rc_context(style.SETTINGS):
        figure, grid = style.panel_grid(len(backbones), legend=len(methods) + 5)
        for axes, backbone in zip(grid, backbones, strict=True):
            mine = [item for item in tested if item[0].backbone == backbone]
            for method in methods:
                colour, (_, marker) = looks[method]
                _draw([i for i in mine if i[0].method == method], axes, colour, marker, foot)
            _claim_line(axes, min(claims), highest, foot)
            axes.set_title(backbone, fontsize=9)
        style.label_outer_panels(grid, "lower bound on ε (log scale)")
        figure.legend(handles=_handles(looks), loc="outside right upper", handlelength=2.2)
        boxes = [box for _, box in tested]
        style.title_figure(
            figure, f"{dataset}: bounds of audits against claims", _power(boxes),
            panels=len(backbones),
        )  # fmt: skip
        style.save(figure, svg, png)


def _draw(items: Sequence[Tested], axes: Axes, colour: str, marker: str, foot: float) -> None:
    """Draws one method's bounds; those at the foot as triangles that point down."""
    for record, box in items:
        for bound, filled in ((box.parametric_epsilon_lower, False), (box.epsilon_lower, True)):
            if bound is None or not math.isfinite(bound):
                continue
            low = bound <= foot
            axes.plot(
                [record.claim.epsilon], [max(bound, foot)], color=colour, linestyle="none",
                marker="v" if low else marker, markersize=6, markeredgecolor=colour,
                markerfacecolor=colour if filled else "none", clip_on=False,
                zorder=4 if filled else 3,
            )  # fmt: skip


def _claim_line(axes: Axes, lowest: float, highest: float, foot: float) -> None:
    """Draws bound = claim, and shades what no correct mechanism shows."""
    ends = [lowest / 1.5, highest * 1.5]
    axes.plot(ends, ends, color=style.NEUTRAL, linestyle=style.CEILING_STYLE, linewidth=1.2)
    axes.fill_between(ends, ends, [ends[1]] * 2, color="#D55E00", alpha=0.08, linewidth=0)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*ends)
    axes.set_ylim(foot, ends[1])
    axes.set_xlabel("claimed ε (log scale)", fontsize=8.5)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_minor_formatter("")
    axes.grid(axis="both")


def _handles(looks: dict[str, tuple[str, tuple[object, str]]]) -> list[Line2D]:
    """Makes the legend: methods, kinds of bounds, the line of claims."""

    def mark(label: str, colour: str, marker: str, *, filled: bool = True) -> Line2D:
        return Line2D(
            [], [], color=colour, linestyle="none", marker=marker, label=label,
            markerfacecolor=colour if filled else "none",
        )  # fmt: skip

    return [
        *(mark(method, colour, marker) for method, (colour, (_, marker)) in looks.items()),
        mark("no assumption on scores", style.NEUTRAL, "o"),
        mark("scores taken for normal", style.NEUTRAL, "o", filled=False),
        mark("0, or near it", style.NEUTRAL, "v"),
        Line2D([], [], color=style.NEUTRAL, linestyle=style.CEILING_STYLE, label="bound = claim"),
    ]


def _power(boxes: Sequence[WhiteBox]) -> str:
    """Writes runs, confidence and power of the audits."""
    runs = sorted({box.runs for box in boxes})
    spread = f"{runs[0]:,}" if len(runs) == 1 else f"{runs[0]:,} to {runs[-1]:,}"
    confidence = min(box.confidence for box in boxes)
    factors = [box.caught_factor for box in boxes if box.caught_factor is not None]
    text = f"{spread} runs a cell, {100 * confidence:g} % confidence"
    if len(factors) < len(boxes):
        return f"{text}; some too weak to catch any error in the noise"
    low, high = (f"{factor:.3g}" for factor in (min(factors), max(factors)))
    between = low if low == high else f"{low} to {high}"
    return f"{text}; would catch noise too small by {between}"
