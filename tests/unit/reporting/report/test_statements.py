"""Privacy statements on the page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from dpprobe.artifacts import read_json, write_json
from dpprobe.privacy.limits import rounded_up
from dpprobe.reporting.report import statements
from dpprobe.results.best_head_price import choice_price
from tests.support.report_page import Made


def test_a_check_is_of_one_dataset_and_backbone(tmp_path: Path) -> None:
    made = Made(tmp_path, ("digits", "letters"))
    for path in made.results.glob("cells/letters/pixels/*/*/privacy.json"):
        record = read_json(path)
        check: dict[str, Any] = {
            "train": {"near": 12, "rows": 345},
            "test": {"near": 3, "rows": 67},
        }
        record["public_data"]["near_duplicate_check"] = check
        write_json(path, record)
    words = re.sub(r"<[^>]+>", " ", made.page().text)
    _, _, shown = " ".join(words.split()).partition("near-duplicate check. No guarantee")
    words = "no data went into them. 12 of 345 train rows and 3 of 67 test rows look"
    assert re.search(f"letters pixels The backbone[^.]*{words} like public ones", shown)
    for pair in ("digits pixels", "digits scattering", "letters scattering"):
        assert re.search(f"{pair} The backbone[^.]* no data went into them. not run", shown)


def test_noise_is_told_as_multiplier_and_as_standard_deviation(made: Made) -> None:
    """A release's page shows both too: one of them alone was taken for the other."""
    path = made.results / "cells/digits/pixels/sgd/eps-1/privacy.json"
    (mechanism, *_) = read_json(path)["mechanisms"]
    mechanism |= {"noise_multiplier": 16.86, "sensitivity": 1.4, "noise_standard_deviation": 23.604}
    write_json(path, read_json(path) | {"mechanisms": [mechanism]})
    text = made.page().text
    for title in ("noise multiplier", "sensitivity", "noise standard deviation"):
        assert f'<th scope="col" class="num">{title}</th>' in text
    cells = "".join(f'<td class="num">{value}</td>' for value in ("16.86", "1.4", "23.6"))
    assert cells in text


def test_statements_that_differ_are_not_merged(made: Made) -> None:
    path = made.results / "cells/digits/pixels/sgd/eps-1/privacy.json"
    record = read_json(path)
    write_json(path, record | {"not_covered": ["the features", "what pixels show"]})
    page = made.page()
    assert len([d for d in page.all("details") if d.get("class") == "statement"]) == 10
    common, _, own = page.text.partition('class="statement"')
    assert "what pixels show" not in common
    assert own.count("what pixels show") == 1
    assert own.count("training losses") == 9, "no longer common to all: each says it itself"


@pytest.mark.parametrize("key", [None, "options", "n", "mechanisms", "promise"])
def test_each_difference_keeps_two_statements_apart(key: str | None, made: Made) -> None:
    """Also one of the assumptions on public data, which each backbone has."""
    pair = [
        made.results / f"cells/digits/{name}/sgd/eps-1/privacy.json"
        for name in ("pixels", "scattering")
    ]
    records = [read_json(path) for path in pair]
    records[1] = records[0] | {"public_data": dict(records[1]["public_data"])}
    records[1]["public_data"]["assumption"] = records[0]["public_data"]["assumption"]
    for path, record in zip(pair, records, strict=True):
        write_json(path, record)
    assert len(statements.read_statements(pair, order=["digits"])) == 1
    if key is None:
        records[1]["public_data"]["assumption"] += " Or not."
    else:
        records[1][key] = "another"
    write_json(pair[1], records[1])
    assert len(statements.read_statements(pair, order=["digits"])) == 2


def test_a_statement_of_auto_says_what_was_chosen(made: Made) -> None:
    path = made.results / "cells/digits/pixels/sgd/eps-1/privacy.json"
    record = read_json(path)
    facts = {"n": 1438, "dimension": 64, "classes": 10, "multi_label": False, "epsilon": 1.0}
    record["chosen_from"] = {"rule": "auto rule 7", "head": "newton", **facts}
    record["options"] = {"head": "auto", "rule": 7, "chosen": {"head": "newton", "steps": 4}}
    write_json(path, record)
    words = " ".join(re.sub(r"<[^>]+>", " ", made.page().text).split())
    assert "Chosen by auto rule 7: newton, 4 steps; from n = 1,438, 64 features, 10" in words
    assert words.count("Chosen by") == 1


def test_the_best_result_has_the_price_of_its_choice_and_the_statements_of_all(made: Made) -> None:
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
