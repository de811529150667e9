"""Checks a bundle without the private data, a network or the backbone.

Nothing in a bundle is believed that can be computed: whoever can edit a file can hash it anew. The
statement is written again from the options, the facts and the noise that it states, and has to be
the same, word for word; so are card and page. The noise is priced again, by the accountant that
priced it and by others.

**Not noticed**, as nothing in a bundle can tell, and a signature alone protects it:

- other weights, other arrays of a normalisation, and what a search is said to have chosen from its
  space; classes in another order or by other names;
- what another version of `auto`'s rule than this one's is said to have chosen;
- facts of the backbone: a hash, preprocessing, its probe, versions of libraries;
- n where no mechanism samples, and names of release, study, dataset, method and backbone, each
  changed everywhere; words of `card`;
- more noise in the statement than was drawn, with every number and sentence that follows from it;
- blocks that are taken out whole, with all that speaks of them: a test result, the price of a
  choice, patients where the unit is one image; or another unit, changed everywhere;
- whether near-duplicates of public images were left out, and by what, changed wherever it stands;
- the numbers of an audit below the promise, or one that was made up;
- a test result within what it may be, and the AUC's interval round it; how many cells a choice
  without a price was among, and their names; a larger sum of the ledger, or its entry's number.

That noise was drawn as stated, that training rows were clipped, and that n and the units are what
the data has, rests on the word of who made the bundle.
"""

from __future__ import annotations

import json
import math
import re
import stat
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import ValidationError
from safetensors.numpy import load

from dpprobe.artifacts import canonical_json, sha256_file
from dpprobe.errors import DataError, DpprobeError, PrivacyError
from dpprobe.heads import normalisation as kinds
from dpprobe.heads.auto import Options as Auto
from dpprobe.heads.auto_rule import RULE
from dpprobe.heads.facts import DataFacts
from dpprobe.heads.fit import check_plan
from dpprobe.heads.fitted import CLASS_PRIORS
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.registry import method_options
from dpprobe.heads.search_space import Range
from dpprobe.heads.tuned import Options as Tuned
from dpprobe.options import NAME_PATTERN
from dpprobe.privacy.accountants import exactly_priced
from dpprobe.privacy.calibration import price, price_of_group, round_up, second_opinions
from dpprobe.privacy.limits import (
    LARGEST_EPSILON,
    SMALLEST_DELTA,
    SMALLEST_EPSILON,
    delta_fault,
    epsilon_token,
)
from dpprobe.privacy.plan import Mechanism, Patients, Plan, Selection
from dpprobe.privacy.private_mark import marked
from dpprobe.privacy.statement import kind_of, mechanism_values
from dpprobe.release import choice as choices
from dpprobe.release import documents
from dpprobe.release import evaluation as evaluations
from dpprobe.release.bundle import (
    BUNDLE_FILES,
    CARD_FILE,
    FACTS_FILE,
    HEAD_FILE,
    LISTED_FILES,
    PAGE_FILE,
    SIGNATURE_FILE,
    STATEMENT_FILE,
    SUMS_FILE,
    WEIGHTS,
    BundleFacts,
    damaged_files,
)
from dpprobe.release.card import write_card
from dpprobe.release.evidence import Evidence
from dpprobe.release.page import write_page
from dpprobe.release.published import check_keys, check_text
from dpprobe.release.signing import signature_holds
from dpprobe.release.statement import published_options, release_statement
from dpprobe.training.deciding import facts_of_plan
from dpprobe.training.plans import PRICE_TOLERANCE

T = TypeVar("T")
Values = Mapping[str, Any]

# Sizes and numbers beyond which a file is refused before it is read or priced.
LARGEST_TEXT, LARGEST_HEAD, HEADER_BYTES = 16 * 2**20, 8 * 2**30, 2**20
LARGEST_N, MOST_RELEASES = 10**10, 10**7
# Other libraries' answers, between versions of them and processors; sums of a ledger.
CHECK_TOLERANCE, LEDGER_TOLERANCE = 1e-4, 1e-4
_LONGEST_DETAIL = 600
# A source's own split, or the rule of one that was made here.
SPLIT_WORDS = r"(source|id, seed \d+, fraction 0\.\d+)"
_ANY = "@"

