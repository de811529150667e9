"""The privacy statement of a cell, from which a reviewer can repeat the accounting."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpprobe.errors import PrivacyError
from dpprobe.privacy.accountants import exactly_priced
from dpprobe.privacy.limits import above_in_words, to_json
from dpprobe.privacy.plan import Mechanism, Plan, Selection
from dpprobe.privacy.risk import describe_target, explain_target
from dpprobe.privacy.trade_off import Allowed, allow_everything, bound_attacks, per_hundred

FORMAT = "dpprobe-privacy"
FORMAT_VERSION = 4

MODES = {
    "benchmark": "Not for release. Noise and batches come from seeds stored with the results, so "
    "anyone who has them can recompute the noise and subtract it.",
    "release": "Made for release. One head was trained. Its noise and batches come from random "
    "numbers keyed by the operating system. No key is published.",
}
PUBLIC_DATA = (
    "The backbone was pretrained on public data, assumed to contain neither the private images nor "
    "near-duplicates of them. Its weights and preprocessing do not depend on the private data."
)
NO_PUBLIC_DATA = (
    "The backbone's weights, if it has any, are random or fixed: no data went into them."
)
VECTORS = (
    "The vectors were computed outside dpprobe, by {model}. It is declared that each vector was "
    "computed from its own item alone, by a model that does not depend on the private data. The "
    "promise holds only if that is true."
)
VECTORS_TRAINED = (
    " The model was pretrained on public data, assumed to contain neither the private items nor "
    "near-duplicates of them."
)
VECTORS_UNTRAINED = " No data went into the model."
VECTORS_NOT_COVERED = (
    "vectors that depend on other items too: whitened, centred, z-scored, batch-corrected or "
    "reduced by PCA on these data, or computed by a model that was fine-tuned on them"
)
OVERLAP_FOUND = (
    " The near-duplicate check found private rows that look like public ones: if the backbone saw "
    "those, the promise does not hold for these rows."
)
OVERLAP_NOT_COVERED = (
    "what the near-duplicate check found: no noise was added, so leave near_duplicate_check out of "
    "what is published, and the sentence on it in assumption"
)
ROWS_DRAWN = (
    "which rows n counts: those of the units whose name, hashed with the public seed "
    "{public_seed}, lies below the fraction {fraction:g}, each by itself, whatever its label and "
    "all other rows are. If rows have no names, a position in the file is the name, which a null "
    "row keeps"
)
DRAWN_NOT_COVERED = (
    "that a unit's rows were among those that the subsample left out: anyone who knows its name "
    "can compute that. Nothing else here depends on rows that were left out"
)
PUBLIC_N = {
    "image": "the number of training rows n (sampling rates and step counts are computed from it)",
    "patient": "the number of training patients n (sampling rates and step counts are computed "
    "from it), and which patients are trained on",
}
PUBLIC_FACTS = ("the list of classes and the dimension of the features",)
FIXED_OPTIONS = (
    "the hyperparameters, except what a search chose: the promise assumes that they were fixed "
    "without looking at the private data"
)
CHOSEN_BY_RULE = (
    "{rule}, fixed without looking at the private data, and the facts from which it chose head "
    "{head} and its options, under chosen_from"
)
PUBLIC_FILES = (
    "the files under public_files, assumed to hold nothing that depends on the private images: the "
    "study named under declared_public says so"
)
PUBLIC_SEARCH = (
    "the space that hyperparameters are searched in, and the distribution of the number of trials, "
    "assumed to be chosen without looking at the private data"
)
PUBLIC_NETWORK = (
    "the frozen part of the network, what its trained parameters started from, and how images are "
    "augmented"
)
NETWORK_NOT_COVERED = (
    "activations of the frozen part, their shards, and checkpoints of unfinished training",
)
ALL = {"image": "all rows", "patient": "all patients"}
POISSON = {"image": "Poisson", "patient": "Poisson, of patients"}
SENSITIVITY_OF = {
    "image": "one row, clipped",
    "patient": "the mean of one patient's rows, each clipped: a row of m has weight 1 / m",
}
NOT_COVERED = (
    "the features, their shards, and any plot of them, t-SNE included",
    "training losses and learning curves, and log files",
    "labels and subgroups of test rows, and predictions and metrics on them, where the test split "
    "is private",
    "the split into training and test rows where it was made here, and the rows that a subsample "
    "left out: one more source image can move another one across the boundary. The promise is for "
    "rows of the training split as it is",
    "heads and metrics of other cells: what is published together composes",
    "cells at epsilon inf and the non-private baseline",
    "a choice of method, epsilon, backbone or hyperparameters made by comparing results on "
    "private data",
    "seeds, fingerprints and hashes stored with the results: they are functions of the private "
    "data, and the seeds reveal the noise",
    "whether a run fails, and the errors it raises",
    "what running time reveals",
)
RELEASE_NOT_COVERED = (
    "the features, their shards, any plot of them, log files, and all else that was computed from "
    "the private images and is not in this bundle",
    "other releases from the same data, except for their sum under `ledger`: what is published "
    "together composes",
    "a choice of method, epsilon, backbone or hyperparameters made by comparing results on "
    "private data: see `choice`",
    "what checks told the holder of the data, such as unequal classes, and options that were "
    "chosen after them, such as the metric of a test result",
    "the data before it came here: who is in it, and who selected and labelled it",
    "the computer while it trained: its memory, its disks, its running time, whether a run fails "
    "and the errors it raises",
)
FLOATS_NOT_COVERED = (
    "what floating-point arithmetic reveals beyond real-valued Gaussian noise: see engine_limits"
)
COPIES_NOT_COVERED = {
    "image": "a picture that occurs in several training rows: the promise holds for each row "
    "alone; the picture has only what the promise gives to a group of as many rows",
    "patient": "a picture that occurs under several patients, such as one person under two names: "
    "the promise holds for each patient alone; the picture has only what the promise gives to a "
    "group of as many patients",
}
COPIES_FOUND = {
    "image": " But {rows} of the training rows repeat the picture of an earlier row, and one "
    "picture occurs {most} times: a picture that occurs k times has only what the promise gives to "
    "a group of k rows, which is weaker.",
    "patient": " But {rows} of the training rows repeat a picture of another patient, and one "
    "picture occurs under {most} patients: a picture that occurs under k patients has only what "
    "the promise gives to a group of k patients, which is weaker.",
}
COPIES_UNKNOWN = "not counted"
COUNTED_NOT_COVERED = (
    "the counts under copies, and the sentence on them in promise: no noise was added, so leave "
    "them out of what is published"
)
PATIENTS_NOT_COVERED = (
    "how many training images there are, and how many each patient has",
    "images of a patient under another value of the unit's column",
)
TRIALS_NOT_COVERED = (
    "how many trials there were, which was best, and the heads and scores of the others; running "
    "time and log files reveal the number",
)

# The words for images and patients, changed to rows of numbers and groups of rows.
_OF_ROWS = {"picture": "vector", "image": "row", "person": "group"}
for _words in (PUBLIC_N, ALL, POISSON, SENSITIVITY_OF, COPIES_NOT_COVERED, COPIES_FOUND):
    _words["row"], _words["group"] = _words["image"], _words["patient"].replace("patient", "group")
    for _unit in ("row", "group"):
        for _word, _other in _OF_ROWS.items():
            _words[_unit] = _words[_unit].replace(_word, _other)
_IMAGE_WORDS = {
    "an image": "a row",
    "An image": "A row",
    "image": "row",
    "Image": "Row",
    "picture": "vector",
}
GROUPS_NOT_COVERED = (
    "how many training rows there are, and how many each group has",
    "rows of a group under another name",
)

# False-positive rates (units that were not trained on) at which the statement explains epsilon.
FALSE_POSITIVE_RATES = {"0.001": 0.001, "0.01": 0.01}
EVERYTHING_ALLOWED = (
    "Nothing limits an attacker: guesses about whether one unit was trained on may be right every "
    "time."
)


@dataclass(frozen=True, kw_only=True)
class Declared:
    """Files beside the private examples that a head used, declared public.

    Attributes:
      study: the name of the study that declares them.
      files: the path of each declared file, as the study writes it, by option.
    """

    study: str
    files: Mapping[str, str]
    hashes: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Statement:
    """The facts that a privacy statement states.

    Attributes:
      mode: "benchmark", or "release", whose statement names no seed.
      seeds: one per head; for a release any sequence whose length is the number of heads.
      public_data: facts about the backbone. `public_data["trained"]` is True if the backbone was
        pretrained. `near_duplicate_check` is the result of `find_near_duplicates`, or a sentence
        why there is no check. `subsample` has the `fraction` and the `public_seed` that chose the
        rows of a release.
      epsilon_all_heads: the epsilon, at an equal delta, of publishing the heads of all seeds.
      private_choices: choices that the head made from private examples without a mechanism.
      priced_normalisation: True if the head's normalisation released statistics of the rows.
      engine_limits: the limits of an engine that is not exact, in words.
      released_priors: True if the head released the frequencies of its classes.
      declared: the public files that the head started from or used.
      network: True if a part of the backbone was trained with the head.
      chosen_from: the `rule` that chose `head` and options, if any, and its public facts.
      copies: the `rows` whose image an earlier row of another unit has, the `most` units that have
        one image, and `by` what images were compared. `copies` is None if nobody counted copies.

    Raises PrivacyError for an unknown mode, and for a release with a delta above 1 / n.
    """

    plan: Plan
    method: str
    options: Mapping[str, Any]
    mode: str
    seeds: Sequence[int]
    public_data: Mapping[str, Any]
    epsilon_all_heads: float
    private_choices: str | None
    priced_normalisation: bool
    engine_limits: str | None
    released_priors: bool = False
    declared: Declared | None = None
    network: bool = False
    chosen_from: Mapping[str, Any] | None = None
    copies: Mapping[str, int | str] | None = None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise PrivacyError(
                f"privacy statement: mode {self.mode!r}; write one of {', '.join(MODES)}"
            )
        if self.above and self.mode == "release":
            raise PrivacyError(f"{self.above}; write a smaller delta")

    @property
    def above(self) -> str:
        """Explains a delta above 1 / n; empty for other deltas."""
        plan = self.plan
        return above_in_words(plan.delta, plan.n, unit=plan.unit) if plan.private else ""

    @property
    def promised(self) -> bool:
        return self.plan.private and self.private_choices is None

    @property
    def limits(self) -> str | None:
        return self.engine_limits if self.plan.private else None

    @property
    def repeated(self) -> Mapping[str, int | str] | None:
        """The counts of copies, if there are copies."""
        return self.copies if self.copies and self.copies["rows"] else None

    @property
    def files(self) -> Declared | None:
        return self.declared if self.declared and self.declared.files else None

    def to_dict(self) -> dict[str, Any]:
        """States the guarantee, its unit, its mechanisms and its limits; JSON-compatible."""
        plan, promised, files = self.plan, self.promised, self.files
        public, not_covered = self._list_public(), self._list_not_covered()
        allows = _describe_attacks(
            plan, len(self.seeds), self.epsilon_all_heads, unpriced=self.private_choices is not None
        )
        promise = self._write_promise()
        promise += f" But {self.above}." if self.above else ""
        if self.repeated and promised:
            promise += COPIES_FOUND[plan.unit].format(**self.repeated)
        if of_vectors(self.public_data):
            promise = in_words_of_rows(promise)
            allows |= {"words": in_words_of_rows(allows["words"])}
            not_covered = [VECTORS_NOT_COVERED, *map(in_words_of_rows, not_covered)]
            public = [*map(in_words_of_rows, public)]
        uncounted = self.copies is None and self.mode == "release"
        copies = COPIES_UNKNOWN if self.copies is None else dict(self.copies)
        everything = self.epsilon_all_heads if promised else math.inf
        seeds = {"seeds": [f"{seed:032x}" for seed in self.seeds]}
        seeds = seeds if self.mode == "benchmark" else {}
        declared = {"by": files.study, "options": dict(files.files)} if files else {}
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "promise": promise,
            "private": promised,
            "unit_of_privacy": plan.unit_in_words,
            "patients": self._describe_patients(),
            "neighbouring_relation": plan.NEIGHBOURING,
            "epsilon_target": to_json(plan.epsilon),
            **describe_target(plan),
            "epsilon_realised": to_json(plan.realised_epsilon if promised else math.inf),
            "epsilon_all_heads": to_json(everything),
            "delta": plan.delta if promised else None,
            **({"delta_above_one_over_n": True} if self.above and promised else {}),
            "allows": allows,
            "accountant": plan.priced_by,
            "checks": {name: to_json(value) for name, value in plan.checks.items()},
            "check_notes": dict(plan.check_notes),
            "n": plan.n,
            **({} if uncounted else {"copies": copies}),
            "mechanisms": [mechanism_values(mechanism, plan) for mechanism in plan.mechanisms],
            "selection": _describe_selection(plan.selection),
            "method": self.method,
            "options": dict(self.options),
            **({"chosen_from": dict(self.chosen_from)} if self.chosen_from else {}),
            "mode": self.mode,
            "release": MODES[self.mode],
            **seeds,
            "engine_limits": self.limits,
            "public": public,
            "public_files": dict(files.hashes) if files else {},
            **({"declared_public": declared} if declared else {}),
            "public_data": {"assumption": _write_assumption(self.public_data), **self.public_data},
            "not_covered": not_covered,
        }

    def _list_not_covered(self) -> list[str]:
        plan = self.plan
        not_covered = [self.private_choices] if self.private_choices else []
        not_covered += RELEASE_NOT_COVERED if self.mode == "release" else NOT_COVERED
        if self.network:
            not_covered += NETWORK_NOT_COVERED
        if self.public_data.get("subsample"):
            not_covered.append(DRAWN_NOT_COVERED)
        if plan.unit in plan.GROUPS:
            not_covered += PATIENTS_NOT_COVERED if plan.unit == "patient" else GROUPS_NOT_COVERED
        not_covered.append(COPIES_NOT_COVERED[plan.unit])
        if self.repeated:
            not_covered.append(COUNTED_NOT_COVERED)
        if self.limits:
            not_covered.append(FLOATS_NOT_COVERED)
        if plan.selection:
            not_covered += TRIALS_NOT_COVERED
        if isinstance(self.public_data["near_duplicate_check"], Mapping):
            not_covered.append(OVERLAP_NOT_COVERED)
        return not_covered

    def _list_public(self) -> list[str]:
        """Lists the facts that the guarantee assumes to be public."""
        public = [PUBLIC_N[self.plan.unit]]
        if drawn := self.public_data.get("subsample"):
            public.append(ROWS_DRAWN.format(**drawn))
        public += PUBLIC_FACTS
        if self.private_choices is None:
            public.append(FIXED_OPTIONS)
            if self.plan.selection:
                public.append(PUBLIC_SEARCH)
        if self.chosen_from:
            public.append(CHOSEN_BY_RULE.format(**self.chosen_from))
        if self.network:
            public.append(PUBLIC_NETWORK)
        if self.files:
            public.append(PUBLIC_FILES)
        return public

    def _describe_patients(self) -> dict[str, Any] | None:
        patients = self.plan.patients
        if patients is None:
            return None
        epsilon = patients.epsilon if patients.epsilon is None or self.promised else math.inf
        return {"images": patients.images, "epsilon": to_json(epsilon)}

    def _write_promise(self) -> str:
        plan, heads, unpriced = self.plan, len(self.seeds), self.private_choices
        if not plan.private and unpriced:
            return f"No privacy is promised: this method is not private. Not covered: {unpriced}."
        if unpriced:
            return (
                f"No privacy is promised: nothing prices {unpriced}. Nothing here is for "
                "release. Had all been fixed beforehand, one seed's weights would be "
                f"({plan.epsilon:g}, {plan.delta:g})-differentially private."
            )
        if not plan.private:
            return (
                "No privacy is promised: epsilon is infinite, no noise was added, and "
                f"{_clipped_without_noise(self.options)}."
            )
        beside = ["what its normalisation released"] if self.priced_normalisation else []
        if self.released_priors:
            beside.append("how frequent the classes are")
        if plan.selection:
            beside.append("the options and the noisy score of the trial they are from")
        kind, what = ("network", "trained parameters") if self.network else ("head", "weights")
        released = f"The {what} of {f'the {kind}' if heads == 1 else f'any one of the {kind}s'}"
        if beside:
            released += f", with {' and '.join(beside)},"
        one = (
            f"{released} are ({plan.epsilon:g}, {plan.delta:g})-differentially private with "
            f"respect to replacing the rows of {plan.unit_in_words} by null rows that contribute "
            "nothing, with n fixed and public. "
            f"{_write_composition(plan)}{explain_target(plan)}{_worth_to_a_patient(plan)}"
        )
        if heads == 1:
            return one
        where = "the folder networks holds" if self.network else "heads.safetensors holds"
        several = (
            f"{one} Each seed is a fit of its own: publishing several composes, and all {heads} "
            f"{kind}s together, as {where} them, are ({self.epsilon_all_heads:.4g}, "
            f"{plan.delta:g})-differentially private"
        )
        if plan.patients is None:
            return f"{several}."
        return f"{several} to one image; to a patient they cost more, which is not computed."


def _write_assumption(public_data: Mapping[str, Any]) -> str:
    """States the assumption on the backbone's public data, and the result of its check."""
    trained, check = bool(public_data["trained"]), public_data["near_duplicate_check"]
    assumption = PUBLIC_DATA if trained else NO_PUBLIC_DATA
    if of_vectors(public_data):
        options = public_data["backbone_options"]
        version, weights = options.get("version"), options.get("weights_sha256")
        model = f"{options['model']} {version}" if version else str(options["model"])
        model += f" (SHA-256 of its weights: {weights})" if weights else ""
        assumption = VECTORS.format(model=model)
        assumption += VECTORS_TRAINED if trained else VECTORS_UNTRAINED
    if trained and isinstance(check, Mapping) and check["train"]["near"]:
        assumption += OVERLAP_FOUND
    return assumption


