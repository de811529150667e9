"""A site adds its share of noise to its sums, once per release, and uses totals as given."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from scipy.stats import norm

from dpprobe.errors import ConfigError, PrivacyError
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.registry import method_options
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.entropy import SEEDED
from dpprobe.privacy.keystream import Keystream
from dpprobe.privacy.noise_shares import split_noise
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.rounded_gaussian import RoundedGaussian
from dpprobe.site_exchange.masks import mask_numbers
from dpprobe.site_exchange.shared_sums import SharedSums, Sum, SumsMissing, add_sums
from dpprobe.site_exchange.simulated_fit import SimulatedSite, fit_together
from dpprobe.training.public_file_check import SYNTHETIC_ROWS
from tests.support.mechanisms import made_plan

SITES, TRIALS, DEVIATION = 3, 40_000, 5_000.0
FACTS: dict[str, Any] = {"step": 0.5, "deviation": DEVIATION, "symmetric": False}


def open_noise(_place: int, _exact: Sum) -> RoundedGaussian:
    return RoundedGaussian(Keystream.from_system("test"))


def ask(
    local: np.ndarray, share: Callable[[float], float], totals: Any = (), **options: Any
) -> tuple[Sum, ...]:
    """Returns the numbers of a site that is asked for one sum."""
    shared = SharedSums(totals, open_noise=open_noise, share=share)
    with pytest.raises(SumsMissing) as caught:
        shared.add_up("sums", local, **(FACTS | options))
    return caught.value.sums


def attack(total: np.ndarray, shift: float) -> float:
    """Returns the balanced accuracy of the likelihood-ratio test of whether a unit moved a number.

    A unit moved the numbers of the second half.
    """
    guessed = total > shift / 2
    half = len(total) // 2
    return float((guessed[half:].mean() + 1 - guessed[:half].mean()) / 2)


@pytest.mark.parametrize("colluders", [1, 2])
def test_what_colluders_can_subtract_leaves_the_noise_that_is_priced(colluders: int) -> None:
    """If server and colluders pool all they know, the advantage is mu's; with one more, larger."""
    mu, half = 1.0, TRIALS // 2
    shift = mu * DEVIATION

    def share(deviation: float) -> float:
        return split_noise(deviation, SITES, colluders)

    sums = [np.zeros(TRIALS, dtype=np.int64) for _ in range(SITES)]
    sums[-1][half:] = round(shift)
    sent = [ask(each, share)[0] for each in sums]
    total = add_sums(sent).numbers.astype(float)
    rest = total - sum(each.numbers.astype(float) for each in sent[:colluders])
    allowed, tolerance = norm.cdf(mu / 2), 4 * 0.5 / math.sqrt(TRIALS)
    assert attack(total, shift) < allowed
    assert abs(attack(rest, shift) - allowed) < tolerance
    if colluders + 1 < SITES:
        less = rest - sent[colluders].numbers
        assert attack(less, shift) > allowed + 2 * tolerance


def test_an_aggregator_adds_all_noise_and_the_others_none() -> None:
    local = np.arange(TRIALS, dtype=np.int64)
    (alone,) = ask(local, lambda deviation: deviation)
    (other,) = ask(local, lambda _: 0.0)
    np.testing.assert_array_equal(other.numbers, local)
    assert abs((alone.numbers - local).std() / DEVIATION - 1) < 0.02


def test_the_noise_of_a_symmetric_sum_is_isometric_and_its_triangle_is_sent() -> None:
    size = 200
    local = np.zeros((size, size), dtype=np.int64)
    (sent,) = ask(local, lambda deviation: deviation, symmetric=True)
    assert sent.numbers.size == size * (size + 1) // 2
    matrix = np.zeros((size, size))
    matrix[np.triu_indices(size)] = sent.numbers
    above = matrix[np.triu_indices(size, 1)]
    assert abs(above.std() * math.sqrt(2) / DEVIATION - 1) < 0.03
    assert abs(np.diagonal(matrix).std() / DEVIATION - 1) < 0.25
    louder = replace(sent, deviation=3 * DEVIATION)
    shared = SharedSums([sent, louder], open_noise=open_noise, share=lambda deviation: deviation)
    total = shared.add_up("sums", local, **(FACTS | {"symmetric": True}))
    shared.add_up("sums", local, **(FACTS | {"symmetric": True, "deviation": 3 * DEVIATION}))
    assert shared.smallest_share == DEVIATION / math.sqrt(2)
    assert shared.coordinates == size * (size + 1)
    np.testing.assert_array_equal(total, total.T)
    np.testing.assert_array_equal(total[np.triu_indices(size)], sent.numbers)