EVALUATION_KEYS = {
    "metric", "value", "interval", "standard_error", "n", "epsilon", "epsilon_target", "delta",
    "mechanisms", "released", "composition",
}  # fmt: skip
CHOICE_KEYS = {"cells", "epsilon", "words"}
LEDGER_KEYS = {"entry", "releases", "unit", "delta", "epsilon", "exact"}


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
      name: short.
      passed: None for what cannot be checked here, and for information.
      detail: a line.
    """

    name: str
    passed: bool | None
    detail: str


@dataclass(frozen=True)
class Report:
    """The result of `verify`."""

    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """True if no check failed; those that could not be made are listed with None."""
        return all(check.passed is not False for check in self.checks)


class _Checks:
    """Runs checks one after the other; what rests on a failed one is not checked."""

    def __init__(self) -> None:
        self.done: list[Check] = []

    def note(self, name: str, passed: bool | None, detail: str) -> None:
        self.done.append(Check(name, passed, _line(detail)))

    def run(self, name: str, function: Callable[..., tuple[str, T]], *inputs: Any) -> T | None:
        """Returns the function's result; None where it fails, whatever it raises.

        Args:
          function: returns a detail and a result.
          inputs: results of other checks.
        """
        if any(item is None for item in inputs):
            self.note(name, None, "not checked: it rests on what failed above")
            return None
        try:
            detail, result = function(*inputs)
        except Exception as error:  # whatever a stranger's file makes a library raise
            self.note(name, False, _reason(error))
            return None
        self.note(name, True, detail)
        return result


def verify(bundle: Path, *, public_key: Path | None = None) -> Report:
    """Checks all of a bundle that can be checked by whoever was handed it.

    Args:
      bundle: its folder.
      public_key: of who signed it, Ed25519, PEM, from another place than the bundle.

    Raises:
      DataError: when there is no such folder.
      ConfigError: when the public key cannot be read.
    """
    if not bundle.is_dir():
        raise DataError(f"{bundle}: not a folder; name the folder that holds {FACTS_FILE}")
    checks = _Checks()
    folder = checks.run("files", _files, bundle)
    checks.run("hashes", _hashes, folder)
    _check_signature(checks, folder, public_key)
    facts = checks.run("bundle.json", _facts, folder)
    options = checks.run("options", _options, facts)
    checks.run("engine", _engine, options)
    values = checks.run("privacy.json", _statement, folder)
    plan = checks.run("plan", _plan, values)
    matched = checks.run("mechanisms", _mechanisms, options, plan)
    checks.run("price", _priced, plan, matched)
    if isinstance(options, Auto):
        _check_rule(checks, options, plan, facts)
    words = checks.run("words", _rewritten, values, plan, options, facts)
    checks.run("head", _head, folder, facts, options, plan)
    blocks = (
        checks.run("evaluation", _evaluation, values, plan, facts),
        checks.run("choice", _choice, values, plan),
        checks.run("ledger", _ledger, values, plan),
        checks.run("evidence", _evidence, values, plan),
    )
    checks.run("documents", _documents, folder, facts, values, words, *blocks)
    checks.run("nothing private beside it", _leaks, folder)
    for text in _texts((values or {}).get("not_covered", ())):
        checks.note("not covered", None, text)
    return Report(tuple(checks.done))


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(error) if isinstance(error, DpprobeError) else f"cannot be read: {error!r}"


def _line(text: str) -> str:
    """Returns one printable line of bounded length: a file may hold control characters."""
    clean = "".join(
        letter if letter.isprintable() else " " if letter.isspace() else "?"
        for letter in text[: 2 * _LONGEST_DETAIL]
    )
    return clean if len(clean) <= _LONGEST_DETAIL else f"{clean[: _LONGEST_DETAIL - 3]}..."


def _require(holds: bool, fault: str) -> None:
    if not holds:
        raise DataError(fault)


def _files(folder: Path) -> tuple[str, Path]:
    """Checks that the folder holds a bundle's files, plain ones, and no others."""
    modes = {path.name: path.lstat() for path in folder.iterdir()}
    missing = [name for name in BUNDLE_FILES if name not in modes]
    others = sorted(set(modes) - {*BUNDLE_FILES, SIGNATURE_FILE})
    _require(not missing, f"missing: {', '.join(missing)}; fetch the bundle again")
    _require(not others, f"not of a bundle: {', '.join(others)}; remove them")
    for name, status in modes.items():
        _require(stat.S_ISREG(status.st_mode), f"{name}: not a plain file; fetch the bundle again")
        largest = LARGEST_HEAD if name == HEAD_FILE else LARGEST_TEXT
        _require(status.st_size <= largest, f"{name}: {status.st_size} bytes, above {largest}")
    return f"{len(modes)}, all of a bundle and no others", folder


