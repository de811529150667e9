"""Reads the statements and options of bundles that earlier versions of dpprobe made.

A statement of version 2 contains facts and sentences. This reader returns the facts and ignores
most sentences. Facts that version 2 has only in sentences, such as the list of uncovered uses, are
absent: `rewritten_documents.complete_statement` derives them from the other facts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dpprobe.errors import DataError
from dpprobe.privacy.stated_facts import NOT_PUBLISHED

FORMAT, FORMAT_VERSION = "dpprobe-release-statement", 3

Facts = Mapping[str, Any]

# Sentences of version 2, and lists of sentences.
_SENTENCES = (
    "promise",
    "neighbouring_relation",
    "check_notes",
    "release",
    "engine_limits",
    "public",
    "not_covered",
)
# Units of version 2, by the first words of `unit_of_privacy`.
_UNITS = {
    "one training image": "image",
    "one training row": "row",
    "one patient": "patient",
    "one group": "group",
}
# Retired options of a search, with their only possible value.
_RETIRED = {"distribution": "geometric", "shape": None}
_SPLIT = re.compile(r"split: (source|id)(?:, seed (\d+), fraction (0\.\d+))?\)")
_LEFT_OUT = re.compile(r"too rare to measure at this epsilon: (\d+)")
_TOGETHER = re.compile(r"costs a test \w+ epsilon (\d[\d.e+-]*)\.$")
_NOTHING_CHOSEN = "The study trains no other head"


def take_options(options: Facts) -> dict[str, Any]:
    """Returns a head's options without retired options, if they have their only possible value."""
    return {
        name: value
        for name, value in options.items()
        if name not in _RETIRED or value != _RETIRED[name]
    }


def read_statement_facts(values: Facts, *, estimator: bool) -> dict[str, Any]:
    """Returns the facts of a bundle's privacy.json of any version, in the newest version's form.

    `estimator` is True for a head of `PrivateClassifier`. Raises DataError for another format, and
    for an unknown version.
    """
    kind, version = values.get("format"), values.get("format_version")
    if kind != FORMAT or version not in (2, FORMAT_VERSION):
        raise DataError(
            f"privacy.json: {kind!r} of version {version!r}, but this dpprobe reads {FORMAT} of "
            f"versions 2 and {FORMAT_VERSION}; use the dpprobe that wrote it, or a newer one"
        )
    return dict(values) if version == FORMAT_VERSION else _take_facts(values, estimator=estimator)


def _take_facts(values: Facts, *, estimator: bool) -> dict[str, Any]:
    facts = _without(values, "unit_of_privacy", *_SENTENCES)
    words = str(values["unit_of_privacy"])
    unit = next((unit for text, unit in _UNITS.items() if words.startswith(text)), None)
    if unit is None:
        raise DataError(f"privacy.json: unit_of_privacy {words!r} is no unit of dpprobe's")
    facts |= {"unit": unit, "mechanisms": _take_mechanisms(values["mechanisms"])}
    facts["allows"] = _without(values["allows"], "words")
    facts["public_data"] = {
        **_without(values["public_data"], "assumption"),
        "near_duplicate_check": NOT_PUBLISHED,
    }
    if values["selection"] is not None:
        facts["selection"] = _without(values["selection"], "released", "shape")
    facts["test_units"] = _take_test_units(values)
    for name, take in _BLOCKS.items():
        if values.get(name) is not None:
            facts[name] = take(values[name])
    if facts["evaluation"] and "calibration" not in values:
        # An early version published an AUC's counts without a calibration; epsilon covers them.
        facts["evaluation"].pop("score_counts", None)
    if estimator:
        facts["choice"]["other_fits"] = values["ledger"]["releases"] - 1
    return facts


def _without(block: Facts, *names: str) -> dict[str, Any]:
    return {key: value for key, value in block.items() if key not in names}


def _take_mechanisms(mechanisms: list[Facts]) -> list[dict[str, Any]]:
    return [_without(item, "released", "sensitivity_of", "sampling") for item in mechanisms]


def _take_evaluation(block: Facts) -> dict[str, Any]:
    """Converts a test result; the number of labels left out of an AUC was in a sentence."""
    facts = _without(block, "released", "composition")
    facts["mechanisms"] = _take_mechanisms(block["mechanisms"])
    if block["metric"] == "auc":
        left = _LEFT_OUT.search(str(block["released"]))
        facts["labels_left_out"] = int(left[1]) if left else int(block["interval"] == [0.0, 1.0])
    return facts


def _take_test_units(values: Facts) -> dict[str, Any] | None:
    """Reads the split's rule from a sentence; how both sides were compared is unknown."""
    blocks = [values.get(name) for name in ("evaluation", "calibration", "monitor")]
    tested = [block for block in blocks if block is not None and "mechanisms" in block]
    if not tested:
        return None
    found = _SPLIT.search(str(tested[0]["composition"]))
    split: dict[str, Any] = {"by": "unstated"}
    if found is not None:
        by, seed, fraction = found.groups()
        drawn = {} if seed is None else {"public_seed": int(seed), "fraction": float(fraction)}
        split = {"by": by, **drawn}
    return {"n": tested[0]["n"], "split": split, "compared": None}


def _take_counts(block: Facts) -> dict[str, Any]:
    """Converts a calibration or a monitor; the epsilon with the test result was in a sentence."""
    facts = _without(block, "composition")
    if "mechanisms" in block:
        facts["mechanisms"] = _take_mechanisms(block["mechanisms"])
        together = _TOGETHER.search(str(block["composition"]))
        facts["together"] = float(together[1]) if together else None
    return facts


def _take_choice(block: Facts) -> dict[str, Any]:
    """Converts a choice; the reason for a missing epsilon was stated only in a sentence."""
    unstated = block["epsilon"] is None and not str(block["words"]).startswith(_NOTHING_CHOSEN)
    uncovered = {"reason": "unstated"} if unstated and block["cells"] else None
    return {**_without(block, "words"), "uncovered": uncovered}


def _take_block(block: Facts) -> dict[str, Any]:
    return _without(block, "words")


_BLOCKS = {
    "evaluation": _take_evaluation,
    "calibration": _take_counts,
    "monitor": _take_counts,
    "choice": _take_choice,
    "cohort": _take_block,
    "sites": _take_block,
}
