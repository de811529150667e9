"""The blocks of a study beside its datasets, backbones and methods."""

from __future__ import annotations

import pytest

from dpprobe.errors import ConfigError
from dpprobe.study.study_file import load_study
from tests.support.small_study import STUDY


def test_a_password_is_not_repeated() -> None:
    for uri in ("https://me:geheim@host", "postgresql://me:geheim@host/db", "http://me:geheim@["):
        with pytest.raises(ConfigError) as caught:
            load_study(STUDY | {"tracking": {"uri": uri}})
        assert "geheim" not in str(caught.value)
