"""Verifies and shows a release's calibration."""

from __future__ import annotations

from dpprobe.privacy.plan import Plan
from dpprobe.release.bundle import BundleFacts
from dpprobe.release.counted_units import compose_test_price, price_words
from dpprobe.release.parts.calibration.measure import (
    OF_THE_AUC,
    PRICED,
    calibration_mechanisms,
    describe_calibration,
)
from dpprobe.release.parts.part import PartReader
from dpprobe.release.stated_values import Values, read_block, require_same, require_true
from dpprobe.release.verification.tested_plans import agree, make_tested_plan, read_tested

DERIVED_KEYS = {"scale", "offset", "sets", "reliability", "abstention"}
TWO_CLASS_KEYS = {"cut_offs", "net_benefit"}


def check_calibration(values: Values, plan: Plan, facts: BundleFacts) -> tuple[str, bool]:
    """Recomputes all published numbers of a calibration from its noisy counts, and its epsilon."""
    stated, result, classes = values["calibration"], values["evaluation"], len(facts.class_names)
    noisy, price = stated, "no further epsilon"
    wanted = calibration_mechanisms(classes=classes, multi_label=facts.multi_label)
    keys = DERIVED_KEYS | (TWO_CLASS_KEYS if classes == 2 else set())
    if stated["epsilon"] is None:
        noisy = result
        tested, words = make_tested_plan(result, plan), OF_THE_AUC
        read_block("calibration", stated, keys | {"n", "epsilon", "composition"})
    else:
        tables = {mechanism.name for mechanism in wanted}
        _, tested, cost = read_tested("calibration", stated, keys | tables, plan, wanted)
        require_same("delta", plan.delta, stated["delta"])
        together = compose_test_price(result and make_tested_plan(result, plan), tested)
        words, price = price_words(tested, together or tested, *PRICED), f"epsilon {cost:.6g}"
    require_same("composition", words, stated["composition"])
    for block in filter(None, (noisy, result)):
        require_same("n", block["n"], stated["n"])
    derived = describe_calibration(noisy, tested.mechanisms, tested.n)
    for name, value in derived.items():
        require_true(agree(value, stated[name]), f"{name}: does not follow from the noisy counts")
    said = f"probabilities and sets follow from noisy counts, {price} on {tested.n} test units"
    return said, True


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
