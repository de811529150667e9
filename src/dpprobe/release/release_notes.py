"""Writes release notes: a comparison of a release with its predecessor, for its deployment.

Release notes use only two public bundles, and the total epsilon of a ledger, which depends only on
plans. Release notes therefore reveal nothing about private data that bundles do not reveal.

**Difference of two test results.** Each test result has a 95% interval, which covers the noise and
the choice of test units. The noise of two releases' results is independent, but two releases may
have measured equal test units, so errors may be dependent. For any dependence, the standard
deviation of a difference is at most the sum of the two standard deviations (Minkowski). For normal
errors, the largest and smallest difference between two 95% intervals are therefore limits at 95%
confidence. For other errors, the limits hold at 90% confidence (Bonferroni).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dpprobe.counted_nouns import count_noun
from dpprobe.errors import DataError
from dpprobe.privacy.statement_words import format_epsilon, format_small
from dpprobe.privacy.unit_words import words_of_statement
from dpprobe.release.bundle import SUMS_FILE, Bundle, BundleFacts, bundle_digest
from dpprobe.release.documents.document_values import as_code, in_markdown
from dpprobe.release.ledger.ledger import Ledger
from dpprobe.release.stated_plans import tested_blocks
from dpprobe.release_part_registry import load_readers

# Facts about a backbone that do not affect a deployment.
_UNUSED = {"name", "probe", "versions", "trained"}


def write_notes(
    new: Bundle, old: Bundle, *, ledger: Ledger | None = None, max_epsilon: float | None = None
) -> str:
    """Writes the notes of a release that replaces another release, in Markdown.

    Args:
      ledger: the ledger of the release's dataset, for the current total epsilon; by default the
        notes have only the total at the time of the release.
      max_epsilon: the limit of the total epsilon.

    Raises:
      DataError: if the release names another predecessor, or the ledger does not have the release.
    """
    named = load_readers()["predecessor"].read(new.statement)
    if named is not None and named["sha256"] != bundle_digest(old.folder):
        raise DataError(
            f"{old.folder}: not the predecessor that {new.folder} names, which is {named['name']} "
            f"with the SHA-256 {named['sha256']} of its {SUMS_FILE}; pass that bundle"
        )
    before, now = as_code(old.facts.name), as_code(new.facts.name)
    deployment = [
        *_compare_classes(new.facts.class_names, old.facts.class_names),
        *_list_changes(_deployed(new), _deployed(old)),
    ]
    chosen = [f"{now} names no predecessor; this comparison with {before} was chosen.", ""]
    lines = [
        f"# {now}, compared with {before}",
        "",
        *([] if named else chosen),
        "## Test result",
        "",
        *_compare_results(new, old),
        "",
        "## Privacy",
        "",
        f"| | {before} | {now} |",
        "|---|---|---|",
        *_list_privacy(new.statement, old.statement),
        "",
        _state_total(new, ledger, max_epsilon),
        "",
        "## What changes for a deployment",
        "",
        *(deployment or ["- nothing: classes, backbone and output are as before"]),
        "",
        "## What changes in training",
        "",
        *(_list_changes(_training(new.facts), _training(old.facts)) or ["- no option"]),
    ]
    return "\n".join([*lines, ""])


def _compare_results(new: Bundle, old: Bundle) -> list[str]:
    before, now = (each.statement["evaluation"] for each in (old, new))
    shown = []
    for each, result in ((old, before), (new, now)):
        said = f"{_show(each.statement)['measured']}, n = {result['n']:,}" if result else "none"
        shown.append(f"- {as_code(each.facts.name)}: {in_markdown(said)}")
    if not before or not now or before["metric"] != now["metric"]:
        verdict = "The test results cannot be compared: both releases must publish one metric."
        return [verdict, "", *shown]
    test = f"test {words_of_statement(new.statement).many}"
    how = (
        f"The interval adds the margins of both results, because both results may share {test}. "
        f"Different {test} may explain a part of the difference."
    )
    told = ["", how] if all(_show(each.statement)["telling"] for each in (new, old)) else []
    return [state_difference(new.statement, old.statement), "", *shown, *told]


def _show(statement: Mapping[str, Any]) -> Mapping[str, Any]:
    values: Mapping[str, Any] = load_readers()["evaluation"].show(statement)
    return values


def state_difference(new: Mapping[str, Any], old: Mapping[str, Any]) -> str:
    """States the difference of two statements' test results by one metric, with a 95% CI.

    The interval is conservative. A result whose interval contains nearly all values has no
    difference to any other.
    """
    now, before = new["evaluation"], old["evaluation"]
    low = now["interval"][0] - before["interval"][1]
    high = now["interval"][1] - before["interval"][0]
    name = _show(new)["metric"]
    if not (_show(new)["telling"] and _show(old)["telling"]):
        return (
            f"{name}: the two results cannot be compared, because at least one is not measurable. "
            "To measure a difference, release with more test units or a larger epsilon of the test "
            "result."
        )
    factor, digits, unit = (1, 3, "") if now["metric"] == "auc" else (100, 1, " points")
    shown, least, most = (
        f"{factor * each:+.{digits}f}" for each in (now["value"] - before["value"], low, high)
    )
    verdict = "higher than before" if low > 0 else "lower than before" if high < 0 else None
    told = f"{name}: " + (verdict or "the two results cannot be told apart")
    return f"{told}. Difference {shown}{unit} (95% CI {least} to {most})."


def _list_privacy(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[str]:
    def test_epsilon(statement: Mapping[str, Any]) -> str:
        prices = [block["epsilon"] for block in tested_blocks(statement)]
        return ", ".join(map(format_epsilon, prices)) or "none"

    rows = {
        "epsilon of training": lambda each: format_epsilon(each["epsilon_realised"]),
        "delta": lambda each: format_small(each["delta"]),
        "unit of privacy": lambda each: in_markdown(words_of_statement(each).whole),
        "training units (n)": lambda each: f"{each['n']:,}",
        "epsilon of test result, calibration and monitoring": test_epsilon,
    }
    for title, show in rows.items():
        yield f"| {title} | {show(old)} | {show(new)} |"


def _state_total(new: Bundle, ledger: Ledger | None, max_epsilon: float | None) -> str:
    block = new.statement["ledger"]
    total = str(in_markdown(load_readers()["ledger"].show(new.statement)["spent"]))
    if ledger is not None:
        if bundle_digest(new.folder) not in {entry.digest for entry in ledger.read_entries()}:
            raise DataError(
                f"{ledger.path}: has no entry of {new.folder}; pass the ledger of its dataset"
            )
        spent = ledger.compute_spent(block["delta"])
        block = spent.to_block(entry=None, unit=block["unit"], delta=block["delta"])
        total += (
            f" Today's total over {count_noun(spent.entries, 'release')}: "
            f"{'' if spent.exact else 'at most '}epsilon {format_epsilon(spent.epsilon)}."
        )
    if max_epsilon is not None:
        left = max(0.0, max_epsilon - block["epsilon"])
        total += (
            f" The limit is epsilon {max_epsilon:g}, which leaves {left:.3g} if the limit is at "
            f"delta {format_small(block['delta'])}, as this total is. Releases together cost less "
            "than the sum of their epsilons, so a slightly larger release may fit."
        )
    return total


def _compare_classes(new: Sequence[str], old: Sequence[str]) -> list[str]:
    """Lists classes added, removed, renamed or moved; a renamed class keeps its position."""
    pairs = zip(old, new, strict=False) if len(old) == len(new) else ()
    renamed = {a: b for a, b in pairs if a not in new and b not in old}
    lines = [
        f"- class {as_code(a)} is now {as_code(b)}: renamed, or replaced"
        for a, b in renamed.items()
    ]
    groups = {
        "added": [name for name in new if name not in old and name not in renamed.values()],
        "removed": [name for name in old if name not in new and name not in renamed],
    }
    lines += [
        f"- classes {done}: {', '.join(map(as_code, names))}"
        for done, names in groups.items()
        if names
    ]
    if [name for name in old if name in new] != [name for name in new if name in old]:
        lines.append(f"- another order of classes in every output: {', '.join(map(as_code, new))}")
    return lines


def _deployed(bundle: Bundle) -> dict[str, Any]:
    """Returns the facts of a bundle that affect a head's inputs and outputs."""
    facts = bundle.facts
    normalize = facts.head.options.get("normalize")
    return {
        "backbone": facts.backbone.model_dump(mode="json", exclude=_UNUSED),
        "features per image": facts.dimension,
        "normalisation": normalize if isinstance(normalize, str) else json.dumps(normalize),
        "several labels per image": facts.multi_label,
        "scores to probabilities": bundle.link,
        "calibrated, with sets and abstention": bundle.calibration is not None,
        "operating point": bundle.calibration and bundle.calibration.operating_point,
        "comparison of new images (--monitor)": "monitor" in bundle.statement,
        "trained for equally frequent classes": facts.head.class_priors is not None,
    }


def _training(facts: BundleFacts) -> dict[str, Any]:
    options = {key: value for key, value in facts.head.options.items() if key != "normalize"}
    return {"dataset": facts.dataset, "method": facts.head.method, "options": options}


def _list_changes(new: Mapping[str, Any], old: Mapping[str, Any]) -> list[str]:
    before, now = dict(_flatten(old)), dict(_flatten(new))
    return [
        f"- {in_markdown(key)}: {_as_json(before.get(key))}, now {_as_json(now.get(key))}"
        for key in dict.fromkeys([*before, *now])
        if before.get(key) != now.get(key)
    ]


def _flatten(values: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{place}{key}.")
        else:
            yield f"{place}{key}", value


def _as_json(value: Any) -> str:
    if value is None:
        return "none"
    return as_code(value if isinstance(value, str) else json.dumps(value))
