"""Writes statement, model card and page again, and compares the texts with the bundle's files."""

from __future__ import annotations

from pathlib import Path

from dpprobe.errors import DataError
from dpprobe.heads.auto import Options as Auto
from dpprobe.heads.auto import describe_choice
from dpprobe.heads.facts import DataFacts
from dpprobe.heads.options import MethodOptions
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.target import Target
from dpprobe.release.bundle import CARD_FILE, FACTS_FILE, PAGE_FILE, STATEMENT_FILE, BundleFacts
from dpprobe.release.documents.model_card import make_card
from dpprobe.release.documents.page import make_page
from dpprobe.release.documents.release_statement import release_statement
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
from dpprobe.versions import code_version


def check_words(
    values: Values, plan: Plan, options: MethodOptions, facts: BundleFacts
) -> tuple[str, bool]:
    """Writes the statement again from options, facts and plan, and compares every field."""
    hashes = values["public_files"]
    require_true(
        set(hashes) == {Path(name).name for name in options.public_files().values()}
        and all(map(is_hash, hashes.values())),
        "public_files: the SHA-256 of a public file of the options is missing",
    )
    expected = release_statement(
        plan,
        options,
        facts,
        file_hashes=hashes,
        blocks={name: values.get(name) for name in (*ALWAYS_STATED, *STATED_IF_ASKED)},
        subsample=_subsample(values),
        chosen_from=describe_choice(options, data_facts(options, plan, facts, values)),
    )
    other = set(expected) ^ set(values)
    require_true(not other, f"keys missing or unknown: {', '.join(sorted(map(str, other)))}")
    del expected["parts"]  # `check_parts` compares each part
    for name, value in expected.items():
        try:
            require_same(name, value, values[name])
        except DataError as error:
            raise DataError(f"{error}{_other_version(facts)}") from None
    return "the statement follows from options, facts and noise, word for word", True


def check_parts(values: Values, facts: BundleFacts) -> tuple[str, bool]:
    """Compares classes, preprocessing, probe and backbone with the statement."""
    computed = facts.hash_parts()
    block = read_block("parts", values["parts"], set(computed))
    for name, expected in computed.items():
        require_true(block[name] == expected, f"{name}: {FACTS_FILE} and {STATEMENT_FILE} differ")
    return f"{', '.join(computed)} match {STATEMENT_FILE}", True


def data_facts(options: MethodOptions, plan: Plan, facts: BundleFacts, values: Values) -> DataFacts:
    """Returns the public facts of a bundle, with its metric from rule 2 of `auto` on."""
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
    """Returns the stated choice of training examples; None if all examples were used."""
    said: Values | None = values["public_data"].get("subsample")
    if said is not None:
        read_block("subsample", said, {"fraction", "public_seed"})
        require_true(0 < read_real("fraction", said["fraction"]) <= 1, "fraction: not in (0, 1]")
        read_whole("public_seed + 1", said["public_seed"] + 1, largest=2**64)
    return said


def _other_version(facts: BundleFacts) -> str:
    made, here = facts.dpprobe, code_version()
    return (
        ""
        if made == here
        else f"; this is dpprobe {here}: verify with {made}, which made the bundle"
    )


def check_documents(
    folder: Path, facts: BundleFacts, values: Values, *_checked: bool
) -> tuple[str, bool]:
    """Rewrites model card and page from verified facts, and compares them with the bundle's."""
    for name, write in ((CARD_FILE, make_card), (PAGE_FILE, make_page)):
        require_true(
            write(facts, values).encode() == (folder / name).read_bytes(),
            f"{name}: does not follow from {FACTS_FILE} and "
            f"{STATEMENT_FILE}{_other_version(facts)}",
        )
    return f"{CARD_FILE} and {PAGE_FILE} follow from {FACTS_FILE} and {STATEMENT_FILE}", True
