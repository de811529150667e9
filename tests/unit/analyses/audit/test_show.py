"""The figure of audits: claim against bound."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.patches import StepPatch

from dpprobe.analyses.audit.audit_record import AuditRecord
from dpprobe.analyses.audit.show import audit_figure
from dpprobe.errors import DataError
from tests.support.audit_records import MEMBERSHIP, WHITE_BOX, write_audit
from tests.support.figures import drawn_figure


def _records(tmp_path: Path) -> list[AuditRecord]:
    bounds = {"0.5": 0.0, "2": 1.2, "8": 7.1}
    return [
        AuditRecord.read(
            write_audit(
                tmp_path,
                backbone=backbone,
                epsilon=epsilon,
                white_box={
                    **WHITE_BOX,
                    "epsilon_lower": bound,
                    "parametric_epsilon_lower": None if backbone == "pixels" else bound + 0.3,
                },
            )
        )
        for backbone in ("pixels", "scattering")
        for epsilon, bound in bounds.items()
    ]


def test_each_bound_stands_at_its_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = _records(tmp_path)
    figure = drawn_figure(
        monkeypatch, lambda files: audit_figure(records, dataset="digits", **files)
    )
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["pixels", "scattering"]
    pixels, scattering = figure.axes
    assert pixels.get_xscale() == pixels.get_yscale() == "log"
    points = [line for line in pixels.get_lines() if len(line.get_xdata()) == 1]
    foot = pixels.get_ylim()[0]
    drawn = [(line.get_xdata()[0], line.get_ydata()[0]) for line in points]
    assert drawn == [(0.5, foot), (2.0, 1.2), (8.0, 7.1)]
    assert [line.get_marker() == "v" for line in points] == [True, False, False]
    assert len(scattering.get_lines()) == 6, "two bounds a cell"
    claims = next(part for part in pixels.patches if isinstance(part, StepPatch))
    assert list(claims.get_data()[0]) == [0.5, 2.0, 8.0]
    said = figure.get_suptitle()
    assert "1,000 runs a cell, 95 % confidence" in said
    assert "1.52" in said


def test_methods_stand_below_the_step_of_their_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = {**WHITE_BOX, "epsilon_lower": 2.5, "holds": False}
    records = [
        AuditRecord.read(write_audit(tmp_path, method=method, epsilon=epsilon, white_box=box))
        for method in "abcdef"
        for epsilon, box in (("1", WHITE_BOX), ("2", broken if method == "f" else WHITE_BOX))
    ]
    figure = drawn_figure(
        monkeypatch, lambda files: audit_figure(records, dataset="digits", **files)
    )
    (axes,) = figure.axes
    claims = next(part for part in axes.patches if isinstance(part, StepPatch))
    edge = claims.get_data()[1][1]
    places = [line.get_xdata()[0] for line in axes.get_lines() if line.get_markersize() < 10]
    assert sum(place < edge for place in places) == sum(place > edge for place in places) == 12
    rings = [line for line in axes.get_lines() if line.get_markersize() > 10]
    assert [line.get_ydata()[0] for line in rings] == [2.5]


def test_an_audit_without_power_is_said_to_have_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weak = AuditRecord.read(write_audit(tmp_path, white_box={**WHITE_BOX, "caught_factor": None}))
    figure = drawn_figure(
        monkeypatch, lambda files: audit_figure([weak], dataset="digits", **files)
    )
    assert "too weak to catch" in figure.get_suptitle()


def test_without_a_white_box_audit_there_is_nothing_to_draw(tmp_path: Path) -> None:
    record = AuditRecord.read(
        write_audit(tmp_path, epsilon="inf", white_box=None, membership=MEMBERSHIP)
    )
    with pytest.raises(DataError, match="no white-box audit to draw"):
        audit_figure([record], dataset="digits", svg=tmp_path / "a.svg", png=tmp_path / "a.png")
