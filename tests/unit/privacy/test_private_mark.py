"""Heads that earlier versions trained on private rows are still marked as private."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpprobe.errors import PrivacyError
from dpprobe.privacy.private_mark import check_unmarked

STORED = Path(__file__).parents[2] / "stored"


@pytest.mark.parametrize("name", ["bundle-1/head.safetensors", "cell-4/heads.safetensors"])
def test_heads_of_earlier_versions_are_refused_as_init_file(name: str) -> None:
    with pytest.raises(PrivacyError, match="trained on private rows of "):
        check_unmarked(STORED / name, option="init_file", written=name)
