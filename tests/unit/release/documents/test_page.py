"""The privacy officer's page: one file that opens offline, states the facts and escapes texts."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from dpprobe.exhibits.html_page import content_policy
from dpprobe.release.bundle import CardFacts
from dpprobe.release.documents import document_values
from dpprobe.release.documents.page import make_page
from tests.support.refusals import check_tokens
from tests.support.releases import (
    HOSTILE,
    Release,
    example,
    long_release,
    measured,
    watched,
    with_tested,
)

VOID = {"meta", "link", "rect", "line", "circle", "polyline"}


class Reader(HTMLParser):
    """Collects text, table cells and drawn elements of a page, and checks that tags match."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.drawn: list[tuple[str, dict[str, Any]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.drawn += [(tag, dict(attributes))] if "svg" in self.open else []
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.drawn.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"{tag} ends where another tag is open"
        self.text += " " if tag in ("dt", "dd", "th", "td") else ""

    def handle_data(self, data: str) -> None:
        if "style" in self.open:
            return
        self.text += data
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Release:
    return example(tmp_path_factory.mktemp("page") / "v1")


def read(release: Release, **blocks: Any) -> Reader:
    reader = Reader()
    reader.feed(make_page(release[0], with_tested({**release[1], **blocks})))
    reader.close()
    assert reader.open == [], "every tag ends"
    reader.text = " ".join(reader.text.split())
    return reader


def test_a_release_page_loads_no_resource_and_runs_no_script(plain: Release) -> None:
    page = make_page(*long_release(plain))
    style = page.partition("<style>")[2].partition("</style>")[0]
    policy = html.unescape(page.partition('Policy" content="')[2].partition('"')[0])
    assert policy == content_policy(style, None)
    assert "script-src 'none'" in policy
    assert not re.search(r"<script| style=|(?:src|href)=\"(?!data:,)", page)


def test_hostile_texts_add_no_html_tags_to_the_page(plain: Release) -> None:
    facts, statement = plain
    unharmed = make_page(facts, statement)
    joined = "\n".join(HOSTILE)
    card = CardFacts(intended_use=joined, limits=joined, contact=joined)
    named = {"name": HOSTILE[0], "dataset": HOSTILE[1], "class_names": HOSTILE, "card": card}
    replaced = {**statement, "predecessor": {"name": HOSTILE[0], "sha256": HOSTILE[1]}}
    page = make_page(facts.model_copy(update=named), replaced)
    tags, known = (set(re.findall(r"<[^>]*>", text)) for text in (page, unharmed))
    assert tags - known == set()
    assert "\u202e" not in page
    text = html.unescape(re.sub(r"<[^>]*>", " ", page))
    assert "<img src=x" in text
    assert "{{ 7 * 7 }}" in text


def test_the_table_has_the_rates_of_the_best_attack_rounded_up(plain: Release) -> None:
    for blocks, columns in (({}, 2), ({"evaluation": measured()}, 3)):
        table = document_values.bound_best_attacks({**plain[1], **blocks}, document_values.RATES)
        rows = [row for row in read(plain, **blocks).rows if len(row) == columns]
        shown = [[float(cell.strip().rstrip("%")) for cell in row] for row in rows[1:]]
        for row, attack in zip(shown, table, strict=True):
            rates = [attack.false, attack.trained, attack.tested][:columns]
            for cell, rate in zip(row, rates, strict=True):
                assert rate is not None
                assert 0 <= cell - 100 * rate < 0.1, f"{cell}% for {rate}"


def test_the_curve_shows_the_best_attack(plain: Release) -> None:
    """The plot is 200 units wide and high, with its top left corner at (44, 8)."""
    drawn = read(plain).drawn
    (line,) = [each["points"] for tag, each in drawn if tag == "polyline"]
    points = [tuple(map(float, point.split(","))) for point in line.split()]
    rates = [((x - 44) / 200, 1 - (y - 8) / 200) for x, y in points]
    assert rates[0][0] == pytest.approx(0, abs=1e-4)
    assert rates[-1] == pytest.approx((1, 1), abs=1e-4)
    assert rates == sorted(rates), "no attack finds fewer for more false alarms"
    wanted = document_values.bound_best_attacks(plain[1], [min(1, max(0, x)) for x, _ in rates])
    assert [y for _, y in rates] == pytest.approx([each.trained for each in wanted], abs=1e-3)
    marks = [(float(each["cx"]), float(each["cy"])) for tag, each in drawn if tag == "circle"]
    assert [x for x, _ in marks] == pytest.approx([44 + 200 * rate for rate in (0.01, 0.1)])
    assert set(marks) <= set(points)


def test_each_mechanism_is_a_row_with_the_units_that_it_reads(
    plain: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = dict.fromkeys(
        ("covariance", "gradients", "sampled", "joint", "accuracy", "monitor_counts"), "a sum"
    )
    monkeypatch.setattr(document_values, "describe_mechanisms", lambda *_: described)
    item = plain[1]["mechanisms"][0]
    sampled = {**item, "name": "sampled", "sample_rate": 0.25, "count": 1200, "repeated": True}
    joint = {**item, "name": "joint", "budget_share": None}
    blocks = {"mechanisms": [item, sampled, joint], "evaluation": measured(), "monitor": watched()}
    rows = [row for row in read(plain, **blocks).rows if len(row) == 6][1:]
    cells = {row[0].partition(":")[0]: [" ".join(cell.split()) for cell in row[1:]] for row in rows}
    assert list(cells)[:4] == [item["name"], "sampled", "joint", "accuracy"]
    assert cells["accuracy"][:3] == ["1", "18.65 (18.65)", "1"]
    check_tokens(cells["accuracy"][3], "test images")
    check_tokens(cells["sampled"][2], "1,200")
    check_tokens(cells["sampled"][3], "25%", "training images")
    assert "%" not in cells["joint"][4]
    check_tokens(cells[item["name"]][3], "training images")
    assert "%" not in cells[item["name"]][3]
    assert cells[item["name"]][4] == f"{100 * item['budget_share']:.4g}%"


def test_the_page_has_the_facts_of_the_statement(plain: Release) -> None:
    said = read(plain, n=12345).text
    for words in (
        "Epsilon 1 ",
        "Delta 1e-5",
        "one training image",
        "12,345 images",
    ):
        assert words in said, words
    for absent in ("advantage", "weak", "mean 10", "Contact:", "chain"):
        assert absent not in said
    target = {"risk_target": {"advantage": 0.3}, "mu": 0.77}
    assert "advantage 0.3 (mu 0.77)" in read(plain, **target).text
    weak = {
        "epsilon_realised": 30.0,
        "selection": {"mean": 10, "repeated": ["gradients"], "trials": "geometric"},
    }
    check_tokens(read(plain, **weak).text, "weak", "mean 10")