def of_vectors(public_data: Mapping[str, Any]) -> bool:
    """Returns True if the features are vectors that a model outside dpprobe computed."""
    return bool((public_data.get("backbone_options") or {}).get("family") == "external")


def unit_of_statement(statement: Mapping[str, Any]) -> str:
    """Returns the words for a statement's unit of privacy: rows if features are outside vectors."""
    words: str = statement["unit_of_privacy"]
    return in_words_of_rows(words) if of_vectors(statement["public_data"]) else words


def in_words_of_rows(text: str) -> str:
    """Rewrites one of dpprobe's sentences about images for rows of vectors; not for names."""
    for words, others in _IMAGE_WORDS.items():
        text = text.replace(words, others)
    return text


def _clipped_without_noise(options: Mapping[str, Any]) -> str:
    """States the clipping of mean gradients at epsilon inf, if a method has this option."""
    name = "max_batch_grad_norm"
    norm = (options.get("base") or options.get("chosen") or options).get(name)
    if name in (options.get("search") or {}):
        norm = "a searched norm"
    elif norm is None:
        return "nothing was clipped"
    else:
        norm = f"norm {norm:g}"
    return f"no row's gradient was clipped, only the mean gradient of each step, to {norm}"


def _worth_to_a_patient(plan: Plan) -> str:
    """States the epsilon for a patient if the unit is one image."""
    if plan.patients is None:
        return ""
    if plan.patients.images is None:
        return (
            " The promise is for one image: patients may have any number of images, and nothing is "
            "promised to a patient."
        )
    most, worth = plan.patients.images, plan.patients.epsilon
    if worth is None or math.isinf(worth):
        price = "nothing is promised"
    else:
        price = f"the promise is ({worth:.4g}, {plan.delta:g})"
    return (
        f" The promise is for one image: to a patient with {most} training images, the most that "
        f"any patient has here, {price}."
    )


