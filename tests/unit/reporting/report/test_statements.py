"""Privacy statements on the page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from dpprobe.files.json_files import read_json, write_json
from dpprobe.privacy.limits import rounded_up
from dpprobe.privacy.statement_words import explain_statement
from dpprobe.reporting.report import statements
from dpprobe.results.best_head_price import choice_price
from tests.support.cell_files import state_cell
from tests.support.report_page import ReportedStudy


def test_the_report_shows_the_noise_multiplier_and_the_standard_deviation(
    made: ReportedStudy,
) -> None:
    """Readers mistook one for the other, so a release's page shows both, too."""
    path = made.results / "cells/digits/pixels/sgd/eps-1/privacy.json"
    (mechanism, *_) = read_json(path)["mechanisms"]
    mechanism |= {"noise_multiplier": 16.86, "sensitivity": 1.4, "noise_standard_deviation": 23.604}
    write_json(path, read_json(path) | {"mechanisms": [mechanism]})
    text = made.page().text
    for title in ("noise multiplier", "sensitivity", "noise standard deviation"):
        assert f'<th scope="col" class="num">{title}</th>' in text
    cells = "".join(f'<td class="num">{value}</td>' for value in ("16.86", "1.4", "23.6"))
    assert cells in text


def test_statements_that_differ_are_not_merged(made: ReportedStudy) -> None:
    path = made.results / "cells/digits/pixels/sgd/eps-1/privacy.json"
    record = read_json(path)
    write_json(path, record | {"not_covered": ["features", "what pixels show"]})
    page = made.page()
    assert len([d for d in page.all("details") if d.get("class") == "statement"]) == 10
    common, _, own = page.text.partition('class="statement"')
    assert "what pixels show" not in common
    assert own.count("what pixels show") == 1
    assert own.count("training losses") == 9, "no longer common to all: each says it itself"


@pytest.mark.parametrize("key", [None, "options", "n", "mechanisms", "not_covered"])
def test_each_difference_keeps_two_statements_apart(key: str | None, made: ReportedStudy) -> None:
    """Differing assumptions on public data count, too; each backbone has them."""
    pair = [
        made.results / f"cells/digits/{name}/sgd/eps-1/privacy.json"
        for name in ("pixels", "scattering")
    ]
    records = [read_json(path) for path in pair]
    records[1] = records[0] | {"public_data": dict(records[1]["public_data"])}
    for path, record in zip(pair, records, strict=True):
        write_json(path, record)
    assert len(statements.read_statements(pair, order=["digits"])) == 1
    if key is None:
        records[1]["public_data"]["trained"] = True
    else:
        records[1][key] = {
            "options": records[0]["options"] | {"learning_rate": 0.7},
            "n": 999,
            "mechanisms": [],
            "not_covered": ["features"],
        }[key]
    write_json(pair[1], records[1])
    assert len(statements.read_statements(pair, order=["digits"])) == 2


def test_the_best_result_has_the_price_of_its_choice_and_the_statements_of_all(
    made: ReportedStudy,
) -> None:
    page = made.page()
    candidates = sorted(made.results.glob("cells/digits/*/sgd*/eps-1/privacy.json"))
    assert len(candidates) > 1
    price = choice_price(candidates)
    assert price is not None
    assert f"≤ {rounded_up(price):g}" in page.words
    assert price > read_json(candidates[0])["epsilon_all_heads"]
    listed = page.text.split("candidates and their statements")[1].split("</table>")[0]
    (line,) = (row for row in listed.split("</tr>") if '<td class="num">1</td>' in row)
    links = re.findall(r'href="#([^"]+)">([^<]+)</a>', line)
    names = {f"{path.parts[-3]} on {path.parts[-4]}" for path in candidates}
    assert {name for _, name in links} == names
    shown = {anchor.get("id") for anchor in page.all("details")}
    assert {anchor for anchor, _ in links} <= shown
    assert "nonprivate" not in listed


def test_links_lead_to_statements_that_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Datasets are in the study's order, not in alphabetical order."""
    monkeypatch.setattr(statements, "STATEMENTS_SHOWN", 9)
    page = ReportedStudy(tmp_path, ("zebra", "apple")).page()
    links = {(a.get("href") or "")[1:] for a in page.all("a")}
    links = {link for link in links if link.startswith("statement")}
    shown = {d["id"] for d in page.all("details") if d.get("class") == "statement"}
    assert len(shown) == 9
    assert links == shown


def _statement(index: int, epsilon: str, *backbones: str, **content: Any) -> statements.Statement:
    content = {"method": f"m{index}", "private": True, "epsilon_realised": 0.98761} | content
    cells = [(name, Path(f"r/cells/d/{name}/m/eps-{epsilon}/privacy.json")) for name in backbones]
    words = explain_statement(state_cell(["d", "a", "m", "1"]))
    anchor = f"statement-{index}"
    return statements.Statement(
        dataset="d", epsilon=epsilon, anchor=anchor, content=content, words=words, cells=cells
    )


def test_candidates_are_private_heads_and_link_to_what_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(statements, "STATEMENTS_SHOWN", 2)
    shown = [
        _statement(0, "1", "b", "a"),
        _statement(1, "tpr-0.05-at-0.01", "a"),
        _statement(2, "1", "a"),
        _statement(3, "inf", "a"),
        _statement(4, "1", "a", private=False),
    ]
    assert statements.list_candidates(shown, Path("r")) == {
        ("d", "1"): [
            ("m0 on b", "#statement-0"),
            ("m0 on a", "#statement-0"),
            ("m2 on a", "cells/d/a/m/eps-1/privacy.json"),
        ],
        ("d", "tpr-0.05-at-0.01"): [("m1 on a", "#statement-1")],
    }
    assert shown[0].budget == "1"
    assert shown[1].budget.startswith("0.9877 (TPR"), "rounded up, with the risk"
