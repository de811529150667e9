"""Random numbers of a release: fresh each time, used only once, and independent by purpose."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from dpprobe.errors import PrivacyError
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.registry import HEADS, method_options
from dpprobe.privacy.entropy import SEEDED, SystemEntropy
from dpprobe.privacy.keystream import Keystream
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.randomness import derived_seed, open_stream
from dpprobe.privacy.releases import Releases
from tests.support.linear_heads import training_set
from tests.support.mechanisms import made_plan

OPTIONS: dict[str, dict[str, Any]] = {
    "sgd": {"head": "sgd", "engine": "exact", "batch_size": 16, "steps": 20, "init": "torch"},
    "momentum": {"head": "momentum", "engine": "exact", "batch_size": 16, "steps": 8},
    "adam": {"head": "adam", "engine": "exact", "steps": 5, "init": "lecun_normal"},
    "lamb": {"head": "lamb", "engine": "exact", "steps": 5, "init": "scaled"},
    "auto": {"head": "auto", "rule": 1, "chosen": {"head": "prototypes"}},
    "least_squares": {"head": "least_squares", "normalize": "centred"},
    "newton": {"head": "newton", "steps": 2},
    "feature_covariance": {"head": "feature_covariance", "normalize": "l2"},
    "prototypes": {"head": "prototypes", "normalize": "centred"},
    "tuned": {
        "head": "tuned",
        "base": {"head": "sgd", "engine": "exact", "steps": 3, "normalize": "l2"},
        "search": {"learning_rate": [0.1, 1]},
        "trials": 3,
    },
}


def plan(method: MethodOptions, n: int = 120) -> Plan:
    return made_plan(method.list_mechanisms(n), n, selection=method.priced_selection(n))


@pytest.mark.parametrize("head", OPTIONS)
def test_two_releases_of_one_plan_differ_and_no_seed_repeats_them(head: str) -> None:
    method, data = method_options(OPTIONS[head]), training_set()
    priced = plan(method)
    first, second = (
        fit_heads(method, data, priced, [0], entropy=SystemEntropy()) for _ in range(2)
    )
    assert np.isfinite(first.weights).all()
    assert not np.array_equal(first.weights, second.weights)
    seeded = fit_heads(method, data, priced, [0])
    assert np.array_equal(seeded.weights, fit_heads(method, data, priced, [0]).weights)
    assert not np.array_equal(first.weights, seeded.weights)


def test_every_private_head_is_tried_here() -> None:
    assert set(OPTIONS) == set(HEADS) - {"nonprivate"}
    assert all(method_options(values).is_exact for values in OPTIONS.values())


@pytest.mark.parametrize("head", ["sgd", "momentum", "adam", "lamb", "tuned"])
def test_a_head_whose_sums_are_float32_is_not_released(head: str) -> None:
    values: dict[str, Any] = {"head": head, "steps": 3}
    if head == "tuned":
        values = OPTIONS["tuned"] | {"base": {"head": "sgd", "steps": 3}}
    method, data = method_options(values), training_set()
    assert not method.is_exact
    assert method.engine_limits is not None
    with pytest.raises(PrivacyError, match="engine: exact"):
        fit_heads(method, data, plan(method), [0], entropy=SystemEntropy())


def test_float32_noise_is_refused_even_on_request() -> None:
    method = method_options({"head": "sgd", "steps": 3})
    priced = plan(method)
    releases = Releases(priced, [0], torch.device("cpu"), entropy=SystemEntropy())
    with pytest.raises(PrivacyError, match="not for release"):
        releases.make_noise("gradients", 5)


def test_a_use_of_the_system_s_words_is_given_away_once() -> None:
    entropy = SystemEntropy()
    first = entropy.open_keystream(0, "noise of gram").draw_words(4)
    assert not np.array_equal(first, entropy.open_keystream(0, "noise of targets").draw_words(4))
    assert not np.array_equal(first, entropy.open_keystream(1, "noise of gram").draw_words(4))
    with pytest.raises(PrivacyError, match="already used"):
        entropy.open_keystream(0, "noise of gram")
    parts = [entropy.part_seed(0, f"trial {number}") for number in range(2)]
    assert parts == [1, 2], "and not 0, the head's own number"
    with pytest.raises(PrivacyError, match="already used"):
        entropy.part_seed(0, "trial 0")


def test_no_word_of_the_system_s_key_shows() -> None:
    entropy = SystemEntropy()
    shown = repr(entropy) + repr(vars(entropy)) + repr(entropy.open_keystream(0, "noise"))
    key = entropy._root._key
    assert key.hex() not in shown
    assert str(key) not in shown


def test_seeded_entropy_has_not_changed() -> None:
    assert np.array_equal(
        SEEDED.open_keystream(7, "a").draw_words(3), Keystream.from_seed(7, "a").draw_words(3)
    )
    assert SEEDED.make_generator(7, "init").random() == open_stream(7, "init").random()
    assert SEEDED.part_seed(7, "trial 1") == derived_seed(7, "trial 1")


def test_a_uniform_number_is_inside_and_even() -> None:
    stream = SystemEntropy().open_keystream(0, "number of trials")
    drawn = [stream.draw_uniform() for _ in range(4000)]
    assert 0 < min(drawn) < max(drawn) < 1
    assert stats.kstest(drawn, "uniform").pvalue > 1e-6
