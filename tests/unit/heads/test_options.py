"""The options that every method has."""

from __future__ import annotations

import inspect

import pytest

from dpprobe.heads.registry import METHODS
from dpprobe.options import options_class
from dpprobe.study.study_file import load_study
from tests.support.small_study import changed


def test_a_priced_normalisation_takes_its_share_of_the_budget() -> None:
    method = {"head": "sgd", "batch_size": "full", "steps": 8, "normalize": "centred"}
    options = load_study(changed("methods.sgd", method)).methods["sgd"]
    centre, gradients = options.list_mechanisms(1000)
    costs = [item.count / item.noise_multiplier**2 for item in (centre, gradients)]
    assert costs[0] / sum(costs) == pytest.approx(0.04)
    assert gradients.noise_multiplier == 1
    free = load_study(changed("methods.sgd.normalize", "l2")).methods["sgd"]
    assert [item.name for item in free.list_mechanisms(1000)] == ["gradients"]


@pytest.mark.parametrize("name", METHODS)
def test_all_options_of_a_head_stand_in_its_file_and_one_other(name: str) -> None:
    cls = options_class(METHODS, name)
    assert cls.__module__ == METHODS[name]
    owners = {
        next(each.__module__ for each in cls.__mro__ if option in inspect.get_annotations(each))
        for option in set(cls.model_fields) - {"head", "normalize"}
    }
    assert len(owners - {cls.__module__}) <= 1
