"""The report's section on audits."""

from __future__ import annotations

from pathlib import Path

from dpprobe.artifacts import write_text
from dpprobe.reporting.report.audits import read_audits
from tests.support.audit_records import CONTROLS, MEMBERSHIP, WHITE_BOX, write_audit
from tests.support.report_page import PNG, Made


def test_a_study_without_audits_has_no_section(made: Made) -> None:
    page = made.page()
    assert "audits" not in {part.get("id") for part in page.all("section")}
    assert "#audits" not in {link.get("href") for link in page.all("a")}


def test_claim_and_bound_stand_with_attack_and_power(made: Made) -> None:
    page = made.page(audits=[write_audit(made.results, controls=CONTROLS)])
    assert "audits" in {part.get("id") for part in page.all("section")}
    words = page.words
    for part in (
        "a low bound is no certificate",
        "Paired likelihood ratio of all releases, right in 61.4 % of 1,000 runs",
        "canary: a row at the clip bound, of another label",
        "would have caught noise too small by a factor of 1.52 with probability 0.95",
        "noise off ε ≥ ∞, caught",
        "half noise ε ≥ 1.7, caught",
        "half sample rate not applicable: no mechanism samples",
    ):
        assert part in words, part
    assert page.text.count("<td>yes</td>") == 1


def test_a_bound_above_its_claim_and_a_missed_control_stand_out(made: Made) -> None:
    missed = {**CONTROLS[1], "epsilon_lower": 0.2, "caught": False}
    broken = {**WHITE_BOX, "holds": False, "epsilon_lower": 3.0}
    page = made.page(audits=[write_audit(made.results, white_box=broken, controls=(missed,))])
    assert '<strong class="tag">no</strong>' in page.text
    assert "<strong>ε ≥ 0.2, MISSED</strong>" in page.text


def test_attacks_on_real_rows_stand_beside_what_epsilon_allows(made: Made) -> None:
    audits = [
        write_audit(made.results, membership=MEMBERSHIP),
        write_audit(
            made.results, method="nonprivate", epsilon="inf", white_box=None, membership=MEMBERSHIP
        ),
    ]
    page = made.page(audits=audits)
    assert "membership-digits" in {part.get("id") for part in page.all("table")}
    assert "4 membership attacks on real training rows: private" in page.words
    rows = read_audits(audits, order=["digits"])[0]["attacks"]
    assert [row["method"] for row in rows] == ["nonprivate"] * 2 + ["sgd"] * 2
    assert rows[2]["rates"][0] == {"reached": "0.23", "allowed": "0.4"}
    assert rows[3]["rates"][0] == {"reached": "", "allowed": "0.4"}


def test_audits_are_ordered_as_people_read_them(tmp_path: Path) -> None:
    paths = [
        write_audit(tmp_path, dataset=dataset, method=method, epsilon=epsilon)
        for dataset in ("digits", "birds")
        for method in ("sgd", "newton")
        for epsilon in ("8", "0.5", "10")
    ]
    parts = read_audits(paths, order=["birds", "digits", "unknown"])
    assert [part["dataset"] for part in parts] == ["birds", "digits"]
    order = [(cell["method"], cell["epsilon"]) for cell in parts[0]["cells"]]
    assert order == [(method, e) for method in ("newton", "sgd") for e in ("0.5", "8", "10")]


def test_figures_of_audits_stand_in_their_section_alone(made: Made) -> None:
    figures = [*made.sources.figures]
    for name in ("audit", "membership_pixels-sgd-eps-1"):
        svg = made.results / f"figures/digits/{name}.svg"
        write_text(svg, "<svg xmlns='http://www.w3.org/2000/svg'/>")
        svg.with_suffix(".png").write_bytes(PNG)
        figures += [svg, svg.with_suffix(".png")]
    audits = [write_audit(made.results, membership=MEMBERSHIP)]
    text = made.page(figures=figures, audits=audits).text
    section = text[text.index('<section id="audits"') : text.index('<section id="privacy"')]
    for title in ("Bounds of audits against claims", "Membership attacks on pixels, sgd, ε = 1"):
        assert f"<strong>{title}, digits.</strong>" in section
        assert text.count(f"<strong>{title}, digits.</strong>") == 1
