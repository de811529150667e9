"""Writes the sentences of a privacy statement from its facts, when somebody reads it.

Sentences without conditions are in `resources/statement.yaml`, by name. Numbers are rounded up, so
that no sentence promises more than the statement.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from dpprobe.privacy.limits import above_in_words, rounded_up
from dpprobe.privacy.risk import Risk
from dpprobe.privacy.stated_facts import of_vectors
from dpprobe.privacy.trade_off import per_hundred
from dpprobe.privacy.unit_words import UnitWords, words_of_statement
from dpprobe.project_files import read_yaml

Facts = Mapping[str, Any]

EVERYTHING_ALLOWED = (
    "Nothing limits an attacker: guesses about whether one unit was trained on may be right every "
    "time."
)
_TRAINED = (
    "The backbone was pretrained on public data, assumed to contain neither the private {items} "
    "nor near-duplicates of them. Its weights and preprocessing are assumed not to depend on the "
    "private data."
)
_UNTRAINED = "The backbone's weights, if it has any, are random or fixed: no data went into them."
_VECTORS = (
    "The vectors were computed outside dpprobe, by {model}. It is declared that each vector was "
    "computed from its own item alone, by a model that does not depend on the private data. The "
    "promise holds only if that is true. "
)
_VECTORS_TRAINED = (
    "The model was pretrained on public data, assumed to contain neither the private items nor "
    "near-duplicates of them."
)
_VECTORS_UNTRAINED = "It is also declared that no data went into the model."
_OVERLAP = (
    " The near-duplicate check found private rows that look like public ones: if the backbone saw "
    "those, the promise does not hold for these rows."
)


@dataclass(frozen=True, kw_only=True)
class StatementWords:
    """The sentences of one privacy statement; see `resources/statement.yaml`.

    Attributes:
      unit: the words for the unit of privacy.
      promise: the guarantee, or the reason why there is none.
      attacks: limits on the best attack.
      assumption: the assumption about the data that the backbone was trained on.
    """

    unit: UnitWords
    promise: str
    attacks: str
    relation: str
    mode: str
    sensitivity: str
    engine_limits: str | None
    assumption: str
    near_duplicates: str
    public: tuple[str, ...]
    not_covered: tuple[str, ...]


def explain_statement(statement: Facts) -> StatementWords:
    """Writes all sentences of the statement of a cell or a release."""
    unit = words_of_statement(statement)
    limits = statement["engine_limits"]
    filled = {**(statement["public_data"].get("subsample") or {})}
    filled |= statement.get("chosen_from") or {}
    filled["unseen"] = _tell_unseen((statement.get("test_units") or {}).get("compared"))
    return StatementWords(
        unit=unit,
        promise=write_promise(statement, unit),
        attacks=_write_attacks(statement, unit),
        relation=_find_sentence("relation", statement["relation"], unit),
        mode=_find_sentence("mode", statement["mode"], unit),
        sensitivity=_find_sentence(
            "sensitivity", "items" if unit.one == unit.item else "units", unit
        ),
        engine_limits=limits and _find_sentence("engine_limits", limits, unit),
        assumption=_write_assumption(statement["public_data"], unit),
        near_duplicates=_write_check(statement["public_data"]["near_duplicate_check"], unit),
        public=tuple(_find_sentence("public", name, unit, filled) for name in statement["public"]),
        not_covered=tuple(
            _find_sentence("not_covered", name, unit, filled) for name in statement["not_covered"]
        ),
    )


def _tell_unseen(compared: Sequence[str] | None) -> str:
    """Describes the pictures in both splits that a comparison of the splits cannot have found."""
    if compared:
        return " without equal bytes, such as one that was saved twice"
    return ", for which this bundle states no comparison"


@cache
def read_sentences() -> dict[str, dict[str, str]]:
    """Reads the sentences of statements, by kind and name."""
    return dict(read_yaml("statement.yaml"))


def describe_unpriced(name: str) -> str:
    """Returns the sentence on an option that a head chose from private examples without noise."""
    return read_sentences()["not_covered"].get(name, name)


def _find_sentence(kind: str, name: str, unit: UnitWords, values: Facts | None = None) -> str:
    """Returns the sentence of a name; for a head of another package, the name in words."""
    return unit.fill(read_sentences()[kind].get(name, name.replace("_", " ")), values)


def format_epsilon(epsilon: float | str) -> str:
    """Formats an epsilon with four digits, rounded up."""
    return f"{rounded_up(float(epsilon)):g}"


def format_small(value: float) -> str:
    """Formats a small number such as a delta with four digits, rounded up: 1e-5."""
    return f"{rounded_up(value):g}".replace("e-0", "e-")


# the promise


def write_promise(statement: Facts, unit: UnitWords) -> str:
    """Writes the guarantee, or the reason why there is none."""
    private = statement["epsilon_target"] != "inf"
    if (unpriced := statement["unpriced"]) is not None:
        what = describe_unpriced(unpriced)
        if not private:
            return f"No privacy is promised: this method is not private. Not covered: {what}."
        epsilon = format_epsilon(statement["epsilon_target"])
        return (
            f"No privacy is promised: nothing prices {what}. Nothing here is for release. Had all "
            f"been fixed beforehand, one seed's weights would cost epsilon {epsilon}."
        )
    if not private:
        return (
            "No privacy is promised: epsilon is infinite, no noise was added, and "
            f"{_clipped_without_noise(statement['options'])}."
        )
    above = above_in_words(statement["delta"], statement["n"], unit=statement["unit"])
    return "".join(
        (
            _promise_one(statement, unit),
            _write_composition(statement),
            _explain_target(statement, unit),
            _worth_to_a_patient(statement, unit),
            _promise_all(statement, unit),
            f" But {above}." if above else "",
            _tell_copies(statement, unit),
        )
    )


def _promise_one(statement: Facts, unit: UnitWords) -> str:
    what, *beside = statement["outputs"]
    kind = "network" if what == "network" else "head"
    which = f"the {kind}" if _count_heads(statement) == 1 else f"any one of the {kind}s"
    names = read_sentences()["outputs"]
    told = [unit.fill(names[each]) for each in beside]
    with_them = f", with {' and '.join(told)}," if beside else ""
    return (
        f"The {names[what]} of {which}{with_them} are {_pair(statement, 'epsilon_target')}-"
        f"differentially private with respect to replacing the rows of {unit.whole} by null rows "
        "that contribute nothing, with n fixed and public. "
    )


def _pair(statement: Facts, epsilon: str) -> str:
    return f"({format_epsilon(statement[epsilon])}, {format_small(statement['delta'])})"


def _count_heads(statement: Facts) -> int:
    """Returns the number of heads; a release has one and states no seed."""
    return len(statement.get("seeds", ("one",)))


def _promise_all(statement: Facts, unit: UnitWords) -> str:
    heads, network = _count_heads(statement), statement["outputs"][0] == "network"
    if heads == 1:
        return ""
    where = "the folder networks holds" if network else "heads.safetensors holds"
    several = (
        " Each seed is a fit of its own: publishing several composes, and all "
        f"{heads} {'network' if network else 'head'}s together, as {where} them, are "
        f"{_pair(statement, 'epsilon_all_heads')}-differentially private"
    )
    if statement["patients"] is None:
        return f"{several}."
    return f"{several} to one {unit.item}; to a patient they cost more, which is not computed."


def _write_composition(statement: Facts) -> str:
    once, again = (
        _list_mechanisms([item for item in statement["mechanisms"] if item["repeated"] is repeated])
        for repeated in (False, True)
    )
    selection, cohort = statement["selection"], statement.get("cohort")
    rows = "the rows of this cohort" if cohort and cohort["earlier"] else "the rows"
    if not selection:
        return f"They depend on {rows} through {once}, and through nothing else."
    first = f"through {once}, and " if once else ""
    return (
        f"They depend on {rows} {first}through each of a random number of trials (mean "
        f"{selection['mean']:g}, {selection['trials']}) of {again}, of which only the best one's "
        "outputs are released, and through nothing else."
    )


def _list_mechanisms(mechanisms: Sequence[Facts]) -> str:
    each = [
        f"{item['count']} noisy release{'s' if item['count'] > 1 else ''} of {item['name']}"
        for item in mechanisms
    ]
    return " and ".join(filter(None, [", ".join(each[:-1]), *each[-1:]]))


def _explain_target(statement: Facts, unit: UnitWords) -> str:
    """Names the risk that the noise was calibrated to; empty without a risk."""
    if (target := statement.get("risk_target")) is None:
        return ""
    mu = statement.get("mu")
    gaussian = f" They are {format_epsilon(mu)}-Gaussian differentially private." if mu else ""
    return (
        f" The noise was set for a permitted risk of any attack on {unit.whole}: "
        f"{Risk.from_dict(target)}; epsilon follows from it.{gaussian}"
    )


def _worth_to_a_patient(statement: Facts, unit: UnitWords) -> str:
    """Writes the epsilon for a patient if the unit is one image; else empty."""
    if (patients := statement["patients"]) is None:
        return ""
    only = f" The promise is for one {unit.item}: "
    most, worth = patients["images"], patients["epsilon"]
    if most is None:
        return (
            f"{only}patients may have any number of {unit.items}, and nothing is promised to a "
            "patient."
        )
    price = "nothing is promised"
    if worth not in (None, "inf"):
        price = f"the promise is ({format_epsilon(worth)}, {format_small(statement['delta'])})"
    return (
        f"{only}to a patient with {most} training {unit.items}, the most that a patient may have "
        f"here, {price}."
    )


def _tell_copies(statement: Facts, unit: UnitWords) -> str:
    """Writes the counts of copies; only statements of benchmarks have counts."""
    copies = statement.get("copies")
    if not copies or not copies["rows"]:
        return ""
    rows, most = copies["rows"], copies["most"]
    if unit.one == unit.item:
        return (
            f" But {rows} of the training rows repeat the {unit.picture} of an earlier row, and "
            f"one {unit.picture} occurs {most} times: a {unit.picture} that occurs k times has "
            "only what the promise gives to a group of k rows, which is weaker."
        )
    return (
        f" But {rows} of the training rows repeat a {unit.picture} of another {unit.one}, and one "
        f"{unit.picture} occurs under {most} {unit.many}: a {unit.picture} that occurs under k "
        f"{unit.many} has only what the promise gives to a group of k {unit.many}, which is weaker."
    )


def _clipped_without_noise(options: Facts) -> str:
    """Describes how a method clips at epsilon inf: only mean gradients, or nothing."""
    name = "max_batch_grad_norm"
    norm = (options.get("base") or options.get("chosen") or options).get(name)
    if name in (options.get("search") or {}):
        norm = "a searched norm"
    elif norm is None:
        return "nothing was clipped"
    else:
        norm = f"norm {norm:g}"
    return f"no row's gradient was clipped, only the mean gradient of each step, to {norm}"


# attacks and public data


def _write_attacks(statement: Facts, unit: UnitWords) -> str:
    allows, patients = statement["allows"], statement["patients"]
    if not statement["private"]:
        return EVERYTHING_ALLOWED
    few, many = map(per_hundred, allows["true_positives"].values())
    words = (
        f"An attacker who knows everything but the rows of {unit.whole}, and thinks it equally "
        "likely that they were or were not trained on, guesses right at most "
        f"{per_hundred(allows['balanced_accuracy'])}% of the time. An attack that wrongly flags "
        f"0.1% of the {unit.many} {unit.who} were not trained on finds at most {few}% of those "
        f"{unit.who} were; one that wrongly flags 1% finds at most {many}%."
    )
    if several := allows["all_heads"]:
        right = per_hundred(several["balanced_accuracy"])
        heads = _count_heads(statement)
        words += f" With all {heads} heads the attacker guesses right at most {right}% of the time."
    if (patient := allows["patient"]) and patients is not None:
        of = "any number of" if patients["images"] is None else f"{patients['images']}"
        right = patient["balanced_accuracy"]
        words += f" About a patient with {of} {unit.items} the attacker "
        words += (
            "may be right every time."
            if right == 1
            else f"guesses right at most {per_hundred(right)}% of the time."
        )
    return words


def _write_assumption(public_data: Facts, unit: UnitWords) -> str:
    """Writes the assumption on the backbone's public data, and the result of the check."""
    trained, check = bool(public_data["trained"]), public_data["near_duplicate_check"]
    assumption = unit.fill(_TRAINED) if trained else _UNTRAINED
    if of_vectors(public_data):
        options = public_data["backbone_options"]
        version, weights = options.get("version"), options.get("weights_sha256")
        model = f"{options['model']} {version}" if version else str(options["model"])
        model += f" (SHA-256 of its weights: {weights})" if weights else ""
        assumption = _VECTORS.format(model=model)
        assumption += _VECTORS_TRAINED if trained else _VECTORS_UNTRAINED
    found = trained and isinstance(check, Mapping) and check["train"]["near"]
    return assumption + _OVERLAP if found else assumption


