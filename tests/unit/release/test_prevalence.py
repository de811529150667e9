"""Probabilities at another clinic's class frequencies: Bayes' rule, and their estimate."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow.parquet as pq
import pytest
from PIL import Image
from scipy.stats import multivariate_normal

from dpprobe.errors import ConfigError, DataError
from dpprobe.release.bundle import Bundle, read_bundle
from dpprobe.release.predict import predict
from dpprobe.release.prevalence import Prevalence
from dpprobe.release.probabilities import Calibration
from tests.support.bundles import CLASSES, PRIORS, write_example
from tests.support.command_line import run_main
from tests.support.refusals import check_tokens, refuses

STATED = {"head": "feature_covariance", "normalize": "l2", "class_priors": "released"}
PUBLIC = STATED | {"class_priors": [0.5, 0.3, 0.2]}
WEIGHTED = {"head": "momentum", "class_priors": [0.5, 0.3, 0.2], "class_weights": [0.2, 0.5, 1]}
PRIOR_FREE: dict[str, Any] = {"head": "feature_covariance", "normalize": "l2"}
CENTRES = np.array([[0.0, 0], [2, 0], [0, 2]])


def make_bundle(folder: Path, options: dict[str, Any]) -> Bundle:
    return read_bundle(write_example(folder / "v1", options=options))


def posterior(points: npt.NDArray[Any], shares: Any) -> npt.NDArray[np.float64]:
    """Applies Bayes' rule to the densities of three normal classes."""
    densities = [multivariate_normal(mean=centre).pdf(points) for centre in CENTRES]
    joint = np.column_stack(densities) * np.asarray(shares)
    return np.asarray(joint / joint.sum(axis=1, keepdims=True))


@pytest.mark.parametrize(
    ("options", "answered", "asked", "wanted"),
    [
        (STATED, [1, 1, 1], {"melanoma": 0.02}, [0.98 * 0.7 / 0.75, 0.02, 0.98 * 0.05 / 0.75]),
        (PUBLIC, [1, 1, 1], {"melanoma": 0.1}, [0.9 * 0.5 / 0.7, 0.1, 0.9 * 0.2 / 0.7]),
        (WEIGHTED, [0.2, 0.5, 1], dict(zip(CLASSES, PRIORS.tolist(), strict=True)), PRIORS),
    ],
    ids=["released", "public", "weighted"],
)
def test_probabilities_follow_bayes_rule(
    tmp_path: Path, options: dict[str, Any], answered: list[float], asked: Any, wanted: Any
) -> None:
    """Classes without a stated frequency stay in their training proportions."""
    points = np.random.default_rng(1).normal(size=(50, 2))
    shares = Prevalence.of_bundle(make_bundle(tmp_path, options), asked)
    adapted = shares.adapt(posterior(points, answered).astype(np.float32))
    np.testing.assert_allclose(adapted, posterior(points, wanted), atol=1e-6)


@pytest.mark.parametrize(("options", "answered"), [(STATED, [1, 1, 1]), (WEIGHTED, [0.2, 0.5, 1])])
def test_unlabelled_images_tell_their_prevalence(
    tmp_path: Path, options: dict[str, Any], answered: list[float]
) -> None:
    """Counting the most probable classes would be far off."""
    wanted, generator = np.array([0.9, 0.02, 0.08]), np.random.default_rng(2)
    labels = generator.choice(3, size=40_000, p=wanted)
    points = CENTRES[labels] + generator.normal(size=(len(labels), 2))
    values = posterior(points, answered)
    found = Prevalence.of_bundle(make_bundle(tmp_path, options), "estimate").estimate(values)
    assert found.wanted is not None
    # The standard error of a frequency is at least sqrt(0.9 * 0.1 / 40000) = 0.0015.
    np.testing.assert_allclose(found.wanted, wanted, atol=0.008)
    assert np.abs(np.bincount(values.argmax(1)) / len(labels) - wanted).max() > 0.03
    # At the maximum of the likelihood, the mean adapted probability equals the estimate.
    mean = posterior(points, found.wanted).mean(axis=0)
    np.testing.assert_allclose(mean, found.wanted, atol=1e-6)
    with refuses(DataError, "no image"):
        found.estimate(values[:0])


