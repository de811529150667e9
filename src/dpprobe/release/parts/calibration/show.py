"""Verifies and shows a release's calibration."""

from __future__ import annotations

from dpprobe.privacy.plan import Plan
from dpprobe.privacy.statement import mechanism_values
from dpprobe.release.bundle import BundleFacts
from dpprobe.release.counted_units import check_mechanisms, compose_test_price
from dpprobe.release.parts.calibration.measure import (
    OF_THE_AUC,
    OTHER_PLAN,
    calibration_mechanisms,
    calibration_words,
    describe_calibration,
)
from dpprobe.release.parts.part import PartReader
from dpprobe.release.stated_values import Values, read_block, require_same, require_true
from dpprobe.release.verification.tested_plans import agree, make_tested_plan, price_tested

DERIVED_KEYS = {"scale", "offset", "sets", "reliability", "abstention"}
TWO_CLASS_KEYS = {"cut_offs", "net_benefit"}


def check_calibration(values: Values, plan: Plan, facts: BundleFacts) -> tuple[str, bool]:
    """Recomputes all published numbers of a calibration from its noisy counts, and its epsilon."""
    stated = values["calibration"]
    two, noisy = len(facts.class_names) == 2, stated
    wanted = calibration_mechanisms(classes=len(facts.class_names), multi_label=facts.multi_label)
    keys = DERIVED_KEYS | {"n", "epsilon", "composition"} | (TWO_CLASS_KEYS if two else set())
    cost: float | None = None
    if stated["epsilon"] is None:
        noisy = values["evaluation"]
        tested = make_tested_plan(noisy, plan)
        read_block("calibration", stated, keys)
        require_same("composition", OF_THE_AUC, stated["composition"])
    else:
        tables = {mechanism.name for mechanism in wanted}
        read_block("calibration", stated, keys | tables | {"epsilon_target", "delta", "mechanisms"})
        tested = make_tested_plan(stated, plan)
        cost = price_tested(tested)
        require_same("delta", plan.delta, stated["delta"])
        expected = [mechanism_values(item, tested) for item in tested.mechanisms]
        require_same("mechanisms", expected, stated["mechanisms"])
        block = values["evaluation"]
        together = compose_test_price(block and make_tested_plan(block, plan), tested)
        words = calibration_words(plan.unit, tested, together or tested)
        require_same("composition", words, stated["composition"])
        check_mechanisms(tested, wanted, OTHER_PLAN)
    require_same("n", tested.n, stated["n"])
    if values["evaluation"]:
        require_same("n", values["evaluation"]["n"], stated["n"])
    derived = describe_calibration(noisy, tested.mechanisms, tested.n)
    for name, value in derived.items():
        require_true(agree(value, stated[name]), f"{name}: does not follow from the noisy counts")
    price = "no further epsilon" if cost is None else f"epsilon {cost:.6g}"
    return (
        f"probabilities and sets follow from noisy counts, {price} on {tested.n} test units",
        True,
    )


READER = PartReader(
    "calibration",
    check_calibration,
    "values",
    "plan",
    "facts",
    show=lambda block, words: {
        "calibration": block,
        "sure": block and words(block["composition"]),
    },
)