def test_totals_are_taken_as_they_are_and_the_rows_do_not_matter() -> None:
    total = Sum(name="sums", numbers=np.arange(4), **FACTS)
    for local in (np.zeros(4, dtype=np.int64), np.full(4, 9)):
        shared = SharedSums([total], open_noise=open_noise, share=lambda _: 100.0)
        answer = shared.add_up("sums", local, **FACTS)
        np.testing.assert_array_equal(answer, np.arange(4))


@pytest.mark.parametrize(
    "changes",
    [
        *({"step": 0.25}, {"name": "others"}, {"numbers": np.arange(5)}),
        *({"deviation": DEVIATION / 2}, {"symmetric": True}),
    ],
)
def test_totals_of_another_fit_are_refused(changes: dict[str, Any]) -> None:
    facts = {"name": "sums", "numbers": np.arange(4), **FACTS, **changes}
    shared = SharedSums([Sum(**facts)], open_noise=open_noise, share=lambda _: 100.0)
    with pytest.raises(PrivacyError, match="total 1 of the sites is .* but this fit needs sums"):
        shared.add_up("sums", np.zeros(4, dtype=np.int64), **FACTS)
    with pytest.raises(PrivacyError, match=r"the sites' sums differ: .* \(. numbers of "):
        add_sums([Sum(name="sums", numbers=np.arange(4), **FACTS), Sum(**facts)])


def test_sums_that_do_not_depend_on_each_other_are_asked_for_together() -> None:
    zeros = np.zeros(2, dtype=np.int64)
    names = ("mean", "gram", "targets", "gradients")
    opened: list[tuple[int, str]] = []

    def open_noise(place: int, exact: Sum) -> RoundedGaussian:
        opened.append((place, exact.name))
        return RoundedGaussian(Keystream.from_system("test"))

    def run(totals: list[Sum], together: set[str]) -> list[str]:
        shared = SharedSums(totals, open_noise=open_noise, share=lambda _: 100.0, together=together)
        try:
            for name in names:
                shared.add_up(name, zeros.copy(), **FACTS)
        except SumsMissing as missing:
            return [each.name for each in missing.sums]
        return []

    known = {name: Sum(name=name, numbers=zeros, **FACTS) for name in names}
    assert run([], {"gram", "targets"}) == ["mean"]
    assert run([known["mean"]], {"gram", "targets"}) == ["gram", "targets"]
    assert run([known["mean"]], set()) == ["gram"]
    assert run([known[name] for name in ("mean", "gram", "targets")], set()) == ["gradients"]
    assert run([*known.values()], set()) == []
    places = [names.index(name) for _, name in opened]
    assert [place for place, _ in opened] == places == [0, 1, 2, 1, 3], "each sum its own noise"


@pytest.mark.parametrize(("share", "symmetric"), [(15.0, False), (20.0, True)])
def test_noise_too_fine_for_the_price_is_refused(share: float, symmetric: bool) -> None:
    shared = SharedSums([], open_noise=open_noise, share=lambda _: share)
    zeros, facts = np.zeros((2, 2), dtype=np.int64), {"deviation": 9.0, "symmetric": symmetric}
    with pytest.raises(PrivacyError, match="noise of sums is .* steps of the grid: at least 16"):
        shared.add_up("sums", zeros, **(FACTS | facts))


NAMES = ("east", "north", "south", "west")
KEYS = {name: X25519PrivateKey.generate() for name in NAMES}
SIZE = 4096


def mask(site: str, numbers: np.ndarray, use: str = "round 1") -> np.ndarray:
    public = {name: key.public_key().public_bytes_raw() for name, key in KEYS.items()}
    others = {name: public[name] for name in NAMES if name != site}
    return mask_numbers(numbers, use, site=site, key=KEYS[site], others=others)


