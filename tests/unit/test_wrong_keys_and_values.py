"""A study is read completely before any job, and every mistake causes one line that names it."""

from __future__ import annotations

import datetime
import inspect
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from dpprobe import wrong_keys_and_values as module
from dpprobe.analyses.audit.audit_record import AuditRecord
from dpprobe.backbones.registry import backbone_options
from dpprobe.data.registry import dataset_options
from dpprobe.errors import ConfigError
from dpprobe.exhibits.published import Published
from dpprobe.heads.registry import method_options
from dpprobe.options import REGISTRIES, Options, options_class
from dpprobe.release.bundle import BundleFacts
from dpprobe.results.cell_record import CellRecord
from dpprobe.results.network_record import NetworkRecord
from dpprobe.study.study import Study
from dpprobe.study.study_file import load_study
from dpprobe.wrong_keys_and_values import explain_fault, explain_first, validate_options
from tests.support.refusals import check_lines, read_refusals
from tests.support.small_study import STUDY, changed

# Mistakes in a study's values, with the lines of each error.
MISTAKES = read_refusals(Path(__file__).with_name("mistakes.yaml"), STUDY)


@pytest.mark.parametrize(("study", "files", "says"), MISTAKES)
def test_each_mistake_is_named_in_one_line(
    study: dict[str, Any], files: dict[str, Any], says: list[str]
) -> None:
    assert not files
    if not says:
        load_study(study)
        return
    with pytest.raises(ConfigError) as refused:
        load_study(study)
    check_lines(str(refused.value), says)


def refusal_of(path: str, value: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        load_study(changed(path, value))
    return str(refused.value)


@pytest.mark.parametrize("text", ["a\0", "\ud800"])
def test_texts_that_no_file_can_hold_are_refused(text: str) -> None:
    said = refusal_of("study", text)
    assert said.startswith(f"config: study: {text!r}: contains a NUL character or half a character")


def test_a_number_beyond_64_bits_is_refused_before_it_is_computed_with() -> None:
    for number in (2**63, 10**400):
        said = refusal_of("epsilons", [number])
        assert said == "config: epsilons.0: a number beyond 64 bits; use a smaller number"


def test_a_long_value_is_shown_by_its_first_100_characters() -> None:
    for length in (3, 98, 99, 10_000):
        said = refusal_of("methods.sgd.steps", "x" * length)
        whole = repr("x" * length)
        shown = whole if len(whole) <= 100 else f"{whole[:100]}..."
        assert said == f"config: methods.sgd.steps: {shown}: must be a whole number"


def test_every_mistake_of_a_block_is_reported_at_once() -> None:
    said = refusal_of(
        "releases",
        {"one": {"epsilon": [], "card": {"licence": ""}, "cohort": "x" * 81}},
    )
    assert [line.split(": ")[1] for line in said.splitlines()] == [
        f"releases.one.{key}"
        for key in ("dataset", "backbone", "method", "epsilon", "card.licence", "cohort")
    ]
    assert "card.licence: unknown key; write license, or remove it" in said
    assert "must be a string of 80 or fewer characters" in said


def nest(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def test_a_study_has_at_most_32_levels_and_300_000_values() -> None:
    """The study is one level; of 300,000 values one is the outer list, and two are keys."""
    too_deep = "more than 32 levels or 300,000 values; use fewer"
    assert "unknown key" in refusal_of("deep", nest(31))
    for levels in (32, 33):
        said = refusal_of("deep", nest(levels))
        assert said == f"config: deep.0.0.0.0.0: {too_deep}"
    module.check_extent({"many": [[0] * 299_996]}, "here")
    with pytest.raises(ConfigError, match=rf"^here: many\.0\.1: {too_deep}$"):
        module.check_extent({"many": [[0] * 299_998]}, "here")


def test_serialised_options_read_back_the_same() -> None:
    study = load_study(STUDY)
    for options, read in (
        (study.datasets["digits"], dataset_options),
        (study.backbones["pixels"], backbone_options),
        (study.methods["sgd"], method_options),
    ):
        values = json.loads(json.dumps(options.model_dump(mode="json")))
        assert read(values) == options


# Phrases of pydantic, which no message for users may contain.
RAW = re.compile(
    r"(?i)(input|value|string|tuple|keys|list|dict|field)s? should|should (have|be|match) |"
    r"valid (string|integer|number|boolean|tuple|dictionary|list)|unable to (parse|interpret)|"
    r"field required|validation error|extra inputs|instance of|pydantic|Assertion failed|"
    r"Value error|write another value"
)
WRONG: list[Any] = [
    None,
    True,
    -1,
    0,
    1,
    10**9,
    0.5,
    -0.5,
    math.nan,
    math.inf,
    "",
    "x",
    "1",
    "a b",
    b"x",
    [],
    [1],
    ["x"],
    ["x", "x"],
    [None],
    [[]],
    {},
    {"x": 1},
    {1: 2},
    {"x": "y"},
    {"x": {}},
    {"x": [1]},
    {1, 2},
    "x" * 10_000,
    datetime.date(2020, 1, 1),
]


def list_blocks() -> list[type[Options]]:
    """Returns all classes of option blocks that a study may have."""
    known: dict[type[Any], None] = dict.fromkeys([Study])
    for registry in REGISTRIES.values():
        known |= dict.fromkeys(options_class(registry, name) for name in registry)
    pending = list(known)
    while pending:
        fields = pending.pop().model_fields.values()
        inner = {
            cls for field in fields for cls in module.list_classes(field.annotation)
        } - known.keys()
        known |= dict.fromkeys(inner)
        pending += inner
    return [cls for cls in known if not inspect.isabstract(cls)]


def test_no_wrong_value_of_any_option_is_answered_in_words_of_pydantic() -> None:
    blocks = list_blocks()
    assert len(blocks) > 70
    refused = 0
    for cls in blocks:
        for name in cls.model_fields:
            for value in WRONG:
                try:
                    validate_options(cls, {name: value}, "here")
                except ConfigError as error:
                    refused += 1
                    lines = str(error).splitlines()
                    raw = [line for line in lines if RAW.search(line)]
                    assert not raw, (cls, name)
    assert refused > 10_000


@pytest.mark.parametrize("cls", [BundleFacts, Published, CellRecord, NetworkRecord, AuditRecord])
def test_records_are_refused_in_the_same_words(cls: type[BaseModel]) -> None:
    faults = []
    for name in cls.model_fields:
        for value in WRONG:
            try:
                cls.model_validate({name: value})
            except ValidationError as error:
                # only errors of the wrong value, not of missing values
                own = [item for item in error.errors() if item["loc"][0] == name]
                faults += [explain_first(error), *map(explain_fault, own)]
    assert len(faults) > 30
    assert not [fault for fault in faults if RAW.search(fault)]
