"""Plans a release's head and measurements for the numbers of units that all sites agreed on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from dpprobe.errors import PrivacyError
from dpprobe.heads.facts import DataFacts
from dpprobe.heads.options import MethodOptions
from dpprobe.heads.plan_check import check_plan
from dpprobe.privacy.noise_calibration import calibrate
from dpprobe.privacy.plan import Mechanism, Patients, Plan
from dpprobe.privacy.risk import read_budget
from dpprobe.privacy.target import Target
from dpprobe.release.asked_release import AskedRelease, hash_data, hash_options, name_split
from dpprobe.release.counted_units import compose_test_price
from dpprobe.release.ledger.ledger_file import Booking, Part
from dpprobe.release.transport import Agreed, Transport
from dpprobe.release_part_registry import load_asked
from dpprobe.training.fit_inputs import FitInputs
from dpprobe.training.plan_file import check_price, plan_method


@dataclass(frozen=True, kw_only=True)
class PlannedRelease:
    """Method, plans and parts of a release; `agreed` has the numbers of units of all sites."""

    release: AskedRelease
    transport: Transport

    @cached_property
    def agreed(self) -> Agreed:
        return self.transport.agree()

    @cached_property
    def steps(self) -> Mapping[str, Any]:
        """The `PartSteps` of all release parts that the release has, by name."""
        return {name: steps(self, asked) for name, steps, asked in load_asked(self.release.options)}

    # the head

    @cached_property
    def method(self) -> MethodOptions:
        return self.release.asked_method.resolve_choice(self.facts, exact=True)

    @cached_property
    def inputs(self) -> FitInputs:
        """This machine's training examples; the number of units is the total of all sites."""
        return FitInputs(self.release.stores[0], self.release.unit, self.agreed.n)

    @cached_property
    def facts(self) -> DataFacts:
        """The facts of the fit, with the metric that the release publishes (not the dataset's)."""
        return self.inputs.read_facts(self.target, metric=self.release.options.test_metric)

    # the plans

    @property
    def target(self) -> Target:
        asked = self.release
        patients = asked.study.dataset_patients(asked.options.dataset)
        return Target(
            n=self.inputs.n,
            unit=self.inputs.unit,
            epsilon=read_budget(asked.options.token),
            delta=asked.delta,
            accountant=asked.study.accountant,
            patients=Patients(**patients) if patients else None,
        )

    @cached_property
    def plan(self) -> Plan:
        plan = plan_method(self.method, self.target, cache=self.release.cache)
        check_plan(self.method, plan)
        check_price(plan)
        return self.agreed.price_shares(plan)

    @cached_property
    def plans(self) -> Mapping[str, Plan]:
        """The plans of measurements on the test units, by release part."""
        plans = {name: steps.plan_test_units() for name, steps in self.steps.items()}
        return {name: plan for name, plan in plans.items() if plan is not None}

    @cached_property
    def test_price(self) -> Plan | None:
        """One plan of all mechanisms that read the test units; None if no mechanism does."""
        return self.compose_price(*self.plans)

    def compose_price(self, *parts: str) -> Plan | None:
        """Returns one plan for all measurements of the named release parts on the test units."""
        together = compose_test_price(*(self.plans.get(name) for name in parts))
        return None if together is None else self.agreed.price_shares(together)

    def plan_test(self, mechanisms: tuple[Mechanism, ...], epsilon: float) -> Plan:
        asked = self.release
        try:
            target = Target(
                n=FitInputs(asked.stores[1], asked.unit, self.agreed.test_n).n,
                epsilon=epsilon,
                delta=asked.delta,
                accountant="pld",  # exact without sampling; `dpprobe verify` also uses PLD
                unit=asked.unit,
            )
        except PrivacyError as error:
            raise PrivacyError(f"release {asked.name}: test {asked.unit}s: {error}") from None
        plan = calibrate(mechanisms, target, cache=asked.cache)
        check_price(plan)
        return self.agreed.price_shares(plan)

    # the ledger

    def make_booking(self) -> Booking:
        asked, parts = self.release, [Part.from_plan("train", self.plan)]
        if self.test_price is not None:
            parts.append(Part.from_plan("test", self.test_price))
        more: dict[str, Any] = {}
        for steps in self.steps.values():
            more |= steps.describe_booking()
        return Booking(
            release=asked.name,
            study=asked.study.study,
            unit=asked.unit,
            split=name_split(asked.dataset, asked.stores[0]),
            parts=tuple(parts),
            identity=f"{hash_options(asked, asked.options)} {hash_data(asked.stores)}",
            column=asked.promise.unit_column if asked.unit == "patient" else None,
            same_units_as=asked.promise.same_units_as,
            sites=self.agreed.promise,
            **more,
        )
