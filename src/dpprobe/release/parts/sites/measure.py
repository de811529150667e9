"""How several sites draw one head: offers, an agreement, then rounds of masked sums."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpprobe.artifacts import sha256_file
from dpprobe.errors import ConfigError, PrivacyError, WaitingError
from dpprobe.heads.facts import DataFacts
from dpprobe.heads.joint_fits import sites_fault
from dpprobe.privacy.entropy import SEEDED
from dpprobe.privacy.plan import Plan
from dpprobe.release.ledger_file import Entry
from dpprobe.release.parts.part import PartSteps
from dpprobe.release.parts.sites.options import SitesOptions
from dpprobe.release.parts.sites.site_part import SitePart
from dpprobe.release.release_statement import published_options
from dpprobe.release.transport import Draw, Fit, Transport
from dpprobe.release_part_registry import load_parts
from dpprobe.sites.agreement import Agreement, Offer
from dpprobe.sites.exchange import ANOTHER_NAME, Exchange, keep_agreement
from dpprobe.sites.shared_sums import SumsMissing
from dpprobe.sites.site_folder import lock_folder, site_folder
from dpprobe.study.release_data import public_subsample
from dpprobe.training.fit_inputs import FitInputs
from dpprobe.training.job_features import JobFeatures
from dpprobe.versions import code_version

if TYPE_CHECKING:
    from dpprobe.release.asked_release import AskedRelease


from dpprobe.release.parts.part import PartReader
from dpprobe.release.parts.sites.site_part import describe_sites
from dpprobe.release.stated_values import (
    Values,
    is_hash,
    read_block,
    read_real,
    read_whole,
    require_same,
    require_true,
)

logger = logging.getLogger("dpprobe")

_POLL_SECONDS = 2.0  # between looks at the other sites' files


class SeveralSites(Transport):
    """The draw of a head by several sites, as one site runs it."""

    resumes = True  # the noise of an open entry is fixed by the site's secret

    def __init__(self, task: AskedRelease, options: SitesOptions) -> None:
        self.task = task
        self.site = SitePart(
            release=task.name,
            options=options,
            private=site_folder(task.ledger.path.parent, task.name),
            terms=self._list_terms(options),
        )

    @cached_property
    def agreement(self) -> Agreement:
        """The offers of all sites; WaitingError before all offers have arrived."""
        return self.site.read_agreement(n=self._own_n, test_n=self._own_test_n)

    @cached_property
    def exchange(self) -> Exchange:
        return self.site.open_exchange(self.agreement)

    @property
    def agreed_n(self) -> int:
        return self.agreement.n

    @property
    def agreed_test_n(self) -> int:
        return self.agreement.test_n

    @property
    def _own_n(self) -> int:
        return FitInputs(self.task.stores[0], self.task.unit).n

    @property
    def _own_test_n(self) -> int:
        return FitInputs(self.task.stores[1], self.task.unit).n

    def _list_terms(self, sites: SitesOptions) -> dict[str, Any]:
        """Returns the terms that must be equal at all sites, by the names that errors use."""
        task, store, method = self.task, self.task.stores[0], self.task.asked_method
        asked = task.options
        blocks = {
            part.key: (block := asked.block(part.options)) and block.model_dump(mode="json")
            for part in load_parts()
            if part.options not in (None, SitesOptions)
        }
        return {
            "members": dict(sites.members),
            "aggregator": sites.aggregator,
            "colluders": sites.colluders,
            "release": task.name,
            "class list": list(store.class_names),
            "kind of labels": "several" if store.multi_label else "one",
            "dimension": store.dimension,
            "unit of privacy": task.unit,
            "backbone": task.hash_backbone(),
            "method": published_options(method),
            "public files": [sha256_file(Path(path)) for path in method.input_files()],
            "epsilon": asked.token,
            "delta": task.delta,
            "accountant": task.study.accountant,
            "version of dpprobe": code_version(),
            "split rule": task.dataset.public_split().rule,
            "subsample": public_subsample(task.dataset),
            "cohort": asked.cohort,
            "horizon": asked.horizon,
            "images per patient": task.study.dataset_patients(asked.dataset),
            **blocks,
        }

    def price_shares(self, plan: Plan) -> Plan:
        return self.site.price_shares(plan)

    def make_offer(self, prepare: Callable[[], None]) -> tuple[Offer, Path]:
        with lock_folder(self.site.private):
            prepare()
            if (entry := self._read_entry()) is None:
                self.site.drop_agreement()
            return self.site.make_offer(n=self._own_n, test_n=self._own_test_n, entry=entry)

    def run(self, work: Callable[[], None], wait_minutes: float | None) -> None:
        if wait_minutes is None:
            wait_minutes = self.site.options.wait_minutes
        deadline, booked, last = time.monotonic() + 60 * wait_minutes, self._read_entry(), ""
        while True:
            try:
                with lock_folder(self.site.private):
                    work()
                    if self.site.folder.is_dir():  # somebody may still wait for a message
                        self.site.send_all_again()
                    self.site.drop_secret()
                return
            except WaitingError as waiting:
                if time.monotonic() >= deadline:
                    raise
                if str(waiting) != last:
                    logger.info("waiting: %s", waiting)
                last = str(waiting)
            time.sleep(_POLL_SECONDS)
            for name in ("agreement", "exchange"):
                vars(self).pop(name, None)
            self.task.forget_agreed()
            entry = self._read_entry()
            if booked is not None and (entry is None or entry.number != booked.number):
                raise PrivacyError(
                    f"release {self.task.name}: its entry {booked.number} was abandoned while it "
                    "waited"
                )
            booked = entry

    def _read_entry(self) -> Entry | None:
        return self.task.ledger.entry_of(self.task.name)

    def check(self) -> None:
        """Checks that this site can take part, before it books."""
        if fault := sites_fault(self.task.method, self.task.plan.n):
            raise ConfigError(f"release {self.task.name}: {fault}")
        self.site.require_secret(self.agreement)
        self.exchange.check_messages()

    def find_open(self) -> Entry | None:
        """Returns the open ledger entry, which resumes with its secret.

        Raises PrivacyError if the entry was booked for another agreement.
        """
        entry = self._read_entry()
        if entry is not None and entry.booking.sites != self.site.name_promise(self.agreement):
            raise PrivacyError(
                f"release {self.task.name}: entry {entry.number} of {self.task.ledger.path} is of "
                f"another agreement of the sites; {ANOTHER_NAME}"
            )
        return entry

    def note_unbooked(self) -> None:
        self.site.drop_agreement()

    def note_booked(self) -> None:
        keep_agreement(self.site.private, self.agreement)

    def draw_head(self, fit: Fit, features: JobFeatures) -> Draw:
        """Draws the head from the sums that all sites have sent, and describes the sites."""
        site, exchange = self.site, self.exchange
        while True:
            rounds = exchange.read_rounds()
            if exchange.has_sent(number := len(rounds) + 1):
                site.send_all_again()
                site.require_round(exchange, number)
                continue
            shared = site.open_sums(self.agreement, rounds, self.task.method.running_sums or ())
            try:
                # the sites share no random numbers but public ones, such as initial weights
                draw = fit(features, SEEDED, shared)
            except SumsMissing as missing:
                site.send_sums(exchange, rounds, missing)
            else:
                draw.blocks["sites"] = site.describe(shared, self.agreement, unit=self.task.unit)
                return draw


class Steps(PartSteps):
    """Has several sites draw the head together."""

    @property
    def _transport(self) -> SeveralSites | None:
        transport = self.task.transport
        return transport if isinstance(transport, SeveralSites) else None

    def open_transport(self) -> SeveralSites | None:
        options = self.task.options.block(SitesOptions)
        return None if options is None else SeveralSites(self.task, options)

    def check(self) -> None:
        if self._transport:
            self._transport.check()

    def count_useful(self) -> DataFacts | None:
        """Returns facts of all sites for the planner: a benchmark has this site's rows only."""
        return self.task.facts if self._transport else None

    def describe_booking(self) -> dict[str, str | None]:
        sites = self._transport
        return {"sites": sites.site.name_promise(sites.agreement)} if sites else {}


