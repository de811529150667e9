"""The messages of sites: masked sums, one file per site and round, signed.

    <exchange>/sums-<round>.<site>.safetensors    for the other sites

A site's own files, mode 0600, are in <data_dir>/<dataset>/site-<release>:

    secret.json                  its keys, and its noise
    agreement.json               what it has agreed to, from its ledger's entry on
    sums-<round>.safetensors     its messages, as sent

A round has the sums that a fit asks for at once. Everyone who has the messages of all sites adds
them up, and nobody learns more than the total from them.

**One message per round.** A site's noise and masks for a round are fixed by its secret. Two
messages with other sums in one round would differ by exactly these sums. So a message is written to
the private folder first, under a name that can be taken once, then copied to the exchange. Whatever
happens later, this copy is what is sent again.

**One agreement per secret.** A secret serves one agreement, whose digest is in every message. An
agreement with another offer needs new secrets of all sites, and an entry of its own in ledgers.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from dpprobe.artifacts import (
    atomic_path,
    canonical_json,
    check_not_newer,
    flush_to_disk,
    write_private,
)
from dpprobe.errors import DataError, PrivacyError
from dpprobe.privacy.keystream import KEY_BYTES, Keystream
from dpprobe.privacy.rounded_gaussian import RoundedGaussian
from dpprobe.sites.agreement import Agreement, Offer, check_signature, sign_values
from dpprobe.sites.masks import Integers, mask_numbers
from dpprobe.sites.shared_sums import Sum, add_sums

FORMAT = "dpprobe-site-sums"
FORMAT_VERSION = 1
AGREEMENT_FILE = "agreement.json"
SECRET_FILE = "secret.json"


@dataclass(frozen=True, kw_only=True)
class Secret:
    """A site's secret for one release: of its masks, and of its noise; neither leaves the site."""

    key: X25519PrivateKey = field(repr=False)
    noise: bytes = field(repr=False)

    @classmethod
    def draw(cls) -> Secret:
        return cls(key=X25519PrivateKey.generate(), noise=secrets.token_bytes(KEY_BYTES))

    @property
    def public_key(self) -> str:
        return self.key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()

    def open_noise(self, digest: str, place: int, name: str) -> RoundedGaussian:
        """Returns the noise of one release of an agreement; the same at every call."""
        stream = Keystream(self.noise, "noise of a site").make_part(f"{digest} {place} {name}")
        return RoundedGaussian(stream)


