"""The studies of representation laws: read and checked whole, without data or weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dpprobe.analyses.representation_law.measured_networks import (
    describe_tuning,
    law_backbones,
    law_faults,
    list_law_networks,
)
from dpprobe.finetune.options import Options
from dpprobe.study.study import Study
from dpprobe.study.study_file import load_study

SETTINGS = ("constant", "searched")


def _study(repository: Path, name: str) -> Study:
    text = (repository / f"config/{name}.yaml").read_text(encoding="utf-8")
    values: dict[str, Any] = yaml.safe_load(text)
    return load_study(values)


@pytest.mark.parametrize(
    ("name", "blocks"),
    [("representation_law", set(range(1, 13))), ("representation_law_local", {0, 1, 2, 4})],
)
def test_both_settings_have_each_number_of_blocks(
    repository: Path, name: str, blocks: set[int]
) -> None:
    study = _study(repository, name)
    described = [describe_tuning(method) for method in study.methods.values()]
    for setting in SETTINGS:
        assert blocks <= {t.blocks for t in described if t is not None and t.setting == setting}
    assert study.delta == 1e-3
    assert {"1", "8"} <= set(study.epsilons)
    (dataset,) = study.datasets.values()
    assert dataset.subsample is not None
    assert dataset.subsample.per_class == 100


@pytest.mark.parametrize(
    "name", ["representation_law", "representation_law_local", "representation_law_vit_tiny"]
)
def test_every_tuned_network_is_measured(repository: Path, name: str) -> None:
    study = _study(repository, name)
    assert list(law_faults(study)) == []
    assert len(law_backbones(study)) == 1
    tuned = [name for name, method in study.methods.items() if isinstance(method, Options)]
    assert len(list_law_networks(study)) == len(tuned) * len(study.epsilons)


def test_settings_differ_by_the_search_alone(repository: Path) -> None:
    study = _study(repository, "representation_law")
    one, other = (study.methods[f"{setting}_4"] for setting in SETTINGS)
    assert isinstance(one, Options)
    assert isinstance(other, Options)
    assert other.make_trial({}) == one
