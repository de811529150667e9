"""Derives a bundle's statement, model card and page again, and compares them with its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpprobe.heads.auto import Options as Auto
from dpprobe.heads.auto import describe_choice
from dpprobe.heads.facts import DataFacts
from dpprobe.heads.options import MethodOptions
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.statement_words import explain_statement
from dpprobe.privacy.target import Target
from dpprobe.release.bundle import (
    CARD_FILE,
    FACTS_FILE,
    PAGE_FILE,
    STATEMENT_FILE,
    Bundle,
    BundleFacts,
)
from dpprobe.release.documents.model_card import make_card
from dpprobe.release.documents.page import make_page
from dpprobe.release.documents.release_statement import release_statement
from dpprobe.release.earlier_bundles import FORMAT_VERSION
from dpprobe.release.stated_plans import CHECK_TOLERANCE, agree, read_plan, tested_blocks
from dpprobe.release.stated_values import (
    Values,
    is_hash,
    read_block,
    read_real,
    read_whole,
    require_same,
    require_true,
)
from dpprobe.release_part_registry import ALWAYS_STATED, STATED_IF_ASKED

# Fields that statements of version 2 lack, or had only in sentences.
ADDED_TO_EARLIER = {
    "multi_label",
    "relation",
    "outputs",
    "engine_limits",
    "unpriced",
    "public",
    "not_covered",
}
# Computed numbers, whose last digits differ between versions of libraries and processors.
_ROUNDED = {"allows", "mu"}


def check_facts(
    values: Values, plan: Plan, options: MethodOptions, facts: BundleFacts
) -> tuple[str, Values]:
    """Derives the statement again from options, facts and plan, and compares every stated field.

    Returns the promise in words, and the statement with the fields that a bundle of an earlier
    version does not state.
    """
    hashes = values["public_files"]
    require_true(
        set(hashes) == {Path(name).name for name in options.public_files().values()}
        and all(map(is_hash, hashes.values())),
        "public_files: the SHA-256 of a public file of the options is missing",
    )
    derived = derive_statement(values, plan, options, facts)
    added = set() if values["format_version"] == FORMAT_VERSION else ADDED_TO_EARLIER
    other = set(derived) ^ (set(values) | added)
    require_true(not other, f"keys missing or unknown: {', '.join(sorted(map(str, other)))}")
    derived["options"] = facts.head.options  # old bundles lack options that were added later
    whole = {**derived, **values}
    for name in derived:
        if name in ("parts", "format_version"):  # `check_parts` compares each part
            continue
        if name in _ROUNDED:
            same = agree(derived[name], whole[name], CHECK_TOLERANCE)
            require_true(same, f"{name}: {whole[name]} is stated, but {derived[name]} is computed")
        else:
            require_same(name, derived[name], whole[name])
    return explain_statement(whole).promise, whole


def derive_statement(
    values: Values, plan: Plan, options: MethodOptions, facts: BundleFacts
) -> dict[str, Any]:
    """Returns the statement of a bundle as this version derives it from the bundle's facts."""
    return release_statement(
        plan,
        options,
        facts,
        file_hashes=values["public_files"],
        blocks={name: values.get(name) for name in (*ALWAYS_STATED, *STATED_IF_ASKED)},
        subsample=_subsample(values),
        chosen_from=describe_choice(options, data_facts(options, plan, facts, values)),
        test_units=read_test_units(values),
    )


def complete_statement(bundle: Bundle) -> Values:
    """Returns a bundle's statement with the fields that its version did not state."""
    _, plan = read_plan(bundle.statement)
    options = bundle.facts.head.read_options()
    return {**derive_statement(bundle.statement, plan, options, bundle.facts), **bundle.statement}


def check_parts(values: Values, facts: BundleFacts) -> tuple[str, bool]:
    """Compares hashes of classes, preprocessing, probe and backbone with the statement."""
    computed = facts.hash_parts()
    block = read_block("parts", values["parts"], set(computed))
    for name, expected in computed.items():
        require_true(block[name] == expected, f"{name}: {FACTS_FILE} and {STATEMENT_FILE} differ")
    return f"{', '.join(computed)} match {STATEMENT_FILE}", True


def data_facts(options: MethodOptions, plan: Plan, facts: BundleFacts, values: Values) -> DataFacts:
    """Returns the public facts of a bundle; `auto` depends on the metric since its rule 2."""
    follows_metric = isinstance(options, Auto) and options.rule != 1
    tested = values.get("evaluation") if follows_metric else None
    return DataFacts.of_target(
        Target.of_plan(plan),
        dimension=facts.dimension,
        classes=len(facts.class_names),
        multi_label=facts.multi_label,
        metric=tested["metric"] if tested else None,
    )


def _subsample(values: Values) -> Values | None:
    """Returns how training examples were chosen, as stated; None if all were used."""
    said: Values | None = values["public_data"].get("subsample")
    if said is not None:
        read_block("subsample", said, {"fraction", "public_seed"})
        require_true(0 < read_real("fraction", said["fraction"]) <= 1, "fraction: not in (0, 1]")
        read_whole("public_seed + 1", said["public_seed"] + 1, largest=2**64)
    return said


def read_test_units(values: Values) -> Values | None:
    """Returns the stated facts about test units; None unless a part measures test units."""
    said: Values | None = values["test_units"]
    require_true((said is not None) == bool(tested_blocks(values)), "test_units: present or absent")
    if said is None:
        return None
    read_block("test_units", said, {"n", "split", "compared"})
    read_whole("test_units.n", said["n"])
    for block in tested_blocks(values):
        require_same("test_units.n", block["n"], said["n"])
    if values["format_version"] == FORMAT_VERSION:  # version 2 had the other facts in sentences
        known = said["compared"] in ([], ["bytes"], ["bytes", "pixels"])
        require_true(known, f"test_units.compared: {said['compared']!r} is no comparison")
        _check_split(said["split"])
    return said


def _check_split(split: Values) -> None:
    """Checks the rule of a split: the data source's split, or dpprobe's split by ids."""
    if split == {"by": "source"}:
        return
    read_block("split", split, {"by", "public_seed", "fraction"})
    require_true(split["by"] == "id", f"split: by {split['by']!r}, which releases do not have")
    read_whole("split.public_seed + 1", split["public_seed"] + 1, largest=2**64)
    require_true(0 < read_real("split.fraction", split["fraction"]) < 1, "split: not a fraction")


def explain_bundle(bundle: Bundle, *, page: bool) -> str:
    """Writes the page or the model card of a verified bundle, in the words of this version."""
    write = make_page if page else make_card
    return write(bundle.facts, complete_statement(bundle))


def check_documents(
    folder: Path, facts: BundleFacts, whole: Values, *_checked: bool
) -> tuple[str, bool]:
    """Derives model card and page from verified facts, and compares them with the bundle's."""
    for name, write in ((CARD_FILE, make_card), (PAGE_FILE, make_page)):
        require_true(
            write(facts, whole).encode() == (folder / name).read_bytes(),
            f"{name}: does not follow from {FACTS_FILE} and {STATEMENT_FILE}",
        )
    return f"{CARD_FILE} and {PAGE_FILE} follow from {FACTS_FILE} and {STATEMENT_FILE}", True