@pytest.mark.parametrize(
    ("options", "asked", "said"),
    [
        (PRIOR_FREE, {"melanoma": 0.02}, ("lesions_v1", "`balanced: true`", "class_priors")),
        (STATED, {"melanom": 0.02}, ("prevalence of melanom", "melanoma")),
        (STATED, {"melanoma": 0.0}, ("prevalence of melanoma", "0", "0.02")),
        (STATED, {"melanoma": math.nan}, ("prevalence of melanoma", "nan")),
        (STATED, {"melanoma": 0.6, "naevus": 0.4}, ("leaves nothing",)),
        (STATED, dict.fromkeys(CLASSES, 0.3), ("add up to 0.9",)),
    ],
)
def test_frequencies_that_cannot_be_are_refused(
    tmp_path: Path, options: dict[str, Any], asked: Any, said: tuple[str, ...]
) -> None:
    with refuses(ConfigError, *said):
        Prevalence.of_bundle(make_bundle(tmp_path, options), asked)


def test_a_calibrated_release_is_refused(tmp_path: Path) -> None:
    made = replace(make_bundle(tmp_path, STATED))
    made.__dict__["calibration"] = Calibration(scale=1.0, offset=0.0, thresholds={})
    with refuses(ConfigError, "calibrated", "without `calibrate`"):
        Prevalence.of_bundle(made, "estimate")


@pytest.mark.parametrize("words", [["melanoma=0.02"], ["estimate"]])
def test_a_table_has_adapted_probabilities_and_their_prevalence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
) -> None:
    bundle = write_example(tmp_path / "v1", options=STATED)
    (tmp_path / "new").mkdir()
    generator = np.random.default_rng(0)
    for row in range(30):
        pixels = generator.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"new/{row:02d}.png")
    (tmp_path / "new/bad.png").write_bytes(b"bad")
    names = [f"probability_{name}" for name in CLASSES]

    predict(bundle, [tmp_path / "new"], output=tmp_path / "plain.csv", device="cpu")
    plain = pd.read_csv(tmp_path / "plain.csv")
    assert "prevalence" not in plain
    output = tmp_path / "out.parquet"
    given = ("--prevalence", words[0], "--output", str(output), "--device", "cpu")
    assert run_main(monkeypatch, "predict", str(bundle), str(tmp_path / "new"), *given) == 3
    told = capsys.readouterr().err
    shares = json.loads(pq.read_schema(output).metadata[b"dpprobe"])["prevalence"]
    table = pd.read_parquet(output)
    wanted = plain[names].to_numpy() * [shares[name] for name in CLASSES]
    wanted /= wanted.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(table[names].to_numpy(), wanted, atol=1e-5)
    assert np.abs(wanted - plain[names].to_numpy())[:-1].max() > 0.05
    right = [CLASSES[place] for place in np.nan_to_num(wanted).argmax(axis=1)]
    usable = plain["class"].notna()
    assert usable.sum() == 30
    assert table["class"][usable].tolist() == [right[row] for row in np.flatnonzero(usable)]
    if words == ["estimate"]:
        check_tokens(told, "estimated prevalence", "melanoma")
    else:
        assert shares["melanoma"] == pytest.approx(0.02)
        assert "estimated" not in told
    named = {"prevalence": shares, "device": "cpu"}
    predict(bundle, [tmp_path / "new"], output=tmp_path / "out.csv", **named)
    joined = "|".join(f"{name}={shares[name]}" for name in CLASSES)
    assert set(pd.read_csv(tmp_path / "out.csv")["prevalence"]) == {joined}
