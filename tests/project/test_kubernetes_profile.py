"""The Kubernetes profile has valid settings, although the project does not install its plugins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from snakemake.cli import get_argument_parser

# Options that the plugins for Kubernetes and S3 add.
PLUGINS = ("kubernetes-", "storage-s3-")


@pytest.fixture(scope="module")
def profile(repository: Path) -> dict[str, Any]:
    text = (repository / "profiles/kubernetes/config.yaml").read_text()
    values: dict[str, Any] = yaml.safe_load(text)
    return values


def test_each_setting_is_an_option_of_snakemake(profile: dict[str, Any]) -> None:
    options = {
        option.lstrip("-")
        for action in get_argument_parser()._actions
        for option in action.option_strings
    }
    unknown = {name for name in profile if name not in options and not name.startswith(PLUGINS)}
    assert unknown == set()


def test_data_and_results_are_in_a_bucket_and_its_keys_reach_jobs(profile: dict[str, Any]) -> None:
    assert profile["executor"] == "kubernetes"
    assert profile["default-storage-provider"] == "s3"
    assert profile["default-storage-prefix"].startswith("s3://")
    assert {"SNAKEMAKE_STORAGE_S3_ACCESS_KEY", "SNAKEMAKE_STORAGE_S3_SECRET_KEY"} == set(
        profile["envvars"]
    )
    # without the manufacturer the plugin requests no GPU
    assert profile["default-resources"]["gpu_manufacturer"] == "'nvidia'"