def add(numbers: Iterable[np.ndarray]) -> np.ndarray:
    """Returns the sum of int64 numbers as words, modulo 2^64."""
    total = np.zeros(SIZE, dtype=np.uint64)
    for each in numbers:
        total += each.view(np.uint64)
    return total


def test_masks_of_all_sites_vanish_in_the_total_modulo_2_to_the_64() -> None:
    generator = np.random.default_rng(1)
    own = {name: generator.integers(-(2**52), 2**52, size=SIZE) for name in NAMES}
    own["east"][:2] = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    masked = [mask(name, own[name]) for name in NAMES]
    np.testing.assert_array_equal(add(masked), add(own.values()))


def test_masked_sums_of_all_but_one_site_are_uniformly_random() -> None:
    """The masked numbers of any three of four sites add up to uniform words."""
    zeros = np.zeros(SIZE, dtype=np.int64)
    for chosen in itertools.combinations(NAMES, 3):
        words = add(mask(name, zeros) for name in chosen)
        bits = np.unpackbits(words.view(np.uint8).reshape(-1, 8), axis=1).mean(axis=0)
        assert np.abs(bits - 0.5).max() < 6 * 0.5 / SIZE**0.5
    assert not add(mask(name, zeros) for name in NAMES).any()


def test_another_use_has_other_masks() -> None:
    zeros = np.zeros(SIZE, dtype=np.int64)
    first, again, other = (mask("east", zeros, use) for use in ("round 1", "round 1", "round 2"))
    np.testing.assert_array_equal(first, again)
    assert (first != other).mean() > 0.99


@pytest.mark.parametrize("public", [bytes(32), b"short"], ids=["of small order", "short"])
def test_invalid_x25519_keys_are_refused(public: bytes) -> None:
    zeros, others = np.zeros(3, dtype=np.int64), {"north": public}
    with pytest.raises(PrivacyError, match="not one of X25519"):
        mask_numbers(zeros, "use", site="east", key=KEYS["east"], others=others)


ROWS, DIMENSION, CLASSES = 240, 5, 3
HEADS: dict[str, dict[str, Any]] = {
    "least_squares": {"head": "least_squares", "normalize": "l2"},
    "prototypes": {"head": "prototypes", "normalize": "none"},
    "feature_covariance": {"head": "feature_covariance", "normalize": "layer_norm", "steps": 3},
    "newton": {"head": "newton", "normalize": "l2", "steps": 2},
    "full_batch": {
        "head": "sgd",
        "engine": "exact",
        "normalize": "l2",
        "batch_size": "full",
        "steps": 4,
    },
    "around_centre": {"head": "feature_covariance", "steps": 2},
    "whitened": {
        "head": "sgd",
        "engine": "exact",
        "normalize": "whitened",
        "batch_size": "full",
        "steps": 2,
    },
    "channels": {
        "head": "prototypes",
        "normalize": {
            "kind": "channels",
            "channels": DIMENSION,
            "max_mean_norm": 4.0,
            "max_deviation_norm": 4.0,
        },
    },
    "priors": {"head": "feature_covariance", "normalize": "l2", "class_priors": "released"},
}


def draw_rows() -> tuple[torch.Tensor, torch.Tensor]:
    generator = np.random.default_rng(3)
    labels = generator.integers(CLASSES, size=ROWS)
    features = generator.normal(size=(ROWS, DIMENSION)).astype(np.float32)
    features[np.arange(ROWS), labels] += 2
    features[7] = np.nan
    return torch.from_numpy(features), torch.from_numpy(labels.astype(np.int64))


def make_plan(options: Any, *, n: int = ROWS, unit: str = "image") -> Plan:
    selection = options.priced_selection(n)
    return made_plan(options.list_mechanisms(n), n, 2.0, unit=unit, selection=selection)


def split_rows(
    sizes: list[int],
    patients: np.ndarray | None = None,
    **public: Any,
) -> list[TrainingSet]:
    features, labels = draw_rows()
    edges = np.cumsum([0, *sizes])
    assert edges[-1] == ROWS
    names = None if patients is None else [str(each) for each in patients]
    total = ROWS if names is None else len(set(names))
    return [
        TrainingSet(
            features[start:stop].clone(),
            labels[start:stop],
            CLASSES,
            units=None if names is None else Units.number_units(names[start:stop]),
            public_n=total,
            **public,
        )
        for start, stop in itertools.pairwise(edges)
    ]


