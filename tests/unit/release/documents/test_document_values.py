"""Values in all documents of a bundle: numbers are rounded up, texts are shown unchanged."""

from __future__ import annotations

import html
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from dpprobe.files.json_files import read_json
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.unit_words import unit_words
from dpprobe.release.bundle import STATEMENT_FILE, read_facts
from dpprobe.release.documents import document_values
from tests.support.bundles import write_example
from tests.support.refusals import check_tokens

IMAGES = unit_words("image")


@given(st.floats(0, 1))
def test_percentages_are_rounded_up(rate: float) -> None:
    shown = float(document_values.percent_up(rate).removesuffix("%"))
    assert 100 * rate - 1e-6 <= shown <= 100 * rate + 0.1


def test_stated_attack_rates_equal_those_of_the_best_attack(tmp_path: Path) -> None:
    statement = read_json(write_example(tmp_path / "bundle") / STATEMENT_FILE)
    statement["evaluation"] = {"mechanisms": statement["mechanisms"][:1]}
    trained, tested = (
        math.sqrt(sum(one["count"] / one["noise_multiplier"] ** 2 for one in block["mechanisms"]))
        for block in (statement, statement["evaluation"])
    )
    table = document_values.bound_best_attacks(statement, document_values.RATES)
    for attack in table:
        best = [norm.cdf(norm.ppf(attack.false) + mu) for mu in (trained, tested)]
        assert [attack.trained, attack.tested] == pytest.approx(best, rel=1e-3)
    stated = re.findall(r"[\d.]+%", document_values.in_plain_words(statement, IMAGES, table))
    rates = (norm.cdf(norm.ppf(0.01) + trained), norm.cdf(trained / 2))
    flags, guesses = map(document_values.percent_up, rates)
    assert stated == ["1%", flags, "1%", guesses, "50%"]


@given(st.text(max_size=40) | st.sampled_from(["- a", "+ a", "# a", "= a", "1. a", "12) a"]))
def test_escaped_markdown_shows_the_text_unchanged(text: str) -> None:
    """CommonMark would remove backslashes and character references (sections 2.4 and 2.5)."""
    written = str(document_values.in_markdown(text))
    line = document_values.one_line(text)
    shown = html.unescape(re.sub(r"\\([!-/:-@[-`{-~])", r"\1", written))
    assert shown == html.unescape(line) or shown == line, f"{text!r} is written as {written!r}"
    rest = re.sub(r"\\.", "", written)  # what is not escaped
    assert not set(rest) & set("`*_[]|~$<>"), f"{written!r} means something"
    assert not re.match(r"[-+#=]|\d+[.)](\s|$)", written), f"{written!r} begins a block"


@given(st.text())
def test_one_line_removes_line_breaks_and_unprintable_characters(text: str) -> None:
    line = document_values.one_line(text)
    assert line == " ".join(line.split())
    assert all(each.isprintable() or each in "\u200c\u200d" for each in line)
    assert document_values.one_line(line) == line
    if text.isascii() and text.isprintable():
        assert line == " ".join(text.split())


def test_letters_that_turn_text_are_replaced_and_joiners_stay() -> None:
    assert document_values.one_line("\u202eexe") == "\ufffdexe"
    assert document_values.one_line("a\u200db\u200cc\u200bd") == "a\u200db\u200cc\ufffdd"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("resnet_50*", "`resnet_50*`"),
        ("a `b`", r"a \`b\`"),
        ("a|b", r"a\|b"),
        ("a\\b", r"a\\b"),
        ("", ""),
        ("two\nlines", "`two lines`"),
    ],
)
def test_code_is_quoted_unless_code_cannot_hold_it(text: str, code: str) -> None:
    assert document_values.as_code(text) == code


def test_paragraphs_stay_apart_and_lines_of_one_are_joined() -> None:
    assert document_values.in_paragraphs("a\nb\n\n \n# c\n\n") == "a b\n\n\\# c"
    assert document_values.in_paragraphs("") == ""


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("lesions_v1.2-b", "lesions_v1.2-b"),
        ("a b", "BUNDLE"),
        ("-x", "BUNDLE"),
        ("é", "BUNDLE"),
        ("$(x)", "BUNDLE"),
        ("", "BUNDLE"),
        (".x", "BUNDLE"),
    ],
)
def test_a_name_that_a_shell_reads_otherwise_is_not_printed(name: str, word: str) -> None:
    assert document_values.as_word(name) == word


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("it is `x`", "It is x."), ("It is.", "It is."), ("two\nlines..", "Two lines."), ("", ".")],
)
def test_a_clause_becomes_a_sentence(text: str, sentence: str) -> None:
    assert document_values.as_sentence(text) == sentence