def _hashes(folder: Path) -> tuple[str, bool]:
    damaged = damaged_files(folder)
    _require(not damaged, f"not as {SUMS_FILE} says: {', '.join(damaged)}; fetch the bundle again")
    lines = "".join(f"{sha256_file(folder / name)}  {name}\n" for name in LISTED_FILES)
    _require(
        (folder / SUMS_FILE).read_bytes() == lines.encode(),
        f"{SUMS_FILE}: not as dpprobe writes it; fetch the bundle again",
    )
    return f"all files are as {SUMS_FILE} says", True


def _check_signature(checks: _Checks, folder: Path | None, public_key: Path | None) -> None:
    if folder is None:
        checks.note("signature", None, "not checked: it rests on what failed above")
    elif not (folder / SIGNATURE_FILE).is_file():
        asked = public_key is not None
        checks.note(
            "signature",
            False if asked else None,
            "none, and a public key was given" if asked else "none: anyone can have made this",
        )
    elif public_key is None:
        checks.note("signature", None, "not checked: give --public-key")
    else:
        holds = signature_holds(folder, public_key)
        of = f"{SIGNATURE_FILE} is{'' if holds else ' not'} of the key {public_key.name}"
        checks.note("signature", holds, of)


def _json(path: Path) -> Any:
    """Reads JSON that reads the same everywhere: no NaN, no infinity, no key twice."""

    def number(text: str) -> float:
        value = float(text)
        _require(math.isfinite(value), f"{path.name}: the number {text[:30]}")
        return value

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(items)
        _require(len(values) == len(items), f"{path.name}: a key stands twice in one object")
        return values

    return json.loads(
        path.read_text(encoding="utf-8"),
        parse_float=number,
        parse_constant=number,
        object_pairs_hook=pairs,
    )


def _facts(folder: Path) -> tuple[str, BundleFacts]:
    path = folder / FACTS_FILE
    _json(path)
    facts = BundleFacts.model_validate_json(path.read_bytes(), strict=True)
    names = facts.class_names
    _require(0 < len(set(names)) == len(names), "class_names: none, or one stands twice")
    if not facts.backbone.trained:
        _require(facts.backbone.checkpoint is None, "backbone: not trained, yet with a checkpoint")
    for name in (facts.backbone.checkpoint or "", facts.name, facts.study, facts.dataset):
        _require("/" not in name and "\\" not in name, f"{name}: a path where a name belongs")
    sha256 = facts.backbone.weights_sha256
    _require(sha256 is None or _is_hash(sha256), f"weights_sha256 {sha256}: not a SHA-256")
    return f"release {facts.name} of {facts.dataset}, by dpprobe {facts.dpprobe}", facts


def _is_hash(text: Any) -> bool:
    return isinstance(text, str) and re.fullmatch(r"[0-9a-f]{64}", text) is not None


def _options(facts: BundleFacts) -> tuple[str, MethodOptions]:
    """Checks the head's options, and what follows from them in bundle.json."""
    head = facts.head
    options = method_options(head.options)
    _same("head.options", published_options(options), head.options)
    link = options.link_on(facts.multi_label)
    _require(head.link == link, f"head.link: {head.link}, and these options have {link}")
    _require(
        options.multi_label or not facts.multi_label,
        f"multi_label: head {options.head} with these options takes one label a row",
    )
    _require(
        (head.class_priors is not None) == options.releases_priors,
        f"head.{CLASS_PRIORS}: there are some, or none, against what the options release",
    )
    if isinstance(options, Tuned):
        _check_chosen(options, head.chosen)
    else:
        _require(head.chosen is None, "head.chosen: a search's, and these options have none")
    return f"head {options.head}, normalize {options.normalize.kind}", options