def _describe_attacks(plan: Plan, heads: int, together: float, *, unpriced: bool) -> dict[str, Any]:
    """Bounds the best attack: on one head, on all heads, and on a patient."""
    if unpriced:
        nothing = _describe_bounds(allow_everything(list(FALSE_POSITIVE_RATES.values())))
        return {
            "words": EVERYTHING_ALLOWED,
            **nothing,
            "all_heads": nothing if heads > 1 else None,
            "patient": nothing if plan.patients else None,
        }
    one = _bound_attacks(plan, plan.realised_epsilon)
    several = _bound_attacks(plan, together, times=heads) if heads > 1 else None
    patient = None
    if plan.patients:
        patient = _bound_attacks(plan, plan.patients.epsilon, size=plan.patients.images or 1)
    return {
        "words": _allowed_in_words(plan, one, heads, several, patient),
        **_describe_bounds(one),
        "all_heads": several and _describe_bounds(several),
        "patient": patient and _describe_bounds(patient),
    }


def _bound_attacks(plan: Plan, epsilon: float | None, *, times: int = 1, size: int = 1) -> Allowed:
    """Bounds every attack on a unit, or on a group, that sees `times` heads of this plan."""
    rates = list(FALSE_POSITIVE_RATES.values())
    if not plan.private or epsilon is None or math.isinf(epsilon):
        return allow_everything(rates)
    mechanisms = [mechanism.repeat_count(times) for mechanism in plan.mechanisms]
    return bound_attacks(
        mechanisms, rates, plan.selection, delta=plan.delta, epsilon=epsilon, size=size
    )


