"""Figures and section of audits: bounds with claims, attacks with the rates that epsilon allows."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpprobe.analyses.audit.audit_record import ATTACK_NAMES
from dpprobe.analyses.audit.show import make_section, membership_roc, plot_audit
from dpprobe.errors import DataError
from tests.support.audit_records import (
    ATTACK,
    MEMBERSHIP,
    WHITE_BOX,
    membership_record,
    write_audit,
)
from tests.support.report_page import section_page
from tests.support.shown import curves_of, dots_of, legend_of


def _bounds(axes: Any) -> list[tuple[float, float, str]]:
    """Returns claim, bound and marker of each filled point."""
    return [
        (x, y, line.get_marker())
        for line, x, y in dots_of(axes)
        if line.get_markerfacecolor() != "none"
    ]


def test_audit_bounds_are_drawn_at_their_claim_and_as_triangles_beyond_the_axis(
    tmp_path: Path,
) -> None:
    bounds = {"0.5": 0.0, "2": 0.71, "8": "inf"}
    weak = {"runs": 400, "confidence": 0.9, "caught_factor": 2.5}
    audits = [
        write_audit(tmp_path, backbone="clip", method=method, white_box=WHITE_BOX | weak)
        for method in ("sgd", "newton")
    ] + [
        write_audit(tmp_path, epsilon=epsilon, white_box=WHITE_BOX | {"epsilon_lower": bound})
        for epsilon, bound in bounds.items()
    ]
    figure = plot_audit(audits=audits, dataset="digits")
    clip, axes = figure.axes
    (left, *_), (right, *_) = _bounds(clip)
    assert left < 1 < right < 2**0.5, "methods side by side, nearer to their claim than to others"
    assert left * right == pytest.approx(1)
    caption = "400 to 1,000 runs per cell, 90% confidence;\nwould catch noise too small by"
    assert f"{caption} 1.52 to 2.5" in figure.get_suptitle()
    (low, marker), (middle, own), (high, top) = [(y, m) for _, y, m in _bounds(axes)]
    assert [x for x, _, _ in _bounds(axes)] == [pytest.approx(left * e) for e in (0.5, 2, 8)]
    assert (marker, top) == ("v", "^")
    assert own not in ("v", "^")
    assert middle == 0.71
    assert (low, high) == axes.get_ylim()
    assert (low, high) == (0.06 * 0.5, 1.5 * 8)
    assert [text.get_text() for text in axes.get_xticklabels()] == ["0.5", "1", "2", "8"]
    stairs: list[Any] = [*axes.patches]  # the claims, and the area above them
    for values, edges, _ in (patch.get_data() for patch in stairs):
        assert edges == pytest.approx([0.5 / 1.5, 0.5**0.5, 2**0.5, 4, 12]), "halfway on the axis"
        assert [*values] in ([0.5, 1, 2, 8], [12] * 4)


def _section(*audits: Path) -> dict[str, Any]:
    (part,) = make_section(audits, section_page("digits", "other"))
    return dict(part)


def test_a_section_has_audits_in_order_and_each_attack(tmp_path: Path) -> None:
    audits = [
        write_audit(tmp_path, backbone=backbone, method=method, epsilon=epsilon)
        for backbone in ("pixels", "clip")
        for method in ("sgd", "newton")
        for epsilon in ("10", "2")
    ]
    members = MEMBERSHIP | {"rows": [*MEMBERSHIP["rows"], ATTACK | {"rows": "rarest_classes"}]}
    audits.append(write_audit(tmp_path, epsilon="inf", white_box=None, membership=members))
    part = _section(*audits)
    assert [(one.backbone, one.method, one.epsilon) for one in part["cells"]] == [
        (backbone, method, epsilon)
        for backbone in ("clip", "pixels")
        for method in ("newton", "sgd")
        for epsilon in ("2", "10")
    ], "attacks alone are no audit"
    attacks = [(one.epsilon, each.rows, each.attack) for one, _, each in part["attacks"]]
    assert attacks == [
        ("inf", "mislabelled", "lira"),
        ("inf", "all", "loss"),
        ("inf", "all", "lira"),
        ("inf", "rarest_classes", "lira"),
    ]
    assert part["intervals"] == "95%, heads and units drawn again"
    assert part["names"]["rarest_classes"] == "rarest classes"
    plain = _section(write_audit(tmp_path / "plain"))
    assert (plain["attacks"], plain["intervals"]) == ([], "")


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("claim", 0.99612, "0.9962"),  # rounded up
        ("bound", 0.71299, "0.712"),  # rounded down
        ("bound", math.inf, "∞"),
        ("bound", 0.0, "0"),
        ("factor", None, "none"),
        ("factor", math.inf, "∞"),
        ("factor", 1.23456, "1.23"),
        ("rate", None, ""),
        ("rate", 0.01234, "1.23"),
    ],
)
def test_numbers_of_a_section_promise_no_more_than_they_are(
    tmp_path: Path, name: str, value: float | None, text: str
) -> None:
    assert _section(write_audit(tmp_path))[name](value) == text


# Attacks on real examples


def test_attacks_are_curves_with_bands_below_what_epsilon_allows() -> None:
    roc = membership_record(groups=("mislabelled", "all"))
    last = roc["roc"]["curves"][-1]
    last["tpr"] = [None, last["tpr"][1], 0.0, *last["tpr"][3:]]
    figure = membership_roc(roc, title="digits, sgd", beside=membership_record())
    (axes,) = figure.axes
    areas = {"": (0.64, 0.65, 0.66), "nonprivate: ": (0.61, 0.62, 0.63)}
    told = [
        f"{kind}{ATTACK_NAMES[name]}, AUC {area:.3f}"
        for kind, each in areas.items()
        for name, area in zip(("loss", "lira", "rmia"), each, strict=True)
    ]
    assert [text for text in legend_of(figure) if "AUC" in text] == told
    caption = "all attacked rows: 70, in or out of 32 heads with probability 1/2; 31"
    assert any(text.get_text().startswith(caption) for text in axes.texts)
    fpr, allowed = (np.array(roc["roc"][name]) for name in ("fpr", "allowed"))
    curves = [y for _, _, y in curves_of(axes)]
    np.testing.assert_allclose(curves[0], allowed)
    np.testing.assert_allclose(curves[1], fpr, err_msg="guessing")
    expected = np.array([np.nan, *np.minimum(2 * fpr, 1)[1:]])
    for number in (2, 3):
        np.testing.assert_allclose(curves[number], expected)
    with_zero = expected.copy()
    with_zero[2] = 1e-5  # below the axis, which begins at 1e-4
    np.testing.assert_allclose(curves[4], with_zero)
    assert len(curves) == 5 + 3, "attacks on all rows alone"
    _, *bands = [path.vertices for area in axes.collections for path in area.get_paths()]
    assert len(bands) == 3
    for band, rate in itertools.product(bands, fpr[1:]):  # the first has no value
        heights = np.asarray(band)[np.asarray(band)[:, 0] == rate, 1]
        ends = heights.min(), heights.max()
        assert ends == pytest.approx((min(1.5 * rate, 1), min(2.5 * rate, 1)))
    dashed = [line.is_dashed() for line, _, _ in curves_of(axes)]
    assert dashed[2:] == [False] * 3 + [True] * 3


def test_without_an_attack_on_all_rows_the_record_is_refused() -> None:
    with pytest.raises(DataError, match="digits: no membership attack on all rows; audit the cell"):
        membership_roc(membership_record(groups=("mislabelled",)), title="digits")