def _check_chosen(options: Tuned, chosen: Values | None) -> None:
    """Checks that a search could have chosen these values."""
    _require(chosen is not None and "score" in chosen, "head.chosen: missing, or without a score")
    values = {name: value for name, value in (chosen or {}).items() if name != "score"}
    if not values and (chosen or {})["score"] is None:
        return  # no trial was drawn
    _real("head.chosen.score", (chosen or {})["score"])
    _require(set(values) == set(options.search), "head.chosen: not the options that are searched")
    for name, value in values.items():
        space = options.search[name]
        inside = (
            space.low <= _real(name, value) <= space.high
            if isinstance(space, Range)
            else canonical_json(value) in {canonical_json(item) for item in space}
        )
        _require(inside, f"head.chosen.{name}: {value!r} is not in the space searched")
    options.trial(values)


def _engine(options: MethodOptions) -> tuple[str, bool]:
    _require(
        options.exact,
        f"head {options.head}: its releases are not exact, low bits may tell what was added; "
        "train it with engine: exact",
    )
    return "sums are whole numbers, and noise is rounded to them: no low bit tells", True


def _statement(folder: Path) -> tuple[str, Values]:
    values = _json(folder / STATEMENT_FILE)
    _require(isinstance(values, dict), "not a JSON object")
    _require(values["mode"] == "release", f"mode {values['mode']!r}, not release")
    _require(values["private"] is True, "private: not true, nothing is promised")
    return str(values["promise"]), values


def _real(name: str, value: Any) -> float:
    """Returns a number as it is.

    Raises:
      DataError: for anything that is not one.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    _require(number and abs(value) < 1e300, f"{name}: {value!r} is not a number")
    return float(value)


def _whole(name: str, value: Any, largest: int = LARGEST_N) -> int:
    whole = isinstance(value, int) and not isinstance(value, bool)
    _require(whole and 0 < value <= largest, f"{name}: {value!r} is not from 1 to {largest}")
    return int(value)


def _mechanism(values: Values) -> Mechanism:
    return Mechanism(
        name=str(values["name"]),
        released=str(values["released"]),
        sensitivity=_real("sensitivity", values["sensitivity"]),
        noise_multiplier=_real("noise_multiplier", values["noise_multiplier"]),
        sample_rate=_real("sample_rate", values["sample_rate"]),
        count=_whole("count", values["count"], MOST_RELEASES),
        kind=kind_of(values["noise"]),
    )


def _plan(values: Values) -> tuple[str, Plan]:
    """Reads the plan that a statement states."""
    unit = {words: key for key, words in Plan.UNITS.items()}[values["unit_of_privacy"]]
    selection, patients = values["selection"], values["patients"]
    plan = _bounded(
        Plan(
            mechanisms=tuple(_mechanism(item) for item in values["mechanisms"]),
            n=_whole("n", values["n"]),
            unit=unit,
            patients=patients and _patients(patients),
            epsilon=_real("epsilon_target", values["epsilon_target"]),
            delta=_real("delta", values["delta"]),
            accountant=_accountant(values["accountant"]),
            selection=Selection.from_dict(selection) if selection else None,
            realised_epsilon=_real("epsilon_realised", values["epsilon_realised"]),
            priced_by=values["accountant"],
            checks=dict(values["checks"]),
            check_notes=dict(values["check_notes"]),
        )
    )
    return f"n = {plan.n}, unit {plan.unit}, {plan.steps} noisy releases", plan


def _patients(values: Values) -> Patients:
    worth = values["epsilon"]
    return Patients(images=values["images"], epsilon=None if worth is None else float(worth))


def _accountant(label: Any) -> str:
    """Returns the accountant that a study names, by the one that priced."""
    name = str(label).split(" ")[0]
    return "pld" if name in ("gaussian", "exponential") else name


def _bounded(plan: Plan) -> Plan:
    """Returns a plan that can be priced in bounded time."""
    _require(
        SMALLEST_EPSILON <= plan.epsilon <= LARGEST_EPSILON and plan.delta >= SMALLEST_DELTA,
        f"epsilon {plan.epsilon:g}, delta {plan.delta:g}: outside what is calibrated",
    )
    fault = delta_fault(plan.delta, plan.n, unit=plan.unit)
    _require(fault is None, fault or "")
    return plan


def _mechanisms(options: MethodOptions, plan: Plan) -> tuple[str, bool]:
    """Checks sensitivities, counts, rates and how noise is split against the options."""
    check_plan(options, plan)
    _require(
        [item.name for item in plan.mechanisms] == [i.name for i in options.mechanisms(plan.n)],
        "mechanisms: in another order than the method's",
    )
    each = ", ".join(f"{item.count} of {item.name}" for item in plan.mechanisms)
    return f"sensitivities, rates and counts are those of the options: {each}", True


def _check_rule(
    checks: _Checks, options: Auto, plan: Plan | None, facts: BundleFacts | None
) -> None:
    """Checks that today's rule chooses these options; what another one chose is named alone."""
    if options.rule != RULE:
        checks.note(
            "rule of auto",
            None,
            f"rule {options.rule} chose head {options.trained.head}; not computed again: this "
            f"dpprobe has rule {RULE}",
        )
    else:
        checks.run("rule of auto", lambda *inputs: _rule(options, *inputs), plan, facts)


