"""One site's part of a release of several sites: its offer, its messages, and what is published.

`release.make` runs the same steps as for other releases: check, book, draw, pack, close. It asks
this module for the agreement before the plan, and for totals where it would draw noise.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from dpprobe.artifacts import write_private
from dpprobe.errors import ConfigError, PrivacyError, WaitingError
from dpprobe.options import resolve_path
from dpprobe.privacy.noise_shares import Penalty, split_noise
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
    SECRET_FILE,
    Exchange,
    Secret,
    keep_agreement,
    read_agreement,
    read_secret,
    write_secret,
)
from dpprobe.sites.shared_sums import SharedSums, SumsMissing
from dpprobe.study.options import SitesOptions

logger = logging.getLogger("dpprobe")

_ABANDON = "If that is impossible, abandon the ledger's entry, and agree again with all sites"


@dataclass(frozen=True, kw_only=True)
class SitePart:
    """A site's part of one release.

    Attributes:
      private: the site's own folder for this release, beside the ledger.
      terms: what all sites must have alike.
    """

    release: str
    options: SitesOptions
    private: Path
    terms: Mapping[str, Any]

    @property
    def folder(self) -> Path:
        """The exchange's folder of this release."""
        return resolve_path(self.options.exchange) / self.release

    @cached_property
    def signer(self) -> Ed25519PrivateKey:
        """The site's own key; ConfigError unless its public half is in `members`."""
        check_member_keys(self.options.members)
        key = read_private_key(resolve_path(self.options.key))
        public, listed = name_public_key(key), self.options.members[self.options.name]
        if public != listed:
            raise ConfigError(
                f"sites.key {self.options.key}: its public half is {public}, but members."
                f"{self.options.name} is {listed}; correct one of the two, at all sites"
            )
        return key

    def make_offer(self, *, n: int, test_n: int) -> tuple[Offer, Path]:
        """Writes this site's offer into the exchange; the same one until its release is abandoned.

        Raises PrivacyError if sums were sent under an offer of other terms or units.
        """
        secret = read_secret(self.private) or Secret.draw()
        offer = Offer(
            site=self.options.name, terms=self.terms, n=n, test_n=test_n, key=secret.public_key
        )
        kept = read_agreement(self.private)
        if kept is not None and offer not in kept.offers:
            raise PrivacyError(
                f"release {self.release}: options or data have changed since all sites agreed; "
                f"restore them. {_ABANDON}"
            )
        if read_secret(self.private) is None:
            write_secret(self.private, secret)
        return offer, write_offer(self.folder, offer, self.signer)

    def _read_offers(self) -> list[Offer]:
        return read_offers(self.folder, self.options.members)

    def read_agreement(self, *, n: int, test_n: int) -> Agreement:
        """Returns the agreement of all sites; once it is kept, whatever has changed since.

        Raises:
          WaitingError: if an offer is missing.
          PrivacyError: if terms differ, or this site's offer is no longer true.
        """
        if (kept := read_agreement(self.private)) is not None:
            return kept
        offers = self._read_offers()
        if missing := sorted({*self.options.members} - {each.site for each in offers}):
            raise WaitingError(
                f"release {self.release}: {self.folder} lacks the offers of {', '.join(missing)}; "
                "each site runs `dpprobe site keys`"
            )
        local = next(each for each in offers if each.site == self.options.name)
        if (local.terms, local.n, local.test_n) != (dict(self.terms), n, test_n):
            raise PrivacyError(
                f"release {self.release}: this site's options or data have changed since its "
                "offer; restore them, or run `dpprobe site keys` again and agree again with all "
                "sites"
            )
        return Agreement.make(offers)

    def keep_agreement(self, agreement: Agreement) -> None:
        """Keeps the agreement in the private folder, for good: later offers change nothing."""
        keep_agreement(self.private, agreement)

    def open_exchange(self, agreement: Agreement) -> Exchange:
        return Exchange(
            agreement=agreement,
            site=self.options.name,
            folder=self.folder,
            private=self.private,
            members=self.options.members,
            signer=self.signer,
        )

    def open_sums(self, exchange: Exchange, together: Collection[str]) -> SharedSums:
        """Returns the sums of one run of the fit, with the totals that are known so far.

        Raises PrivacyError if this site's secret is lost.
        """
        secret = read_secret(self.private)
        if secret is None or secret.public_key != self._own_key(exchange):
            raise PrivacyError(
                f"{self.private}: this site's secret for the agreement is missing, so no sums can "
                f"be sent; restore it. {_ABANDON}"
            )
        return SharedSums(
            exchange.read_totals(),
            open_noise=partial(secret.open_noise, exchange.agreement.digest),
            share=self.share_noise,
            together=together,
        )

    def _own_key(self, exchange: Exchange) -> str:
        offers = exchange.agreement.offers
        return next(each.key for each in offers if each.site == self.options.name)

    def share_noise(self, deviation: float) -> float:
        """Returns this site's part of a noise, in steps."""
        options = self.options
        if options.aggregator is not None:
            return deviation if options.name == options.aggregator else 0.0
        return split_noise(deviation, len(options.members), options.colluders)

    def send_sums(self, exchange: Exchange, missing: SumsMissing) -> None:
        """Sends this site's sums of the next round, then asks for those of the others.

        Raises WaitingError unless all others have sent theirs.
        """
        number = exchange.next_round
        secret = read_secret(self.private)
        assert secret is not None
        path = exchange.send_sums(number, missing.sums, secret)
        logger.info(
            "release %s: round %d: sent %s (%s bytes)",
            self.release, number, path, f"{path.stat().st_size:,}",
        )  # fmt: skip
        self.require_round(exchange, number)

    def require_round(self, exchange: Exchange, number: int) -> None:
        """Raises WaitingError unless all sites have sent their sums of a round."""
        if waiting := exchange.list_missing(number):
            raise WaitingError(
                f"release {self.release}: {exchange.folder} lacks the sums of round {number} of "
                f"{', '.join(waiting)}; each site runs `dpprobe site sums`"
            )

    def describe(self, sums: SharedSums, agreement: Agreement, *, unit: str) -> dict[str, Any]:
        """Returns the block `sites` of the statement."""
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

    def drop_abandoned(self) -> None:
        """Removes what an abandoned entry has left: its agreement, and a secret that was used."""
        if any(self.private.glob("sums-*")):
            shutil.rmtree(self.private)
        else:
            (self.private / AGREEMENT_FILE).unlink(missing_ok=True)

    def drop_secret(self) -> None:
        """Removes this site's secret, once the bundle is complete: nobody may need it again."""
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
    """Returns the block `sites` of a statement: who trained the head, and what that assumes."""
    listed = ", ".join(names[:-1]) + f" and {names[-1]}"
    said = f"The sites {listed} trained this head together. No site has sent an image, a feature "
    said += "or an exact sum: each sent sums under masks, which vanish in the total. "
    penalty = None
    if aggregator is not None:
        said += (
            f"{aggregator} added all the noise. The guarantee holds against everyone else; "
            f"{aggregator} could compute the exact sums of all sites together. "
        )
    else:
        honest = len(names) - colluders
        sites = "site" if colluders == 1 else f"{colluders} sites"
        said += (
            f"Each site added noise of its own. The guarantee holds even if any {sites} and "
            "everyone else pool all they know. "
        )
        if honest > 1:
            assert smallest_share is not None
            shares = Penalty(smallest=smallest_share, honest=honest, coordinates=coordinates)
            penalty = shares.log10_total
            said += f"Noise in shares costs at most 10^{penalty:.0f} more epsilon than stated. "
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
    """Reads a site's private key, or makes it where there is no file; mode 0600."""
    if not path.exists():
        key = Ed25519PrivateKey.generate()
        content = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        write_private(path, content)
    return read_private_key(path)
