"""Parts of dpprobe's HTML pages: addresses, and a Content-Security-Policy that forbids loading."""

from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path


def content_policy(style: str, script: str | None) -> str:
    """Returns a policy that allows only embedded images, the given style and the given script."""
    allowed = "'none'" if script is None else f"'sha256-{_hash_text(script)}'"
    return (
        "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"style-src 'sha256-{_hash_text(style)}'; script-src {allowed}"
    )


def _hash_text(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def embed_picture(content: bytes, kind: str = "svg+xml") -> str:
    """Returns a data URL with a picture, for a page that loads no other files."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def relative_path(path: Path, folder: Path) -> str:
    """Returns a file's address relative to a page in the folder."""
    return Path(os.path.relpath(path, folder)).as_posix()
