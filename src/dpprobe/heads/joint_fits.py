"""Decides whether several sites, or a chain of cohorts, can train a head."""

from __future__ import annotations

from dpprobe.heads.options import MethodOptions


def cohort_fault(method: MethodOptions) -> str | None:
    """Explains why a chain of cohorts cannot train a head; None if a chain can."""
    if method.running_sums is None:
        return (
            f"head {method.head}: it is not made of sums that add up over cohorts; use "
            "least_squares, prototypes or feature_covariance"
        )
    if method.normalize.priced:
        return (
            f"normalize: {method.normalize.kind} releases statistics of each cohort, so that "
            "cohorts have different features; use none, l2, layer_norm or group_norm"
        )
    return None


def sites_fault(method: MethodOptions, n: int = 10_000) -> str | None:
    """Explains why several sites cannot train a head together; None if they can.

    `n` is the number of units of all sites; for most heads the answer does not depend on it.
    """
    if not method.is_exact:
        return (
            f"head {method.head}: sites add up exact sums, which it does not compute; write "
            "`engine: exact`, or another head"
        )
    if method.priced_selection(n) is not None:
        return f"head {method.head}: sites cannot search together; name the head to train"
    if method.has_student:
        return (
            "student_share: sites cannot train a student together, because rounding would give "
            "each site another one; remove it"
        )
    if any(each.sample_rate < 1 for each in method.list_mechanisms(n)):
        return (
            f'head {method.head}: sites add up sums of all rows; write `batch_size: "full"`, or '
            "least_squares, prototypes or feature_covariance"
        )
    return None
