"""The Content-Security-Policy of our HTML pages: they load nothing and run one script or none."""

from __future__ import annotations

import base64
import hashlib


def content_policy(style: str, script: str | None) -> str:
    """Writes a policy that allows images within the page, this style and this script only.

    Args:
      script: None allows no script at all.
    """
    allowed = "'none'" if script is None else f"'sha256-{_hash_text(script)}'"
    return (
        "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"style-src 'sha256-{_hash_text(style)}'; script-src {allowed}"
    )


def _hash_text(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
