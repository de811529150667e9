"""Makes the agreement of all sites, before any site draws noise, from one signed offer per site.

    <exchange>/offer.<site>.json

An offer contains the release's terms in the site's study, the site's number of units, and an X25519
key for this release. The site's Ed25519 key signs the offer; the terms contain the public keys.

Sites with equal terms have an agreement: all offers, in the order of site names. The agreement's
SHA-256 binds every message and mask to terms, sizes and keys. An offer that is replaced later
therefore does not affect earlier messages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dpprobe.errors import ConfigError, DataError, PrivacyError
from dpprobe.files.atomic_writes import write_text
from dpprobe.files.json_files import check_not_newer
from dpprobe.files.plain_files import read_bounded
from dpprobe.json_values import canonical_json, hash_value, parse_strict
from dpprobe.wrong_keys_and_values import explain_first

FORMAT: Final = "dpprobe-site-offer"
FORMAT_VERSION: Final = 1
_LARGEST_OFFER = 2**20
HEX_KEY = r"^[0-9a-f]{64}$"


class Offer(BaseModel):
    """The content of one site's signed offer file.

    Attributes:
      terms: the release's terms, JSON-compatible; equal at all sites.
      n, test_n: the site's training and test units, which the other sites learn.
      key: the site's public X25519 key for this release, hexadecimal.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    format: Literal["dpprobe-site-offer"] = FORMAT
    format_version: Literal[1] = FORMAT_VERSION
    site: str
    terms: dict[str, Any]
    n: int = Field(ge=1)
    test_n: int = Field(ge=0)
    key: str = Field(pattern=HEX_KEY)


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """The offers of all sites, with equal terms, in the order of site names."""

    offers: tuple[Offer, ...]

    @classmethod
    def make(cls, offers: Sequence[Offer]) -> Agreement:
        """Returns the agreement of all offers; raises PrivacyError, naming unequal terms."""
        ordered = sorted(offers, key=lambda offer: offer.site)
        first = ordered[0]
        for other in ordered[1:]:
            if differing := list_differing(first.terms, other.terms):
                raise PrivacyError(
                    f"sites {first.site} and {other.site} differ in {', '.join(differing)}: all "
                    "sites need equal terms; compare the studies, then make the offers again"
                )
        return cls(offers=tuple(ordered))

    @cached_property
    def digest(self) -> str:
        return hash_value([offer.model_dump() for offer in self.offers])

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(offer.site for offer in self.offers)

    @property
    def n(self) -> int:
        return sum(offer.n for offer in self.offers)

    @property
    def test_n(self) -> int:
        return sum(offer.test_n for offer in self.offers)

    def other_keys(self, site: str) -> dict[str, bytes]:
        """Returns the public X25519 keys of the other sites, by name."""
        return {each.site: bytes.fromhex(each.key) for each in self.offers if each.site != site}


def list_differing(first: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Lists the names of values that differ, in order; a missing value differs from None."""
    names = sorted({*first, *other})
    return [name for name in names if first.get(name, ...) != other.get(name, ...)]


def name_public_key(key: Ed25519PrivateKey) -> str:
    """Returns the public key of a site, as written in `sites.members`: 64 hexadecimal digits."""
    return key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()


def sign_values(key: Ed25519PrivateKey, values: Mapping[str, Any]) -> str:
    return key.sign(canonical_json(values).encode()).hex()


def check_signature(place: str, values: Mapping[str, Any], signature: Any, member: str) -> None:
    """Raises PrivacyError unless the site with public key `member` (hexadecimal) signed values."""
    try:
        public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(member))
        public.verify(bytes.fromhex(str(signature)), canonical_json(values).encode())
    except (InvalidSignature, ValueError) as error:
        raise PrivacyError(
            f"{place}: not signed by the key that `sites.members` has for this site; ask the site "
            "for the file again, and compare its key by telephone"
        ) from error


def check_member_keys(members: Mapping[str, str]) -> None:
    """Raises ConfigError if a member's key is not a public key, or is another member's key."""
    for name, key in members.items():
        if re.fullmatch(HEX_KEY, key) is None:
            raise ConfigError(
                f"sites.members.{name}: {key!r} is no public key of 64 hexadecimal digits, as "
                "`dpprobe site keys` prints it"
            )
        if [*members.values()].count(key) > 1:
            raise ConfigError(f"sites.members.{name}: another site has an equal key")


def write_offer(folder: Path, offer: Offer, key: Ed25519PrivateKey) -> Path:
    """Signs an offer and writes it into the folder that sites exchange."""
    values = offer.model_dump()
    path = offer_path(folder, offer.site)
    folder.mkdir(parents=True, exist_ok=True)
    write_text(path, canonical_json({**values, "signature": sign_values(key, values)}) + "\n")
    return path


def offer_path(folder: Path, site: str) -> Path:
    return folder / f"offer.{site}.json"


def read_offers(folder: Path, members: Mapping[str, str]) -> list[Offer]:
    """Reads all offers in the folder; raises the errors of `_read_offer`."""
    paths = {site: offer_path(folder, site) for site in sorted(members)}
    return [_read_offer(path, site, members[site]) for site, path in paths.items() if path.exists()]


def _read_offer(path: Path, site: str, member: str) -> Offer:
    """Reads an untrusted offer; DataError if damaged, PrivacyError unless the site signed it."""
    try:
        values = parse_strict(read_bounded(path, _LARGEST_OFFER))
        check_not_newer(path, values, kind=FORMAT, version=FORMAT_VERSION)
        signature = values.pop("signature")
        offer = Offer.model_validate(values)
    except ValidationError as error:
        raise DataError(
            f"{path}: {explain_first(error)}; ask {site} for the offer again"
        ) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: damaged ({error}); ask {site} for the offer again") from error
    check_signature(str(path), values, signature, member)
    if offer.site != site:
        raise DataError(f"{path}: not an offer of site {site}; ask the site for it again")
    return offer