def _describe_bounds(bounds: Allowed) -> dict[str, Any]:
    return {
        "balanced_accuracy": bounds.balanced_accuracy,
        "true_positives": dict(zip(FALSE_POSITIVE_RATES, bounds.true_positives, strict=True)),
        "exact": bounds.exact,
    }


def _allowed_in_words(
    plan: Plan, one: Allowed, heads: int, several: Allowed | None, patient: Allowed | None
) -> str:
    if not plan.private:
        return EVERYTHING_ALLOWED
    few, many = map(per_hundred, one.true_positives)
    unit = plan.unit
    words = (
        f"An attacker who knows everything but the rows of {plan.unit_in_words}, and thinks it "
        "equally likely that they were or were not trained on, guesses right at most "
        f"{per_hundred(one.balanced_accuracy)}% of the time. An attack that wrongly flags 0.1% of "
        f"the {unit}s that were not trained on finds at most {few}% of those that were; one that "
        f"wrongly flags 1% finds at most {many}%."
    )
    if several:
        right = per_hundred(several.balanced_accuracy)
        words += f" With all {heads} heads the attacker guesses right at most {right}% of the time."
    if patient and plan.patients is not None:
        of = "any number of" if plan.patients.images is None else f"{plan.patients.images}"
        right = per_hundred(patient.balanced_accuracy)
        words += (
            f" About a patient with {of} images the attacker may be right every time."
            if patient.balanced_accuracy == 1
            else f" About a patient with {of} images the attacker guesses right at most {right}% "
            "of the time."
        )
    return words


