"""Functions of the public API for people who build their own private training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpprobe.errors import DataError
from dpprobe.estimator.calibration_folder import calibration_folder
from dpprobe.estimator.given_values import read_count, read_number
from dpprobe.extras import naming_extras
from dpprobe.features.feature_store import FeatureStore
from dpprobe.privacy import noise_calibration
from dpprobe.privacy.accountants import compute_epsilon
from dpprobe.privacy.plan import Mechanism
from dpprobe.privacy.target import Target
from dpprobe.release.checks import Report
from dpprobe.release.ledger.ledger_file import check_delta
from dpprobe.release.verification.verify import verify_bundle

if TYPE_CHECKING:
    import pandas as pd

    from dpprobe.estimator.private_classifier import PrivateClassifier

MANIFEST = "manifest.json"


def calibrate(*, epsilon: float, delta: float, steps: int = 1, sample_rate: float = 1.0) -> float:
    """Computes the noise multiplier with which Gaussian releases together are (epsilon, delta)-DP.

    Args:
      steps: the number of equal releases, each of a clipped sum.
      sample_rate: the probability with which each unit joins each release, independently (Poisson
        sampling); 1 for all units in every release.

    Returns:
      The noise's standard deviation divided by the clipping norm, rounded up to six digits.
      Neighbouring datasets differ by one added or removed unit; see docs/privacy.md.

    Raises:
      PrivacyError: for values out of range.

    Example:
      >>> import dpprobe
      >>> dpprobe.calibrate(epsilon=1, delta=1e-5)  # one release of all units
      3.73064
      >>> dpprobe.calibrate(epsilon=1, delta=1e-5, steps=100)  # sqrt(100) times as much
      37.3064
      >>> dpprobe.calibrate(epsilon=1, delta=1e-5, steps=100, sample_rate=0.01)
      0.902199
    """
    plan = noise_calibration.calibrate(
        [_make_releases(1.0, steps, sample_rate)],
        Target(n=1, epsilon=read_number("epsilon", epsilon), delta=read_number("delta", delta)),
        cache=calibration_folder(),
        checked=False,
    )
    return plan.mechanisms[0].noise_multiplier


def epsilon_of(
    *, noise_multiplier: float, delta: float, steps: int = 1, sample_rate: float = 1.0
) -> float:
    """Computes the epsilon of Gaussian releases at delta; arguments are as for `calibrate`.

    Without sampling the value is exact (Gaussian differential privacy); with sampling it is an
    upper bound by privacy loss distributions.

    Raises:
      PrivacyError: for values out of range.

    Example:
      >>> import dpprobe
      >>> round(dpprobe.epsilon_of(noise_multiplier=4, delta=1e-5), 3)
      0.926
      >>> dpprobe.epsilon_of(noise_multiplier=0, delta=1e-5)  # no noise, no guarantee
      inf
      >>> round(dpprobe.epsilon_of(noise_multiplier=1, delta=1e-5, steps=100, sample_rate=0.01), 2)
      0.72
    """
    releases = _make_releases(noise_multiplier, steps, sample_rate)
    delta = read_number("delta", delta)
    check_delta(delta)
    return compute_epsilon([releases], delta, "pld")


def _make_releases(noise_multiplier: float, steps: int, sample_rate: float) -> Mechanism:
    return Mechanism(
        name="releases",
        released="clipped sums",
        sensitivity=1.0,
        noise_multiplier=read_number("noise_multiplier", noise_multiplier),
        sample_rate=read_number("sample_rate", sample_rate),
        count=read_count("steps", steps),
    )


def audit(
    classifier: PrivateClassifier,
    *,
    runs: int = 200,
    confidence: float = 0.95,
    seed: int = 0,
    controls: bool = True,
) -> dict[str, Any]:
    """Attacks the releases of a fitted classifier's method and plan on synthetic rows.

    No private rows are used, so an audit costs no privacy.

    Args:
      runs: the number of training runs, half with and half without the attacked unit.
      confidence: the confidence level of the lower bound on epsilon.
      controls: True to also attack deliberately broken mechanisms, which the audit should detect.

    Returns:
      A mapping with `white_box`, which includes `holds` and `epsilon_lower`, and `controls`;
      docs/audit.md explains each key.

    Raises:
      NotFittedError: before `fit`.
      ConfigError: if the plan has no guarantee to test.

    Example:
      >>> import dpprobe
      >>> head = dpprobe.PrivateClassifier(head="prototypes", benchmark=True, random_state=0)
      >>> _ = head.fit([[1.0, 0.0], [0.0, 1.0]], ["benign", "malignant"])
      >>> found = dpprobe.audit(head, runs=20, controls=False)["white_box"]
      >>> found["holds"], found["epsilon_lower"] <= head.plan_.epsilon
      (True, True)
    """
    from sklearn.utils.validation import check_is_fitted  # slow import

    from dpprobe.analyses.audit.white_box import audit_plan  # slow import: torch

    check_is_fitted(classifier)
    fit = classifier.fit_
    parts, _ = audit_plan(
        fit.method,
        fit.plan,
        dimension=fit.facts.dimension,
        num_classes=fit.facts.classes,
        multi_label=False,
        runs=runs,
        confidence=confidence,
        seed=seed,
        controls=controls,
        progress_label="audit",
    )
    return parts


def plan_accuracy(
    *,
    n: int,
    classes: int,
    epsilon: float,
    delta: float = 1e-5,
    dimension: int | None = None,
    ceiling: float | None = None,
    majority: float | None = None,
) -> dict[str, Any]:
    """Predicts the accuracy of a private head before anything is trained; costs no privacy.

    Args:
      n: number of training units of privacy.
      dimension: number of features, if known.
      ceiling: the accuracy without privacy, from 0 to 1, if known.
      majority: the largest class's share of the units, if known.

    Returns:
      A JSON-compatible mapping; `choices` has expected accuracies with ranges: for the arguments,
      for more units, and for larger epsilons.

    Raises:
      ConfigError: with a line for each value that is out of range.

    Example:
      >>> import dpprobe
      >>> plan = dpprobe.plan_accuracy(n=2000, classes=5, epsilon=1, dimension=384, ceiling=0.9)
      >>> for choice in plan["choices"]:
      ...     print(choice["n"], choice["epsilon"], round(choice["accuracy"][0]["expected"], 2))
      2000 1.0 0.8
      4000 1.0 0.84
      8000 1.0 0.87
      20000 1.0 0.9
      2000 2.0 0.85
      2000 4.0 0.88
      >>> dpprobe.plan_accuracy(n=2000, classes=1, epsilon=1)
      Traceback (most recent call last):
          ...
      dpprobe.errors.ConfigError: classes 1: one class needs no classifier; use 2 or more
    """
    from dpprobe.planner.accuracy_plan import make_plan  # late: reads the file of curves
    from dpprobe.planner.predicted_accuracy import Setting  # late: reads the file of curves

    setting = Setting(
        n=read_count("n", n),
        classes=read_count("classes", classes),
        epsilon=read_number("epsilon", epsilon),
        delta=read_number("delta", delta),
        dimension=None if dimension is None else read_count("dimension", dimension),
    )
    return make_plan(
        setting,
        ceiling=None if ceiling is None else read_number("ceiling", ceiling),
        majority=None if majority is None else read_number("majority", majority),
    ).as_json()


def read_features(
    results: str | Path, dataset: str, backbone: str, split: str = "train"
) -> FeatureStore:
    """Opens the stored features of a study.

    Args:
      results: the study's `results_dir`.
      split: "train" or "test".

    Returns:
      A store with `read()`, which returns float32 [rows, dimension], and with `labels`, `ids`,
      `groups`, `units` and `class_names`. `PrivateClassifier.fit` accepts the store as X, and reads
      a large store in blocks.

    Raises:
      StoreError: if the features are missing or damaged.

    Example:
      >>> import dpprobe
      >>> dpprobe.read_features("no_such_folder", "digits", "pixels")
      Traceback (most recent call last):
          ...
      dpprobe.errors.StoreError: no_such_folder/features/digits/pixels/train/manifest.json:
      the manifest is missing; run again to recreate it
    """
    from dpprobe.estimator.known_rows import remember_store  # slow import: torch

    path = Path(results) / "features" / dataset / backbone / split / MANIFEST
    return remember_store(FeatureStore(path))


@naming_extras()
def read_cells(results: str | Path) -> pd.DataFrame:
    """Reads the cells of a study's results: one row per cell and seed.

    Args:
      results: the study's `results_dir`.

    Returns:
      A table whose metrics are fractions (see docs/python.md).

    Raises:
      DataError: if there is no summary, or a summary of another version.

    Example:
      >>> import dpprobe
      >>> dpprobe.read_cells("no_such_folder")
      Traceback (most recent call last):
          ...
      dpprobe.errors.DataError: no_such_folder/summary: this folder has no summary of a
      dataset; run the study first
    """
    from dpprobe.results.summary import read_summaries  # slow import: pyarrow

    folder = Path(results) / "summary"
    paths = sorted(folder.glob("*.parquet"))
    if not paths:
        raise DataError(f"{folder}: this folder has no summary of a dataset; run the study first")
    return read_summaries(paths).to_pandas()


def verify(
    bundle: str | Path,
    *,
    public_key: str | Path | None = None,
    checkpoint: str | Path | Sequence[str | Path] | None = None,
    predecessors: Sequence[str | Path] = (),
) -> Report:
    """Runs all checks of a bundle that need no private data.

    Args:
      public_key: the file with the signer's Ed25519 public key in PEM, not from the bundle.
      checkpoint: the file with the backbone's weights, to check the backbone's features too;
        several files for a joined backbone.
      predecessors: folders of the earlier releases that this release continues (cohorts).

    Returns:
      A report: `passed`, and `checks`, each with `name`, `passed` and `detail`.

    Raises:
      DataError: if the folder does not exist.
      ConfigError: if the public key cannot be read.

    Example:
      >>> import dpprobe
      >>> dpprobe.verify("no_such_folder")
      Traceback (most recent call last):
          ...
      dpprobe.errors.DataError: no_such_folder: no bundle in this folder; name the folder that
      contains bundle.json
    """
    return verify_bundle(
        Path(bundle),
        public_key=None if public_key is None else Path(public_key),
        checkpoint=checkpoint,
        predecessors=[Path(folder) for folder in predecessors],
    )
