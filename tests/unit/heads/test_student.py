"""Students on public images: their training, the released counts, and when one is used."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from dpprobe.errors import ConfigError, DataError
from dpprobe.heads.dimension_limits import dimension_fault
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.fitted import STUDENT_GAIN, Heads
from dpprobe.heads.joint_fits import sites_fault
from dpprobe.heads.normalisation import L2
from dpprobe.heads.patient_groups import Units
from dpprobe.heads.registry import method_options
from dpprobe.heads.rows import Rows
from dpprobe.heads.scoring import score_rows
from dpprobe.heads.student import STUDENT_CLASSES, STUDENT_HEADS, train_student
from dpprobe.heads.training_set import TrainingSet
from dpprobe.heads.transform import Transform
from dpprobe.privacy.noise_calibration import calibrate
from dpprobe.privacy.target import Target
from dpprobe.training.public_file_check import SYNTHETIC_ROWS
from tests.support.linear_heads import Source, plan_for
from tests.support.mechanisms import made_plan
from tests.support.observers import Watching
from tests.support.refusals import refuses
from tests.support.second_order_data import classes_of

BLOCKS = pytest.mark.usefixtures("several_blocks")

ROWS, CLASSES, WIDE, NULL = 60, 4, 12, 5
LABELS = torch.tensor([0] * 30 + [1] * 20 + [2] * 9 + [3])
HEADS: dict[str, dict[str, Any]] = {
    "closed form": {},
    "exact": {"engine": "exact"},
    "whitened": {"normalize": {"kind": "whitened"}},
    "balanced": {"class_priors": "released", "offset_share": 0.1},
    "public priors": {"class_priors": [0.5, 0.3, 0.15, 0.05]},
}


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> str:
    rows = classes_of(90, seed=1)[0].numpy()
    np.save(path := tmp_path_factory.mktemp("public") / "films.npy", rows)
    return str(path)


def method_of(name: str, public: str, **more: Any) -> Any:
    values = {"head": "momentum", "steps": 3, "student_share": 0.1, **HEADS[name], **more}
    normalize = {"kind": "centred", **values.get("normalize", {}), "public": public}
    return method_options({**values, "normalize": normalize})


class Deciding(Watching):
    """Stores the values that a fit shows; `gain` replaces the released gain if given."""

    def __init__(self, gain: float | None = None, *, through: bool = True) -> None:
        super().__init__(through=through)
        self._gain = gain
        self.values: dict[str, npt.NDArray[np.float64]] = {}

    def see_values(self, name: str, seeds: Any, values: torch.Tensor) -> None:
        del seeds
        self.values[name] = values[0].double().numpy()

    def change_output(self, name: str, output: torch.Tensor, step: float | None) -> torch.Tensor:
        del step
        replaced = name == STUDENT_GAIN and self._gain is not None
        return torch.full_like(output, self._gain or 0.0) if replaced else output


def fit_one(method: Any, observer: Watching, units: Units | None = None, n: int = ROWS) -> Heads:
    features = classes_of(ROWS)[0]
    features[NULL] = math.nan
    data = TrainingSet(features, LABELS, CLASSES, units=units, public=SYNTHETIC_ROWS)
    return fit_heads(method, data, plan_for(method, n, 1.0), [1], observer=observer)


@BLOCKS
@pytest.mark.parametrize("sharpness", [1.0, 1e4])
def test_a_student_is_the_discriminant_of_its_teacher_s_labels(sharpness: float) -> None:
    """A plain loop and, for hard labels, scikit-learn give the same head; zero rows are ignored."""
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(80, 5)).astype(np.float32)
    head = sharpness * generator.normal(size=(3, 6)).astype(np.float32)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    bad = np.array([[math.nan] * 5, [math.inf] * 5, [0.0] * 5, [1e30] * 5], np.float32)
    data = TrainingSet(
        Source(np.concatenate([bad, rows])),
        torch.zeros(84, dtype=torch.int64),
        1,
        warn=lambda _: None,
    )
    student = train_student(head, Rows(data, Transform(L2()))).astype(np.float64)
    labels = np.stack(
        [
            np.exp(z - z.max()) / np.exp(z - z.max()).sum()
            for z in unit @ head[:, :-1].T + head[:, -1]
        ]
    )
    means = np.stack(
        [
            sum(p[k] * x for p, x in zip(labels, unit, strict=True)) / labels[:, k].sum()
            for k in range(3)
        ]
    )
    covariance = np.zeros((5, 5))
    for p, x in zip(labels, unit, strict=True):
        covariance += np.outer(x - p @ means, x - p @ means) / len(unit)
    covariance = 0.7 * covariance + 0.3 * np.trace(covariance) / 5 * np.eye(5)
    expected = np.linalg.solve(covariance, means.T).T
    biases = [-(weights @ mean) / 2 for weights, mean in zip(expected, means, strict=True)]
    np.testing.assert_allclose(student, np.column_stack([expected, biases]), rtol=1e-4, atol=1e-4)
    if sharpness > 1:
        other = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.3)
        other.fit(unit, labels.argmax(1))
        np.testing.assert_allclose(student[:, :-1], other.coef_, rtol=1e-3, atol=1e-3)
        intercepts = other.intercept_ - np.log(other.priors_)
        np.testing.assert_allclose(student[:, -1], intercepts, rtol=1e-3, atol=1e-3)


@BLOCKS
@pytest.mark.parametrize("name", HEADS)
def test_the_gain_is_a_count_of_units_weighted_by_class(name: str, public: str) -> None:
    """A plain loop over units, on the scores of the released heads, gives the same count."""
    seen = Deciding(0.0)
    units = Units.number_units([f"{row // 7}" for row in range(ROWS)])
    method = method_of(name, public)
    heads = fit_one(method, seen, units, units.count)
    head, student = seen.values[STUDENT_HEADS]
    np.testing.assert_array_equal(heads.weights[0], head.astype(np.float32))
    prior = np.ones(CLASSES) if heads.priors is None else heads.priors[0].astype(np.float64)
    if method.public_priors:
        prior = np.array(method.public_priors)
    of_class = prior.min() / prior
    np.testing.assert_allclose(seen.values[STUDENT_CLASSES], of_class, rtol=1e-6)
    rows = heads.transforms[0](classes_of(ROWS)[0]).double().numpy()
    total = 0.0
    for unit in range(units.count):
        members = [row for row in range(ROWS) if row // 7 == unit]
        mean = 0.0
        for row in members:
            if row != NULL:
                right = [
                    int((each[:, :-1] @ rows[row] + each[:, -1]).argmax() == LABELS[row])
                    for each in (head, student)
                ]
                mean += of_class[LABELS[row]] * (right[1] - right[0]) / len(members)
        assert abs(mean) <= 1
        total += mean
    (summed,) = seen.sums[STUDENT_GAIN]
    assert total != 0
    np.testing.assert_allclose(summed, [total], atol=1e-5)


@pytest.mark.parametrize("name", HEADS)
def test_a_student_is_used_only_above_two_standard_deviations(name: str, public: str) -> None:
    method = method_of(name, public)
    deviation = plan_for(method, ROWS, 1.0).find_mechanism(STUDENT_GAIN).noise_scale
    for gain, used in ((2.01, True), (1.99, False), (-9.0, False)):
        seen = Deciding(gain * deviation)
        heads = fit_one(method, seen)
        pair = seen.values[STUDENT_HEADS].astype(np.float32)
        np.testing.assert_array_equal(heads.weights[0], pair[int(used)])
        assert not np.array_equal(*pair)
        told = [[gain * deviation, 2 * deviation]]
        np.testing.assert_allclose(heads.released_arrays()[STUDENT_GAIN], told, rtol=1e-6)


def test_a_head_that_stays_is_the_one_without_a_student(public: str) -> None:
    """The count takes its share of the budget."""
    method, plain = (method_of("balanced", public, student_share=share) for share in (0.1, None))
    plan = plan_for(method, ROWS, 1.0)
    costs = {each.name: each.count / each.noise_multiplier**2 for each in plan.mechanisms}
    assert math.isclose(costs[STUDENT_GAIN], 0.1 * sum(costs.values()), rel_tol=1e-9)
    others = made_plan([each for each in plan.mechanisms if each.name != STUDENT_GAIN], ROWS)
    data = TrainingSet(classes_of(ROWS)[0], LABELS, CLASSES, public=SYNTHETIC_ROWS)
    kept = fit_heads(method, data, plan, [1], observer=Deciding(0.0))
    alone = fit_heads(plain, data, others, [1])
    np.testing.assert_array_equal(kept.weights, alone.weights)
    assert (kept.gains is None, alone.gains is None) == (False, True)


ENTRIES = st.sampled_from([0.0, 1.0, -1.0, 0.3, 1e-20, 50.0, 1e12, 1e25, math.nan, math.inf])


@BLOCKS
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    unit=st.lists(st.lists(ENTRIES, min_size=WIDE, max_size=WIDE), min_size=1, max_size=9),
    labels=st.lists(st.integers(0, CLASSES - 1), min_size=9, max_size=9),
    name=st.sampled_from([*HEADS]),
)
def test_a_unit_moves_the_count_by_one_at_most(
    unit: list[list[float]], labels: list[int], name: str, public: str
) -> None:
    """A unit with any rows is compared with null rows, which add nothing."""
    own = torch.tensor(unit)
    features, method = torch.cat([classes_of(20)[0], own]), method_of(name, public)
    units = Units.number_units([*"abcdefghijklmnopqrst", *["patient"] * len(unit)])
    targets, sums = torch.tensor([*range(4)] * 5 + labels[: len(unit)]), []
    for rows in (own, torch.full_like(own, math.nan)):
        seen = Deciding(through=False)
        features[20:] = rows
        data = TrainingSet(
            features.clone(),
            targets,
            CLASSES,
            units=units,
            public=SYNTHETIC_ROWS,
            warn=lambda _: None,
        )
        fit_heads(method, data, plan_for(method, units.count, 1.0), [1], observer=seen)
        sums.append(float(seen.sums[STUDENT_GAIN][0][0]))
    assert abs(sums[0] - sums[1]) <= 1
    assert own.isfinite().all(1).any() or sums[0] == sums[1]


@pytest.mark.parametrize("similar", [True, False])
def test_a_student_is_used_only_if_the_public_images_are_similar(
    similar: bool, tmp_path: Path
) -> None:
    """Accuracy rises with similar images and falls little with others (6 seeds)."""
    n, d, classes = 600, 400, 5
    generator = np.random.default_rng(0)
    centres, shift = 0.25 * generator.normal(size=(classes, d)), generator.normal(size=d)
    mixing = generator.normal(size=(6, d))

    def draw_rows(rows: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        labels = generator.integers(classes, size=rows)
        spread = 0.1 * generator.normal(size=(rows, 6)) @ mixing
        noise = generator.normal(size=(rows, d))
        return (shift + centres[labels] + spread + noise).astype(np.float32), labels

    rows, labels = draw_rows(n)
    tested, wanted = draw_rows(2000)
    known = draw_rows(800)[0] if similar else generator.normal(size=(800, d)) + 2 * shift
    np.save(path := tmp_path / "films.npy", known)
    data = TrainingSet(
        torch.from_numpy(rows), torch.from_numpy(labels), classes, public=SYNTHETIC_ROWS
    )
    right, used = [], []
    for share in (0.04, None):
        spec = {"kind": "centred", "public": str(path)}
        method = method_options({"head": "momentum", "normalize": spec, "student_share": share})
        target = Target(n=n, epsilon=1.0, delta=1e-5)
        heads = fit_heads(
            method, data, calibrate(method.list_mechanisms(n), target, cache=tmp_path), range(6)
        )
        right.append((np.asarray(score_rows(heads, tested)).argmax(-1) == wanted).mean(1))
        if heads.gains is not None:
            used.append((heads.gains[:, 0] > heads.gains[:, 1]).mean())
    gained = right[0] - right[1]
    assert used == ([1.0] if similar else [0.0])
    assert (gained.mean() > 0.05) if similar else (gained.mean() > -0.02)


def test_student_share_refuses_public_rows_with_equal_features(tmp_path: Path) -> None:
    np.save(path := tmp_path / "films.npy", np.ones((9, WIDE)))
    with refuses(DataError, "student_share", "equal features"):
        fit_one(method_of("closed form", str(path)), Deciding())


FILMS = {"kind": "centred", "public": "films.npy"}
STUDENT = {"head": "momentum", "normalize": FILMS, "student_share": 0.04}


@pytest.mark.parametrize(
    ("values", "tokens"),
    [
        (STUDENT | {"normalize": "centred"}, ["student_share", "0.04", "public"]),
        (STUDENT | {"normalize": "l2"}, ["student_share", "0.04", "public"]),
        (STUDENT | {"loss": "sigmoid"}, ["student_share", "softmax"]),
        ({"head": "auto", "student_share": 0.04}, ["student_share", "0.04", "public"]),
        (
            {"head": "tuned", "base": STUDENT, "search": {"max_grad_norm": [0.5, 0.7]}},
            ["student_share", "search"],
        ),
        (
            {
                "head": "tuned",
                "base": STUDENT | {"student_share": None},
                "search": {"student_share": [0.04, 0.1]},
            },
            ["student_share", "search"],
        ),
        (
            {"head": "fine_tune", "tune": "head", "probe": {"share": 0.2, "method": STUDENT}},
            ["student_share", "probe"],
        ),
    ],
)
def test_students_that_cannot_be_tried_are_refused(
    values: dict[str, Any], tokens: list[str]
) -> None:
    with refuses(ConfigError, *tokens):
        method_options(values)


def test_sites_and_too_many_features_are_refused() -> None:
    method = method_options(STUDENT | {"engine": "exact"})
    assert "student_share" in (sites_fault(method) or "")
    assert sites_fault(method_options(STUDENT | {"engine": "exact", "student_share": None})) is None
    assert "student_share" in (dimension_fault(method, 8193) or "")
    assert dimension_fault(method, 8192) is None
