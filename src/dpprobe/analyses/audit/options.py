"""The options of the block `audit` in a study file."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from dpprobe.options import Name, Options
from dpprobe.privacy.risk import to_tokens


class MembershipOptions(Options):
    """Membership inference attacks on real training images."""

    shadows: int = Field(
        128,
        ge=8,
        le=10_000,
        description="Number of heads to train, each with about half of the attacked units.",
    )
    targets: int | None = Field(
        None,
        ge=1,
        description="Number of heads to attack, each with all other heads as shadow models. "
        "Without this option, all heads are attacked.",
    )
    rows: int = Field(
        2000,
        ge=20,
        description="Attack at most this many units of privacy. The training data of every head "
        "include all units that are not attacked.",
    )
    mislabelled: float = Field(
        0.02,
        ge=0,
        le=0.2,
        description="Share of the attacked units whose labels are changed, because outliers are "
        "the easiest to identify.",
    )

    @model_validator(mode="after")
    def _check_targets(self) -> MembershipOptions:
        if self.targets is not None and self.targets > self.shadows:
            raise ValueError(
                f"targets: {self.targets} heads to attack, but only {self.shadows} shadows are "
                f"trained; use at most {self.shadows}"
            )
        return self


class AuditOptions(Options):
    """Audits of each cell's privacy guarantee, on heads trained only for the audit."""

    methods: tuple[Name, ...] | None = Field(
        None,
        min_length=1,
        description="Methods to audit. Without this option: all private methods, and with "
        "`membership` also non-private methods.",
    )
    epsilons: Annotated[tuple[str, ...], Field(min_length=1), BeforeValidator(to_tokens)] | None = (
        Field(None, description="Epsilons to audit; by default, all epsilons of the study.")
    )
    runs: int = Field(
        200,
        ge=10,
        le=10_000_000,
        description="Training runs per cell for the white-box test; about half of them include the "
        "canary.",
    )
    confidence: float = Field(
        0.95, ge=0.5, lt=1, description="Confidence level of the lower bounds on epsilon."
    )
    controls: bool = Field(
        False,
        description="Also audit deliberately broken mechanisms, to check that the audit refutes "
        "the cell's claim for each of them.",
    )
    membership: MembershipOptions | None = Field(
        None,
        description="Also attack real training examples. Without this block, audits use only "
        "synthetic examples. Results of attacks on real examples must stay private.",
    )

    @model_validator(mode="after")
    def _check_runs(self) -> AuditOptions:
        # A test that is right in all runs proves only accuracy `best`; guessing has accuracy 1/2.
        best = (1 - self.confidence) ** (1 / self.runs)
        if best <= 0.5:
            fewest = math.floor(math.log(1 - self.confidence) / math.log(0.5)) + 1
            raise ValueError(
                f"runs: {self.runs} runs are too few to refute a claim at confidence "
                f"{self.confidence:g}, even if every guess is right; use {fewest} or more"
            )
        return self
