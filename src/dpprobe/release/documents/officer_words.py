"""Answers a privacy officer's questions in sentences that follow from a statement's facts.

A sentence claims only what the bundle shows: "the bundle states no audit", not "not audited".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpprobe.privacy.limits import rounded_up
from dpprobe.privacy.statement_words import StatementWords, format_epsilon, format_small
from dpprobe.privacy.unit_words import UnitWords
from dpprobe.release.parts.part import Facts
from dpprobe.release.stated_plans import tested_blocks

# The study sets the limit, and may change it after the release, so the bundle cannot state it.
LIMIT = (
    "This bundle states no limit on later releases: a study has one only if it sets "
    "`privacy.max_epsilon` or `privacy.max_risk`, a Python budget always has one"
)
ACCESS = "People read the files of this bundle; nobody queries the data through it."
_EXACT = (
    "The engine is exact: sums are whole numbers of steps of a grid, and the noise is a real "
    "Gaussian, rounded to that grid."
)


def explain_delta(statement: Facts, unit: UnitWords) -> str:
    """Explains delta by the number of units that it would allow to be published, rounded up."""
    delta, n = format_small(statement["delta"]), statement["n"]
    published = statement["delta"] * n * (1 - 1e-9)  # without round-off
    rows = "" if unit.one == unit.item else f"the {unit.items} of "
    return (
        f"Delta {delta} of {n:,} training {unit.many}: a mechanism that publishes {rows}each "
        f"{unit.one} with probability {delta} would keep this delta, and publish "
        f"{rounded_up(published):g} {unit.many} on average. The noise of this head publishes no "
        f"{unit.item}"
    )


def answer_officer(statement: Facts, values: Mapping[str, Any]) -> dict[str, str | None]:
    """Returns answers by name; None for a question that only a person can answer.

    Args:
      values: the values that the documents of the bundle share.
    """
    unit, words = values["unit"], values["words"]
    return {
        "delta": f"{explain_delta(statement, unit)}.",
        "limit": f"{LIMIT}.",
        "access": ACCESS,
        "test_price": _state_test_price(statement, unit),
        "test_result": _state_result(values),
        "worst_class": _state_worst(values),
        "adjusted": _state_adjustments(values),
        "calibrated": values["sure"] or "The bundle has no calibrated probabilities.",
        "copies": _explain_copies(statement, words, unit),
        "units": _explain_units(unit),
        "people": _count_people(statement, unit),
        "subsample": _explain_subsample(statement, unit),
        "replaced": _state_replaced(statement, values),
        "parties": values.get("sites")
        or f"The bundle names no sites. Everyone who could reach the training {unit.items} must be "
        "trusted.",
        "arithmetic": words.engine_limits
        or (_EXACT if statement["outputs"][0] == "weights" else None),
    }


def _state_test_price(statement: Facts, unit: UnitWords) -> str:
    """States the epsilon of all measurements on test units together, for one test unit."""
    blocks = tested_blocks(statement)
    if not blocks:
        return f"Nothing was measured on test {unit.many}, so a test {unit.one} pays nothing."
    most = max(blocks, key=lambda block: block.get("together") or block["epsilon"])
    epsilon = format_epsilon(most.get("together") or most["epsilon"])
    delta = format_small(most.get("delta", statement["delta"]))
    return (
        f"A test {unit.one} pays at most epsilon {epsilon} at delta {delta} "
        f"for everything that was measured on test {unit.many}, and nothing for the head."
    )


def _state_result(values: Mapping[str, Any]) -> str:
    if values["evaluation"] is None:
        return "No test metric is published with this head."
    return f"{values['measured']}. {values['released']}"


def _state_worst(values: Mapping[str, Any]) -> str:
    """States worst-class recall, which is measured only with macro accuracy."""
    block = values["evaluation"]
    if block is not None and block.get("worst_class"):
        return str(values["measured"])
    return "The bundle states no recall of a class."


def _state_adjustments(values: Mapping[str, Any]) -> str:
    if values["evaluation"] is None:
        return "No noisy test metric is published."
    return (
        "The test result and its interval are computed from noisy sums alone. Values below 0 or "
        "above 1 are set to 0 or 1; nothing else makes a result look plausible."
    )


def _explain_copies(statement: Facts, words: StatementWords, unit: UnitWords) -> str:
    """States how copies are counted, and how training and test units were compared."""
    named = zip(statement["not_covered"], words.not_covered, strict=True)
    treated = [text for name, text in named if "copies_of" in name or name == "both_sides"]
    said = [f"{text[:1].upper()}{text[1:]}." for text in treated]
    said.append("The bundle does not state whether there are copies, or how many.")
    compared = (statement["test_units"] or {}).get("compared")
    if compared:
        where = "the site that packed the bundle" if "sites" in statement else "the maker"
        said.append(
            f"A comparison by {' and '.join(compared)} found no {unit.item} of {where} on both "
            "sides, training and test."
        )
    elif compared is not None:
        said.append(f"The bundle states no comparison of training with test {unit.items}.")
    return " ".join(said)


def _explain_units(unit: UnitWords) -> str:
    if unit.one == unit.item:
        return (
            f"Each {unit.item} is a unit of its own, so a {unit.person} with several {unit.items} "
            "is several units."
        )
    return (
        f"Whoever holds the data named the {unit.one} of each {unit.item}: all {unit.items} under "
        f"one name are one unit. A {unit.person} under two names is two units."
    )


def _count_people(statement: Facts, unit: UnitWords) -> str | None:
    """States the numbers of patients; None if units are not people."""
    if unit.one != "patient":
        return None
    tested = statement["test_units"]
    beside = f" and {tested['n']:,} test patients" if tested else ""
    return f"{statement['n']:,} training patients{beside}. A person under two names counts twice."


def _explain_subsample(statement: Facts, unit: UnitWords) -> str:
    chosen = statement["public_data"].get("subsample")
    if chosen is None:
        return f"The bundle states no subsample of the training {unit.many}."
    return f"A public rule drew the fraction {chosen['fraction']:g} of the training {unit.many}."


def _state_replaced(statement: Facts, values: Mapping[str, Any]) -> str:
    before, cohort = statement.get("predecessor"), values.get("cohort")
    said = [f"It replaces the release {before['name']}."] if before else []
    return " ".join([*said, cohort] if cohort else said) or (
        "The bundle names no release that it replaces or continues."
    )
