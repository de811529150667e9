"""One site's files in a release of several sites: its offer, its messages, and what is published.

`release.make` runs the steps of every release: check, book, draw, pack, close.
`measure.SeveralSites` adds the agreement before the plan, and totals in place of noise.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from dpprobe.artifacts import atomic_path, write_private
from dpprobe.errors import ConfigError, PrivacyError, WaitingError
from dpprobe.options import resolve_path
from dpprobe.privacy.accountants import compute_epsilon
from dpprobe.privacy.noise_shares import SMALLEST_SHARE, Penalty, split_noise
from dpprobe.privacy.plan import Plan
from dpprobe.release.ledger_file import Entry
from dpprobe.release.parts.sites.options import SitesOptions
from dpprobe.release.signing import read_private_key
from dpprobe.sites.agreement import (
    Agreement,
    Offer,
    check_member_keys,
    name_public_key,
    read_offers,
    write_offer,
)
from dpprobe.sites.exchange import (
    AGREEMENT_FILE,
    ANOTHER_NAME,
    SECRET_FILE,
    Exchange,
    Secret,
    hash_totals,
    read_agreement,
    read_secret,
    write_secret,
)
from dpprobe.sites.shared_sums import SharedSums, Sum, SumsMissing
from dpprobe.sites.site_folder import has_sent

logger = logging.getLogger("dpprobe")


@dataclass(frozen=True, kw_only=True)
class SitePart:
    """One site's share of one release.

    Attributes:
      private: the site's own folder for this release, beside the ledger.
      terms: the release's terms, equal at all sites.
    """

    release: str
    options: SitesOptions
    private: Path
    terms: Mapping[str, Any]

    @property
    def folder(self) -> Path:
        """The folder of this release in the exchange."""
        return resolve_path(self.options.exchange) / self.release

    @cached_property
    def signer(self) -> Ed25519PrivateKey:
        """The site's private key; ConfigError unless its public half is in `members`."""
        check_member_keys(self.options.members)
        key = read_private_key(resolve_path(self.options.key))
        public, listed = name_public_key(key), self.options.members[self.options.name]
        if public != listed:
            raise ConfigError(
                f"sites.key {self.options.key}: its public half is {public}, but members."
                f"{self.options.name} is {listed}; correct one of the two, at all sites"
            )
        return key

    def make_offer(self, *, n: int, test_n: int, entry: Entry | None) -> tuple[Offer, Path]:
        """Writes this site's offer into the exchange; keeps an earlier offer that is still true.

        Args:
          entry: the release's entry in the ledger, if the entry counts.

        Raises PrivacyError if the release is booked under another offer.
        """
        secret = read_secret(self.private)
        offer = self._offer(secret, n=n, test_n=test_n) if secret else None
        if entry is not None:
            kept = read_agreement(self.private)
            if offer is None or kept is None or offer not in kept.offers:
                raise PrivacyError(
                    f"release {self.release}: options or data have changed since it was booked as "
                    f"entry {entry.number}, or its folder {self.private} is lost. Change options "
                    f"and data back, but never restore that folder: if it is lost, {ANOTHER_NAME}"
                )
        if offer is None:
            secret = Secret.draw()
            write_secret(self.private, secret)
            offer = self._offer(secret, n=n, test_n=test_n)
        return offer, write_offer(self.folder, offer, self.signer)

    def _offer(self, secret: Secret, *, n: int, test_n: int) -> Offer:
        return Offer(
            site=self.options.name, terms=self.terms, n=n, test_n=test_n, key=secret.public_key
        )

    def read_agreement(self, *, n: int, test_n: int) -> Agreement:
        """Returns the agreement of all sites: the stored one, or one made from the offers.

        Raises:
          WaitingError: if a site's offer is missing.
          PrivacyError: if terms differ, or this site's offer is no longer true.
        """
        agreement = read_agreement(self.private)
        if agreement is None:
            offers = read_offers(self.folder, self.options.members)
            if missing := sorted({*self.options.members} - {each.site for each in offers}):
                raise WaitingError(
                    f"release {self.release}: {self.folder} lacks the offers of "
                    f"{', '.join(missing)}; each site runs `dpprobe site keys`"
                )
            agreement = Agreement.make(offers)
        local = next(each for each in agreement.offers if each.site == self.options.name)
        if (local.terms, local.n, local.test_n) != (dict(self.terms), n, test_n):
            raise PrivacyError(
                f"release {self.release}: this site's options or data have changed since its "
                "offer; change them back. If nothing is booked yet, run `dpprobe site keys` again"
            )
        return agreement

    def drop_agreement(self) -> None:
        """Removes an abandoned release's agreement; PrivacyError if this site's sums were sent."""
        if has_sent(self.private):
            raise PrivacyError(
                f"{self.private}: has sums that were sent, but the ledger has no entry of release "
                f"{self.release}. Restore the ledger alone, which records the spent budget, and "
                "write a release with another name"
            )
        (self.private / AGREEMENT_FILE).unlink(missing_ok=True)

    def price_shares(self, plan: Plan) -> Plan:
        """Returns a plan whose epsilon covers noise in shares of several sites."""
        options = self.options
        honest = len(options.members) - options.colluders
        if options.aggregator is not None:
            return plan
        penalty = Penalty(smallest=SMALLEST_SHARE, honest=honest, coordinates=1)
        price = penalty.price_epsilon(
            lambda delta: compute_epsilon(plan.mechanisms, delta, "pld"), plan.delta
        )
        return replace(plan, realised_epsilon=max(price, plan.realised_epsilon))

    def require_secret(self, agreement: Agreement) -> Secret:
        """Returns this site's secret of an agreement; PrivacyError if lost, or of another one."""
        secret = read_secret(self.private)
        keys = {each.site: each.key for each in agreement.offers}
        if secret is None or secret.public_key != keys[self.options.name]:
            raise PrivacyError(
                f"{self.private}: this site's secret for the agreement is missing, so no sums can "
                "be sent. If nothing is booked, run `dpprobe site keys` again; otherwise "
                f"{ANOTHER_NAME}"
            )
        return secret

    def name_promise(self, agreement: Agreement) -> str:
        """Names the agreement and who is trusted, for the ledger's entry."""
        options = self.options
        trusted = f"aggregator {options.aggregator}"
        if options.aggregator is None:
            trusted = f"{options.colluders} of {len(agreement.names)} may collude"
        return f"agreement {agreement.digest}; {trusted}"

    def open_exchange(self, agreement: Agreement) -> Exchange:
        return Exchange(
            agreement=agreement,
            site=self.options.name,
            folder=self.folder,
            private=self.private,
            members=self.options.members,
            signer=self.signer,
        )

    def open_sums(
        self, agreement: Agreement, rounds: Sequence[Sequence[Sum]], together: Collection[str]
    ) -> SharedSums:
        """Returns the sums of one run of the fit, with the totals of the complete rounds."""
        secret = self.require_secret(agreement)
        return SharedSums(
            [total for totals in rounds for total in totals],
            open_noise=partial(secret.open_noise, hash_totals(agreement, rounds)),
            share=self.share_noise,
            together=together,
        )

    def share_noise(self, deviation: float) -> float:
        """Returns this site's share of a noise, in grid steps."""
        options = self.options
        if options.aggregator is not None:
            return deviation if options.name == options.aggregator else 0.0
        return split_noise(deviation, len(options.members), options.colluders)

    def send_sums(
        self, exchange: Exchange, rounds: Sequence[Sequence[Sum]], missing: SumsMissing
    ) -> None:
        """Sends this site's sums for the round after all complete rounds."""
        secret = self.require_secret(exchange.agreement)
        path = exchange.send_sums(rounds, missing.sums, secret)
        logger.info(
            "release %s: round %d: sent %s (%s bytes)",
            self.release, len(rounds) + 1, path, f"{path.stat().st_size:,}",
        )  # fmt: skip

    def require_round(self, exchange: Exchange, number: int) -> None:
        """Raises WaitingError unless all other sites have sent their sums of a round."""
        if waiting := exchange.list_missing(number):
            raise WaitingError(
                f"release {self.release}: {exchange.folder} lacks the sums of round {number} of "
                f"{', '.join(waiting)}; each site runs `dpprobe site sums`"
            )

    def send_all_again(self) -> None:
        """Copies all messages that the exchange lacks, because other sites may still need them."""
        for sent in sorted(self.private.glob("sums-*.safetensors")):
            path = self.folder / f"{sent.stem}.{self.options.name}.safetensors"
            if not path.exists():
                with atomic_path(path) as temporary:
                    shutil.copyfile(sent, temporary)

    def describe(self, sums: SharedSums, agreement: Agreement, *, unit: str) -> dict[str, Any]:
        """Returns the statement's block `sites`."""
        options = self.options
        return describe_sites(
            agreement.names,
            packed_by=options.name,
            aggregator=options.aggregator,
            colluders=options.colluders,
            agreement=agreement.digest,
            smallest_share=None if options.aggregator else sums.smallest_share,
            coordinates=sums.coordinates,
            unit=unit,
        )

    def drop_secret(self) -> None:
        """Removes this site's secret, once the bundle is complete and nobody needs the secret."""
        (self.private / SECRET_FILE).unlink(missing_ok=True)


