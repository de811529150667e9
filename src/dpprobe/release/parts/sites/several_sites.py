"""Trains one head at several sites: offers, an agreement, then rounds of masked sums.

`release.make` runs the steps of every release: check, book, train, pack, close. `SeveralSites` adds
an agreement before the plan, and replaces one site's noisy sums by totals over all sites.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from dpprobe.code_version import code_version
from dpprobe.errors import ConfigError, PrivacyError, WaitingError
from dpprobe.files.atomic_writes import atomic_path, write_private
from dpprobe.files.plain_files import sha256_file
from dpprobe.heads.joint_fits import sites_fault
from dpprobe.heads.options import MethodOptions
from dpprobe.json_values import hash_value
from dpprobe.options import resolve_path
from dpprobe.privacy.accountants import compute_epsilon
from dpprobe.privacy.entropy import SEEDED
from dpprobe.privacy.noise_shares import SMALLEST_SHARE, Penalty, split_noise
from dpprobe.privacy.plan import Plan
from dpprobe.release.asked_release import hash_data
from dpprobe.release.bundle import published_options
from dpprobe.release.described_backbone import hash_backbone
from dpprobe.release.ledger.ledger_file import Entry
from dpprobe.release.ledger.site_folder import has_sent, lock_folder, site_folder
from dpprobe.release.parts.sites import SitesOptions
from dpprobe.release.signing import read_private_key
from dpprobe.release.transport import Agreed, Draw, Fit, Transport
from dpprobe.release_part_registry import load_parts
from dpprobe.site_exchange.agreement import (
    Agreement,
    Offer,
    check_member_keys,
    list_differing,
    name_public_key,
    read_offers,
    write_offer,
)
from dpprobe.site_exchange.messages import (
    AGREEMENT_FILE,
    ANOTHER_NAME,
    SECRET_FILE,
    Exchange,
    Secret,
    hash_totals,
    keep_agreement,
    keep_offered,
    read_agreement,
    read_offered,
    read_secret,
    write_secret,
)
from dpprobe.site_exchange.shared_sums import SharedSums, SumsMissing
from dpprobe.training.fit_inputs import FitInputs
from dpprobe.training.job_features import JobFeatures

if TYPE_CHECKING:
    from dpprobe.release.asked_release import AskedRelease

logger = logging.getLogger("dpprobe")

# Options of some sources: which rows are left out, and what an uncertain label means.
_ROW_OPTIONS = {"filters", "missing", "uncertain"}
_POLL_SECONDS = 2.0  # seconds between checks for other sites' files


class SeveralSites(Transport):
    """Trains a head together with other sites; each site runs its own `SeveralSites`."""

    resumes = True  # the noise of an open entry is fixed by the site's secret

    def __init__(self, release: AskedRelease, options: SitesOptions) -> None:
        self.release, self.options = release, options
        # `private` is this site's folder for the release; all sites share `folder`.
        self.private = site_folder(release.ledger.path.parent, release.name)
        self.folder = resolve_path(options.exchange) / release.name
        self.terms = list_terms(release, options)
        self.data = hash_data(release.stores)
        self.own_n, self.own_test_n = (FitInputs(store, release.unit).n for store in release.stores)

    @cached_property
    def signer(self) -> Ed25519PrivateKey:
        return _read_signer(self.options)

    def agree(self) -> AgreedSites:
        """Returns the stored agreement of all sites, or a new agreement from their offers.

        Raises:
          WaitingError: if a site's offer is missing.
          PrivacyError: if terms differ, or this site's offer is out of date.
        """
        agreement = read_agreement(self.private)
        if agreement is None:
            offers = read_offers(self.folder, self.options.members)
            if missing := sorted({*self.options.members} - {each.site for each in offers}):
                raise WaitingError(
                    f"release {self.release.name}: {self.folder} lacks the offers of "
                    f"{', '.join(missing)}; each site runs `dpprobe site keys`"
                )
            agreement = Agreement.make(offers)
        local = next(each for each in agreement.offers if each.site == self.options.name)
        self._refuse_changes(local)
        return AgreedSites(self, agreement)

    def _refuse_changes(self, offered: Offer) -> None:
        """Raises PrivacyError if options or data have changed since this site's offer."""
        data = read_offered(self.private)
        if data is None:
            raise PrivacyError(_explain_lost(self.private, "hash of the data that it offered"))
        kept, current = (
            {**each.terms, "number of units": [each.n, each.test_n], "data": own}
            for each, own in ((offered, data), (self._offer(offered.key), self.data))
        )
        if changed := list_differing(kept, current):
            raise PrivacyError(
                f"release {self.release.name}: options or data of this site have changed since its "
                f"offer ({', '.join(changed)}); change them back. If this release is not booked, "
                "run `dpprobe site keys`"
            )

    def make_offer(self, prepare: Callable[[], None]) -> tuple[Offer, Path]:
        """Writes this site's offer into the exchange; keeps an earlier offer if still up to date.

        Raises PrivacyError if the release is booked under another offer.
        """
        with lock_folder(self.private):
            prepare()
            if (entry := self.read_entry()) is None:
                self.note_unbooked()
            secret = read_secret(self.private)
            offer = None if secret is None else self._offer(secret.public_key)
            if entry is not None:
                kept = read_agreement(self.private)
                same = kept is not None and offer in kept.offers
                if offer is None or not same or read_offered(self.private) != self.data:
                    raise PrivacyError(
                        f"release {self.release.name}: options or data have changed since it was "
                        f"booked as entry {entry.number}, or its folder {self.private} is lost. "
                        "Change options and data back, but never restore the private folder: if "
                        f"the folder is lost, {ANOTHER_NAME}"
                    )
            if offer is None:
                secret = Secret.draw()
                write_secret(self.private, secret)
                offer = self._offer(secret.public_key)
            # before the offer leaves: otherwise a killed run leaves an offer of other data
            keep_offered(self.private, self.data)
            return offer, write_offer(self.folder, offer, self.signer)

    def _offer(self, key: str) -> Offer:
        return Offer(
            site=self.options.name, terms=self.terms, n=self.own_n, test_n=self.own_test_n, key=key
        )

    def read_entry(self) -> Entry | None:
        return self.release.ledger.entry_of(self.release.name)

    def run(self, work: Callable[[], None], wait_minutes: float | None) -> None:
        if wait_minutes is None:
            wait_minutes = self.options.wait_minutes
        deadline, booked, last = time.monotonic() + 60 * wait_minutes, self.read_entry(), ""
        while True:
            try:
                with lock_folder(self.private):
                    work()
                    if self.folder.is_dir():  # other sites may still wait for a message
                        self.send_all_again()
                    # the bundle is complete, so nobody needs the secret
                    (self.private / SECRET_FILE).unlink(missing_ok=True)
                return
            except WaitingError as waiting:
                if time.monotonic() >= deadline:
                    raise
                if str(waiting) != last:
                    logger.info("waiting: %s", waiting)
                last = str(waiting)
            time.sleep(_POLL_SECONDS)
            entry = self.read_entry()
            if booked is not None and (entry is None or entry.number != booked.number):
                raise PrivacyError(
                    f"release {self.release.name}: entry {booked.number} was abandoned while this "
                    "run waited"
                )
            booked = entry

    def note_unbooked(self) -> None:
        """Removes an abandoned release's agreement; PrivacyError if this site has sent sums."""
        if has_sent(self.private):
            raise PrivacyError(
                f"{self.private}: has sums that were sent, but the ledger has no entry of release "
                f"{self.release.name}. Restore only the ledger, which records the spent budget, "
                "and make a release with another name"
            )
        (self.private / AGREEMENT_FILE).unlink(missing_ok=True)

    def send_all_again(self) -> None:
        """Copies missing messages to the exchange, because other sites may still need them."""
        for sent in sorted(self.private.glob("sums-*.safetensors")):
            path = self.folder / f"{sent.stem}.{self.options.name}.safetensors"
            if not path.exists():
                with atomic_path(path) as temporary:
                    shutil.copyfile(sent, temporary)


