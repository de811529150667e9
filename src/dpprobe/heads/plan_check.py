"""Checks that a privacy plan is for a method."""

from __future__ import annotations

import math

from dpprobe.errors import PrivacyError
from dpprobe.heads.options import MethodOptions
from dpprobe.privacy.plan import Plan


def check_plan(method: MethodOptions, plan: Plan) -> None:
    """Raises PrivacyError unless plan and method have the same releases, up to a noise factor."""
    wanted = method.list_mechanisms(plan.n)
    factors = []
    for expected in wanted:
        planned = plan.find_mechanism(expected.name)
        for attribute in ("sensitivity", "sample_rate", "count"):
            value = getattr(planned, attribute)
            if value != getattr(expected, attribute):
                raise PrivacyError(
                    f"head {method.head}: {expected.name} has {attribute} {value!r} in the plan "
                    f"but {getattr(expected, attribute)!r} in the method; calibrate for this "
                    "method"
                )
        factors.append(planned.noise_multiplier / expected.noise_multiplier)
    same = all(math.isclose(factor, factors[0], rel_tol=1e-9) for factor in factors)
    searched = plan.selection == method.priced_selection(plan.n)
    if len(plan.mechanisms) != len(wanted) or not same or not searched:
        raise PrivacyError(
            f"head {method.head}: the plan belongs to another method; calibrate for this method"
        )
