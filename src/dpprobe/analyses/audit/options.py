"""The block `audit` of a study."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from dpprobe.options import Name, Options
from dpprobe.privacy.risk import to_tokens


class MembershipOptions(Options):
    """Membership inference attacks on real training images."""

    shadows: int = Field(
        128, ge=8, le=10_000, description="Heads to train, each with half of the attacked units."
    )
    targets: int | None = Field(
        None,
        ge=1,
        description="Heads to attack, each with the help of the others; all if absent.",
    )
    rows: int = Field(
        2000,
        ge=20,
        description="Attack at most this many units; every head is trained on the others.",
    )
    mislabelled: float = Field(
        0.02,
        ge=0,
        le=0.2,
        description="Share of the attacked units whose labels are changed: outliers are the "
        "easiest to identify.",
    )

    @model_validator(mode="after")
    def _check_targets(self) -> MembershipOptions:
        if self.targets is not None and self.targets > self.shadows:
            raise ValueError(
                f"targets: {self.targets} of {self.shadows} shadows; write at most {self.shadows}"
            )
        return self


class AuditOptions(Options):
    """Audits of each cell's privacy guarantee, on heads trained only for the audit."""

    methods: tuple[Name, ...] | None = Field(
        None,
        min_length=1,
        description="If absent, all private methods, and with `membership` the others too.",
    )
    epsilons: Annotated[tuple[str, ...], Field(min_length=1), BeforeValidator(to_tokens)] | None = (
        Field(None, description="A selection of the study's epsilons; all if absent.")
    )
    runs: int = Field(
        200,
        ge=10,
        le=10_000_000,
        description="Training runs per cell for the white-box test, about half of them with the "
        "canary.",
    )
    confidence: float = Field(
        0.95, ge=0.5, lt=1, description="Confidence level of the lower bounds on epsilon."
    )
    controls: bool = Field(
        False,
        description="Also audit deliberately broken mechanisms; the audit must find that each "
        "exceeds the cell's claim.",
    )
    membership: MembershipOptions | None = Field(
        None,
        description="Also attack real training examples. The results are private, as a cell's "
        "test scores are. Skipped if absent.",
    )

    @model_validator(mode="after")
    def _check_runs(self) -> AuditOptions:
        # A test right in all runs shows at most this accuracy; a guess is right in half of them.
        best = (1 - self.confidence) ** (1 / self.runs)
        if best <= 0.5:
            fewest = math.floor(math.log(1 - self.confidence) / math.log(0.5)) + 1
            raise ValueError(
                f"runs: {self.runs} runs are too few to refute a claim at confidence "
                f"{self.confidence:g}, even if every guess is right; write {fewest} or more"
            )
        return self
