"""Sends and reads the messages of sites: signed masked sums, one file per site and round.

    <exchange>/sums-<round>.<site>.safetensors    for the other sites

A site's private folder is <data_dir>/<dataset>/site-<release>, whose files have mode 0600.
`secret.json` has the site's secret keys for masks and noise. `offered.json` has a hash of the data
that the site offered, which no other site may learn. `agreement.json` has the agreement, once the
release is booked. `sums-<round>` has the message as sent, `total-<round>` the total of a complete
round.

A round has all sums that a fit requests at once. Each site adds up the messages of all sites, and
learns only the total.

**One message per round.** Two messages with different sums under equal noise and masks would reveal
the exact difference of the sums. Rounds are therefore counted only by the private folder, not by
the exchange. A round is complete once its total is in the private folder, which requires this
site's message. A message is first written to the private folder, never over another message, then
copied to the exchange. A total is stored when first computed, so later files of other sites do not
change the total. Only one process at a time holds the private folder's lock.

**The ledger knows first.** Before the first message is written, the ledger records that sums are
sent. A site that then loses or restores its private folder cannot abandon the entry.

**Restored folders.** A private folder restored from a backup lacks messages, and other sites may
replace messages. Noise and masks are therefore bound to a transcript: the hash of the agreement and
of all totals so far. Noise is also bound to the exact sums. Different totals or sums get different
noise; equal totals and sums give equal bytes. Every message states its transcript, and a site
refuses messages of other transcripts. A site stops sending if its private folder lacks one of its
messages in the exchange.

**One agreement per secret.** A secret serves one agreement, whose digest is in every message and in
the ledger's entry.
"""

from __future__ import annotations

import hashlib
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from pydantic import ValidationError

from dpprobe.errors import DataError, PrivacyError
from dpprobe.files.array_files import pack_arrays, read_arrays
from dpprobe.files.atomic_writes import atomic_path, write_private
from dpprobe.files.plain_files import read_bounded
from dpprobe.json_values import canonical_json, hash_value, parse_strict
from dpprobe.privacy.keystream import KEY_BYTES, Keystream
from dpprobe.privacy.rounded_gaussian import RoundedGaussian
from dpprobe.site_exchange.agreement import Agreement, Offer, check_signature, sign_values
from dpprobe.site_exchange.masks import mask_numbers
from dpprobe.site_exchange.shared_sums import Sum, add_sums
from dpprobe.wrong_keys_and_values import explain_first

FORMAT = "dpprobe-site-sums"
FORMAT_VERSION = 2
_LARGEST_MESSAGE, _LARGEST_TEXT = 8 * 2**30, 2**26
AGREEMENT_FILE = "agreement.json"
SECRET_FILE = "secret.json"
OFFERED_FILE = "offered.json"
ANOTHER_NAME = (
    "nothing more can be sent for this release. The release's ledger entry counts, and all sites "
    "need a release with another name"
)


@dataclass(frozen=True, kw_only=True)
class Secret:
    """A site's secret for the masks and noise of one release; never leaves the site."""

    key: X25519PrivateKey = field(repr=False)
    noise: bytes = field(repr=False)

    @classmethod
    def draw(cls) -> Secret:
        return cls(key=X25519PrivateKey.generate(), noise=secrets.token_bytes(KEY_BYTES))

    @property
    def public_key(self) -> str:
        return self.key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()

    def open_noise(self, transcript: str, place: int, exact: Sum) -> RoundedGaussian:
        """Returns the noise of a site's exact sum, a function of the sum and the transcript."""
        use = hash_value([transcript, place, describe_sum(exact)])
        return RoundedGaussian(Keystream(self.noise, "noise of a site").make_part(use))


def write_secret(folder: Path, secret: Secret) -> None:
    """Writes a secret into the private folder, which only its owner may read."""
    values = {"key": secret.key.private_bytes_raw().hex(), "noise": secret.noise.hex()}
    write_private(folder / SECRET_FILE, canonical_json(values).encode())


