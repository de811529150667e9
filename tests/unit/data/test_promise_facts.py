"""Every option that may affect a guarantee is noticed; facts are only read in one place."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from dpprobe.data.promise_facts import PromiseFacts, promise_facts
from dpprobe.data.registry import SOURCES, dataset_options

# The facts that each option of a source affects.
BEARS = {
    "unit_column": {"unit_column", "split_rule"},
    "subsample": {"subsample", "subsample_fault"},
    "max_images_per_patient": {"images_per_patient", "images_fault"},
    "split_by": {"split_rule", "split_fault"},
    "split_seed": {"split_rule"},
    "test_fraction": {"split_rule"},
    "same_units_as": {"same_units_as"},
    "duplicates": {"copies_across"},
    "id_column": {"ids_across"},
    "filters": {"images_fault", "labels_fault"},
    "missing": {"images_fault", "labels_fault"},
    "uncertain": {"images_fault", "labels_fault"},
    "split_column": {"labels_fault"},
    "layout": {"split_rule", "unit_column", "labels_fault"},
}
# Options that cannot affect a guarantee, by the reason.
REASONS = {
    "say where the rows are: a row that is missing or unreadable is a null row": (
        "source name path root train test files revision repo table test_table train_values "
        "test_values joins extract path_column path_template test_path_template "
        "delimiter limit exclude downloads unreadable"
    ),
    "leaves out rows by their own names, which null rows keep": "companions",
    "name values of the own row": (
        "label_column label_columns class_names several_labels accepted_labels group_columns "
        "image_column vectors pool shard_in_id"
    ),
    "check, store or show": (
        "catalog expect verify metric missing_classes prompts prompt_names embed"
    ),
    "is checked with n by each fit": "delta",
    "is one of cells": "allow_delta_above_one_over_n",
    "is the unit that a study or an estimator names": "unit",
    "only takes back a refusal": "other_units_than",
    "is refused for private images": "unlabelled",
}
PLAIN = {option for options in REASONS.values() for option in options.split()}


def list_options() -> Iterator[tuple[str, str]]:
    for source, module in SOURCES.items():
        yield from ((source, option) for option in import_module(module).Options.model_fields)


@pytest.mark.parametrize("source", SOURCES)
def test_each_source_option_is_declared_to_affect_a_fact_or_none(source: str) -> None:
    options = {option for one, option in list_options() if one == source}
    assert options <= BEARS.keys() | PLAIN, sorted(options - BEARS.keys() - PLAIN)


def test_every_fact_comes_from_an_option_or_a_count() -> None:
    counted = {"copies", "test_copies"}
    assert set().union(*BEARS.values()) | counted == {each.name for each in fields(PromiseFacts)}
    assert {option for _, option in list_options()} == BEARS.keys() | PLAIN


ROWS = {"source": "csv", "train": "rows.csv", "label_column": "kind", "class_names": ["a", "b"]}
VARIANTS: dict[str, dict[str, Any]] = {
    "unit_column": {"unit_column": "who"},
    "images_per_patient": {"unit_column": "who", "max_images_per_patient": 3},
    "split_rule": {"split_by": "id", "split_seed": 4},
    "split_fault": {"split_by": "class"},
    "images_fault": {
        "unit_column": "who",
        "max_images_per_patient": 3,
        "unit": "image",
        "missing": "drop",
        "split_by": "id",
    },
    "labels_fault": {"filters": {"kind": ["a"]}},
    "subsample": {"split_by": "id", "subsample": {"fraction": 0.25, "seed": 2}},
    "subsample_fault": {"split_by": "id", "subsample": {"per_class": 2}},
    "same_units_as": {"same_units_as": "films"},
}


@pytest.mark.parametrize("fact", VARIANTS)
def test_an_option_s_fact_survives_a_manifest(fact: str) -> None:
    """Features carry facts along as JSON."""
    facts = promise_facts(
        dataset_options({**ROWS, **VARIANTS[fact]}), copies={"image": {"rows": 1}}, copies_across=2
    )
    assert getattr(facts, fact) != getattr(PromiseFacts(), fact)
    again = PromiseFacts.from_dict(json.loads(json.dumps(facts.to_dict())))
    assert again == facts
    assert VARIANTS.keys() | {"copies", "test_copies", "copies_across", "ids_across"} == {
        each.name for each in fields(PromiseFacts)
    }


def test_an_unknown_promise_fact_is_refused() -> None:
    """A later version's manifest may have a fact that this version would ignore."""
    with pytest.raises(TypeError):
        PromiseFacts.from_dict({"twins": 3})


# Files that may read these facts directly from options, with the reason.
READS = {
    "public_split": {"release/asked_release.py"},  # stored as the split's key in a ledger
    "named_people": {
        "analyses/fairness/__init__.py",  # for the columns of groups
        "draft/seen_dataset.py",
        "study/class_split_checks.py",
        "study/study.py",
    },
    "images_per_patient": {"estimator/known_rows.py", "estimator/planned_fit.py"},
    "duplicates_across_splits": set(),
    "train_copies": set(),
    "copies_across": {"release/asked_release.py"},
    "ids_across": set(),
}


def test_facts_are_gathered_in_one_place(repository: Path) -> None:
    """Packages other than `data` read facts from `PromiseFacts`, so that none can be forgotten."""
    package, found = repository / "src/dpprobe", dict[str, set[str]]()
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        if name.startswith("data/"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in READS:
                found.setdefault(node.attr, set()).add(name)
    assert found == {fact: places for fact, places in READS.items() if places}
