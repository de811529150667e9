"""bench/claims.py finds the sentences of pages from which it reads numbers."""

from __future__ import annotations

from pathlib import Path

import claims


def test_every_claim_finds_its_sentence(tmp_path: Path) -> None:
    stated = [claim.read_stated() for claim in claims.list_claims(claims.Demo(tmp_path))]
    assert all(stated)
    assert len(stated) > 6
