"""Computes values that the documents of a release share, and escapes texts for Markdown.

The model card and the page use only facts of bundle.json and privacy.json, which are public.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from dpprobe.backbones.hub_files import HUB_PREFIXES
from dpprobe.privacy.plan import Mechanism, Selection
from dpprobe.privacy.risk import target_words
from dpprobe.privacy.stated_facts import mechanisms_of
from dpprobe.privacy.statement_words import (
    explain_statement,
    format_epsilon,
    format_small,
    to_patients,
)
from dpprobe.privacy.trade_off import Allowed, bound_attacks, per_hundred
from dpprobe.privacy.unit_words import UnitWords
from dpprobe.release.bundle import BackboneFacts, BundleFacts
from dpprobe.release.documents.officer_words import LIMIT, explain_delta
from dpprobe.release.parts.part import Facts
from dpprobe.release.stated_plans import tested_blocks
from dpprobe.release_part_registry import PARTS, load_readers

TEMPLATES = Path(__file__).with_name("templates")
PART_TEMPLATES = Path(__file__).parents[1] / "parts"

# False positive rates of the attack table and of the attack curve in a release's documents.
RATES = (0.001, 0.01, 0.1)
CURVE = (0.0, *(step / 400 for step in range(1, 40)), *(step / 40 for step in range(4, 41)))
# Documents call a guarantee weak if attacks reach a true positive rate of WEAK at 1% FPR.
WEAK = 0.5

INTENDED_USE = (
    "The publisher wrote down no intended use. dpprobe suggests: classifying {items} of the kind "
    "it was trained on, to help people who check its predictions, and for research."
)
LIMITS = (
    "Not a medical device, and not for decisions about people unless a person decides. What is "
    "measured here is of this release's own test data: on {items} from other places, devices or "
    "groups the head may do worse. Differential privacy costs accuracy, and rare classes and small "
    "groups may lose more than others. The head also scores {items} that show none of its classes."
)


@dataclass(frozen=True, kw_only=True)
class Attack:
    """The highest true positive rates that any attack can reach at one false positive rate.

    `trained` bounds attacks that decide if a unit is a training unit, `tested` attacks that decide
    if a unit is a test unit. `tested` is None if no test units were read.
    """

    false: float
    trained: float
    tested: float | None


def shared_values(facts: BundleFacts, statement: Facts, table: Sequence[Attack]) -> dict[str, Any]:
    """Returns the values that the templates of the model card and the HTML page share."""
    words = explain_statement(statement)
    unit = words.unit
    return {
        "facts": facts,
        "statement": statement,
        "vectors": facts.backbone.takes_vectors,
        "unit": unit,
        "words": words,
        "plain": in_plain_words(statement, unit, table),
        "formal": state_formally(statement, unit),
        "delta": explain_delta(statement, unit),
        "limit": LIMIT,
        "table": table,
        "weak": is_weak(table),
        "to_patients": to_patients(statement),
        "tested": bool(tested_blocks(statement)),
        "described": describe_mechanisms(facts, statement),
        "parts": [part.package.rpartition(".")[2] for part in PARTS.values()],
        **{
            name: value
            for reader in load_readers().values()
            for name, value in reader.show(statement).items()
        },
        "use": facts.card.intended_use or unit.fill(INTENDED_USE),
        "limits": facts.card.limits or unit.fill(LIMITS),
    }


def describe_mechanisms(facts: BundleFacts, statement: Facts) -> dict[str, str]:
    """Maps the name of each mechanism, as a bundle states it, to what the mechanism releases."""
    head = facts.head.read_options().list_mechanisms(statement["n"])
    described = {item.name: item.released for item in head}
    for reader in load_readers().values():
        described |= {item.name: item.released for item in reader.mechanisms(statement, facts)}
    return described


def bound_best_attacks(statement: Facts, rates: Sequence[float]) -> list[Attack]:
    """Bounds the best attack on a training unit, and on a test unit, at false positive rates."""
    trained = _allowed_attacks(statement, rates).true_positives
    tested: Sequence[float | None] = [None for _ in rates]
    if mechanisms := test_mechanisms(statement):
        delta, epsilon = statement["delta"], statement["epsilon_realised"]
        tested = bound_attacks(mechanisms, rates, delta=delta, epsilon=epsilon).true_positives
    return [
        Attack(false=rate, trained=one, tested=other)
        for rate, one, other in zip(rates, trained, tested, strict=True)
    ]


def test_mechanisms(statement: Facts) -> tuple[Mechanism, ...]:
    """Returns the mechanisms of all statement blocks that read the test units."""
    return tuple(
        itertools.chain.from_iterable(mechanisms_of(block) for block in tested_blocks(statement))
    )


def _allowed_attacks(statement: Facts, rates: Sequence[float]) -> Allowed:
    selection = statement["selection"]
    return bound_attacks(
        mechanisms_of(statement),
        rates,
        Selection.from_dict(selection) if selection else None,
        delta=statement["delta"],
        epsilon=statement["epsilon_realised"],
    )


def in_plain_words(statement: Facts, unit: UnitWords, table: Sequence[Attack]) -> str:
    """States the guarantee by the best possible attack, for readers who do not know epsilon."""
    middle = next(attack for attack in table if attack.false == 0.01)
    return (
        f"Noise limits what anyone can learn from these files about one {unit.whole_short}, even "
        f"someone who knows all other {unit.many}, every setting and the code. An attack on these "
        f"files that wrongly flags 1% of the {unit.many} {unit.who} were not in the training data "
        f"finds at most {percent_up(middle.trained)} of those {unit.who} were; "
        "random guessing finds 1%. An attacker who thinks it equally likely that a given "
        f"{unit.one} was or was not in the training data guesses right at most "
        f"{percent_up(_allowed_attacks(statement, ()).balanced_accuracy)} of the time; a coin "
        "flip, 50%."
    )


def state_formally(statement: Facts, unit: UnitWords) -> str:
    return (
        f"epsilon {format_epsilon(statement['epsilon_realised'])} at delta "
        f"{format_small(statement['delta'])} for {unit.whole}, with n = {statement['n']:,} "
        f"training {unit.many}{target_words(statement)}"
    )


def is_weak(table: Sequence[Attack]) -> bool:
    """Returns True if an attack can find a share `WEAK` of training units at 1% false positives."""
    return any(attack.false == 0.01 and attack.trained >= WEAK for attack in table)


def hub_name(backbone: BackboneFacts) -> str | None:
    """Returns the backbone's name on the Hugging Face Hub; None for weights without a Hub name."""
    model = str(backbone.options.get("model", ""))
    if backbone.checkpoint is not None or not backbone.trained:
        return None
    if model.startswith(HUB_PREFIXES):
        return model.partition(":")[2]
    if backbone.options.get("family") == "timm" and backbone.pretrained_tag:
        return f"timm/{backbone.architecture}.{backbone.pretrained_tag}"
    return None


def percent_up(rate: float) -> str:
    """Formats a rate in percent, rounded up as in `per_hundred`."""
    return f"{per_hundred(rate)}%"


def one_line(text: str) -> str:
    """Formats a text as one line, and replaces characters that hide or reorder text."""
    line = " ".join(str(text).split())
    joiners = "\u200c\u200d"  # zero-width characters that Persian and Indian scripts need
    return "".join(c if c.isprintable() or c in joiners else "\ufffd" for c in line)


def in_markdown(text: object) -> Markup:
    """Escapes a text as a line of Markdown that is shown unchanged, and starts no list or block."""
    if isinstance(text, Markup):
        return text
    line = re.sub(r"([\\`*_\[\]|~$])", r"\\\1", one_line(str(text)))
    line = re.sub(r"^([-+#=]|\d+(?=[.)](\s|$)))", _quote_start, line)
    # Quotation marks outside of HTML tags need no escaping.
    return Markup(str(escape(line)).replace("&#39;", "'").replace("&#34;", '"'))


def _quote_start(start: re.Match[str]) -> str:
    text = start.group()
    return f"{text}\\" if text[0].isdigit() else f"\\{text}"


def in_paragraphs(text: str) -> Markup:
    parts = [part for part in re.split(r"\n\s*\n", text) if part.strip()]
    return Markup("\n\n").join(in_markdown(part) for part in parts)


def as_code(text: str) -> Markup:
    """Formats a text as Markdown code, or escapes the text if code in a table cannot contain it."""
    line = one_line(text)
    return in_markdown(line) if re.search(r"[`|\\]", line) or not line else Markup(f"`{line}`")


def as_word(name: str) -> Markup:
    """Returns a release's name for a shell command; BUNDLE if the name needs quotes."""
    return Markup(name if re.fullmatch(r"\w[\w.-]*", name, re.ASCII) else "BUNDLE")


def markdown_environment() -> Environment:
    """Makes the template environment of the model card, which escapes every value for Markdown."""
    environment = html_environment()
    environment.finalize = in_markdown
    environment.filters.update(paragraphs=in_paragraphs, code=as_code, word=as_word)
    return environment


def html_environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader([TEMPLATES, PART_TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        price=format_epsilon,
        target=lambda statement: target_words(statement).removeprefix(", "),
        small=format_small,
        percent_up=percent_up,
        per_hundred=per_hundred,
        one_line=one_line,
        count=lambda value: f"{value:,}",
        percent=lambda rate: f"{100 * rate:g}%",
        rate=lambda share: f"{100 * share:.1f}%",
        likely=_write_limit,
        digits=lambda value: f"{value:.4g}",
        sentence=as_sentence,
    )
    return environment


def _write_limit(value: float) -> str:
    """Formats a minimum probability in percent, rounded down so that the minimum holds."""
    return f"{math.floor(1e4 * value) / 100:g}%" if value >= 0.001 else f"{100 * value:.2g}%"


def as_sentence(text: str) -> str:
    """Formats a clause about a privacy statement as a sentence, without backticks."""
    line = one_line(text).replace("`", "").rstrip(".")
    return f"{line[:1].upper()}{line[1:]}."