def test_numbers_are_written_as_people_read_them() -> None:
    filters = document_values.html_environment().filters
    assert filters["price"](1.23401) == "1.235"
    assert [filters["small"](each) for each in (1e-5, 2.5e-6, 1e-10, 0.01)] == [
        *("1e-5", "2.5e-6", "1e-10", "0.01")
    ]
    assert filters["count"](1234567) == "1,234,567"
    assert filters["percent"](0.001) == "0.1%"
    assert filters["rate"](0.12345) == "12.3%"
    assert filters["digits"](123456.7) == "1.235e+05"


@given(st.floats(1e-6, 1))
def test_the_least_probability_of_a_set_is_rounded_down(value: float) -> None:
    """Rounding down ensures that each class in a set has at least the printed probability."""
    shown = float(document_values.html_environment().filters["likely"](value).removesuffix("%"))
    if value >= 0.001:
        assert 0 <= 100 * value - shown < 0.01 + 1e-9
    else:
        assert shown == pytest.approx(100 * value, rel=0.06)


@pytest.mark.parametrize(
    ("rates", "weak"),
    [((0.49, 0.5), True), ((0.5, 0.1), False), ((0.9, 0.49), False), ((0.9, 0.51), True)],
)
def test_a_promise_is_weak_if_half_are_found_at_one_percent(
    rates: tuple[float, float], weak: bool
) -> None:
    table = [
        document_values.Attack(false=false, trained=rate, tested=0.9)
        for false, rate in zip((0.001, 0.01), rates, strict=True)
    ]
    assert document_values.is_weak(table) == weak


@pytest.mark.parametrize("unit", Plan.UNITS)
@pytest.mark.parametrize("vectors", [False, True])
def test_words_and_formula_are_of_the_unit_of_privacy(
    tmp_path: Path, unit: str, vectors: bool
) -> None:
    statement = read_json(write_example(tmp_path / "bundle") / STATEMENT_FILE) | {"n": 12345}
    table = document_values.bound_best_attacks(statement, document_values.RATES)
    words = unit_words(unit, vectors=vectors)
    plain = document_values.in_plain_words(statement, words, table)
    formal = document_values.state_formally(statement, words)
    check_tokens(plain, words.whole_short, words.many, words.who)
    check_tokens(formal, "epsilon 1", "1e-5", words.whole, "12,345", words.many)
    others = {each for name in Plan.UNITS for each in (name, f"{name}s")}
    assert not (others - {words.one, words.many, words.item, words.items}) & set(plain.split())
    if vectors:
        assert not re.search("image|picture", plain + formal)


@pytest.mark.parametrize(
    ("backbone", "model"),
    [
        (
            {"options": {"family": "timm", "model": "resnet50"}, "pretrained_tag": "a1_in1k"},
            "timm/resnet50.a1_in1k",
        ),
        ({"options": {"family": "timm", "model": "resnet50"}, "pretrained_tag": None}, None),
        ({"options": {"family": "open_clip", "model": "RN50"}, "pretrained_tag": "openai"}, None),
        ({"options": {"family": "open_clip", "model": "hf-hub:laion/clip"}}, "laion/clip"),
        ({"options": {"family": "timm", "model": "hf_hub:a/b"}}, "a/b"),
        ({"options": {"family": "timm", "model": "local-dir:a/b"}, "pretrained_tag": None}, None),
        ({"options": {"family": "timm", "model": "hf-hub:a/b"}, "trained": False}, None),
        ({"options": {"family": "timm", "model": "hf-hub:a/b"}, "checkpoint": "w.pt"}, None),
        ({"options": {"family": "pixels"}, "pretrained_tag": None}, None),
    ],
)
def test_a_base_model_is_a_name_on_the_hub(
    tmp_path: Path, backbone: dict[str, Any], model: str | None
) -> None:
    """Backbones without weights, or with weights from a file, have no name on the Hub."""
    facts = read_facts(write_example(tmp_path / "bundle"))
    known = {"trained": True, "architecture": "resnet50", **backbone}
    changed = facts.backbone.model_copy(update=known)
    assert document_values.hub_name(changed) == model
