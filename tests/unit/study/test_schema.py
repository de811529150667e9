"""The JSON schema of a study: the one in the repository, and what it accepts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from dpprobe.study.load import load_study
from dpprobe.study.schema import study_schema
from tests.support.small_study import STUDY, changed


def test_the_schema_in_the_repository_is_the_code_s(repository: Path) -> None:
    written = json.loads((repository / "workflow/schemas/study.schema.json").read_text())
    assert written == study_schema(), "run `make schema`"


def test_the_studies_in_the_repository_validate(repository: Path) -> None:
    import jsonschema

    schema = study_schema()
    files = [repository / "config.yaml", *sorted((repository / "config").glob("*.yaml"))]
    assert len(files) >= 2
    for file in files:
        values = yaml.safe_load(file.read_text())
        load_study(values)
        jsonschema.validate(values, schema)


def test_the_schema_refuses_what_the_code_refuses() -> None:
    import jsonschema

    schema = study_schema()
    jsonschema.validate(STUDY, schema)
    for path, value in (
        ("methods.sgd.batchsize", 3),
        ("methods.sgd.head", "sdg"),
        ("epsilons", [0]),
        ("epsilons", [0.001]),
        ("delta", 1e-12),
        ("results_dir", "a b"),
        ("tracking", {"uri": "postgresql://h/db"}),
        ("unknown", 1),
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(changed(path, value), schema)
