"""Facts and statements of releases for tests of the documents of a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpprobe.artifacts import read_json
from dpprobe.privacy import statement as sentences
from dpprobe.release.bundle import BundleFacts, CardFacts
from dpprobe.release.parts.calibration import measure as calibration
from dpprobe.release.parts.cohort.measure import describe_cohort
from dpprobe.release.parts.monitor.measure import monitor_mechanisms
from dpprobe.release.parts.sites.several_sites import describe_sites
from tests.support.bundles import write_example

# Names that mean something to HTML, Markdown, YAML, Jinja or a terminal.
HOSTILE = (
    "</style><script>alert(1)</script>",
    '<img src=x onerror="alert(1)">',
    "a | b",
    "`code`",
    "``` fence",
    "---",
    "- item",
    "1. item",
    "# heading",
    "two\n\nlines\n---\nlicense: mit",
    "[link](javascript:alert(1))",
    "*bold* _it_ ~~gone~~ $x$",
    "{{ 7 * 7 }}{% raw %}",
    "key: value #",
    "!!python/object:os.system",
    "&amp; \\| end\\",
    "\u202egnp.exe\u0000",
    "x" * 500,
)

Release = tuple[BundleFacts, dict[str, Any]]


def example(folder: Path, **options: Any) -> Release:
    """bundle.json and privacy.json of the example bundle."""
    bundle = write_example(folder, **options)
    facts = BundleFacts.model_validate(read_json(bundle / "bundle.json"))
    return facts, read_json(bundle / "privacy.json")


def measured(metric: str = "accuracy", value: float = 0.8125) -> dict[str, Any]:
    """An evaluation as a release's statement has it."""
    item = {
        "name": "right_answers",
        "released": "number of test units whose class is right",
        "noise": "Gaussian",
        "sensitivity": 1.0,
        "sensitivity_of": "one row",
        "noise_multiplier": 18.65,
        "noise_standard_deviation": 18.65,
        "sampling": "all rows",
        "sample_rate": 1.0,
        "count": 1,
        "repeated": False,
        "budget_share": 1.0,
    }
    return {
        "metric": metric,
        "value": value,
        "interval": [value - 0.04, value + 0.04],
        "standard_error": 0.0204,
        "n": 375,
        "epsilon": 0.2,
        "epsilon_target": 0.2,
        "delta": 1e-5,
        "mechanisms": [item],
        "released": "The accuracy on 375 test units, computed from sums with Gaussian noise; the "
        "95% confidence interval covers the noise and the choice of test units.",
        "composition": "No image is both a training and a test image (split: id, seed 0, "
        "fraction 0.2), so nobody pays both prices: the head costs training images epsilon 1 and "
        "test images nothing; the test result costs test images epsilon 0.2 and training images "
        "nothing.",
    }


def watched(n: int = 1000) -> dict[str, Any]:
    """What documents read of the tables for new images in a release's statement."""
    (item,) = (item.scale_noise(5.9) for item in monitor_mechanisms(unusual=True))
    (said,) = measured()["mechanisms"]
    stated = {
        "name": item.name,
        "released": item.released,
        "sensitivity": item.sensitivity,
        "noise_multiplier": item.noise_multiplier,
        "noise_standard_deviation": item.noise_multiplier * item.sensitivity,
    }
    words = (
        "Monitoring costs test images epsilon 1 and training images nothing. Everything that was "
        "measured on test images together costs a test image epsilon 1.83."
    )
    return {"n": n, "epsilon": 1.0, "mechanisms": [{**said, **stated}], "composition": words}


def calibrated(n: int = 1000) -> dict[str, Any]:
    """A calibration of three classes as a release's statement has it."""
    mechanisms = tuple(
        item.scale_noise(5.9)
        for item in calibration.calibration_mechanisms(classes=3, multi_label=False)
    )
    top = [[0.0, 0.0]] * 4 + [[30.0, 40.0], [50.0, 40.0], [80.0, 30.0], [160.0, 30.0]]
    noisy = {
        calibration.TEMPERATURE: [-40.0, 30.0, -20.0, 10.0, 4.0, -3.0],
        calibration.TOP_COUNTS: [*top, [180.0, 12.0], [190.0, 4.0], [154.0, 0.0]],
        calibration.LABEL_COUNTS: [
            *[1.0] * 5,
            5.0,
            9.0,
            10.0,
            12.0,
            14.0,
            18.0,
            60.0,
            80.0,
            180.0,
            250.0,
            360.0,
        ],
    }
    (said,) = measured()["mechanisms"]
    return {
        **calibration.describe_calibration(noisy, mechanisms, n),
        **noisy,
        "n": n,
        "epsilon": 1.0,
        "epsilon_target": 1.0,
        "delta": 1e-5,
        "mechanisms": [
            {**said, "name": item.name, "released": item.released, "count": item.count}
            for item in mechanisms
        ],
        "composition": "Calibration costs test images epsilon 1 and training images nothing. "
        "Together with the test result it costs a test image epsilon 1.04.",
    }