class AgreedSites(Agreed):
    """One site's role in a release whose sites have agreed."""

    def __init__(self, site: SeveralSites, agreement: Agreement) -> None:
        self.site, self.release, self.options = site, site.release, site.options
        self.agreement = agreement
        self.n, self.test_n = agreement.n, agreement.test_n
        trusted = f"aggregator {self.options.aggregator}"
        if self.options.aggregator is None:
            trusted = f"{self.options.colluders} of {len(agreement.names)} may collude"
        self.promise = f"agreement {agreement.digest}; {trusted}"
        self.exchange = Exchange(
            agreement=agreement,
            site=self.options.name,
            folder=site.folder,
            private=site.private,
            members=self.options.members,
            signer=site.signer,
            record_sending=self._record_sending,
        )

    def check(self, method: MethodOptions, n: int) -> None:
        if fault := sites_fault(method, n):
            raise ConfigError(f"release {self.release.name}: {fault}")
        self._require_secret()
        self.exchange.check_messages()

    def _require_secret(self) -> Secret:
        """Returns this site's secret; PrivacyError if lost, or if the agreement has another key."""
        secret = read_secret(self.site.private)
        keys = {each.site: each.key for each in self.agreement.offers}
        if secret is None or secret.public_key != keys[self.options.name]:
            raise PrivacyError(_explain_lost(self.site.private, "secret for the agreement"))
        return secret

    def price_shares(self, plan: Plan) -> Plan:
        """Returns a plan whose epsilon covers noise that several sites draw in shares."""
        options = self.options
        if options.aggregator is not None:
            return plan
        honest = len(options.members) - options.colluders
        penalty = Penalty(smallest=SMALLEST_SHARE, honest=honest, coordinates=1)
        price = penalty.price_epsilon(
            lambda delta: compute_epsilon(plan.mechanisms, delta, "pld"), plan.delta
        )
        return replace(plan, realised_epsilon=max(price, plan.realised_epsilon))

    def find_open(self) -> Entry | None:
        """Returns the open ledger entry, which this site's secret can resume.

        Raises PrivacyError if the entry was booked for another agreement.
        """
        entry = self.site.read_entry()
        if entry is not None and entry.booking.sites != self.promise:
            raise PrivacyError(
                f"release {self.release.name}: entry {entry.number} of {self.release.ledger.path} "
                f"belongs to another agreement of the sites; {ANOTHER_NAME}"
            )
        return entry

    def note_booked(self) -> None:
        keep_agreement(self.site.private, self.agreement)

    def _record_sending(self) -> None:
        entry = self.find_open()
        assert entry is not None, "booked before any sum is computed"
        self.release.ledger.record_sending(entry.number)

    def draw_head(self, fit: Fit, features: JobFeatures, method: MethodOptions) -> Draw:
        """Trains the head from the sums that all sites have sent, and states the block `sites`."""
        exchange, secret, release = self.exchange, self._require_secret(), self.release.name
        while True:
            rounds = exchange.read_rounds()
            if exchange.has_sent(number := len(rounds) + 1):
                self.site.send_all_again()
                if waiting := exchange.list_missing(number):
                    raise WaitingError(
                        f"release {release}: {exchange.folder} lacks the sums of round {number} "
                        f"of {', '.join(waiting)}; each site runs `dpprobe site sums`"
                    )
                continue
            shared = SharedSums(
                [total for totals in rounds for total in totals],
                open_noise=partial(secret.open_noise, hash_totals(self.agreement, rounds)),
                share=self._share_noise,
                together=method.running_sums or (),
            )
            try:
                # public random numbers, such as initial weights, must be equal at all sites
                draw = fit(features, SEEDED, shared)
            except SumsMissing as missing:
                path = exchange.send_sums(rounds, missing.sums, secret)
                logger.info(
                    "release %s: round %d: sent %s (%s bytes)",
                    release,
                    number,
                    path,
                    f"{path.stat().st_size:,}",
                )
            else:
                draw.blocks["sites"] = describe_sites(
                    self.agreement.names,
                    packed_by=self.options.name,
                    aggregator=self.options.aggregator,
                    colluders=self.options.colluders,
                    agreement=self.agreement.digest,
                    smallest_share=None if self.options.aggregator else shared.smallest_share,
                    coordinates=shared.coordinates,
                )
                return draw

    def _share_noise(self, deviation: float) -> float:
        """Returns the deviation of this site's share of a total's noise, in grid steps."""
        options = self.options
        if options.aggregator is not None:
            return deviation if options.name == options.aggregator else 0.0
        return split_noise(deviation, len(options.members), options.colluders)