def describe_sites(
    names: Sequence[str],
    *,
    packed_by: str,
    aggregator: str | None,
    colluders: int,
    agreement: str,
    smallest_share: float | None,
    coordinates: int,
    unit: str,
) -> dict[str, Any]:
    """Returns a statement's block `sites`: who trained the head, with which assumptions."""
    listed = ", ".join(names[:-1]) + f" and {names[-1]}"
    said = f"The sites {listed} trained this head together. No site has sent an image, a feature "
    said += "or an exact sum: each sent sums under masks, which vanish in the total. "
    penalty = None
    if aggregator is not None:
        of_one = ", which is that of one site" if len(names) == 2 else ""
        said += (
            f"{aggregator} added all the noise, so {aggregator} could compute the exact sum of the "
            f"other sites' sums{of_one}. The guarantee holds against everyone else. "
        )
    else:
        honest = len(names) - colluders
        others = "one other site" if colluders == 1 else f"{colluders} other sites"
        said += (
            f"Each site added noise of its own. The guarantee to a site's {unit}s holds even if "
            f"{others} and everyone else pool all they know. "
        )
        if honest > 1:
            assert smallest_share is not None
            shares = Penalty(smallest=smallest_share, honest=honest, coordinates=coordinates)
            penalty = shares.log10_total
            said += "Noise in shares costs less than 10^-1000 more epsilon than stated. "
    said += (
        "It assumes that the sites follow the protocol, and that nobody breaks X25519 or AES-256. "
        f"The sites know how many {unit}s each has. A {unit} with images at two sites counts as "
        f"two {unit}s. The ledger is that of {packed_by}; each site keeps its own."
    )
    return {
        "names": list(names),
        "packed_by": packed_by,
        "aggregator": aggregator,
        "colluders": colluders,
        "agreement": agreement,
        "smallest_share": smallest_share,
        "coordinates": coordinates,
        "log10_penalty": penalty,
        "words": said,
    }


def make_site_key(path: Path) -> Ed25519PrivateKey:
    """Reads a site's private key, or makes the key (mode 0600) if the file is missing."""
    if not path.exists():
        key = Ed25519PrivateKey.generate()
        content = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        write_private(path, content)
    return read_private_key(path)
