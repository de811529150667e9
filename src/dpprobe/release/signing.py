"""Signs a bundle, and checks a signature: Ed25519 over the bytes of SHA256SUMS.

SHA256SUMS has the hash of every other file, so its signature covers the whole bundle.
SHA256SUMS.sig holds the 64 raw bytes of the signature, which openssl can check:

    openssl pkeyutl -verify -pubin -inkey public_key.pem -rawin -in SHA256SUMS \
        -sigfile SHA256SUMS.sig

A bundle holds no public key, because a key beside the files proves nothing. Get the public key from
another source, such as the signer's web page. openssl creates a pair of keys:

    openssl genpkey -algorithm ed25519 -out private_key.pem
    openssl pkey -in private_key.pem -pubout -out public_key.pem
"""

from __future__ import annotations

from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from dpprobe.errors import ConfigError
from dpprobe.files.atomic_writes import atomic_path
from dpprobe.files.plain_files import require_plain_file
from dpprobe.release.bundle import SIGNATURE_FILE, SUMS_FILE

PRIVATE_REMEDY = "name a file that `openssl genpkey -algorithm ed25519` wrote"
PUBLIC_REMEDY = "name a file that `openssl pkey -pubout` wrote"


def sign_bundle(folder: Path, key_file: Path) -> None:
    """Signs a bundle: writes SHA256SUMS.sig with an Ed25519 key in PEM, without a passphrase."""
    signature = read_private_key(key_file).sign((folder / SUMS_FILE).read_bytes())
    with atomic_path(folder / SIGNATURE_FILE) as temporary:
        temporary.write_bytes(signature)


def read_private_key(path: Path) -> Ed25519PrivateKey:
    """Reads an Ed25519 private key; raises ConfigError if the file has no usable key."""
    try:
        require_plain_file(path)
        key = load_pem_private_key(path.read_bytes(), password=None)
    except TypeError as error:
        raise ConfigError(
            f"signing key {path}: it has a passphrase, which a job cannot enter; save the key "
            "without a passphrase, readable only by you"
        ) from error
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"signing key {path}: unreadable; {PRIVATE_REMEDY}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"signing key {path}: not an Ed25519 key; {PRIVATE_REMEDY}")
    return key


def signature_holds(folder: Path, public_key: Path) -> bool:
    """Returns True if the key signed SHA256SUMS; raises ConfigError if the key is unusable."""
    try:
        require_plain_file(public_key)
        key = load_pem_public_key(public_key.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"public key {public_key}: unreadable; {PUBLIC_REMEDY}") from error
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError(f"public key {public_key}: not an Ed25519 key; {PUBLIC_REMEDY}")
    try:
        key.verify((folder / SIGNATURE_FILE).read_bytes(), (folder / SUMS_FILE).read_bytes())
    except InvalidSignature:
        return False
    return True
