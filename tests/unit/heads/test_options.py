"""The options that every method has."""

from __future__ import annotations

import pytest

from dpprobe.errors import ConfigError
from dpprobe.study.study_file import load_study
from tests.support.small_study import changed


def test_a_priced_normalisation_takes_its_share_of_the_budget() -> None:
    method = {"head": "sgd", "batch_size": "full", "steps": 8, "normalize": "centred"}
    options = load_study(changed("methods.sgd", method)).methods["sgd"]
    centre, gradients = options.mechanisms(1000)
    costs = [item.count / item.noise_multiplier**2 for item in (centre, gradients)]
    assert costs[0] / sum(costs) == pytest.approx(0.04)
    assert gradients.noise_multiplier == 1
    ceiling = {"head": "nonprivate", "normalize": "centred"}
    with pytest.raises(ConfigError, match="normalize: centred takes a share of a privacy budget"):
        load_study(changed("methods.ceiling", ceiling))
    free = load_study(changed("methods.sgd.normalize", "l2")).methods["sgd"]
    assert [item.name for item in free.mechanisms(1000)] == ["gradients"]
