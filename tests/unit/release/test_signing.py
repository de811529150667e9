"""Signatures of bundles, by the library and by openssl."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from dpprobe.errors import ConfigError
from dpprobe.release.bundle import SIGNATURE_FILE, SUMS_FILE
from dpprobe.release.checks import Checks
from dpprobe.release.parts.signature.measure import READER
from dpprobe.release.signing import read_private_key, sign_bundle, signature_holds


def write_keys(
    folder: Path, key: PrivateKeyTypes | None = None, passphrase: bytes | None = None
) -> tuple[Path, Path]:
    """Writes a private and a public key as openssl does; returns their files."""
    key = key or Ed25519PrivateKey.generate()
    private, public = folder / "private.pem", folder / "public.pem"
    encryption = BestAvailableEncryption(passphrase) if passphrase else NoEncryption()
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
    public.write_bytes(
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    return private, public


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / SUMS_FILE).write_text("00  bundle.json\n")
    return tmp_path


def test_a_signature_is_valid_only_for_its_bytes_and_key(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    private, public = write_keys(folder)
    _, other = write_keys(tmp_path_factory.mktemp("other"))
    sign_bundle(folder, private)
    assert len((folder / SIGNATURE_FILE).read_bytes()) == 64
    assert signature_holds(folder, public)
    assert not signature_holds(folder, other)
    (folder / SUMS_FILE).write_text("01  bundle.json\n")
    assert not signature_holds(folder, public)
    (folder / SIGNATURE_FILE).write_bytes(b"short")
    assert not signature_holds(folder, public)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_openssl_makes_keys_and_checks_signatures(folder: Path) -> None:
    private, public = folder / "a.pem", folder / "b.pem"
    verify = f"-verify -pubin -inkey {public} -rawin -in {SUMS_FILE} -sigfile {SIGNATURE_FILE}"
    for command in (
        f"genpkey -algorithm ed25519 -out {private}",
        f"pkey -in {private} -pubout -out {public}",
    ):
        subprocess.run(["openssl", *command.split()], check=True, cwd=folder)
    sign_bundle(folder, private)
    assert signature_holds(folder, public)
    checked = ["openssl", "pkeyutl", *verify.split()]
    assert subprocess.run(checked, cwd=folder).returncode == 0
    (folder / SUMS_FILE).write_text("01  bundle.json\n")
    assert subprocess.run(checked, cwd=folder).returncode != 0


def test_a_missing_signature_is_a_fault_where_a_key_is_passed(folder: Path) -> None:
    for place, key, passed in (
        (None, None, None),
        (None, folder, None),
        (folder, None, None),
        (folder, folder / "public.pem", False),
    ):
        checks = Checks()
        READER.verify_files(checks, place, key)
        assert [(one.name, one.passed) for one in checks.done] == [("signature", passed)]


def test_other_keys_are_refused_in_a_line(folder: Path) -> None:
    private, public = write_keys(folder, generate_private_key(65537, 2048))
    for key in (private, public, folder / "missing.pem", folder):
        with pytest.raises(ConfigError, match="openssl genpkey") as caught:
            sign_bundle(folder, key)
        assert "\n" not in str(caught.value)
        with pytest.raises(ConfigError, match="openssl pkey"):
            signature_holds(folder, key)
    locked, _ = write_keys(folder, passphrase=b"secret")
    with pytest.raises(ConfigError, match="has a passphrase"):
        sign_bundle(folder, locked)


def test_a_key_is_read_only_from_a_plain_file(tmp_path: Path) -> None:
    """Reading a pipe might wait forever for its writer."""
    private, _ = write_keys(tmp_path)
    assert read_private_key(private)
    os.mkfifo(tmp_path / "pipe")
    pipe = os.open(tmp_path / "pipe", os.O_RDWR)
    os.write(pipe, private.read_bytes())
    threading.Timer(0.3, os.close, [pipe]).start()
    with pytest.raises(ConfigError, match="unreadable"):
        read_private_key(tmp_path / "pipe")
