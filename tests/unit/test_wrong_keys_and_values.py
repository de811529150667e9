"""A study is read whole before any job: every mistake gives one line that names it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dpprobe.backbones.registry import backbone_options
from dpprobe.data.registry import dataset_options
from dpprobe.errors import ConfigError
from dpprobe.heads.registry import method_options
from dpprobe.study.study_file import load_study
from tests.support.small_study import STUDY, changed


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("epsilonss", [1], ["epsilonss", "unknown key"]),
        ("methods.sgd.batchsize", 3, ["methods.sgd.batchsize: unknown key; write batch_size"]),
        ("datasets.digits.test_fracton", 0.1, ["unknown key; write test_fraction, or remove it"]),
        ("features", {"shrads": 3}, ["features.shrads: unknown key; write shards, or remove it"]),
        ("epsilonz", [1], ["epsilonz: unknown key; write epsilons, or remove it"]),
        ("tsne", {"perplexity": 20}, ["tsne.perplexity: unknown key; this option was removed (it"]),
        ("features", {"compile": True}, ["features.compile: unknown key; this option was removed"]),
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
        ("epsilons", [10**400], ["epsilons", "positive number"]),
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
        ("methods.sgd.batch_size", [1], ["methods.sgd.batch_size: [1]", "integer or 'full'"]),
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


def test_each_alternative_of_a_list_is_named_where_it_is() -> None:
    parquet = {"source": "parquet", "train": ["a", 1], "test": 5}
    with pytest.raises(ConfigError) as caught:
        load_study(changed("datasets.digits", parquet))
    lines = sorted(str(caught.value).splitlines())
    assert lines[0].startswith("config: datasets.digits.test: 5: write a valid string or")
    assert lines[1].startswith("config: datasets.digits.train.1: 1: input should be a valid string")
    assert len(lines) == 2


def test_all_mistakes_are_named_at_once() -> None:
    study = changed("seeds", 0) | {"delta": 2.0}
    with pytest.raises(ConfigError) as caught:
        load_study(study)
    assert {line.split(":")[1].strip() for line in str(caught.value).splitlines()} == {
        "seeds",
        "delta",
    }


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
    ("head", "key", "value", "words"),
    [
        ("momentum", "balanced", True, "is of head auto; remove it, or write class_priors: rel"),
        ("auto", "class_priors", "released", "remove it, or write balanced: true"),
        ("least_squares", "class_priors", "released", "is of head adam, "),
        ("sgd", "batchsize", 3, "unknown key; write batch_size, or remove it"),
    ],
)
def test_a_key_of_other_heads_is_answered_with_their_names(
    head: str, key: str, value: Any, words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_study(changed("methods.sgd", {"head": head, key: value}))
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert message.startswith(f"config: methods.sgd.{key}: unknown key; ")
    assert words in message
    assert f"{head}, " not in message.partition("is of head")[2], "it does not take the key"


def test_an_empty_list_of_epsilons_asks_for_one() -> None:
    with pytest.raises(ConfigError) as caught:
        load_study(changed("epsilons", []))
    assert str(caught.value) == (
        "config: epsilons: empty: write at least one, such as [0.5, 1, 2, inf]"
    )
