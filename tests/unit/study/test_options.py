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


@pytest.mark.parametrize(
    "uri", ["sqlite:///results/mlflow.db", "sqlite:////abs/a.db", "http://h:5000", "https://h/x"]
)
def test_stores_that_are_known(uri: str) -> None:
    study = STUDY | {"study": "mine", "tracking": {"uri": uri}}
    assert load_study(study).tracking.uri == uri


@pytest.mark.parametrize("uri", ["sqlite:///?x", "sqlite:////some/folder/", "http://h:99999/"])
def test_a_tracking_uri_that_cannot_work_is_refused(uri: str) -> None:
    with pytest.raises(ConfigError, match=r"tracking\.uri"):
        load_study({**STUDY, "tracking": {"uri": uri}})
