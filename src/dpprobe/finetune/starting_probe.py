"""The probe: a private head on stored features, released first, as a network's initial head.

The plan of the whole fit lists the probe's mechanisms as "probe <name>", with the probe's share of
the budget. The released head is public, so starting from it is post-processing. The probe has a
separate seed, because with the network's seed two releases would have the same noise.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from dpprobe.errors import PrivacyError
from dpprobe.finetune.options import Options
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.training_set import TrainingSet
from dpprobe.heads.transform import Transform
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.releases import Releases

if TYPE_CHECKING:
    from dpprobe.finetune.fine_tuned_network import FineTunedNetwork

PREFIX = "probe "


def fit_probe(
    options: Options, features: TrainingSet, releases: Releases, seed: int
) -> tuple[npt.NDArray[np.float32], Transform]:
    """Releases the probe's head, and counts its releases in the plan of the whole fit.

    Returns weights, float32 [classes, d + 1], and the normalisation of feature rows. Raises
    PrivacyError if the plan does not match the probe and rows, or the probe was already released.

    Args:
      features: features of the network's training rows, with the network's units of privacy.
      seed: the fit's seed, from which the probe's seed derives.
    """
    assert options.probe is not None
    plan = probe_plan(releases.plan)
    for mechanism in plan.mechanisms:
        releases.count_releases(PREFIX + mechanism.name, mechanism.count)
    probe_seed = releases.entropy.part_seed(seed, "probe")
    heads = fit_heads(options.probe.method, features, plan, [probe_seed], entropy=releases.entropy)
    return heads.weights[0], heads.transforms[0]


def probe_plan(plan: Plan) -> Plan:
    """Returns the probe's part of a plan, with the prefix removed from mechanism names.

    The returned plan has the epsilon of the whole plan, although the probe alone costs less. Raises
    PrivacyError if the plan has no mechanism for a probe.
    """
    mechanisms = tuple(
        replace(item, name=item.name.removeprefix(PREFIX))
        for item in plan.mechanisms
        if item.name.startswith(PREFIX)
    )
    if not mechanisms:
        raise PrivacyError("probe: the plan covers no probe; calibrate a plan for these options")
    return replace(plan, mechanisms=mechanisms, selection=None)


def start_from(
    network: FineTunedNetwork, weights: npt.NDArray[np.float32], transform: Transform
) -> None:
    """Sets the network's head to `weights` [classes, d + 1], its normalisation to `transform`."""
    weight, bias = network.trained["head.weight"], network.trained["head.bias"]
    module: Any = network.module
    module.transform = transform
    head = torch.from_numpy(weights).to(weight.device)
    with torch.no_grad():
        weight.copy_(head[:, :-1])
        bias.copy_(head[:, -1])