def _rule(options: Auto, plan: Plan, bundle: BundleFacts) -> tuple[str, bool]:
    facts = _data_facts(plan, bundle)
    expected = Auto(balanced=options.balanced).resolved(facts).for_release()
    _same("head.options", expected.model_dump(mode="json"), options.model_dump(mode="json"))
    return f"rule {RULE} chooses these options, from public facts alone", True


def _data_facts(plan: Plan, facts: BundleFacts) -> DataFacts:
    return facts_of_plan(
        plan,
        dimension=facts.dimension,
        classes=len(facts.class_names),
        multi_label=facts.multi_label,
    )


def _priced(plan: Plan, _matched: bool) -> tuple[str, bool]:
    return f"epsilon {_price(plan)}", True


def _price(plan: Plan) -> str:
    """Prices a plan anew, by its accountant and the others; returns what they say.

    Raises:
      PrivacyError: when the plan costs more than it promises, or says other prices.
    """
    cost = price(plan)
    says = f"epsilon {{}} at delta {plan.delta:g} is stated{{}}, and it is {{}}"
    if not cost <= plan.epsilon * (1 + 1e-9):
        raise PrivacyError(says.format(f"{plan.epsilon:g}", "", f"{cost:.6g} or more"))
    if not math.isclose(plan.realised_epsilon, cost, rel_tol=PRICE_TOLERANCE):
        raise PrivacyError(says.format(f"{plan.realised_epsilon:.6g}", "", f"{cost:.6g}"))
    by, computed, notes = second_opinions(plan)
    stated = _keyed(plan.checks)
    same = _unversioned(by) == _unversioned(plan.priced_by)
    if not same or set(stated) != {_unversioned(name) for name in computed}:
        raise PrivacyError(f"stated by {plan.priced_by}, checks {list(stated)}; here by {by}")
    _same("check_notes", _keyed(notes), _keyed(plan.check_notes))
    for name, value in computed.items():
        other = stated[_unversioned(name)]
        if (value is None) != (other is None) or (
            value is not None
            and not math.isclose(_real(name, other), value, rel_tol=CHECK_TOLERANCE)
        ):
            raise PrivacyError(says.format(other, f" by {name}", value))
    _check_patients(plan)
    others = [f"{value:.6g} by {name}" for name, value in computed.items() if value is not None]
    return f"{cost:.6g} at delta {plan.delta:g} by {by}; {', '.join(others)}"


def _unversioned(label: str) -> str:
    return re.sub(r"\(([\w-]+) [\w.+-]+\)", r"(\1)", str(label))


def _keyed(values: Mapping[str, T]) -> dict[str, T]:
    return {_unversioned(name): value for name, value in values.items()}


def _check_patients(plan: Plan) -> None:
    if plan.patients is None:
        return
    images, stated = plan.patients.images, plan.patients.epsilon
    worth = None if images is None else round_up(price_of_group(plan, _whole("images", images)))
    agree = stated == worth or (
        stated is not None
        and worth is not None
        and math.isclose(stated, worth, rel_tol=CHECK_TOLERANCE)
    )
    if not agree:
        raise PrivacyError(f"patients: epsilon {stated} is stated for {images} images: {worth}")


def _same(name: str, expected: Any, stated: Any) -> None:
    """Raises DataError unless two JSON values are the same, numbers' types included."""
    _require(
        canonical_json(expected) == canonical_json(stated),
        f"{name}: {_brief(stated)} is stated, and {_brief(expected)} follows",
    )