def _write_composition(plan: Plan) -> str:
    once = [item for item in plan.mechanisms if not _is_repeated(item, plan)]
    again = [item for item in plan.mechanisms if _is_repeated(item, plan)]
    if not plan.selection:
        return (
            f"They depend on the rows through {_list_mechanisms(once)}, and through nothing else."
        )
    first = f"through {_list_mechanisms(once)}, and " if once else ""
    return (
        f"They depend on the rows {first}through each of a random number of trials (mean "
        f"{plan.selection.mean:g}, {plan.selection.DISTRIBUTION}) of "
        f"{_list_mechanisms(again)}, of which "
        "only the best one's outputs are released, and through nothing else."
    )


def _list_mechanisms(mechanisms: Sequence[Mechanism]) -> str:
    each = [
        f"{item.count} noisy release{'s' if item.count > 1 else ''} of {item.name}"
        for item in mechanisms
    ]
    return " and ".join(filter(None, [", ".join(each[:-1]), each[-1]]))


def _is_repeated(mechanism: Mechanism, plan: Plan) -> bool:
    return plan.selection is not None and mechanism.name in plan.selection.repeated


def _describe_selection(selection: Selection | None) -> dict[str, Any] | None:
    if selection is None:
        return None
    return {
        "released": "the outputs of the trial with the largest noisy score",
        "trials": selection.DISTRIBUTION,
        **selection.to_dict(),
    }


