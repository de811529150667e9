"""Sections of a report's page: the numbers of the records, and names without markup."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest

from dpprobe.analyses.representation_law.law_record import law_path
from tests.support.audit_records import CONTROLS, MEMBERSHIP, WHITE_BOX, write_audit
from tests.support.fairness_records import APART, write_fairness
from tests.support.imbalance_records import imbalance_record, rare_cell
from tests.support.law_records import law_record
from tests.support.long_tail_records import write_long_tail
from tests.support.report_page import ReportedStudy
from tests.unit.analyses.group_gradients.test_show import write_record

HOSTILE = {"ink": "<i>", "bold": "<b>x", "thin": "</script>"}


def _section(text: str, name: str) -> str:
    start = text.index(f'<section id="{name}"')
    return text[start : text.index("</section>", start)]


def _plain(text: str) -> str:
    return html.unescape(" ".join(re.sub(r"<[^>]+>", "", text).split()))


def _table(section: str, caption: str) -> list[dict[str, str]]:
    """Returns the rows of the table with this caption, without rows of notes."""
    (found,) = [
        table
        for table in re.findall(r"<table.*?</table>", section, re.DOTALL)
        if caption in _plain(table.partition("</caption>")[0])
    ]
    lines = re.findall(r"<tr>.*?</tr>", found, re.DOTALL)
    cells = [[_plain(c) for c in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)] for row in lines]
    titles = [
        f"{name} {n}" if cells[0].count(name) > 1 else name for n, name in enumerate(cells[0])
    ]
    return [dict(zip(titles, row, strict=True)) for row in cells[1:]]


def _page(made: ReportedStudy, **records: list[Path]) -> Any:
    return made.page(records=records)


def test_an_audit_row_shows_its_claim_its_bounds_and_what_it_would_catch(
    made: ReportedStudy,
) -> None:
    tests = [{"name": "variance", "p_value": 1e-9}, {"name": "releases", "p_value": 0.4}]
    refuted = WHITE_BOX | {"holds": False, "tests": tests, "epsilon_lower": 3.0}
    audits = [
        write_audit(made.results, controls=CONTROLS, membership=MEMBERSHIP),
        write_audit(made.results, epsilon="2", white_box=refuted),
    ]
    section = _section(_page(made, audit=audits).text, "audits")
    first, second = _table(section, "Claimed ε of each cell")
    assert first == {
        "backbone": "pixels",
        "method": "sgd",
        "ε": "1",
        "claim": "1",
        "bound": "0.712",
        "direct": "0.12",
        "weights alone": "0",
        "noise at most ×": "1.31",
        "would catch ÷": "1.52",
        "claim held": "yes",
    }
    assert (second["claim"], second["bound"], second["claim held"]) == ("2", "3", "no")
    words = _plain(section)
    assert "right in 61.4% of 1,000 runs; canary: a row at the clip bound" in words
    assert "None of 3 tests refutes the claim: smallest p-value 0.03, threshold 0.0005." in words
    assert "noise off caught by variance, low bits (p = 0);" in words
    assert "The claim is refuted by: variance (p-value 1e-09, threshold 0.0005)." in words
    attacks = _table(section, "was trained on: true-positive rates")
    assert [(row["rows"], row["units"], row["AUC"]) for row in attacks] == [
        ("mislabelled", "200", "0.531"),
        (attacks[1]["rows"], "200", "0.510"),
        (attacks[2]["rows"], "200", "0.531"),
    ]
    last = attacks[2]
    assert (last["95%"], last["at 0.1% false"], last["at 1% false"]) == (
        "[0.521, 0.542]",
        "0.23",
        "1.51",
    )
    assert [value for name, value in last.items() if name.startswith("allowed")] == ["0.4", "3"]
    assert attacks[0]["at 0.1% false"] == "", "too few pairs"


def test_rare_classes_and_their_break_downs_are_shown(made: ReportedStudy) -> None:
    path = made.results / "imbalance.json"
    imbalance_record([rare_cell(0.2), rare_cell(0.5, method="other")]).write(path)
    section = _section(_page(made, imbalance=[path]).text, "imbalance")
    (best,) = _table(section, "Recall of rare classes of digits")
    assert best["epsilon 1"] == "50.0 other, macro 75.0"
    points = _table(section, "Images of the class times ε")
    assert [(row["method"], row["images × ε"][:26]) for row in points] == [
        ("sgd", "above the largest product "),
        ("other", "from 100, always from 100 "),
    ]


def test_the_report_prints_significant_gap_differences_in_bold(
    made: ReportedStudy,
) -> None:
    path = write_fairness(made.results, gap=APART, names={"ink": "<i>"})
    section = _section(_page(made, fairness=[path]).text, "subgroups")
    summary = _table(section, "whose gap stands out, of all private cells")
    row = summary[0]
    assert (row["attribute"], row["metric"], row["groups"]) == ("<i>", "mean AUC over labels", "2")
    assert (row["beyond chance"], row["wider than without privacy"], row["narrower"]) == (
        "2 of 2",
        "2 of 2",
        "0 of 2",
    )
    gaps = _table(section, "Gap between the best and the worst group of digits")
    sgd = next(each for each in gaps if (each["method"], each["ε"]) == ("sgd", "0.5"))
    assert (sgd["gap"], sgd["by chance"], sgd["difference"]) == ("6.0", "3.0", "+3.0")
    assert [value for name, value in sgd.items() if name.startswith("95%")] == [
        "2.5 to 9.0",
        "1.0 to 5.0",
    ]
    assert "<strong>+3.0</strong>" in section
    assert "<strong>6.0</strong>" in section
    assert "tables/digits_fairness.csv" in section


def test_long_tails_have_tables_and_notes(made: ReportedStudy) -> None:
    path = write_long_tail(made.results, notes=["no memorisation: 8 units"])
    section = _section(_page(made, long_tail=[path]).text, "long-tail")
    rows = _table(section, "Sub-classes of each class, not private")
    assert [row["clusters a class"] for row in rows] == ["5", "20"]
    assert "Digits, pixels: no memorisation: 8 units." in _plain(section)


def test_gradients_of_groups_are_marked_as_not_for_publication(made: ReportedStudy) -> None:
    text = _page(made, group_gradients=[write_record(made.results)]).text
    section = _section(text, "group-gradients")
    assert "Not private, and not for publication" in _plain(section)
    rows = _table(section, "Gradients of subgroups of digits, not private")
    assert [(row["group"], row["alignment"]) for row in rows[1:3]] == [
        ("F", "0.75 (0.62 to 0.88)"),
        ("M", "0.75 (0.62 to 0.88)"),
    ]
    assert "gradients of subgroups are computed from them without noise" in _plain(text)


def test_laws_have_a_row_for_each_network_and_split(made: ReportedStudy) -> None:
    path = law_path(made.results / "layers", "digits", "pixels")
    law_record().write(path)
    section = _section(_page(made, representation_law=[path]).text, "laws")
    rows = _table(section, "Representation laws of digits, not private")
    assert len(rows) == 26
    assert rows[0]["ρ fuzziness"] == "0.800 ± 0.016"
    assert rows[0]["rows"] == "training"


@pytest.mark.parametrize("name", ["fairness", "audit", "long_tail"])
def test_names_are_escaped_in_the_analysis_sections_of_the_report(
    made: ReportedStudy, name: str
) -> None:
    paths = {
        "fairness": lambda: write_fairness(made.results, gap=APART, names=HOSTILE),
        "audit": lambda: write_audit(
            made.results, white_box=WHITE_BOX | {"canary": "<b>x</script>"}
        ),
        "long_tail": lambda: write_long_tail(made.results, notes=["<b>x</script>"]),
    }
    page = _page(made, **{name: [paths[name]()]})
    assert page.all("script") == [{}], "the page's own"
    assert "<b>x" not in page.text
    assert "&lt;b&gt;x" in page.text