def _read_signer(options: SitesOptions) -> Ed25519PrivateKey:
    """Reads the site's private key; ConfigError unless its public half is in `members`."""
    check_member_keys(options.members)
    key = read_private_key(resolve_path(options.key))
    public, listed = name_public_key(key), options.members[options.name]
    if public != listed:
        raise ConfigError(
            f"sites.key {options.key}: its public half is {public}, but members."
            f"{options.name} is {listed}; correct one of the two, at all sites"
        )
    return key


def _explain_lost(private: Path, what: str) -> str:
    return (
        f"{private}: this site's {what} is missing, so no sums can be sent. If nothing is booked, "
        f"run `dpprobe site keys` again; otherwise {ANOTHER_NAME}"
    )


def list_terms(release: AskedRelease, options: SitesOptions) -> dict[str, Any]:
    """Returns the terms that must be equal at all sites, by their names in error messages."""
    store, method, asked = release.stores[0], release.asked_method, release.options
    rows = release.dataset.model_dump(mode="json", include=_ROW_OPTIONS, exclude_defaults=True)
    blocks = {
        part.key: (block := asked.block(part.options)) and block.model_dump(mode="json")
        for part in load_parts().values()
        if part.options not in (None, SitesOptions)
    }
    return {
        "members": dict(options.members),
        "aggregator": options.aggregator,
        "colluders": options.colluders,
        "release": release.name,
        "class list": list(store.class_names),
        "kind of labels": "several" if store.multi_label else "one",
        "dimension": store.dimension,
        "unit of privacy": release.unit,
        "unit_column": hash_value(release.promise.unit_column),
        "backbone": hash_backbone(store),
        "method": published_options(method),
        "public files": [sha256_file(Path(path)) for path in method.input_files()],
        "epsilon": asked.token,
        "delta": release.delta,
        "accountant": release.study.accountant,
        "version of dpprobe": code_version(),
        "split rule": release.promise.split_rule,
        "subsample": release.promise.subsample,
        "cohort": asked.cohort,
        "horizon": asked.horizon,
        "images per patient": release.study.dataset_patients(asked.dataset),
        **{name: hash_value(value) for name, value in rows.items()},
        **blocks,
    }


def describe_sites(
    names: Sequence[str],
    *,
    packed_by: str,
    aggregator: str | None,
    colluders: int,
    agreement: str,
    smallest_share: float | None,
    coordinates: int,
) -> dict[str, Any]:
    """Returns a statement's block `sites`: who trained the head, and with which assumptions."""
    honest, penalty = len(names) - colluders, None
    if aggregator is None and honest > 1:
        assert smallest_share is not None
        shares = Penalty(smallest=smallest_share, honest=honest, coordinates=coordinates)
        penalty = shares.log10_total
    return {
        "names": list(names),
        "packed_by": packed_by,
        "aggregator": aggregator,
        "colluders": colluders,
        "agreement": agreement,
        "smallest_share": smallest_share,
        "coordinates": coordinates,
        "log10_penalty": penalty,
    }


def make_site_key(path: Path) -> Ed25519PrivateKey:
    """Reads a site's private key, or makes the key (mode 0600) if the file is missing."""
    if not path.exists():
        key = Ed25519PrivateKey.generate()
        content = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        write_private(path, content)
    return read_private_key(path)
