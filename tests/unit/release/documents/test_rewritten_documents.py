"""Card, page and statement that somebody edited, with recomputed hashes."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest

from dpprobe.errors import DataError
from dpprobe.files.json_files import read_json
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.registry import method_options
from dpprobe.release import bundle, stated_plans
from dpprobe.release.documents import rewritten_documents
from dpprobe.release.documents.release_statement import release_statement
from dpprobe.release.verification import method, verify
from tests.support.bundles import state_tested, write_example
from tests.support.refusals import refuses
from tests.support.releases import measured
from tests.unit.release.verification.test_verify import documented


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_example(
        tmp_path_factory.mktemp("bundle") / "whole", subsample={"fraction": 0.25, "public_seed": 7}
    )
    documented(folder)
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "copy"))


def check_documents(folder: Path) -> tuple[str, bool]:
    values = read_json(folder / bundle.STATEMENT_FILE)
    return rewritten_documents.check_documents(folder, bundle.read_facts(folder), values)


@pytest.mark.parametrize("name", [bundle.CARD_FILE, bundle.PAGE_FILE])
def test_an_edited_text_differs_by_its_hash_and_by_its_facts(folder: Path, name: str) -> None:
    check_documents(folder)
    text = (folder / name).read_bytes()
    (folder / name).write_bytes(text.replace(b"epsilon", b"Epsilon", 1))
    with refuses(DataError, "SHA256SUMS", name):
        verify.check_hashes(folder)
    bundle.write_sums(folder)
    verify.check_hashes(folder)
    with refuses(DataError, name, "bundle.json", "privacy.json"):
        check_documents(folder)
    verify.check_leaks(folder)


@pytest.mark.parametrize("name", [bundle.CARD_FILE, bundle.PAGE_FILE])
@pytest.mark.parametrize(
    ("leak", "what"), [("/home/anna/x", "'/home/'"), ("2026-01-31 12:30", "time")]
)
def test_a_leak_in_a_text_is_named_with_its_file(
    folder: Path, name: str, leak: str, what: str
) -> None:
    text = (folder / name).read_text(encoding="utf-8")
    (folder / name).write_text(text.replace("epsilon", leak, 1), encoding="utf-8")
    with refuses(DataError, name, what):
        verify.check_leaks(folder)


def test_a_private_key_in_a_statement_is_named(folder: Path) -> None:
    path = folder / bundle.STATEMENT_FILE
    path.write_text(path.read_text().replace('"relation"', '"my_seed"', 1))
    with refuses(DataError, "privacy.json", "my_seed"):
        verify.check_leaks(folder)


def check_facts(folder: Path, values: dict[str, Any]) -> dict[str, Any]:
    """Checks a statement and returns all of it."""
    facts = bundle.read_facts(folder)
    plan, options = stated_plans.read_plan(values)[1], method.read_options(facts)[1]
    return dict(rewritten_documents.check_facts(values, plan, options, facts)[1])


SUBSAMPLE = ["fraction", "public_seed"]


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ({}, ("subsample", SUBSAMPLE)),
        (1, ("subsample", SUBSAMPLE)),
        ({"fraction": 0.25, "public_seed": 7, "n": 9}, ("subsample", SUBSAMPLE)),
        ({"fraction": 2, "public_seed": 7}, ("fraction", "(0, 1]")),
        ({"fraction": 0, "public_seed": 7}, ("fraction", "(0, 1]")),
        ({"fraction": -0.5, "public_seed": 7}, ("fraction", "(0, 1]")),
        ({"fraction": 0.25, "public_seed": -1}, ("public_seed + 1", 0, 1)),
        ({"fraction": 0.25, "public_seed": 2**64}, ("public_seed + 1", 2**64)),
        (None, ("public",)),
    ],
    ids=str,
)
def test_another_subsample_is_named(original: Path, said: Any, fault: tuple[object, ...]) -> None:
    values = read_json(original / bundle.STATEMENT_FILE)
    check_facts(original, values)
    values["public_data"]["subsample"] = said
    with refuses(DataError, *fault):
        check_facts(original, values)


@pytest.mark.parametrize("key", ["parts", "relation", "not_covered", "evidence"])
def test_missing_and_unknown_keys_of_a_statement_are_named(original: Path, key: str) -> None:
    whole = read_json(original / bundle.STATEMENT_FILE)
    less = {name: value for name, value in whole.items() if name != key}
    with refuses(DataError, key):
        check_facts(original, less)
    with refuses(DataError, "another"):
        check_facts(original, whole | {"another": 1})
    assert check_facts(original, whole) == whole


def test_a_head_that_no_rule_chose_states_no_rule(original: Path) -> None:
    values = copy.deepcopy(read_json(original / bundle.STATEMENT_FILE))
    values["chosen_from"] = {"head": "newton", "rule": "auto rule 1"}
    with refuses(DataError, "chosen_from"):
        check_facts(original, values)


PATHS = {"init_file": "/x/start.safetensors", "public_covariance": "/y/rows.npy"}
HASHES = {"start.safetensors": "ab" * 32, "rows.npy": "cd" * 32}


@pytest.fixture
def with_files(original: Path) -> tuple[dict[str, Any], Any, MethodOptions]:
    """Returns the statement of a head with two public files, with its plan and its options."""
    values = read_json(original / bundle.STATEMENT_FILE)
    plan = stated_plans.read_plan(values)[1]
    options = method_options({"head": "feature_covariance", "init": "file", **PATHS})
    stated = release_statement(
        plan,
        options,
        None,
        file_hashes={path: HASHES[Path(path).name] for path in PATHS.values()},
        blocks={},
    )
    return stated, plan, options


def test_the_statement_lists_public_files_only_with_name_and_hash(with_files: Any) -> None:
    stated, _, _ = with_files
    assert stated["public_files"] == HASHES
    assert stated["options"]["init_file"] == "start.safetensors"
    assert stated["options"]["public_covariance"] == "rows.npy"
    assert "/x" not in str(stated)


@pytest.mark.parametrize(
    "changes", [{"rows.npy": "x"}, {"more": "ab" * 32}, {"start.safetensors": None}], ids=str
)
def test_public_files_without_their_hashes_are_refused(with_files: Any, changes: Any) -> None:
    stated, plan, options = with_files
    changed = stated | {"public_files": stated["public_files"] | changes}
    facts: Any = None
    with refuses(DataError, "public_files", "SHA-256"):
        rewritten_documents.check_facts(changed, plan, options, facts)


# Number of test units: stated exactly if a measured part of the release uses them.


# Splits as in a statement: by the source or by id. The second item lists the keys at fault.
SPLITS: list[tuple[Any, tuple[str, ...]]] = [
    ({"by": "source"}, ()),
    ({"by": "id", "public_seed": 0, "fraction": 0.2}, ()),
    ({"by": "unstated"}, ("split",)),
    ({"by": "id"}, ("split",)),
    ({"by": "class", "public_seed": 0, "fraction": 0.2}, ("split",)),
    ({"by": "id", "public_seed": 2**64, "fraction": 0.2}, ("split.public_seed + 1",)),
    ({"by": "id", "public_seed": 0, "fraction": 1.0}, ("split",)),
    ({"by": "id", "public_seed": 0, "fraction": "0.2"}, ("split.fraction",)),
    ({"by": "id", "public_seed": 0, "fraction": 0.2, "more": "x"}, ("split",)),
    ("source", ("split",)),
]


@pytest.mark.parametrize(
    ("change", "tokens"),
    [
        ({"test_units": state_tested(375)}, ()),
        ({"test_units": state_tested(375) | {"compared": None}}, ("test_units.compared",)),
        ({"test_units": state_tested(375) | {"compared": None}, "format_version": 2}, ()),
        ({"test_units": state_tested(375) | {"compared": []}}, ()),
        ({"test_units": None}, ("test_units",)),
        ({"test_units": state_tested(376)}, ("test_units.n", 375, 376)),
        ({"test_units": state_tested(375) | {"compared": ["pixels"]}}, ("test_units.compared",)),
        ({"test_units": state_tested(375) | {"words": "x"}}, ("test_units",)),
        ({"evaluation": None, "test_units": state_tested(375)}, ("test_units",)),
        *(({"test_units": state_tested(375) | {"split": split}}, named) for split, named in SPLITS),
    ],
    ids=str,
)
def test_facts_of_test_units_cover_all_measurements(
    change: dict[str, Any], tokens: tuple[object, ...]
) -> None:
    stated = {"format_version": 3, "evaluation": measured(), **change}
    if not tokens:
        assert rewritten_documents.read_test_units(stated) == change["test_units"]
        return
    with refuses(DataError, *tokens):
        rewritten_documents.read_test_units(stated)