@pytest.mark.parametrize("sizes", [[240], [100, 140], [1, 9, 230], [48] * 5])
@pytest.mark.parametrize("head", HEADS)
def test_a_trusted_aggregator_trains_the_bits_of_one_place(head: str, sizes: list[int]) -> None:
    options = method_options(HEADS[head])
    plan = make_plan(options)
    together = fit_together(options, split_rows(sizes), plan, 5, colluders=None)
    pooled = fit_heads(options, split_rows([ROWS])[0], plan, [5])
    assert together.weights.tobytes() == pooled.weights.tobytes()
    assert together.steps == pooled.steps


@pytest.mark.parametrize("moment", [None, "public", "released"])
def test_sites_with_one_public_file_train_the_bits_of_one_place(
    tmp_path: Path, moment: str | None
) -> None:
    """The released mean is shrunk towards the public mean, and public rows may whiten."""
    public = tmp_path / "public.npy"
    draw = np.random.default_rng(8).normal(2, 1, size=(90, DIMENSION))
    np.save(public, draw.astype(np.float32))
    around: dict[str, Any] = {"kind": "whitened" if moment else "centred", "public": str(public)}
    if moment == "public":
        around["moment"] = "public"
    head = HEADS["whitened"] | {"normalize": around}
    options = method_options(head)
    plan = make_plan(options)
    parts = split_rows([100, 90, 50], public=SYNTHETIC_ROWS)
    together = fit_together(options, parts, plan, 5, colluders=None)
    pooled = fit_heads(options, split_rows([ROWS], public=SYNTHETIC_ROWS)[0], plan, [5])
    assert together.weights.tobytes() == pooled.weights.tobytes()
    np.save(public, (draw + 5).astype(np.float32))
    other = fit_heads(options, split_rows([ROWS], public=SYNTHETIC_ROWS)[0], plan, [5])
    assert other.weights.tobytes() != pooled.weights.tobytes()


def test_patients_of_several_sites_are_the_units_of_one_place() -> None:
    options = method_options(HEADS["least_squares"])
    patients = np.arange(ROWS) // 4
    plan = make_plan(options, n=ROWS // 4, unit="patient")
    together = fit_together(options, split_rows([80, 160], patients), plan, 5, colluders=None)
    pooled = fit_heads(options, split_rows([ROWS], patients)[0], plan, [5])
    assert together.weights.tobytes() == pooled.weights.tobytes()


@pytest.mark.parametrize("colluders", [None, 0, 2])
def test_each_site_draws_its_share_from_its_own_stream(colluders: int | None) -> None:
    zero = Sum(name="gram", step=1.0, deviation=9.0, symmetric=False, numbers=np.zeros(3, np.int64))
    for number in range(3):
        site = SimulatedSite(number, 3, 7, colluders)
        alone = 100.0 * (number == 0)
        share = alone if colluders is None else split_noise(100.0, 3, colluders)
        assert site.share_noise(100.0) == share
        name = "noise of gram" if colluders is None else f"noise of gram at site {number}"
        wanted = RoundedGaussian(SEEDED.open_keystream(7, name))
        for place in range(2):  # one stream serves all releases of a mechanism
            drawn = site.open_noise(place, zero).draw_numbers(9, 50.0)
            np.testing.assert_array_equal(drawn, wanted.draw_numbers(9, 50.0))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"head": "sgd", "batch_size": 30, "steps": 5}, "does not compute; write `engine: exact`"),
        ({"head": "sgd", "engine": "exact", "batch_size": 30}, 'write `batch_size: "full"`'),
        (
            {"head": "tuned", "base": HEADS["prototypes"], "search": {"max_row_norm": [0.5, 1]}},
            "sites cannot search together",
        ),
    ],
)
def test_heads_that_are_not_sums_over_all_rows_are_refused(options: Any, words: str) -> None:
    method = method_options(options)
    plan = make_plan(method)
    with pytest.raises(ConfigError, match=words):
        fit_together(method, split_rows([120, 120]), plan, 1)
