"""docs/methods agrees with the code: one card per head, with its tables, example and picture."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from dpprobe.heads.facts import DataFacts
from dpprobe.heads.registry import HEADS, METHODS
from dpprobe.study.study_file import load_study
from tests.support.script_modules import load_script

STUDY: dict[str, Any] = {
    "datasets": {"digits": {"source": "sklearn"}},
    "backbones": {"pixels": {"family": "pixels"}},
    "epsilons": [1],
}
ROWS = 1438
FACTS = DataFacts(
    n=ROWS, dimension=64, classes=10, multi_label=False, epsilon=1.0, delta=1e-5, unit="image"
)
CARDS = [f"methods/{head}.md" for head in sorted(METHODS)]


@pytest.fixture(scope="module")
def method_cards(repository: Path) -> ModuleType:
    return load_script(repository / "tools/pages/method_cards.py")


def card(repository: Path, head: str) -> str:
    return (repository / f"docs/methods/{head}.md").read_text(encoding="utf-8")


def test_every_head_has_a_card_and_every_card_a_head(repository: Path) -> None:
    cards = {path.stem for path in (repository / "docs/methods").glob("*.md")}
    assert cards - {"README"} == set(METHODS)


@pytest.mark.parametrize("page", [*CARDS, "methods/README.md", "configuration.md"])
def test_tables_are_the_code_s(page: str, repository: Path, method_cards: ModuleType) -> None:
    path = repository / "docs" / page
    text = path.read_text(encoding="utf-8")
    found = method_cards.blocks(path, method_cards.read_study())
    assert set(re.findall(r"<!-- (\w+): ", text)) == set(found)
    assert method_cards.filled(text, found) == text, "run tools/pages/method_cards.py"


@pytest.mark.parametrize("head", sorted(METHODS))
def test_an_example_is_a_study(head: str, repository: Path) -> None:
    examples = re.findall(r"```yaml\n(.*?)```", card(repository, head), flags=re.DOTALL)
    assert examples
    for example in examples:
        study = load_study({**STUDY, **yaml.safe_load(example)})
        assert head in {method.head for method in study.methods.values()}
        for method in study.methods.values():
            located = method.fill_paths(dataset="digits", backbone="pixels")
            assert not any("{" in path for path in located.input_files())
            decided = located.resolve_choice(FACTS)
            assert bool(decided.list_mechanisms(ROWS)) == method.private


@pytest.mark.parametrize("head", sorted(HEADS))
def test_a_card_names_all_that_is_released(head: str, repository: Path) -> None:
    text = card(repository, head)
    study = load_study(yaml.safe_load((repository / "config/method_cards.yaml").read_text()))
    assert study.methods[head].head == head
    for mechanism in study.methods[head].resolve_choice(FACTS).list_mechanisms(ROWS):
        assert f"`{mechanism.name}`" in text
        assert f"{mechanism.sensitivity:.4g}" in text


def test_the_configuration_s_examples_are_studies(repository: Path) -> None:
    page = (repository / "docs/configuration.md").read_text(encoding="utf-8")
    examples = re.findall(r"(?:^    .*\n)+", page, flags=re.MULTILINE)
    blocks = [block for block in map(yaml.safe_load, examples) if isinstance(block, dict)]
    assert len(blocks) >= 3, "without commands"
    sgd = {"methods": {"sgd": {"head": "sgd"}}}
    for block in blocks:
        for method in load_study({**STUDY, **sgd, **block}).methods.values():
            assert method.fill_paths(dataset="digits", backbone="pixels").private
