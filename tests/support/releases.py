"""Facts and statements of releases, for tests of the documents in a bundle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpprobe.files.json_files import read_json
from dpprobe.heads.registry import method_options
from dpprobe.privacy.plan import Mechanism
from dpprobe.privacy.statement import NOT_COVERED, mechanism_values
from dpprobe.release.bundle import BundleFacts, CardFacts
from dpprobe.release.parts.calibration import measure as calibration
from dpprobe.release.parts.cohort.measure import describe_cohort
from dpprobe.release.parts.evaluation.measure import evaluation_mechanisms
from dpprobe.release.parts.monitor.measure import monitor_mechanisms
from dpprobe.release.parts.sites.several_sites import describe_sites
from dpprobe.release.stated_plans import tested_blocks
from tests.support.bundles import state_tested, write_example
from tests.support.mechanisms import made_plan

# Names with a special meaning in HTML, Markdown, YAML, Jinja or a terminal.
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

# Options of a search on channel-normalised features, which has many mechanisms.
SEARCHED = {
    "head": "tuned",
    "base": {
        "head": "feature_covariance",
        "normalize": {
            "kind": "channels",
            "channels": 16,
            "max_mean_norm": 1.0,
            "max_deviation_norm": 1.0,
        },
    },
    "trials": 10,
    "search": {"max_grad_norm": [0.5, 1]},
}

Release = tuple[BundleFacts, dict[str, Any]]


def example(folder: Path, **options: Any) -> Release:
    """Returns the content of bundle.json and privacy.json of the example bundle."""
    bundle = write_example(folder, **options)
    facts = BundleFacts.model_validate(read_json(bundle / "bundle.json"))
    return facts, read_json(bundle / "privacy.json")


def with_tested(statement: dict[str, Any]) -> dict[str, Any]:
    """Returns a statement, with facts of its test units if a part measures any."""
    blocks = tested_blocks(statement)
    return {**statement, "test_units": state_tested(blocks[0]["n"]) if blocks else None}


def measured(metric: str = "accuracy", value: float = 0.8125) -> dict[str, Any]:
    """Returns the block `evaluation` of a release's statement."""
    own: dict[str, dict[str, Any]] = {
        "auc": {"labels_left_out": 0},
        "macro_accuracy": {"class_counts": [[90.0, 35.0]] * 3, "worst_class": None},
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
        "mechanisms": [_stated(item) for item in _mechanisms(metric)],
        **own.get(metric, {}),
    }


def _mechanisms(metric: Any) -> Sequence[Mechanism]:
    return evaluation_mechanisms(metric, classes=2, multi_label=False)


def _stated(item: Mechanism, noise: float = 18.65) -> dict[str, Any]:
    """Returns a mechanism on test units, as in a statement."""
    plan = made_plan([replace(item, noise_multiplier=noise)], 375)
    return mechanism_values(plan.mechanisms[0], plan)


def watched(n: int = 1000) -> dict[str, Any]:
    """Returns the block `monitor` of a statement, with tables for comparison with new images."""
    tables: dict[str, list[float]] = {"predicted_class": [], "unusualness": []}
    mechanisms = [_stated(item, 5.9) for item in monitor_mechanisms(unusual=True)]
    values = {"n": n, "epsilon": 1.0, "together": 1.83}
    return {**values, "tables": tables, "mechanisms": mechanisms}


def calibrated(n: int = 1000) -> dict[str, Any]:
    """Returns the block `calibration` of a statement, for three classes."""
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
    return {
        **calibration.describe_calibration(noisy, mechanisms, n),
        **noisy,
        "n": n,
        "epsilon": 1.0,
        "epsilon_target": 1.0,
        "delta": 1e-5,
        "mechanisms": [_stated(item) for item in mechanisms],
        "together": 1.04,
    }


def pointed(*, found: bool = True) -> dict[str, Any]:
    """Returns a block `calibration` with an operating point of melanoma."""
    rates = {
        "threshold": 0.1328,
        "sensitivity": [0.951, 0.904, 0.987],
        "specificity": [0.7, 0.66, 0.74],
    }
    asked = {"positive_class": "melanoma", "wanted": 0.9}
    point = asked | (rates if found else dict.fromkeys(rates))
    return calibrated() | {"operating_point": point}


def following() -> dict[str, Any]:
    """Returns the block `cohort` of the last release in a chain of a year."""
    earlier = [
        {"release": f"lesions_2026_{month:02d}", "cohort": f"2026-{month:02d}", "n": 1000}
        for month in range(1, 12)
    ]
    return describe_cohort("2026-12", earlier, horizon=12, n=1000)


def of_sites(aggregator: str | None = None) -> dict[str, Any]:
    """Returns the block `sites` of a joint release of three sites."""
    return describe_sites(
        "abc",
        packed_by="b",
        aggregator=aggregator,
        colluders=1,
        agreement="ab" * 32,
        smallest_share=None if aggregator else 9000.0,
        coordinates=7,
    )


def long_release(release: Release) -> Release:
    """Returns a release with long texts, lists and names, so that its documents are long."""
    facts, statement = release
    card = CardFacts(
        intended_use="To help dermatologists of the clinic sort pictures. " * 12,
        limits="Not for self-diagnosis. " * 40,
        license="cc-by-4.0",
        contact="privacy@clinic.example, Privacy office, 1 Long Street, " * 4,
    )
    names = tuple(f"pigmented lesion of kind {number:03d}" for number in range(1000))
    head = facts.head.model_copy(update={"options": method_options(SEARCHED).model_dump()})
    values = {
        **statement,
        **_long_lists(statement),
        "unit": "patient",
        "outputs": ["weights", "normalisation", "best_trial"],
        "predecessor": {"name": "lesions of all clinics, " * 4, "sha256": "0123456789abcdef" * 4},
        "cohort": following(),
        "selection": {
            "trials": "geometric",
            "mean": 10,
            "repeated": ["covariance", "gradients", "score"],
        },
        "evaluation": measured(),
        "choice": {"cells": 18, "epsilon": 7.31, "uncovered": None},
        "ledger": {
            "entry": 4,
            "releases": 4,
            "unit": "patient",
            "delta": 1e-5,
            "epsilon": 2.31201,
            "exact": False,
        },
    }
    update = {"class_names": names, "card": card, "head": head}
    return facts.model_copy(update=update), with_tested(values)


def _long_lists(statement: dict[str, Any]) -> dict[str, Any]:
    """Returns the mechanisms and lists of a search on channel-normalised features of patients."""
    names = [item.name for item in method_options(SEARCHED).list_mechanisms(statement["n"])]
    return {
        "mechanisms": [
            {
                **statement["mechanisms"][0],
                "name": name,
                "repeated": not name.startswith("channel"),
                "budget_share": None,
            }
            for name in names
        ],
        "public": ["n", "units", "n_test", "classes", "options", "search_space", "files"],
        "not_covered": [
            *NOT_COVERED["release"],
            "rows_per_unit",
            "other_names",
            "copies_of_units",
            "trials",
        ],
        "public_data": {**statement["public_data"], "trained": True},
    }
