"""Checks web addresses of files, and removes secrets from addresses and paths."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

_SHA256 = "[0-9a-f]{64}"


def _check_address(value: str) -> str:
    """Returns a file's address; raises ValueError if it is not http(s) or contains a login."""
    parts = urlsplit(value)
    if "@" in parts.netloc:
        # The error does not show the address, which may contain a password.
        raise ValueError(
            "a user name or password in the address would be written into the results; "
            "remove it and put it into ~/.netrc"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{value!r} is not an http or https address; correct it")
    return value


def _check_sha256(value: str) -> str:
    if re.fullmatch(_SHA256, value) is None:
        raise ValueError(
            f"{value!r} is not a SHA-256; write its 64 lower-case hexadecimal digits, as "
            "sha256sum prints them"
        )
    return value


Address = Annotated[
    str, AfterValidator(_check_address), Field(json_schema_extra={"pattern": r"^https?://\S+$"})
]
Sha256 = Annotated[
    str, AfterValidator(_check_sha256), Field(json_schema_extra={"pattern": f"^{_SHA256}$"})
]


def public_url(url: str) -> str:
    """Returns a URL without its user, its password and its query, which may be secret."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}" + ("?..." if parts.query else "")


def public_addresses(value: Any) -> Any:
    """Removes secrets from a study's options, before they are shown to other people.

    Absolute paths are reduced to their last part, because folders may name people or machines.
    """
    if isinstance(value, str):
        if re.fullmatch(r"/[^()\[\]\\*+?|^$]+", value):  # an absolute path
            return f"…/{PurePosixPath(value).name}"
        return public_url(value) if value.startswith(("http://", "https://")) else value
    if isinstance(value, Mapping):
        return {key: public_addresses(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [public_addresses(inner) for inner in value]
    return value