def write_secret(folder: Path, secret: Secret) -> None:
    """Writes a secret into the private folder, which only its owner may read."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    values = {"key": secret.key.private_bytes_raw().hex(), "noise": secret.noise.hex()}
    write_private(folder / SECRET_FILE, canonical_json(values).encode())


def read_secret(folder: Path) -> Secret | None:
    """Reads a site's secret; None if there is none, DataError for a damaged one."""
    path = folder / SECRET_FILE
    if not path.exists():
        return None
    try:
        values = json.loads(path.read_bytes())
        noise = bytes.fromhex(values["noise"])
        if len(noise) != KEY_BYTES:
            raise ValueError("its noise key is cut short")
        key = X25519PrivateKey.from_private_bytes(bytes.fromhex(values["key"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path}: damaged ({error}); nothing more can be sent for this release. Abandon its "
            "entry of the ledger, and agree again with the other sites"
        ) from error
    return Secret(key=key, noise=noise)


def keep_agreement(folder: Path, agreement: Agreement) -> None:
    """Writes an agreement into the private folder, unless one is there."""
    path = folder / AGREEMENT_FILE
    if not path.exists():
        offers = [offer.to_dict() for offer in agreement.offers]
        _write_once(path, canonical_json(offers).encode())


def read_agreement(folder: Path) -> Agreement | None:
    """Reads the agreement of the private folder; None if there is none, DataError if damaged."""
    path = folder / AGREEMENT_FILE
    if not path.exists():
        return None
    try:
        return Agreement.make([Offer.from_dict(values) for values in json.loads(path.read_bytes())])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path}: damaged ({error}); restore it from a backup, or abandon the ledger's entry "
            "and agree again with all sites"
        ) from error


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """One site's side of an agreement.

    Attributes:
      folder: with the files of all sites.
      private: the site's own folder.
      members: the sites' public Ed25519 keys, by name, hexadecimal.
      signer: the site's own key.
    """

    agreement: Agreement
    site: str
    folder: Path
    private: Path
    members: Mapping[str, str]
    signer: Ed25519PrivateKey = field(repr=False)

    def read_totals(self) -> list[Sum]:
        """Returns the totals of all rounds to which every site has sent its sums."""
        totals: list[Sum] = []
        number = 1
        while not self.list_missing(number):
            messages = [self._read_message(number, site) for site in self.agreement.names]
            if len({len(each) for each in messages}) > 1:
                raise PrivacyError(
                    f"round {number}: the sites sent different numbers of sums; all sites must run "
                    "one version of dpprobe"
                )
            totals += [add_sums(sums) for sums in zip(*messages, strict=True)]
            number += 1
        return totals

    def list_missing(self, number: int) -> list[str]:
        """Lists the sites without a message in a round."""
        return [
            site for site in self.agreement.names if not self.message_path(number, site).exists()
        ]

    @property
    def next_round(self) -> int:
        """The first round that lacks a message of any site."""
        number = 1
        while not self.list_missing(number):
            number += 1
        return number

    def message_path(self, number: int, site: str) -> Path:
        return self.folder / f"sums-{number}.{site}.safetensors"

    def send_sums(self, number: int, sums: Sequence[Sum], secret: Secret) -> Path:
        """Masks, signs and sends a site's sums of a round; sends again what was sent before."""
        sent = self._sent_path(number)
        if not sent.exists():
            _write_once(sent, self._make_message(number, sums, secret))
        return self.send_again(number)

    def send_again(self, number: int) -> Path:
        """Copies a message from the private folder to the exchange, if it lacks it."""
        path, sent = self.message_path(number, self.site), self._sent_path(number)
        if not path.exists() or path.read_bytes() != sent.read_bytes():
            with atomic_path(path) as temporary:
                shutil.copyfile(sent, temporary)
        return path

    def has_sent(self, number: int) -> bool:
        return self._sent_path(number).exists()

    def _sent_path(self, number: int) -> Path:
        return self.private / f"sums-{number}.safetensors"

    def _make_message(self, number: int, sums: Sequence[Sum], secret: Secret) -> bytes:
        others = self.agreement.other_keys(self.site)
        masked = {}
        for place, each in enumerate(sums):
            use = f"agreement {self.agreement.digest}; round {number}; sum {place} {each.name}"
            masked[str(place)] = mask_numbers(
                each.numbers, use, site=self.site, key=secret.key, others=others
            )
        values = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "agreement": self.agreement.digest,
            "site": self.site,
            "round": number,
            "sums": [
                {**_describe(each), "sha256": _hash_numbers(masked[str(place)])}
                for place, each in enumerate(sums)
            ],
        }
        signed = {**values, "signature": sign_values(self.signer, values)}
        return save(masked, metadata={"dpprobe": canonical_json(signed)})

    def _read_message(self, number: int, site: str) -> list[Sum]:
        """Reads a message of anyone; DataError if damaged, PrivacyError for another's or another
        round's."""
        path = self.message_path(number, site)
        try:
            with safe_open(path, framework="numpy") as file:
                values = json.loads((file.metadata() or {})["dpprobe"])
                check_not_newer(path, values, kind=FORMAT, version=FORMAT_VERSION)
                signature = values.pop("signature")
                arrays = [file.get_tensor(str(place)) for place in range(len(values["sums"]))]
            sums = [
                Sum(name=one["name"], step=one["step"], symmetric=one["symmetric"], numbers=array)
                for one, array in zip(values["sums"], arrays, strict=True)
            ]
            hashes = [one["sha256"] for one in values["sums"]]
            whole = hashes == [_hash_numbers(array) for array in arrays]
            whole = whole and all(a.dtype == np.int64 and a.ndim == 1 for a in arrays)
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}: damaged ({error}); ask site {site} for it again") from error
        check_signature(str(path), values, signature, self.members[site])
        if not whole:
            raise DataError(f"{path}: its numbers have changed; ask site {site} for it again")
        bound = {"agreement": self.agreement.digest, "site": site, "round": number}
        for name, wanted in bound.items():
            if values[name] != wanted:
                raise PrivacyError(
                    f"{path}: of another {name} ({values[name]}, not {wanted}); remove it, and ask "
                    f"site {site} for its sums of this release"
                )
        return sums


def _describe(one: Sum) -> dict[str, Any]:
    return {"name": one.name, "step": one.step, "symmetric": one.symmetric}


def _hash_numbers(numbers: Integers) -> str:
    return hashlib.sha256(np.ascontiguousarray(numbers).tobytes()).hexdigest()


def _write_once(path: Path, content: bytes) -> None:
    """Writes a private file whole, and never over another of its name."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    write_private(temporary, content)
    try:
        os.link(temporary, path)
    except FileExistsError:  # another process of this site was quicker: its message is sent
        pass
    finally:
        temporary.unlink()
    flush_to_disk(path.parent)