def read_secret(folder: Path) -> Secret | None:
    """Reads a site's secret; None if the file is missing, DataError if it is damaged."""
    path = folder / SECRET_FILE
    if not path.exists():
        return None
    try:
        values = _parse_plain(path)
        noise = bytes.fromhex(values["noise"])
        if len(noise) != KEY_BYTES:
            raise ValueError("its noise key is truncated")
        key = X25519PrivateKey.from_private_bytes(bytes.fromhex(values["key"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: damaged ({error}); {ANOTHER_NAME}") from error
    return Secret(key=key, noise=noise)


def keep_offered(folder: Path, data: str) -> None:
    """Writes the hash of the data of this site's offer into the private folder."""
    write_private(folder / OFFERED_FILE, canonical_json({"data": data}).encode())


def read_offered(folder: Path) -> str | None:
    """Reads the hash of `keep_offered`; None if the file is missing, DataError if damaged."""
    path = folder / OFFERED_FILE
    if not path.exists():
        return None
    try:
        return str(_parse_plain(path)["data"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path}: damaged ({error}). If nothing is booked, remove the file and run `dpprobe "
            f"site keys` again; otherwise {ANOTHER_NAME}"
        ) from error


def _parse_plain(path: Path) -> Any:
    """Parses a file of the private folder; raises OSError or ValueError."""
    return parse_strict(read_bounded(path, _LARGEST_TEXT))


def keep_agreement(folder: Path, agreement: Agreement) -> None:
    """Writes an agreement into the private folder, unless the folder has an agreement."""
    path = folder / AGREEMENT_FILE
    if not path.exists():
        offers = [offer.model_dump() for offer in agreement.offers]
        write_private(path, canonical_json(offers).encode())


def read_agreement(folder: Path) -> Agreement | None:
    """Reads the private folder's agreement; None if it is missing, DataError if damaged."""
    path = folder / AGREEMENT_FILE
    if not path.exists():
        return None
    try:
        offers = [Offer.model_validate(values) for values in _parse_plain(path)]
        return Agreement.make(offers)
    except ValidationError as error:
        raise DataError(f"{path}: {explain_first(error)}; {ANOTHER_NAME}") from error
    except (OSError, IndexError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: damaged ({error}); {ANOTHER_NAME}") from error


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """Accesses an exchange for one site, which must have the lock of its private folder.

    Attributes:
      folder: the folder with the files of all sites.
      private: the site's own folder.
      members: the sites' public Ed25519 keys, by name, hexadecimal.
      signer: the site's own key.
      record_sending: records in the ledger, before a message is written, that sums are sent.
    """

    agreement: Agreement
    site: str
    folder: Path
    private: Path
    members: Mapping[str, str]
    signer: Ed25519PrivateKey = field(repr=False)
    record_sending: Callable[[], None] = field(repr=False)

    def check_messages(self) -> None:
        """Raises an error for a wrong message in the exchange, or a restored private folder."""
        self._check_own_messages()
        for site in self.agreement.names:
            for path in sorted(self.folder.glob(f"sums-*.{site}.safetensors")):
                self.read_message(path, site)

    def read_rounds(self) -> list[list[Sum]]:
        """Returns the totals of all complete rounds, and stores new totals.

        Raises PrivacyError or DataError for messages that do not belong to their round.
        """
        rounds: list[list[Sum]] = []
        while self.has_sent(number := len(rounds) + 1):
            kept = self.private / f"total-{number}.safetensors"
            if not kept.exists():
                if self.list_missing(number):
                    break
                totals = self._add_messages(rounds)
                values = {"round": number, "sums": [*map(describe_sum, totals)]}
                write_private(kept, pack_sums(totals, values))
            _, totals = unpack_sums(kept, ANOTHER_NAME)
            rounds.append(totals)
        return rounds

    def _add_messages(self, rounds: Sequence[Sequence[Sum]]) -> list[Sum]:
        number, transcript = len(rounds) + 1, hash_totals(self.agreement, rounds)
        messages = [self._read_next(site, number, transcript) for site in self.agreement.names]
        if len({len(each) for each in messages}) > 1:
            raise PrivacyError(
                f"round {number}: the sites sent different numbers of sums; all sites must run one "
                "version of dpprobe"
            )
        return [add_sums(sums) for sums in zip(*messages, strict=True)]

    def _read_next(self, site: str, number: int, transcript: str) -> list[Sum]:
        """Reads a site's message of a round; refuses a message of another transcript."""
        path = self.message_path(number, site)
        if site == self.site:
            path = self._sent_path(number)
        values, sums = self.read_message(path, site)
        self._require_bound(path, site, values, {"round": number})
        if values.get("transcript") != transcript:
            raise PrivacyError(
                f"{path}: computed from other totals of earlier rounds than {self.private} has. "
                "A site restored a backup, or sent different sites different messages; "
                f"{ANOTHER_NAME}"
            )
        return sums

    def list_missing(self, number: int) -> list[str]:
        others = [site for site in self.agreement.names if site != self.site]
        return [site for site in others if not self.message_path(number, site).exists()]

    def message_path(self, number: int, site: str) -> Path:
        return self.folder / f"sums-{number}.{site}.safetensors"

    def send_sums(
        self, rounds: Sequence[Sequence[Sum]], sums: Sequence[Sum], secret: Secret
    ) -> Path:
        """Masks, signs and sends a site's sums of a round; resends an earlier message unchanged.

        Args:
          rounds: the totals that the sums were computed from, of all earlier rounds.

        Raises PrivacyError unless `rounds` has the totals of all complete rounds, and other sites'
        messages of the next round were computed from equal totals.
        """
        self._check_own_messages()
        number = len(rounds) + 1
        path, sent = self.message_path(number, self.site), self._sent_path(number)
        if not sent.exists():
            complete, transcript = self.read_rounds(), hash_totals(self.agreement, rounds)
            if hash_totals(self.agreement, complete) != transcript:
                raise PrivacyError(
                    f"round {number}: {len(complete)} rounds are complete, and these sums do not "
                    "follow them; nothing is sent"
                )
            for site in {*self.agreement.names} - {self.site, *self.list_missing(number)}:
                self._read_next(site, number, transcript)
            message = self._make_message(number, transcript, sums, secret)
            self.record_sending()
            write_private(sent, message)
        if not path.exists():
            with atomic_path(path) as temporary:
                shutil.copyfile(sent, temporary)
        return path

    def _check_own_messages(self) -> None:
        """Raises PrivacyError if the private folder lacks messages that this site has sent."""
        for path in sorted(self.folder.glob(f"sums-*.{self.site}.safetensors")):
            sent = self.private / f"{path.name.partition('.')[0]}.safetensors"
            self._read_signed(path, self.site)
            if sent.exists() and path.read_bytes() == sent.read_bytes():
                continue
            raise PrivacyError(
                f"{path}: this site's message {'is not the one' if sent.exists() else 'is missing'}"
                f" in {self.private}, which was restored from a backup or deleted. A second "
                f"message may reveal what the first message hides; {ANOTHER_NAME}"
            )

    def has_sent(self, number: int) -> bool:
        return self._sent_path(number).exists()

    def _sent_path(self, number: int) -> Path:
        return self.private / f"sums-{number}.safetensors"

    def _make_message(
        self, number: int, transcript: str, sums: Sequence[Sum], secret: Secret
    ) -> bytes:
        others = self.agreement.other_keys(self.site)
        masked = []
        for place, each in enumerate(sums):
            use = f"transcript {transcript}; sum {place} {each.name}"
            hidden = mask_numbers(each.numbers, use, site=self.site, key=secret.key, others=others)
            masked.append(each.replace_numbers(hidden))
        values = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "agreement": self.agreement.digest,
            "site": self.site,
            "round": number,
            "transcript": transcript,
            "sums": [*map(describe_sum, masked)],
        }
        return pack_sums(masked, {**values, "signature": sign_values(self.signer, values)})

    def read_message(self, path: Path, site: str) -> tuple[dict[str, Any], list[Sum]]:
        """Reads an untrusted message.

        Raises DataError for damage, PrivacyError for a message of another site or agreement.
        """
        values, sums = self._read_signed(path, site)
        wanted: dict[str, Any] = {"format": FORMAT, "format_version": FORMAT_VERSION}
        wanted |= {"agreement": self.agreement.digest, "site": site}
        self._require_bound(path, site, values, wanted)
        return values, sums

    def _read_signed(self, path: Path, site: str) -> tuple[dict[str, Any], list[Sum]]:
        again = "remove it" if site == self.site else f"ask site {site} for its sums again"
        values, sums = unpack_sums(path, again)
        signature = values.pop("signature", "")
        check_signature(str(path), values, signature, self.members[site])
        return values, sums

    def _require_bound(
        self, path: Path, site: str, values: Mapping[str, Any], wanted: Mapping[str, Any]
    ) -> None:
        for name, value in wanted.items():
            if values.get(name) != value:
                raise PrivacyError(
                    f"{path}: of another {name} ({values.get(name)}, not {value}); remove it, and "
                    f"ask site {site} for its sums of this release"
                )


def pack_sums(sums: Sequence[Sum], values: Mapping[str, Any]) -> bytes:
    """Returns the bytes of a file with sums and other values."""
    return pack_arrays({str(place): each.numbers for place, each in enumerate(sums)}, values)


def hash_totals(agreement: Agreement, rounds: Sequence[Sequence[Sum]]) -> str:
    """Returns the transcript: the SHA-256 of an agreement and the totals of all rounds so far."""
    return hash_value([agreement.digest, *([*map(describe_sum, totals)] for totals in rounds)])


def unpack_sums(path: Path, remedy: str) -> tuple[dict[str, Any], list[Sum]]:
    """Reads the bytes of `pack_sums`; raises DataError for any other content."""
    try:
        values, named = read_arrays(
            path, kind=FORMAT, version=FORMAT_VERSION, largest=_LARGEST_MESSAGE
        )
        arrays = [named[str(place)] for place in range(len(named))]
        sums = [
            Sum(
                name=one["name"],
                step=one["step"],
                deviation=one["deviation"],
                symmetric=one["symmetric"],
                numbers=array,
            )
            for one, array in zip(values["sums"], arrays, strict=True)
        ]
        if not all(array.dtype == np.int64 and array.ndim == 1 for array in arrays):
            raise ValueError("the file's numbers are not whole")
        if [*map(describe_sum, sums)] != values["sums"]:
            raise ValueError("the file's numbers have changed")
        if not all(
            isinstance(each.name, str)
            and isinstance(each.symmetric, bool)
            and all(isinstance(number, int | float) for number in (each.step, each.deviation))
            for each in sums
        ):
            raise ValueError("a value in its sums has a wrong type")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: damaged ({error}); {remedy}") from error
    return values, sums


def describe_sum(one: Sum) -> dict[str, Any]:
    """Describes a sum, with the hash of its numbers."""
    return {
        "name": one.name,
        "step": one.step,
        "deviation": one.deviation,
        "symmetric": one.symmetric,
        "sha256": hashlib.sha256(np.ascontiguousarray(one.numbers).tobytes()).hexdigest(),
    }