# verification and words

SITES_KEYS = {
    "names", "packed_by", "aggregator", "colluders", "agreement", "smallest_share", "coordinates",
    "log10_penalty", "words",
}  # fmt: skip


def check_sites(values: Values, plan: Plan) -> tuple[str, bool]:
    """Recomputes the block `sites` from its names, its mode and its smallest share of noise."""
    block = read_block("sites", values["sites"], SITES_KEYS)
    names, aggregator = block["names"], block["aggregator"]
    require_true(
        isinstance(names, list) and all(isinstance(name, str) for name in names)
        and len(names) == len(set(names)) >= 2 and names == sorted(names),
        "names: not those of two or more sites, in their order",
    )  # fmt: skip
    for key in ("packed_by", "aggregator"):
        named = block[key] in names or (key == "aggregator" and block[key] is None)
        require_true(named, f"{key}: not one of the sites")
    require_true(is_hash(block["agreement"]), "agreement: not a SHA-256")
    colluders = read_whole("colluders", block["colluders"], largest=len(names) - 1)
    share = None if aggregator else read_real("smallest_share", block["smallest_share"])
    expected = describe_sites(
        names,
        packed_by=block["packed_by"],
        aggregator=aggregator,
        colluders=colluders,
        agreement=block["agreement"],
        smallest_share=share,
        coordinates=read_whole("coordinates", block["coordinates"], largest=2**50),
        unit=plan.unit,
    )
    require_same("sites", expected, block)
    trusted = f"{aggregator} is trusted" if aggregator else f"{colluders} may collude"
    return f"{len(names)} sites, of which {trusted}", True


READER = PartReader(
    "sites", check_sites, show=lambda block, words: {"sites": block and words(block["words"])}
)