def following() -> dict[str, Any]:
    """The block of a release that ends a chain of a year."""
    earlier = [
        {"release": f"lesions_2026_{month:02d}", "cohort": f"2026-{month:02d}", "n": 1000}
        for month in range(1, 12)
    ]
    return describe_cohort("2026-12", earlier, horizon=12, n=1000, unit="patient")


def of_sites(aggregator: str | None = None) -> dict[str, Any]:
    """The block of a release that three sites made together."""
    return describe_sites(
        "abc",
        packed_by="b",
        aggregator=aggregator,
        colluders=1,
        agreement="ab" * 32,
        smallest_share=None if aggregator else 9000.0,
        coordinates=7,
        unit="image",
    )


def long_release(release: Release) -> Release:
    """A release of all that makes its documents long."""
    facts, statement = release
    card = CardFacts(
        intended_use="To help dermatologists of the clinic sort pictures. " * 12,
        limits="Not for self-diagnosis. " * 40,
        license="cc-by-4.0",
        contact="privacy@clinic.example, Privacy office, 1 Long Street, " * 4,
    )
    names = tuple(f"pigmented lesion of kind {number:03d}" for number in range(1000))
    more = (
        " They depend on the rows through 1 noisy release of channel_means and 1 noisy release of "
        "channel_deviations, and through each of a random number of trials (mean 10, geometric) of "
        "1 noisy release of covariance, 6 noisy releases of gradients and 1 noisy release of "
        "score, of which only the best one's outputs are released, and through nothing else."
    )
    return facts.model_copy(update={"class_names": names, "card": card}), {
        **statement,
        **_long_lists(statement),
        "unit_of_privacy": "one patient (all of their training images together)",
        "promise": statement["promise"] + more,
        "predecessor": {"name": "lesions of all clinics, " * 4, "sha256": "0123456789abcdef" * 4},
        "cohort": following(),
        "selection": {
            "released": "the outputs of the trial with the largest noisy score",
            "trials": "geometric",
            "mean": 10,
            "repeated": ["covariance", "gradients", "score"],
        },
        "evaluation": measured(),
        "choice": {
            "cells": 18,
            "epsilon": 7.31,
            "words": "The study trains 18 private cells on this dataset, whose results were there "
            "to be looked at before this release was named. Publishing what was looked at would "
            "cost at most epsilon 7.31 at delta 1e-5 beside this release; the promise above does "
            "not cover the choice.",
        },
        "ledger": {
            "entry": 4,
            "releases": 4,
            "unit": "patient",
            "delta": 1e-5,
            "epsilon": 2.31201,
            "exact": False,
        },
    }


def _long_lists(statement: dict[str, Any]) -> dict[str, Any]:
    """The mechanisms and sentences of a search on channel-normalised features of patients."""
    released = {
        "channel_means": "sum of the rows' channel means, each vector clipped",
        "channel_deviations": "sum of the rows' channel deviations from the released means, each "
        "vector clipped",
        "covariance": "sum of the clipped rows' outer products; divided by the trial's norm",
        "gradients": "sum of the rows' clipped gradients, one per step; "
        "divided by the trial's norm",
        "score": "number of training rows whose label is right",
    }
    return {
        "mechanisms": [
            {
                **statement["mechanisms"][0],
                "name": name,
                "released": words,
                "repeated": not name.startswith("channel"),
                "budget_share": None,
            }
            for name, words in released.items()
        ],
        "public": [
            sentences.PUBLIC_N["patient"],
            *sentences.PUBLIC_FACTS,
            sentences.FIXED_OPTIONS,
            sentences.PUBLIC_SEARCH,
            sentences.PUBLIC_FILES,
        ],
        "not_covered": [
            *sentences.RELEASE_NOT_COVERED,
            *sentences.PATIENTS_NOT_COVERED,
            *sentences.TRIALS_NOT_COVERED,
        ],
        "public_data": {**statement["public_data"], "assumption": sentences.PUBLIC_DATA},
    }
