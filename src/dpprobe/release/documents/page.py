"""Writes a release's page for a privacy officer: release.html, for offline use and printing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from dpprobe.exhibits.html_page import content_policy
from dpprobe.release.bundle import BundleFacts
from dpprobe.release.documents.document_values import (
    CURVE,
    RATES,
    TEMPLATES,
    Attack,
    bound_best_attacks,
    html_environment,
    one_line,
    shared_values,
)
from dpprobe.release.stated_plans import tested_blocks

# Longest lists and texts on the page, which must fit on two printed sheets.
CLASSES_SHOWN, NAME_LENGTH, TEXT_LENGTH = 16, 40, 500
# Sizes of a drawing in SVG units: the square of the plot, and the margins for labels.
SIDE, LEFT, TOP = 200, 44, 8


def make_page(facts: BundleFacts, statement: Mapping[str, Any]) -> str:
    points = bound_best_attacks(statement, (*RATES, *CURVE))
    table, curve = points[: len(RATES)], points[len(RATES) :]
    style = (TEMPLATES / "style.css").read_text(encoding="utf-8")
    values = shared_values(facts, statement, table)
    values |= {name: one_line(values[name]) for name in ("use", "limits")}
    return (
        html_environment()
        .get_template("page.html.j2")
        .render(
            **values,
            style=Markup(style),
            policy=content_policy(style, None),
            drawing=_draw_curve(curve),
            diagram=_draw_reliability(statement.get("calibration", {}).get("reliability", ())),
            rows=[
                *({**item, "of": "training"} for item in statement["mechanisms"]),
                *(
                    {**item, "of": "test"}
                    for b in tested_blocks(statement)
                    for item in b["mechanisms"]
                ),
            ],
            classes=[one_line(name) for name in facts.class_names[:CLASSES_SHOWN]],
            classes_left=max(0, len(facts.class_names) - CLASSES_SHOWN),
            name_length=NAME_LENGTH,
            text_length=TEXT_LENGTH,
        )
    )


def _draw_curve(curve: Sequence[Attack]) -> dict[str, Any]:
    """Computes points, marks and axes of the attack curve, in the drawing's units."""
    return {
        **_draw_square(),
        "line": " ".join(",".join(_place_point(item.false, item.trained)) for item in curve),
        "marks": [_place_point(item.false, item.trained) for item in curve if item.false in RATES],
    }


def _draw_reliability(rows: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Computes a reliability diagram's points, with ranges of predictions and 95% intervals."""
    marks = []
    for row in rows:
        x, y = _place_point(row["predicted"], row["observed"])
        (_, low), (_, high) = (_place_point(0, row[end]) for end in ("low", "high"))
        (left, _), (right, _) = (_place_point(row[end], 0) for end in ("from", "to"))
        marks.append((x, y, low, high, left, right))
    return {**_draw_square(), "marks": marks}


def _place_point(rate: float, value: float) -> tuple[str, str]:
    return f"{LEFT + SIDE * rate:.2f}", f"{TOP + SIDE * (1 - value):.2f}"


def _draw_square() -> dict[str, Any]:
    return {
        "ticks": [
            (f"{100 * part:g}", *_place_point(part, part)) for part in (0.0, 0.25, 0.5, 0.75, 1.0)
        ],
        "left": LEFT,
        "right": LEFT + SIDE,
        "top": TOP,
        "bottom": TOP + SIDE,
    }