def _write_check(check: Any, unit: UnitWords) -> str:
    """Describes the result of the near-duplicate check, or its absence."""
    if not isinstance(check, Mapping):
        return _find_sentence("near_duplicates", check, unit)
    counts = [f"{check[s]['near']} of {check[s]['rows']} {s} rows" for s in ("train", "test")]
    return f"{' and '.join(counts)} look like public ones"


# units with several images


def to_patients(statement: Facts) -> str | None:
    """Explains the guarantee for a patient with several images; None unless images are units."""
    unit, patients = words_of_statement(statement), statement["patients"]
    if patients is None:
        return None
    first = (
        f"The guarantee is for one {unit.item}. It is weaker for a patient with several "
        f"{unit.items}."
    )
    most, worth = patients["images"], patients["epsilon"]
    measured = ""
    if statement.get("test_units") is not None:
        measured = (
            f" What was measured on test {unit.items} has no guarantee for a patient with several "
            f"test {unit.items}."
        )
    if most is None or worth is None or math.isinf(float(worth)):
        nothing = f"Here patients may have several {unit.items}, so patients have no guarantee."
        return f"{first} {nothing}{measured}"
    noun = f"training {unit.item}" if most == 1 else f"training {unit.items}"
    return (
        f"{first} For a patient with {most} {noun}, the most that a patient may have here, it is "
        f"epsilon {format_epsilon(worth)} at delta {format_small(statement['delta'])}.{measured}"
    )