def _brief(value: Any) -> str:
    text = canonical_json(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def _rewritten(
    values: Values, plan: Plan, options: MethodOptions, facts: BundleFacts
) -> tuple[str, bool]:
    """Writes the statement again from options, facts and plan, and compares every field."""
    hashes = values["public_files"]
    _require(
        set(hashes) == {Path(name).name for name in options.public_files().values()}
        and all(map(_is_hash, hashes.values())),
        "public_files: not a SHA-256 of each public file of the options",
    )
    expected = release_statement(
        plan,
        method=facts.head.method,
        options=options,
        study=facts.study,
        public_data={
            "backbone": facts.backbone.name,
            "backbone_options": facts.backbone.options,
            "trained": facts.backbone.trained,
            "weights_sha256": facts.backbone.weights_sha256,
        },
        file_hashes=hashes,
        evaluation=values["evaluation"],
        choice=values["choice"],
        ledger=values["ledger"],
        evidence=values["evidence"],
        left_out=_left_out(values),
        chosen_from=options.chosen_from(_data_facts(plan, facts)),
    )
    other = set(expected) ^ set(values)
    _require(not other, f"keys missing or unknown: {', '.join(sorted(map(str, other)))}")
    for name, value in expected.items():
        try:
            _same(name, value, values[name])
        except DataError as error:
            raise DataError(f"{error}{_other_version(facts)}") from None
    return "the statement is what options, facts and noise give, word for word", True


def _left_out(values: Values) -> Values | None:
    """Returns by what near-duplicates are said to have been removed; None where they were not."""
    said: Values | None = values["public_data"].get("left_out")
    if said is not None:
        _require(set(said) == {"backbone", "threshold", "public"}, "left_out: other keys than its")
        names = [said["backbone"], *said["public"]]
        _require(
            isinstance(said["public"], list)
            and len(names) > 1
            and all(re.fullmatch(NAME_PATTERN, name) for name in names),
            "left_out: not names of a backbone and of public datasets",
        )
        _real("left_out.threshold", said["threshold"])
        _require(0 < said["threshold"] <= 1, "left_out.threshold: not in (0, 1]")
    return said


def _evidence(values: Values, plan: Plan) -> tuple[str, bool]:
    """Checks that the audit that a statement names may be one of its plan."""
    if values["evidence"] is None:
        return "no audit is stated", True
    evidence = Evidence.model_validate(values["evidence"])
    _require(
        evidence.epsilon_lower <= plan.realised_epsilon,
        f"epsilon_lower {evidence.epsilon_lower:g} is above the promise",
    )
    return "an audit is stated, whose numbers rest on the word of who made it", True


def _other_version(facts: BundleFacts) -> str:
    """Returns a remedy for texts of another version; nothing for this one's."""
    made, here = facts.dpprobe, version("dpprobe")
    return "" if made == here else f" by dpprobe {here}; verify with {made}, which made it"


def _documents(
    folder: Path, facts: BundleFacts, values: Values, *_checked: bool
) -> tuple[str, bool]:
    """Writes card and page again, from facts and statement that were checked, and compares."""
    with tempfile.TemporaryDirectory() as place:
        again = Path(place)
        write_card(again, facts, values)
        write_page(again, facts, values)
        for name in (CARD_FILE, PAGE_FILE):
            _require(
                (again / name).read_bytes() == (folder / name).read_bytes(),
                f"{name}: not what {FACTS_FILE} and {STATEMENT_FILE} give{_other_version(facts)}",
            )
    return f"{CARD_FILE} and {PAGE_FILE} say what {FACTS_FILE} and {STATEMENT_FILE} do", True


def _head(folder: Path, facts: BundleFacts, options: MethodOptions, plan: Plan) -> tuple[str, bool]:
    """Checks the tensors' names, types and shapes, that they are finite, and the file's mark."""
    shapes = {
        WEIGHTS: (len(facts.class_names), facts.dimension + 1),
        **_arrays(options.normalize, facts.dimension),
        **({CLASS_PRIORS: (len(facts.class_names),)} if options.releases_priors else {}),
    }
    size = 4 * sum(math.prod(shape) for shape in shapes.values())
    path = folder / HEAD_FILE
    _require(
        size < path.stat().st_size <= size + HEADER_BYTES,
        f"{path.stat().st_size} bytes, and the tensors of these options have {size}",
    )
    content = path.read_bytes()
    tensors = load(content)
    _require(
        {name: values.shape for name, values in tensors.items()} == shapes,
        f"tensors {_shapes(tensors)}; the options imply {shapes}",
    )
    for name, values in tensors.items():
        _require(values.dtype == np.float32, f"{name}: {values.dtype}, not float32")
        _require(bool(np.isfinite(values).all()), f"{name}: holds NaN or infinity")
    if options.releases_priors:
        priors = tensors[CLASS_PRIORS]
        _require(
            bool((priors > 0).all()) and math.isclose(float(priors.sum()), 1, rel_tol=1e-4),
            f"{CLASS_PRIORS}: not frequencies of classes, above 0 and of sum 1",
        )
        _same(f"head.{CLASS_PRIORS}", priors.tolist(), list(facts.head.class_priors or ()))
    cell = {
        "dataset": facts.dataset,
        "backbone": facts.backbone.name,
        "method": facts.head.method,
        "epsilon": epsilon_token(plan.epsilon),
    }
    length = int.from_bytes(content[:8], "little")
    _same(
        "metadata",
        marked(cell, facts.head.options),
        json.loads(content[8 : 8 + length]).get("__metadata__"),
    )
    return f"{', '.join(map(str, shapes))}: shapes as the options imply, all finite", True


def _arrays(spec: kinds.Normalisation, dimension: int) -> dict[str, tuple[int, ...]]:
    if isinstance(spec, kinds.AroundCentre):
        return {kinds.CENTRE: (dimension,)}
    if isinstance(spec, kinds.Channels):
        names = kinds.CHANNEL_MEANS, kinds.CHANNEL_DEVIATIONS
        return dict.fromkeys(names, (spec.channels,))
    return {}


def _shapes(tensors: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {values.shape}" for name, values in tensors.items())


def _keys(name: str, values: Any, keys: set[str]) -> Values:
    _require(isinstance(values, dict) and set(values) == keys, f"{name}: not of {sorted(keys)}")
    return dict(values)


def _evaluation(values: Values, plan: Plan, facts: BundleFacts) -> tuple[str, bool]:
    if values["evaluation"] is None:
        return "no test result is published", True
    block = _keys("evaluation", values["evaluation"], EVALUATION_KEYS)
    metric = block["metric"]
    _require(metric in ("accuracy", "auc"), f"metric {metric!r}: write accuracy or auc")
    tested = _tested(block, plan)
    evaluations.check_evaluation_plan(
        tested, metric, classes=len(facts.class_names), multi_label=facts.multi_label
    )
    cost = _test_price(tested)
    expected = [mechanism_values(item, tested) for item in tested.mechanisms]
    _same("mechanisms", expected, block["mechanisms"])
    _check_result(block, tested)
    words = re.escape(evaluations.composition_words(plan, tested, split=_ANY))
    _require(
        re.fullmatch(words.replace(re.escape(_ANY), SPLIT_WORDS), str(block["composition"]))
        is not None,
        "composition: not what head and test result cost",
    )
    return f"{documents.measured(block)}, epsilon {cost:.6g} on {tested.n} test units", True


def _tested(block: Values, plan: Plan) -> Plan:
    return _bounded(
        Plan(
            mechanisms=tuple(_mechanism(item) for item in block["mechanisms"]),
            n=_whole("n", block["n"]),
            unit=plan.unit,
            epsilon=_real("epsilon_target", block["epsilon_target"]),
            delta=_real("delta", block["delta"]),
            accountant="pld",
            realised_epsilon=_real("epsilon", block["epsilon"]),
        )
    )


def _test_price(tested: Plan) -> float:
    """Prices an evaluation, which never samples, exactly and by the other libraries."""
    cost = price(tested)
    _require(
        math.isclose(tested.realised_epsilon, cost, rel_tol=PRICE_TOLERANCE),
        f"epsilon {tested.realised_epsilon:g} is stated, and it is {cost:.6g}",
    )
    _require(
        math.isclose(tested.epsilon, cost, rel_tol=CHECK_TOLERANCE),
        f"epsilon_target {tested.epsilon:g}, and it is {cost:.6g}",
    )
    _, others, _ = second_opinions(replace(tested, realised_epsilon=min(cost, tested.epsilon)))
    _require(
        all(value is None or value >= 0.99 * cost for value in others.values()),
        f"epsilon {cost:.6g}, and other libraries say {others}",
    )
    return cost


def _check_result(block: Values, tested: Plan) -> None:
    """Checks value, interval, standard error and words against each other."""
    low, high = (_real("interval", end) for end in block["interval"])
    value, error = _real("value", block["value"]), _real("standard_error", block["standard_error"])
    _require(
        0 <= low <= value <= high <= 1 and low < high and error > 0,
        f"value {value:g} with interval {low:g} to {high:g}, standard error {error:g}",
    )
    stated = evaluations.Estimate(value, low, high, error)
    words = evaluations.released_words(block["metric"], stated, tested)
    if block["metric"] == "auc":  # with a remark on labels between the sentences
        first = words.split(". ")[0]
        _require(str(block["released"]).startswith(first), f"released: not {first!r} first")
        return
    # earlier bundles say nothing of constant answers
    earlier = words.replace(evaluations.CONSTANT_ANSWER, "")
    _same("released", earlier if block["released"] == earlier else words, block["released"])
    deviation = tested.mechanisms[0].noise_multiplier * tested.mechanisms[0].sensitivity
    computed = evaluations.accuracy_estimate(value, tested.n, deviation)
    _require(
        np.allclose(stated, computed, rtol=1e-6, atol=1e-6),
        f"interval {low:g} to {high:g}, standard error {error:g}; of this value and noise they "
        f"are {computed.low:g} to {computed.high:g}, {computed.standard_error:g}",
    )


def _choice(values: Values, plan: Plan) -> tuple[str, bool]:
    block = _keys("choice", values["choice"], CHOICE_KEYS)
    cells, epsilon, words = block["cells"], block["epsilon"], str(block["words"])
    _require(cells == 0 or _whole("cells", cells) > 0, "cells: not a number")
    if epsilon is not None:
        _require(cells > 0, "an epsilon, and no cells")
        _require(
            _real("epsilon", epsilon) > plan.realised_epsilon,
            f"epsilon {epsilon:g}: no more than the release alone costs",
        )
    if epsilon is not None or (cells == 0 and choices.NOT_COVERED not in words):
        _same("words", choices.choice_words(cells, epsilon, delta=plan.delta), block["words"])
    else:
        without_price = (
            choices.choice_words(cells, None, ["x"]),
            choices.choice_words(cells, None, unknown=["x"]),
        )
        begins = tuple(text.split("x.")[0] for text in without_price)
        _require(
            words.startswith(begins) and words.endswith(choices.TEST_UNITS),
            "words: do not say that the choice is not covered",
        )
    return words, True


def _ledger(values: Values, plan: Plan) -> tuple[str, bool]:
    """Checks that the sum of all releases is no less than this release alone."""
    block = _keys("ledger", values["ledger"], LEDGER_KEYS)
    entry, count = (_whole(name, block[name]) for name in ("entry", "releases"))
    _same("unit", plan.unit, block["unit"])
    _same("delta", plan.delta, block["delta"])
    _require(isinstance(block["exact"], bool), "exact: neither true nor false")
    known = exactly_priced(plan.mechanisms, plan.selection)
    _require(known or not block["exact"], "exact: of what samples or repeats it is a bound")
    total = _real("epsilon", block["epsilon"])
    tested = values["evaluation"]
    sides = [plan.realised_epsilon]
    if tested and tested["delta"] == plan.delta:
        sides.append(_real("evaluation.epsilon", tested["epsilon"]))
    least = max(sides)
    _require(
        total >= least * (1 - LEDGER_TOLERANCE),
        f"epsilon {total:g}: less than the {least:g} of this release alone",
    )
    if count == 1 and block["exact"]:
        _require(
            total <= least * (1 + LEDGER_TOLERANCE),
            f"epsilon {total:g}: of one release, which costs {least:g}",
        )
    more = "exactly" if block["exact"] else "at most"
    releases = "1 release costs" if count == 1 else f"{count} releases together cost"
    return f"entry {entry}; {releases} {more} epsilon {total:g}, as the ledger said", True


def _leaks(folder: Path) -> tuple[str, bool]:
    """Looks for keys and texts that must not be in a bundle."""
    for name in (FACTS_FILE, STATEMENT_FILE):
        check_keys(_json(folder / name), where=name)
    for name in LISTED_FILES:
        if name != HEAD_FILE:
            check_text((folder / name).read_text(encoding="utf-8"), where=name)
    return "no seeds, fingerprints, paths or times by their names or looks", True


def _texts(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []
