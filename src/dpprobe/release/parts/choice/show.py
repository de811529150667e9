"""Verifies the price of the choice; `card.md.j2` shows its words."""

from __future__ import annotations

from dpprobe.privacy.plan import Plan
from dpprobe.release.parts.choice.measure import NOT_COVERED, TEST_UNITS, choice_words
from dpprobe.release.parts.part import PartReader, Stated
from dpprobe.release.stated_values import (
    Values,
    read_block,
    read_real,
    read_whole,
    require_same,
    require_true,
)
from dpprobe.release.verification.checks import Checks

_ANY = "@"
CHOICE_KEYS = {"cells", "epsilon", "words"}


def check_choice(values: Values, plan: Plan) -> tuple[str, bool]:
    """Checks the words and the epsilon of choosing this head among others."""
    block = read_block("choice", values["choice"], CHOICE_KEYS)
    cells, epsilon, words = block["cells"], block["epsilon"], str(block["words"])
    require_true(cells == 0 or read_whole("cells", cells) > 0, "cells: not a number")
    if epsilon is not None:
        require_true(cells > 0, "has an epsilon but no cells")
        require_true(
            read_real("epsilon", epsilon) > plan.realised_epsilon,
            f"epsilon {epsilon:g}: must be above the release's own epsilon, because it also covers "
            "the choice",
        )
    if epsilon is not None or (cells == 0 and NOT_COVERED not in words):
        require_same("words", choice_words(cells, epsilon, delta=plan.delta), block["words"])
    else:
        without_price = (
            choice_words(cells, None, [_ANY]),
            choice_words(cells, None, unknown=[_ANY]),
        )
        begins = tuple(text.partition(_ANY)[0] for text in without_price)
        require_true(
            words.startswith(begins) and words.endswith(TEST_UNITS),
            "words: must say that the choice is not covered",
        )
    return words, True


class Reader(PartReader):
    """Checks the words and the epsilon."""

    def verify(self, checks: Checks, stated: Stated) -> bool | None:
        return checks.run_check(self.name, check_choice, stated.values, stated.plan)


READER = Reader("choice")
