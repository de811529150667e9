"""Masks a site's sums by numbers that cancel in the total of all sites.

Each pair of sites derives a key by X25519, then HKDF-SHA256 over all facts that identify the use.
The key's AES-256 keystream is a mask, uniform modulo 2^64. The site whose name comes first adds the
pair's mask, and the other site subtracts the mask. The total of all sites' masked numbers therefore
equals the total of the unmasked numbers, modulo 2^64. Without one site's message the other messages
look like random numbers (Bonawitz et al. 2017, section 4). The protocol of Bonawitz et al. also
tolerates sites that drop out; dpprobe needs the messages of all sites.

Attackers who cannot break X25519 and AES see neither numbers nor noise. Each use has a separate
key, and a site sends one message per use of a mask (`sites.exchange`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from dpprobe.errors import PrivacyError
from dpprobe.privacy.keystream import KEY_BYTES, Keystream

Integers = npt.NDArray[np.int64]


def mask_numbers(
    numbers: Integers, use: str, *, site: str, key: X25519PrivateKey, others: Mapping[str, bytes]
) -> Integers:
    """Returns `numbers` plus the masks of `site` for one `use`, modulo 2^64.

    Args:
      numbers: an array whose shape is equal at all sites.
      use: text that binds a mask to all totals so far and to one sum. `use` must be equal at all
        sites, and must be used only once.
      key: the site's private key.
      others: the other sites' public keys by name, 32 bytes each.
    """
    masked = numbers.ravel().view(np.uint64).copy()
    for other, public in others.items():
        mask = _open_pair(use, site=site, key=key, other=other, public=public)
        words = mask.draw_words(masked.size)
        masked = masked + words if site < other else masked - words
    return masked.view(np.int64).reshape(numbers.shape)


def _open_pair(
    use: str, *, site: str, key: X25519PrivateKey, other: str, public: bytes
) -> Keystream:
    try:
        secret = key.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:  # X25519 refuses small orders and other lengths
        raise PrivacyError(
            f"site {other}: its public key is not one of X25519 ({error}); ask for a new offer"
        ) from error
    pair = " ".join(sorted((site, other)))
    info = f"dpprobe mask; sites {pair}; {use}".encode()
    derived = HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=info).derive(secret)
    return Keystream(derived, f"mask of {pair}")
