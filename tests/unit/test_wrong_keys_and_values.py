"""A study is read whole before any job: every mistake gives one line that names it."""

from __future__ import annotations

import datetime
import inspect
import json
import math
import re
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

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
from dpprobe.wrong_keys_and_values import (
    _list_classes,
    explain_fault,
    explain_first,
    validate_options,
)
from tests.support.small_study import STUDY, changed


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("epsilonss", [1], ["epsilonss", "unknown key"]),
        ("methods.sgd.batchsize", 3, ["methods.sgd.batchsize: unknown key; write batch_size"]),
        ("datasets.digits.test_fracton", 0.1, ["unknown key; write test_fraction, or remove it"]),
        ("features", {"shrads": 3}, ["features.shrads: unknown key; write shards, or remove it"]),
        ("epsilonz", [1], ["epsilonz: unknown key; write epsilons, or remove it"]),
        ("releases", {"one": {"dataset": "digits", "backbone": "pixels", "method": "sgd",
         "epsilon": 1, "evaluat": 1}}, ["releases.one.evaluat: unknown key; write evaluate"]),
        ("tsne", {"perplexity": 20}, ["tsne.perplexity: unknown key; remove it or correct its"]),
        ("zzz", 1, ["zzz: unknown key; remove it or correct its spelling"]),
        ("methods.sgd.head", "sdg", ["methods.sgd", "'sdg'", "prototypes, sgd, tuned"]),
        ("datasets.digits.source", "sklaern", ["datasets.digits", "'sklaern'", "parquet"]),
        ("backbones.pixels.family", "resnet", ["backbones.pixels", "'resnet'", "timm"]),
        ("methods.sgd.batch_size", -3, ["methods.sgd.batch_size", "-3"]),
        ("methods.sgd.learning_rate", 0, ["methods.sgd.learning_rate", "0"]),
        ("epsilons", [0.5, 0], ["epsilons", "0"]),
        ("epsilons", [-1], ["epsilons", "-1"]),
        ("epsilons", ["half"], ["epsilons", "'half'"]),
        ("epsilons", [True], ["epsilons", "True"]),
        ("epsilons", [10**400], ["epsilons.0: a number beyond 64 bits; write a smaller number"]),
        ("epsilons", [1, 1.0], ["epsilons", "twice"]),
        ("epsilons", ["inf", float("inf")], ["epsilons", "inf", "twice"]),
        ("epsilons", "0.5", ["epsilons", "list"]),
        ("epsilons", 0.5, ["epsilons", "0.5", "write a list"]),
        ("epsilons", {"a": 1}, ["epsilons", "write a list"]),
        ("epsilons", [1, 0.009], ["epsilons", "0.009", "0.01 to 100", "larger"]),
        ("epsilons", [1, 101], ["epsilons", "101", "0.01 to 100", "inf for no privacy"]),
        ("delta", 1e-11, ["delta", "1e-11", "0.0000000001"]),
        ("datasets.digits.delta", 1e-11, ["datasets.digits.delta", "0.0000000001"]),
        ("methods.sgd.batch_size", "fulll", ["methods.sgd.batch_size: 'fulll'", "'full'"]),
        ("methods.sgd.batch_size", [1], [": [1]: write a whole number or 'full'"]),
        ("datasets.digits.source", ["x"], ["datasets.digits", "['x']", "parquet"]),
        ("methods.sgd.head", {"a": 1}, ["methods.sgd", "unknown head"]),
        ("study", "my study", ["study", "lower-case"]),
        ("results_dir", "my results", ["results_dir", "'my results'", "spaces"]),
        ("results_dir", "results/{study}", ["results_dir", "braces"]),
        ("data_dir", "data//x", ["data_dir", "'data//x'"]),
        ("data_dir", "~/data", ["data_dir", "~"]),
        ("data_dir", "", ["data_dir"]),
        ("tracking", {"uri": "postgresql://h/db"}, ["tracking.uri", "'postgresql'"]),
        ("tracking", {"uri": "results/mlruns"}, ["tracking.uri", "sqlite:///", "mlflow server"]),
        ("tracking", {"uri": "sqlite:///"}, ["tracking.uri", "sqlite:///path"]),
        ("tracking", {"uri": "http://"}, ["tracking.uri"]),
        ("tracking", {"uri": "https://me:geheim@h"}, ["tracking.uri", "MLFLOW_TRACKING_PASSWORD"]),
        ("epsilons", [], ["epsilons"]),
        ("epsilons", ..., ["epsilons", "missing"]),
        ("datasets", {}, ["datasets"]),
        ("seeds", 0, ["seeds", "0"]),
        ("delta", 1.5, ["delta", "1.5"]),
        ("accountant", "gdp", ["accountant", "'gdp'"]),
        ("methods.Bad-Name", {"head": "sgd"}, ["methods.Bad-Name", "lower-case"]),
        ("datasets.digits", "digits", ["datasets.digits"]),
    ],
)  # fmt: skip
def test_a_mistake_is_named(path: str, value: Any, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load_study(changed(path, value))
    message = str(caught.value)
    assert len(message.splitlines()) == 1, message
    for word in words:
        assert word in message


def test_all_mistakes_are_named_at_once_where_they_are() -> None:
    parquet = {"source": "parquet", "train": ["a", 1], "test": 5}
    with pytest.raises(ConfigError) as caught:
        load_study(changed("datasets.digits", parquet) | {"delta": 2.0})
    places = {line.split(": ")[1] for line in str(caught.value).splitlines()}
    assert places == {"datasets.digits.test", "datasets.digits.train.1", "delta"}


def test_serialised_options_read_back_the_same() -> None:
    study = load_study(STUDY)
    for options, read in (
        (study.datasets["digits"], dataset_options),
        (study.backbones["pixels"], backbone_options),
        (study.methods["sgd"], method_options),
    ):
        values = json.loads(json.dumps(options.model_dump(mode="json")))
        assert read(values) == options


@pytest.mark.parametrize(
    ("head", "key", "remedy"),
    [
        ("momentum", "balanced", "head auto); remove it, or write class_priors"),
        ("auto", "class_priors", "write balanced: true"),
        ("least_squares", "class_priors", "head adam, "),
        ("sgd", "batchsize", "write batch_size"),
    ],
)
def test_a_key_of_other_heads_is_answered_with_their_names(
    head: str, key: str, remedy: str
) -> None:
    with pytest.raises(
        ConfigError, match=f"^config: methods.sgd.{key}: .*{re.escape(remedy)}"
    ) as caught:
        load_study(changed("methods.sgd", {"head": head, key: 3}))
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert f"{head}, " not in message.partition("is an option of head")[2], "it takes no such key"


# Phrases of pydantic, whose messages no user reads.
RAW = re.compile(
    r"(?i)(input|value|string|tuple|keys|list|dict|field)s? should|should (have|be|match) |"
    r"valid (string|integer|number|boolean|tuple|dictionary|list)|unable to (parse|interpret)|"
    r"field required|validation error|extra inputs|instance of|pydantic|Assertion failed|"
    r"Value error|write another value"
)
WRONG: list[Any] = [
    None, True, -1, 0, 1, 10**9, 0.5, -0.5, math.nan, math.inf, "", "x", "1", "a b", b"x", [], [1],
    ["x"], ["x", "x"], [None], [[]], {}, {"x": 1}, {1: 2}, {"x": "y"}, {"x": {}}, {"x": [1]},
    {1, 2}, "x" * 10_000, datetime.date(2020, 1, 1),
]  # fmt: skip


def list_blocks() -> list[type[Options]]:
    """Lists every block of options that a study may have."""
    known: dict[type[Any], None] = dict.fromkeys([Study])
    for registry in REGISTRIES.values():
        known |= dict.fromkeys(options_class(registry, name) for name in registry)
    pending = list(known)
    while pending:
        fields = pending.pop().model_fields.values()
        inner = {cls for field in fields for cls in _list_classes(field.annotation)} - known.keys()
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
                # of the wrong value alone, not of the others, which are missing
                own = [item for item in error.errors() if item["loc"][0] == name]
                faults += [explain_first(error), *map(explain_fault, own)]
    assert len(faults) > 30
    assert not [fault for fault in faults if RAW.search(fault)]
