"""The words in which an earlier dpprobe wrote the sentences of bundles.

`verify` writes the sentences of a statement again and compares them. Bundles never change, so the
pieces of sentences that were reworded stand here with their earlier words. The numbers between the
pieces are computed and compared as before.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

from dpprobe.artifacts import canonical_json
from dpprobe.release.verification.stated import require_same

EARLIER_NOT_COVERED = (
    "A choice of this release by looking at their results is not covered by any price: "
)


def _list_test_pieces(unit: str) -> tuple[tuple[str, str], ...]:
    """Lists the pieces on the price of a test result that name the unit."""
    return (
        (
            f"Training and test {unit}s do not overlap (split: ",
            f"Test {unit}s are other {unit}s than training {unit}s (split: ",
        ),
        (
            f"so nobody pays twice: the head costs each training {unit} epsilon ",
            f"so nobody pays both prices: the head costs training {unit}s epsilon ",
        ),
        (
            f" and test {unit}s nothing; the test result costs each test {unit} epsilon ",
            f" and test {unit}s nothing, the test result costs test {unit}s epsilon ",
        ),
    )


def _list_copy_pieces(copy: str, unit: str, where: str) -> tuple[tuple[str, str], ...]:
    """Lists the pieces on a picture or vector that several units have."""
    return (
        (f"a {copy} that appears {where} several ", f"a {copy} that stands {where} several "),
        (
            f": the promise covers each {unit} alone, and the {copy} only as a group of that many "
            f"{unit}s, which is weaker",
            f": of each of them alone the promise holds, of the {copy} only what it gives to a "
            f"group of as many {unit}s",
        ),
    )


# Today's words, then the earlier ones. A piece that is part of another stands after it.
PIECES = (
    # what epsilon allows
    (
        "Nothing is ruled out: an attacker who wants to tell whether one unit was trained on may "
        "be right every time.",
        "Everything is allowed: whoever wants to tell whether one unit was trained on may be right "
        "every time.",
    ),
    (
        ", and thinks it equally likely that they were or were not in the training data, guesses "
        "right at most ",
        ", and takes it for as likely trained on as not, is right about that at most ",
    ),
    (
        "% of the time. An attack that wrongly flags 0.1% of the ",
        " % of the time. Who may be wrong about 1 in 1,000 ",
    ),
    (
        "% of those that were; one that wrongly flags 1%, at most ",
        " % of those that were; about 1 in 100, at most ",
    ),
    (
        " heads, the attacker guesses right at most ",
        " heads in hand the attacker is right at most ",
    ),
    (" For a patient of ", " About a patient of "),
    (" images, the attacker guesses right at most ", " images the attacker is right at most "),
    (" images, the attacker may be right ", " images the attacker may be right "),
    ("% of the time.", " %."),
    # the promise
    (
        "a random generator that the operating system keyed, and nothing stores the key.",
        "random words that the operating system keyed and nothing keeps.",
    ),
    (": anyone who knows all other rows can ", ": who knows all other rows can "),
    (": anyone who knows its name can ", ": who knows its name can "),
    (
        "hyperparameters (except what a search chose), fixed",
        "hyperparameters but for what a search chose, fixed",
    ),
    *_list_copy_pieces("picture", "row", "in"),
    *_list_copy_pieces("picture", "patient", "under"),
    *_list_copy_pieces("vector", "row", "in"),
    *_list_copy_pieces("vector", "group", "under"),
    # test results
    (
        ", computed from sums with Gaussian noise. The 95% confidence interval covers the noise "
        "and the choice of test units.",
        ", from sums with Gaussian noise; the 95 % interval covers both the noise and which units "
        "are in the test split.",
    ),
    (
        " A model that always predicts the most frequent class (with several labels: each label's "
        "more frequent answer) reaches",
        " A head that names the most frequent class alone (of several labels, each label's more "
        "frequent answer) reaches",
    ),
    (
        " A model that always predicts the same class scores ",
        " A head that names one class alone has ",
    ),
    (
        " A class has too few test units to measure it.",
        " Too few test units of a class to measure it at all.",
    ),
    *chain.from_iterable(map(_list_test_pieces, ("image", "patient"))),
    # choices
    (
        ", so nothing was chosen by its results. Looking at results elsewhere is not covered.",
        ": nothing was chosen by its results. Looks at results elsewhere are not covered.",
    ),
    (
        "The bound holds against anyone who cannot recompute the noise of these cells, which comes "
        "from seeds that follow from the study and its data. Against someone who knows the study "
        "and all data but one unit, the choice is not covered.",
        "The bound is for people who cannot compute the noise of these cells again: it comes from "
        "seeds, which follow from the study and its data. Against somebody who knows both but for "
        "one unit the choice is not covered.",
    ),
    *(
        (
            "No epsilon covers choosing this release by looking at their results: these are "
            f"{what}: ",
            f"{EARLIER_NOT_COVERED}{what} among them: ",
        )
        for what in ("not private", "not known yet")
    ),
    (
        "The epsilon holds for this head as it was named. It does not cover the decision to "
        "publish this head rather than another, if that was made after looking at these results: "
        "the decision may reveal something about the training rows, and nothing bounds how much. A "
        "choice on public data costs nothing; the cost of a choice in a study without these cells "
        "can be computed.",
        "That means: the epsilon of this head holds for the head as it was named. What it leaves "
        "out is the decision, if it was made after a look at these results, to publish this head "
        "rather than another: that may tell something of the training rows, and nothing bounds how "
        "much. A choice on public data costs nothing; one in a study without these cells has a "
        "price.",
    ),
    (
        " The test results of these cells are exact, without noise, so nothing covers their test "
        "units.",
        " The test results of these cells are exact, and nothing covers the test units that they "
        "are of.",
    ),
    (
        "This epsilon covers heads and test results only. Training-loss curves and t-SNE plots are "
        "computed from the images without noise: no epsilon covers a choice by them.",
        "This price is of heads and test results alone. Training-loss curves and t-SNE plots are "
        "computed from the images without noise: a choice by them has no price.",
    ),
    (
        " per training unit, including the release itself.",
        " to one training unit, the release included.",
    ),
    ("head auto chooses from them.", "head auto chooses by them."),
    # the typography of all
    ("%.", " %."),
)


def require_same_words(name: str, expected: Any, stated: Any) -> None:
    """Raises DataError unless JSON, texts included, is as expected in today's or earlier words."""
    if canonical_json(in_earlier_words(expected)) != canonical_json(stated):
        require_same(name, expected, stated)


def in_earlier_words(value: Any) -> Any:
    """Returns JSON with its sentences in earlier words."""
    if isinstance(value, str):
        for now, before in PIECES:
            value = value.replace(now, before)
        return value
    if isinstance(value, dict):
        return {key: in_earlier_words(each) for key, each in value.items()}
    return [in_earlier_words(each) for each in value] if isinstance(value, list) else value
