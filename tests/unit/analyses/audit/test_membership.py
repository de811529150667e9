"""Membership attacks find memorised rows, find nothing by chance, and accept unusual data."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import expit, log_softmax, softmax
from scipy.stats import norm, rankdata
from sklearn.metrics import roc_auc_score, roc_curve

from dpprobe.analyses.audit import membership, membership_attacks
from dpprobe.analyses.audit.membership import attack_membership
from dpprobe.analyses.audit.membership_attacks import (
    compute_confidences,
    measure_roc,
    score_lira,
    score_rmia,
)
from dpprobe.features.feature_store import FeatureStore
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.registry import HEADS, method_options
from dpprobe.heads.scoring import score_rows
from dpprobe.heads.training_set import TrainingSet
from dpprobe.privacy.randomness import derived_seed
from tests.support.audits import priced
from tests.support.feature_stores import write_store
from tests.support.linear_heads import plan_for
from tests.support.mechanisms import best_of, gaussians, made_plan
from tests.unit.heads.test_fit_every_head import options

SGD: dict[str, Any] = {"head": "sgd", "batch_size": "full", "steps": 10, "init": "zero"}
Result = tuple[dict[str, Any], dict[str, Any]]  # the record, and columns of scores
NONPRIVATE: dict[str, Any] = {"head": "nonprivate", "penalties": [1e-5], "tolerance": 1e-3}


def random_rows(
    rows: int = 60, dimension: int = 40, classes: int = 3, *, seed: int = 0
) -> TrainingSet:
    """Returns rows with random labels: a head can get them right only by memorising."""
    generator = np.random.default_rng(seed)
    features = torch.from_numpy(generator.normal(size=(rows, dimension)).astype(np.float32))
    labels = torch.from_numpy(generator.integers(classes, size=rows))
    return TrainingSet(features, labels, classes)


def attacked(
    values: dict[str, Any], data: TrainingSet, epsilon: float, folder: Path, **changes: Any
) -> Result:
    method = method_options(values)
    plan = priced(method, data.n, epsilon, folder)
    return attack_membership(method, plan, data, **{"seed": 5, "shadows": 24} | changes)


def entry(result: Result, name: str, rows: str = "all") -> dict[str, Any]:
    (one,) = (row for row in result[0]["rows"] if row["attack"] == name and row["rows"] == rows)
    return dict(one)


def half_of(data: TrainingSet) -> tuple[membership.Attacked, np.ndarray, np.ndarray]:
    """Draws units and a coin for each; returns them with the coins and the rows that are out."""
    chosen = membership.draw_units(data, rows=40, mislabelled=0.0, seed=1)
    (inside,) = membership.toss_coins(chosen, 1, seed=1)
    return chosen, inside, chosen.rows[~inside[chosen.unit_of]]


def test_a_head_that_memorises_is_attacked_far_above_chance(tmp_path: Path) -> None:
    result = attacked(NONPRIVATE, random_rows(), math.inf, tmp_path)
    for name in membership.ATTACKS:
        assert entry(result, name)["auc_interval"][0] > 0.8, name
    assert entry(result, "lira")["auc"] > 0.95


@pytest.mark.parametrize("batch", ["full", 16])
def test_little_epsilon_leaves_chance(batch: int | str, tmp_path: Path) -> None:
    """At epsilon 0.1, no attack has an AUC above 0.53."""
    values = SGD | {"batch_size": batch, "steps": 20, "max_grad_norm": 1.0}
    result = attacked(values, random_rows(300), 0.1, tmp_path)
    for name in membership.ATTACKS:
        low, high = entry(result, name)["auc_interval"]
        assert low <= 0.53, name
        assert high >= 0.47, name
    gains = np.subtract(result[0]["roc"]["allowed"], result[0]["roc"]["fpr"])
    allowed = result[0]["allowed"]["balanced_accuracy"]
    assert allowed == pytest.approx(0.5 + gains.max() / 2, abs=1e-3)
    assert allowed < 0.53


def test_changed_labels_are_remembered_most(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    labels = torch.from_numpy(np.arange(200) % 4)
    features = generator.normal(size=(200, 20)).astype(np.float32)
    features[np.arange(200), labels.numpy()] += 4
    data = TrainingSet(torch.from_numpy(features), labels, 4)
    values = NONPRIVATE | {"penalties": [1e-2]}
    result = attacked(values, data, math.inf, tmp_path, mislabelled=0.05, targets=20)
    changed, all_rows = entry(result, "lira", "mislabelled"), entry(result, "lira")
    assert changed["units"] == 10
    assert all_rows["units"] == 190
    assert changed["members"] + changed["non_members"] == 20 * 10
    assert changed["auc"] > 0.95 > all_rows["auc"]
    assert torch.equal(data.labels, labels), "the caller's labels were changed"


@pytest.mark.parametrize("head", sorted(HEADS))
@pytest.mark.parametrize("noise", [0.0, 5.0])
def test_rows_that_are_out_have_no_influence(head: str, noise: float) -> None:
    """The head stays bit-identical if these rows and their labels change."""
    method = options(head)
    generator = np.random.default_rng(0)
    heads = []
    data = random_rows(90, 6)
    _, inside, out = half_of(data)
    for change in (False, True):
        assert data.features is not None
        features, labels = data.features.clone(), data.labels.clone()
        if change:
            features[out] = torch.from_numpy(generator.normal(size=(len(out), 6)) * 9).float()
            labels[out] = (labels[out] + 1) % 3
        other = TrainingSet(features, labels, 3)
        rows = membership.leave_units_out(other, half_of(other)[0], inside)
        heads.append(fit_heads(method, rows, plan_for(method, 90, noise), [7]).weights)
    np.testing.assert_array_equal(heads[0], heads[1])


def test_equal_seeds_give_equal_results_whatever_the_threads(tmp_path: Path) -> None:
    data = random_rows(50)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            results.append(attacked(SGD, data, 8.0, tmp_path))
    finally:
        torch.set_num_threads(before)
    first, second = (
        {k: v for k, v in record.items() if not k.endswith(("seconds", "second"))}
        for record, _ in results
    )
    assert first == second
    np.testing.assert_array_equal(results[0][1]["score"], results[1][1]["score"])
    other = attacked(SGD, data, 8.0, tmp_path, seed=6)
    assert not np.array_equal(other[1]["score"], results[0][1]["score"])


def test_streamed_rows_are_attacked_like_rows_in_memory(tmp_path: Path) -> None:
    store = FeatureStore(write_store(tmp_path, rows=300, dimension=8, classes=3))
    labels = torch.from_numpy(np.asarray(store.labels).astype(np.int64))
    memory, stream = (
        attacked(SGD, TrainingSet(kept, labels, 3), 8.0, tmp_path, rows=100, shadows=8)
        for kept in (torch.from_numpy(store.read()), store)
    )
    np.testing.assert_allclose(memory[1]["score"], stream[1]["score"], atol=1e-4)


def test_duplicates_and_rows_of_nan_are_attacked_like_others(tmp_path: Path) -> None:
    once = random_rows(40, 5).features
    assert once is not None
    features = once.repeat(2, 1)
    features[3] = math.nan
    data = TrainingSet(features, torch.arange(80) % 4, 4)
    for values, epsilon in ((SGD, 8.0), (NONPRIVATE, math.inf)):
        result = attacked(values, data, epsilon, tmp_path, shadows=8)
        assert np.isfinite(result[1]["score"]).all()


# Attacked units: which ones, in which groups, with which labels


def rows_of(kind: str) -> TrainingSet:
    """Returns 150 rows with rare classes, several labels, patients, or equal classes."""
    generator = np.random.default_rng(len(kind))
    features = torch.from_numpy(generator.normal(size=(150, 6)).astype(np.float32))
    labels: Any = np.repeat([0, 1, 2, 3], [70, 63, 10, 7])
    if kind == "labels":
        labels = (generator.random((150, 4)) < [0.5, 0.4, 0.06, 0.0]).astype(np.uint8)
    if kind == "alike":
        labels = np.arange(150) % 3
    names = [f"p{row // 2}" if row < 60 else f"q{row}" for row in range(150)]
    units = Units.number_units(names) if kind == "patients" else None
    return TrainingSet(features, torch.from_numpy(labels), 5 if kind == "rare" else 4, units=units)


KINDS = ("rare", "labels", "patients", "alike")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "share"), [(1000, 0.0), (60, 0.5), (41, 0.1)])
def test_units_are_drawn_with_all_their_rows_and_some_with_other_labels(
    kind: str, rows: int, share: float
) -> None:
    data = rows_of(kind)
    drawn = membership.draw_units(data, rows=rows, mislabelled=share, seed=9)
    units = membership.units_of(data)
    assert len(drawn.units) == min(rows, units.count) == len(set(drawn.units.tolist()))
    assert drawn.units.tolist() == sorted(drawn.units)
    for place, unit in enumerate(drawn.units):
        mine = units.members[units.starts[unit] : units.starts[unit + 1]]
        assert drawn.rows[drawn.unit_of == place].tolist() == mine.tolist()
        assert drawn.sizes[place] == len(mine)
    assert drawn.mislabelled.sum() == round(share * len(drawn.units))
    before, after = data.labels.numpy(), drawn.labels.numpy()
    changed = np.zeros(150, dtype=bool)
    changed[drawn.rows[drawn.mislabelled[drawn.unit_of]]] = True
    if kind == "labels":
        assert (after[changed] == 1 - before[changed]).all()
    else:
        assert (after[changed] != before[changed]).all()
        assert ((after >= 0) & (after < data.num_classes)).all()
    assert (after[~changed] == before[~changed]).all()


@pytest.mark.parametrize("kind", KINDS)
def test_units_that_lost_their_coin_have_weight_0_and_others_theirs(kind: str) -> None:
    data = rows_of(kind)
    drawn = membership.draw_units(data, rows=60, mislabelled=0.5, seed=9)
    coins = membership.toss_coins(drawn, 40, seed=9)
    assert coins.shape == (40, 60)
    assert 0.4 < coins.mean() < 0.6
    assert not np.array_equal(coins, membership.toss_coins(drawn, 40, seed=8))
    left = membership.leave_units_out(data, drawn, coins[0])
    assert left.units is not None
    wanted = membership.units_of(data).weights.copy()
    for place, unit_rows in enumerate(coins[0]):
        if not unit_rows:
            wanted[drawn.rows[drawn.unit_of == place]] = 0.0
    assert left.units.weights.tolist() == wanted.tolist()
    assert left.labels.equal(drawn.labels)
    assert data.n == left.n


@pytest.mark.parametrize(
    ("counts", "rare"),
    # rare classes have at most a tenth of all rows together, and half of the mean class size each
    [
        ([90, 5, 5], [1, 2]),
        ([90, 10, 0], [1]),
        ([89, 11, 0], []),
        ([50, 50, 11], [2]),
        ([50, 50, 12], []),  # 12 of 112 rows are more than a tenth
        ([10, 10, 10], []),
        ([95, 5, 5, 5, 1], [1, 2, 4]),  # 1 + 5 + 5 of 111; another 5 would be too many
        ([22] * 5 + [10], [5]),
        ([22] * 5 + [11], []),  # 11 is more than half of the mean, 121 / 6
        ([7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 4], []),  # 4 is more than half of the mean
    ],
)
def test_rare_classes_are_the_smallest_up_to_a_tenth_of_the_rows(
    counts: list[int], rare: list[int]
) -> None:
    labels = np.repeat(range(len(counts)), counts)
    found = membership._find_rare_rows(labels, len(counts) + 1)
    assert (found is None) == (not rare)
    if found is not None:
        assert found.tolist() == np.isin(labels, rare).tolist()


def test_a_rare_label_makes_each_row_that_has_it_rare() -> None:
    labels = np.zeros((100, 3), dtype=np.uint8)
    labels[:60, 0] = labels[5:12, 1] = 1  # the third label has no row
    found = membership._find_rare_rows(labels, 3)
    assert found is not None
    assert np.flatnonzero(found).tolist() == list(range(5, 12))


def test_groups_are_of_right_labels_of_wrong_ones_and_of_rare_classes() -> None:
    drawn = membership.draw_units(rows_of("rare"), rows=150, mislabelled=0.2, seed=1)
    groups, missing = membership._group_units(drawn)
    assert missing == {}
    assert drawn.rare is not None
    # 7 of 150 rows, since 10 more would exceed a tenth; by the original labels
    assert drawn.rare.tolist() == [False] * 143 + [True] * 7
    assert groups["all"].tolist() == (~drawn.mislabelled).tolist()
    assert groups["mislabelled"].tolist() == drawn.mislabelled.tolist()
    assert groups["rarest_classes"].tolist() == (drawn.rare & ~drawn.mislabelled).tolist()
    assert 0 < groups["rarest_classes"].sum() < drawn.rare.sum()


@pytest.mark.parametrize(
    ("kind", "changes", "reasons"),
    [
        ("rare", {}, {"mislabelled": "no label was changed"}),
        ("alike", {}, {"mislabelled": "no label", "rarest_classes": "no class has at most half"}),
        ("rare", {"rows": 1}, {"mislabelled": "no label", "rarest_classes": "no attacked unit"}),
    ],
)
def test_a_group_without_units_says_why(
    kind: str, changes: dict[str, int], reasons: dict[str, str]
) -> None:
    data = rows_of(kind)
    drawn = membership.draw_units(data, **{"rows": 150, **changes}, mislabelled=0.0, seed=1)
    if "rows" in changes:  # the unit's class is not rare
        assert drawn.rare is not None
        assert not drawn.rare.any()
    groups, missing = membership._group_units(drawn)
    assert missing.keys() == reasons.keys()
    assert all(words in missing[name] for name, words in reasons.items())
    assert groups.keys() == {"all", "mislabelled", "rarest_classes"} - reasons.keys()


def test_a_patient_s_confidence_is_the_mean_over_the_images_of_each_head(tmp_path: Path) -> None:
    data, method = rows_of("patients"), method_options({"head": "least_squares"})
    plan_ = priced(method, data.n, 8.0, tmp_path)
    drawn = membership.draw_units(data, rows=40, mislabelled=0.1, seed=4)
    coins = membership.toss_coins(drawn, 2, seed=4)
    seen = membership.train_and_look(method, plan_, data, drawn, coins, seed=4, label="test")
    assert data.features is not None
    for head, inside in enumerate(coins):
        rows = membership.leave_units_out(data, drawn, inside)
        fitted = fit_heads(method, rows, plan_, [derived_seed(4, f"head {head}")])
        scores = score_rows(fitted, data.features)[0].astype(np.float64)
        logs = log_softmax(scores, axis=1)[np.arange(150), drawn.labels.numpy()]
        for place in range(len(drawn.units)):
            mine = drawn.rows[drawn.unit_of == place]
            assert seen.log_probability[head, place] == pytest.approx(logs[mine].mean(), rel=1e-5)
            others = np.log1p(-np.exp(logs[mine]))
            wanted = (logs[mine] - others).mean()
            assert seen.scaled[head, place] == pytest.approx(wanted, rel=1e-4, abs=1e-5)
    assert (drawn.sizes == 2).any()


# The record


@pytest.mark.parametrize("kind", KINDS)
def test_the_record_has_each_attack_on_each_group_and_the_table_its_scores(
    kind: str, tmp_path: Path
) -> None:
    data = rows_of(kind)
    record, columns = attacked(
        {"head": "least_squares"},
        data,
        8.0,
        tmp_path,
        shadows=8,
        targets=6,
        rows=40,
        mislabelled=0.1,
    )
    missing = [each["rows"] for each in record["not_applicable"]]
    groups = ["all", "mislabelled", *({"rarest_classes"} - {*missing})]
    assert [(row["rows"], row["attack"]) for row in record["rows"]] == [
        (group, name) for group in groups for name in ("loss", "lira", "rmia")
    ]
    assert [(curve["rows"], curve["attack"]) for curve in record["roc"]["curves"]] == [
        (row["rows"], row["attack"]) for row in record["rows"]
    ]
    for row in record["rows"]:
        assert row["members"] + row["non_members"] == 6 * row["units"]
        name = row["attack"] if row["rows"] == "all" else f"{row['attack']} {row['rows']}"
        if row["rows"] != "rarest_classes":
            mine = np.array(columns["attack"]) == name
            assert mine.sum() == 6 * row["units"]
            assert columns["member"][mine].sum() == row["members"]
            area = roc_auc_score(columns["member"][mine], columns["score"][mine])
            assert row["auc"] == pytest.approx(area, abs=1e-6)
    units = {row["rows"]: row["units"] for row in record["rows"]}
    assert (units["all"], units["mislabelled"]) == (36, 4)
    assert (record["shadows"], record["targets"], record["units"]) == (7, 6, 40)


def test_a_curve_is_described_at_the_two_rates_and_rounded_elsewhere() -> None:
    """The last two rates of the curve are 0.001 and 0.01."""
    at = np.arange(83) / 100
    low = at - 0.001
    low[-1] = math.nan
    roc = membership_attacks.Roc(
        rates=at,
        tpr=at,
        low=low,
        high=at + 0.00200049,
        auc=0.75,
        auc_interval=(0.7, 0.8),
        members=5,
        non_members=7,
    )
    assert membership._describe_roc(roc) == {
        "members": 5,
        "non_members": 7,
        "auc": 0.75,
        "auc_interval": [0.7, 0.8],
        "tpr_at_fpr": {"0.001": 0.81, "0.01": 0.82},
        "intervals": {"0.001": [0.809, 0.812], "0.01": None},
    }
    assert membership._by_rate(np.arange(9.0) / 7) == {"0.001": 1.0, "0.01": 1.142857}
    rounded = membership._round_curve(np.array([0.12345678, math.nan, 1.0, 5.0]))
    assert rounded == [0.123457, None]


@pytest.mark.parametrize("epsilon", [1.0, math.inf])
def test_what_a_plan_allows_is_the_best_attack_at_the_curve_s_rates(epsilon: float) -> None:
    parts = [gaussians(2.0 if epsilon == 1 else 0.0)]
    allowed = membership.allowed_by(made_plan(parts, 100))
    rates = np.append(np.logspace(-4, 0, 81), [0.001, 0.01])
    wanted = norm.cdf(norm.ppf(rates) + 0.5) if epsilon == 1 else np.ones(83)
    assert allowed.true_positives == pytest.approx(wanted, abs=1.1e-6)
    searched = replace(made_plan([gaussians(4.0)], 100, selection=best_of(5)), realised_epsilon=0.8)
    corner = (math.exp(0.8) + 1e-5) / (1 + math.exp(0.8))
    assert membership.allowed_by(searched).balanced_accuracy == pytest.approx(corner, abs=1.1e-6)


@pytest.mark.parametrize("patients", [False, True])
def test_units_with_only_null_examples_are_not_attacked(patients: bool) -> None:
    """No attack can find them, so they would make every attack look weaker."""
    whole = random_rows(60)
    assert whole.features is not None
    features = whole.features.clone()
    features[[0, 1, 2, 7]] = torch.nan
    units = Units.number_units([f"p{row // 3}" for row in range(60)]) if patients else None
    data = TrainingSet(features, whole.labels, 3, units=units)
    drawn = membership.draw_units(data, rows=60, mislabelled=0.1, seed=4)
    rows = {row // 3 for row in range(3, 60)} if patients else {*range(60)} - {0, 1, 2, 7}
    assert drawn.units.tolist() == sorted(rows)


# Scores of membership attacks against plain loops, and intervals of attacks.


@pytest.mark.parametrize("several", [False, True])
def test_confidences_equal_those_of_softmax_or_products_of_sigmoids(several: bool) -> None:
    generator = np.random.default_rng(0)
    scores = generator.normal(size=(50, 4), scale=2).astype(np.float32)
    labels = generator.integers(2, size=(50, 4)) if several else generator.integers(4, size=50)
    seen, values = compute_confidences(scores, labels), scores.astype(np.float64)
    if several:
        p = np.where(labels == 1, expit(values), expit(-values)).prod(axis=1)
    else:
        p = softmax(values, axis=1)[np.arange(50), labels]
    np.testing.assert_allclose(seen.log_probability, np.log(p), rtol=1e-9)
    np.testing.assert_allclose(seen.scaled, np.log(p / (1 - p)), rtol=1e-7, atol=1e-9)


def naive_lira(scaled: np.ndarray, members: np.ndarray, *, by_row: bool) -> np.ndarray:
    """Computes algorithm 1 of Carlini et al., one target and one row at a time."""
    heads, rows = scaled.shape
    scores = np.empty((heads, rows))
    for target in range(heads):
        sides, others = {}, np.delete(np.arange(heads), target)
        for side in (True, False):
            values = [scaled[others, r][members[others, r] == side] for r in range(rows)]
            squares = sum(np.var(one) * len(one) for one in values)
            pooled = math.sqrt(squares / sum(len(one) - 1 for one in values))
            spreads = [np.std(one, ddof=1) if by_row else pooled for one in values]
            sides[side] = norm.logpdf(scaled[target], [np.mean(one) for one in values], spreads)
        scores[target] = np.subtract(sides[True], sides[False])
    return scores


@pytest.mark.parametrize(("heads", "by_row"), [(20, False), (65, True)])
def test_lira_agrees_with_a_loop(heads: int, by_row: bool) -> None:
    assert (heads - 1 >= membership_attacks.SHADOWS_FOR_VARIANCES) == by_row
    generator = np.random.default_rng(heads)
    members = generator.random((heads, 7)) < 0.5
    scaled = generator.normal(size=(heads, 7)) * [1, 2, 3, 4, 5, 6, 7] + members
    expected = naive_lira(scaled, members, by_row=by_row)
    np.testing.assert_allclose(score_lira(scaled, members, heads), expected, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(score_lira(scaled, members, 3), expected[:3], rtol=1e-8, atol=1e-9)


def test_rmia_agrees_with_a_loop() -> None:
    generator = np.random.default_rng(1)
    heads, rows = 12, 9
    members = generator.random((heads, rows)) < 0.5
    logs = log_softmax(generator.normal(size=(heads, rows, 3)), axis=2)[:, :, 0]
    expected = np.empty((heads, rows))
    for target in range(heads):
        ratio, others = [], np.delete(np.arange(heads), target)
        for row in range(rows):
            seen, inside = np.exp(logs[others, row]), members[others, row]
            mean = (np.mean(seen[inside]) + np.mean(seen[~inside])) / 2
            ratio.append(math.exp(logs[target, row]) / mean)
        for row in range(rows):
            beaten = [ratio[row] / ratio[z] >= 1 for z in range(rows) if z != row]
            expected[target, row] = np.mean(beaten)
    np.testing.assert_allclose(score_rmia(logs, members, heads), expected, atol=1e-12)


def test_rows_that_are_always_or_never_members_give_no_evidence() -> None:
    members = np.array([[True, False]] * 9)
    values = np.random.default_rng(0).normal(size=(9, 2)) - 3
    assert (score_lira(values, members, 9) == 0).all()
    assert np.isfinite(score_rmia(values, members, 9)).all()
    # the same holds for heads that agree exactly
    members = np.random.default_rng(0).random((70, 5)) < 0.5
    assert np.isfinite(score_lira(np.ones((70, 5)), members, 70)).all()


def test_curves_equal_those_of_scikit_learn() -> None:
    generator = np.random.default_rng(1)
    members = generator.random((30, 100)) < 0.4
    scores = np.round(generator.normal(size=members.shape) + members, 1)  # many ties
    measured = measure_roc(scores, members, (0.01, 0.1, 0.5, 1.0), seed=0)
    assert measured is not None
    assert measured.auc == pytest.approx(roc_auc_score(members.ravel(), scores.ravel()))
    fpr, tpr, _ = roc_curve(members.ravel(), scores.ravel(), drop_intermediate=False)
    expected = [tpr[fpr <= rate + 1e-12].max() for rate in measured.rates]
    np.testing.assert_allclose(measured.tpr, expected)


def test_a_rate_needs_as_many_non_members_as_ten_false_positives_take() -> None:
    generator = np.random.default_rng(0)
    for non_members, resolved in ((9_999, False), (10_000, True)):
        members = np.arange(non_members + 50)[None] >= non_members
        measured = measure_roc(generator.normal(size=members.shape), members, (0.001, 0.01), seed=0)
        assert measured is not None
        assert math.isnan(measured.tpr[0]) != resolved
        assert math.isfinite(measured.tpr[1])


@pytest.mark.parametrize("different", [8, 1])
def test_intervals_are_the_central_95_percent_of_heads_and_units_drawn_again(
    different: int,
) -> None:
    """Copies of one head (`different` = 1) do not narrow an interval: weights stay with units."""
    generator = np.random.default_rng(0)
    members = generator.random((8, 50)) < 0.5
    scores = generator.normal(size=(8, 50)) + members + generator.normal(size=(1, 50))
    copied = np.arange(8) % different
    members, scores = members[copied], scores[copied]
    areas = []
    for _ in range(2000):
        heads, units = (generator.integers(k, size=k) for k in members.shape)
        inside = members[np.ix_(heads, units)].ravel()
        ranks = rankdata(scores[np.ix_(heads, units)].ravel())[inside]
        wins = ranks.sum() - len(ranks) * (len(ranks) + 1) / 2
        areas.append(wins / (inside.sum() * (~inside).sum()))
    wanted = np.quantile(areas, [0.025, 0.975])
    measured = measure_roc(scores, members, (0.1,), seed=1)
    assert measured is not None
    low, high = measured.auc_interval
    assert high - low == pytest.approx(wanted[1] - wanted[0], rel=0.08)


def test_scores_far_beyond_floats_have_finite_confidences_in_the_right_order() -> None:
    """At logits of 3000, p is exactly 1 or 0 as a float, but the logs must stay finite."""
    logits = np.array([[3000.0, -3000.0, 0.0], [-3000.0, 3000.0, 0.0]], np.float32)
    right, wrong = (
        x.tolist() for x in compute_confidences(logits, np.array([0, 0])).scaled[:, None]
    )
    assert right == [3000.0]
    assert wrong == [-6000.0]
    seen = compute_confidences(logits, np.array([[1, 0, 1], [1, 0, 1]]))
    # log p = log(1/2) for the third label, and -3000 for each of the two wrong labels
    np.testing.assert_allclose(seen.log_probability, [-math.log(2), -6000 - math.log(2)])
    np.testing.assert_allclose(seen.scaled, [0.0, -6000 - math.log(2)], atol=1e-9)
    sure = compute_confidences(np.full((1, 3), 3000, np.float32), np.array([[1, 1, 1]]))
    assert np.isfinite(sure).all()
    assert sure.scaled[0] > 600, "nothing is surer than a p of 1"


def test_rmia_scores_a_single_row_as_zero() -> None:
    generator = np.random.default_rng(3)
    members = generator.random((6, 1)) < 0.5
    assert (score_rmia(generator.normal(size=(6, 1)) - 2, members, 2) == 0).all()


def test_rmia_uses_only_the_in_or_out_shadow_heads_that_exist_for_a_row() -> None:
    """P is the mean over the existing side, and equal ratios count as beaten."""
    first, second = [0.5, 0.5, 0.2, 0.6], [0.25, 0.25, 0.4, 0.5]
    logs = np.log(np.array([first, second, [0.75, 0.75, 0.4, 0.5]]))
    members = np.array([[True] * 4, [True, False, True, True], [True, False, False, False]])
    # ratios of the first head: 0.5 / 0.5 twice, 0.2 / 0.4, and 0.6 / 0.5
    np.testing.assert_allclose(score_rmia(logs, members, 1), [[2 / 3, 2 / 3, 0.0, 1.0]])


def test_a_perfect_attack_and_a_useless_one_have_the_curves_that_one_can_see() -> None:
    members = np.tile(np.arange(60) % 2 == 0, (3, 1))
    rates = (0.0, 0.2, 1.0)
    perfect = measure_roc(members * 1.0, members, rates, seed=1)
    useless = measure_roc(np.ones(members.shape), members, rates, seed=1)
    assert perfect is not None
    assert useless is not None
    assert (perfect.auc, useless.auc) == (1.0, 0.5)
    assert perfect.auc_interval == (1.0, 1.0)
    assert (perfect.members, perfect.non_members) == (90, 90)
    # a rate of 0 cannot be resolved; equal scores are flagged together
    np.testing.assert_array_equal(perfect.tpr, [math.nan, 1.0, 1.0])
    np.testing.assert_array_equal(useless.tpr, [math.nan, 0.0, 1.0])
    np.testing.assert_array_equal(perfect.low, [math.nan, 1.0, 1.0])


@pytest.mark.parametrize("count", [76, 77, 78])
def test_ten_false_positives_are_enough_whatever_the_rounding_of_a_rate(count: int) -> None:
    """Of 77 non-members, 10 / 77 are ten, although the product of floats is slightly less."""
    rate = 10 / 77
    assert 77 * rate < 10
    ranks = np.sin(np.arange(2.0 * count)).reshape(2, count)
    sides = np.repeat([[True], [False]], count, axis=1)
    roc = measure_roc(ranks, sides, (rate,), seed=1)
    assert roc is not None
    false = sorted(ranks[1], reverse=True)
    wanted = np.mean(ranks[0] > false[10]) if count >= 77 else math.nan
    assert roc.tpr.item() == pytest.approx(wanted, nan_ok=True)
