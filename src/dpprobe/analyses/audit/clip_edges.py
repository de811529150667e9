"""Moves clipping norms, so that a canary's gradient or row is just below, at or just above them.

A faulty clip might leave norms up to 1% above the clipping norm unchanged, and shorten only longer
ones. Canaries far above the clipping norm do not show this fault. But a canary at 1.005 times the
clipping norm changes the sum by 1.005 times the sensitivity.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dpprobe.analyses.audit.canary_attack import Attack, Worlds
from dpprobe.heads.gradient_options import GRADIENTS
from dpprobe.heads.options import MethodOptions

_GRADIENT, _ROW = "max_grad_norm", "max_row_norm"
# The clipping norm is multiplied by this factor to measure an unclipped gradient.
_RAISED = 64.0


def near_clip(
    attack: Attack, worlds: Worlds, seed: int, shares: Sequence[float]
) -> Iterator[Attack]:
    """Yields an attack for each clipping norm and share; none for methods without such a norm.

    Args:
      worlds: two data sets with one canary, of length 1.
    """
    head = attack.method.trained_head
    for option in (_GRADIENT, _ROW):
        clip = getattr(head, option, None)
        if clip is None:
            continue
        length = 1.0
        if option == _GRADIENT:
            raised = _set_clip(attack, head, option, _RAISED * clip)
            (first, *_) = raised.measure_changes(worlds, seed)[GRADIENTS]
            length = float(first) * raised.claim.find_mechanism(GRADIENTS).sensitivity
        if length > 0:
            yield from (_set_clip(attack, head, option, length / share) for share in shares)


def _set_clip(attack: Attack, head: MethodOptions, option: str, clip: float) -> Attack:
    """Returns the attack with another clipping norm, and the sensitivities that follow from it."""
    method: MethodOptions = head.model_copy(update={option: clip})
    sensitivities = {item.name: item.sensitivity for item in method.list_mechanisms(attack.plan.n)}
    mechanisms = tuple(
        replace(item, sensitivity=sensitivities[item.name]) for item in attack.plan.mechanisms
    )
    plan = replace(attack.plan, mechanisms=mechanisms)
    return replace(attack, method=method, plan=plan, claim=plan)
