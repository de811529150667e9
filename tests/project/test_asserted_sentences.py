"""The counter of asserted sentences counts each text that a test asserts, but no inputs."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.support.script_modules import load_script

FIVE = "a text of five words"
ASSERTED = [
    f'def test_a():\n    assert said == "{FIVE}"',
    f'def test_a():\n    assert "{FIVE}" in said',
    f'def test_a():\n    assert all(each in said for each in ("{FIVE}", "few words"))',
    f'def test_a():\n    assert said.startswith("{FIVE}")',
    'def test_a():\n    assert said == f"a text of {n} words"',
    f'def test_a():\n    with raises(Error, match="{FIVE}"):\n        call()',
    f'SAID = "{FIVE}"\ndef test_a():\n    assert said == SAID',
    f'def test_a():\n    wanted = "{FIVE}"\n    assert said == wanted',
    f'@parametrize(("given", "fault"), [(1, "{FIVE}")])\n'
    "def test_a(given, fault):\n    assert fault in said",
    f'CASES = [(1, "{FIVE}")]\n@parametrize(("given", "fault"), CASES)\n'
    "def test_a(given, fault):\n    with raises(Error, match=fault):\n        call(given)",
    "def check(said, wanted):\n    assert wanted in said\n"
    f'def test_a():\n    check(call(), "{FIVE}")',
    "def check(said, *words):\n    for word in words:\n        assert word in said\n"
    f'def test_a():\n    check(call(), "few", "{FIVE}")',
]
NOT_ASSERTED = [
    'def test_a():\n    assert said == "only four short words"[:9]',
    f'def test_a():\n    """{FIVE}"""',
    f'def test_a():\n    assert read("{FIVE}") == 3',
    f'def test_a():\n    assert found, "{FIVE}"',
    f'@parametrize(("given", "fault"), [("{FIVE}", 1)])\n'
    "def test_a(given, fault):\n    assert call(given) == fault",
    f'def test_a():\n    given = "{FIVE}"\n    assert call(given) == 3',
]


@pytest.mark.parametrize("text", ASSERTED)
def test_an_asserted_sentence_counts_once(repository: Path, text: str) -> None:
    counter = load_script(repository / "tools/asserted_sentences.py")
    assert len(counter.count_sentences(ast.parse(text), {})) == 1


@pytest.mark.parametrize("text", NOT_ASSERTED)
def test_an_input_a_remark_and_few_words_do_not_count(repository: Path, text: str) -> None:
    counter = load_script(repository / "tools/asserted_sentences.py")
    assert counter.count_sentences(ast.parse(text), {}) == {}