def mechanisms_of(block: Mapping[str, Any]) -> tuple[Mechanism, ...]:
    """Reads the mechanisms of a statement or of its test result.

    Raises:
      KeyError, TypeError, PrivacyError: for a missing or wrong value.
    """
    keys = ("name", "released", "sensitivity", "noise_multiplier", "sample_rate", "count")
    for item in block["mechanisms"]:
        require_gaussian(item)
    return tuple(Mechanism(**{key: item[key] for key in keys}) for item in block["mechanisms"])


def require_gaussian(stated: Mapping[str, Any]) -> None:
    """Raises PrivacyError if a stated mechanism has no Gaussian noise."""
    if stated["noise"] not in ("Gaussian", "none"):
        raise PrivacyError(f"mechanism {stated['name']!r}: noise {stated['noise']!r} has no price")


def mechanism_values(mechanism: Mechanism, plan: Plan) -> dict[str, Any]:
    silent = mechanism.noise_multiplier == 0
    return {
        "name": mechanism.name,
        "released": mechanism.released,
        "noise": "none" if silent else "Gaussian",
        "sensitivity": None if silent else mechanism.sensitivity,
        "sensitivity_of": SENSITIVITY_OF[plan.unit],
        "noise_multiplier": mechanism.noise_multiplier,
        "noise_standard_deviation": mechanism.noise_scale,
        "sampling": (ALL if mechanism.sample_rate == 1 else POISSON)[plan.unit],
        "sample_rate": mechanism.sample_rate,
        "count": mechanism.count,
        "repeated": _is_repeated(mechanism, plan),
        "budget_share": _share_of_mechanism(mechanism, plan),
    }


def _share_of_mechanism(mechanism: Mechanism, plan: Plan) -> float | None:
    """Returns a mechanism's part of mu^2; None unless all mechanisms use all rows."""
    if not plan.private or not exactly_priced(plan.mechanisms, plan.selection):
        return None
    costs = {item.name: item.count / item.noise_multiplier**2 for item in plan.mechanisms}
    return round(costs[mechanism.name] / math.fsum(costs.values()), 6)
