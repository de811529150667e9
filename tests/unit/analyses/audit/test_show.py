"""The figure and the report's section of audits: claim against bound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.patches import StepPatch

from dpprobe.analyses.audit.show import make_section, plot_audit
from dpprobe.exhibits import style
from tests.support.audit_records import CONTROLS, MEMBERSHIP, WHITE_BOX, write_audit
from tests.support.report_page import Made, section_page


def test_each_bound_stands_at_its_claim(tmp_path: Path) -> None:
    bounds: dict[str, Any] = {"0.5": 0.0, "2": 1.2, "8": 7.1}
    audits = [
        write_audit(
            tmp_path,
            backbone=backbone,
            epsilon=epsilon,
            white_box={**WHITE_BOX, "epsilon_lower": bound, "holds": holds},
        )
        for backbone, holds in (("pixels", True), ("scattering", False))
        for epsilon, bound in (bounds if holds else {"0.5": 0.0, "8": "inf"}).items()
    ]
    with style.use_settings():
        figure: Any = plot_audit(audits=audits, dataset="digits")
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["pixels", "scattering"]
    pixels, scattering = figure.axes
    assert pixels.get_xscale() == pixels.get_yscale() == "log"
    points = [line for line in pixels.get_lines() if len(line.get_xdata()) == 1]
    foot = pixels.get_ylim()[0]
    drawn = [(line.get_xdata()[0], line.get_ydata()[0]) for line in points]
    assert drawn == [(0.5, foot), (2.0, 1.2), (8.0, 7.1)]
    assert [line.get_marker() == "v" for line in points] == [True, False, False]
    top = scattering.get_ylim()[1]
    rings = [line for line in scattering.get_lines() if line.get_markersize() == 12]
    drawn = [(line.get_xdata()[0], line.get_ydata()[0]) for line in rings]
    assert drawn == [(0.5, foot), (8.0, top)]
    claims = next(part for part in pixels.patches if isinstance(part, StepPatch))
    assert list(claims.get_data()[0]) == [0.5, 2.0, 8.0]
    said = figure.get_suptitle()
    assert "1,000 runs per cell, 95% confidence" in said
    assert "1.52" in said


def test_claim_and_bound_stand_with_attack_and_power(made: Made) -> None:
    page = made.page(records={"audit": [write_audit(made.results, controls=CONTROLS)]})
    assert "audits" in {part.get("id") for part in page.all("section")}
    words = page.words
    for part in (
        "Paired likelihood ratio of all releases, right in 61.4% of 1,000 runs",
        "would have caught noise too small by a factor of 1.52 with probability 0.95",
        "too small in a single number by a factor of 1.6",
        "None of 3 tests refutes the claim: smallest p-value 0.03, threshold 0.0005",
        "half noise caught by variance (p = 1e-30)",
        "half sample rate not applicable: no mechanism samples",
    ):
        assert part in words, part
    assert page.text.count("<td>yes</td>") == 1


def test_a_bound_above_its_claim_and_a_missed_control_stand_out(made: Made) -> None:
    missed = {**CONTROLS[1], "refuted_by": [], "caught": False}
    tests = [{"name": "low_bits", "p_value": 1e-5}]
    broken = {**WHITE_BOX, "holds": False, "tests": tests, "epsilon_lower": 3.0}
    page = made.page(
        records={"audit": [write_audit(made.results, white_box=broken, controls=(missed,))]}
    )
    assert '<strong class="tag">no</strong>' in page.text
    assert "<strong>MISSED (p = 1e-30)</strong>" in page.text
    assert "The claim is refuted by: low bits" in page.words


def test_attacks_on_real_rows_stand_beside_what_epsilon_allows(made: Made) -> None:
    audits = [
        write_audit(made.results, membership=MEMBERSHIP),
        write_audit(
            made.results, method="nonprivate", epsilon="inf", white_box=None, membership=MEMBERSHIP
        ),
    ]
    page = made.page(records={"audit": audits})
    assert "membership-digits" in {part.get("id") for part in page.all("table")}
    assert "6 membership attacks on real training rows; keep them private" in page.words
    rows = make_section(audits, section_page("digits"))[0]["attacks"]
    assert [cell.method for cell, _, _ in rows] == ["nonprivate"] * 3 + ["sgd"] * 3
    assert page.text.count('<td class="num">0.23</td><td class="num">0.4</td>') == 4
    assert page.text.count('<td class="num"></td><td class="num">0.4</td>') == 2
