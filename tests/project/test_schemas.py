"""The JSON schema of a study in the repository is up to date, and accepts all studies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from jsonschema.protocols import Validator

from dpprobe.study.study_file import load_study
from schemas import study_schema
from tests.support.script_modules import load_script
from tests.support.small_study import STUDY, changed


@pytest.fixture(scope="module")
def validator() -> Validator:
    """Returns a validator with a checked schema; `jsonschema.validate` would check it each time."""
    schema = study_schema()
    of_draft = jsonschema.validators.validator_for(schema)
    of_draft.check_schema(schema)
    return of_draft(schema)


def test_the_schema_in_the_repository_is_the_code_s(repository: Path) -> None:
    written = json.loads((repository / "workflow/schemas/study.schema.json").read_text())
    assert written == study_schema(), "run `make schema`"


def test_the_page_of_options_is_the_code_s(repository: Path) -> None:
    page = load_script(repository / "tools/pages/options_page.py").options_page()
    assert (repository / "docs/options.md").read_text(encoding="utf-8") == page, "run `make schema`"
    assert "| `shards` | whole number ≥ `1` ≤ `10000` | `1` | Files per split; each is one" in page


def test_every_option_is_described() -> None:
    schema = study_schema()
    undescribed = [
        f"{name}.{key}"
        for name, block in (("study", schema), *schema["$defs"].items())
        for key, option in block.get("properties", {}).items()
        if not option.get("description") and "$ref" not in option and "const" not in option
    ]
    assert not undescribed


def test_the_studies_in_the_repository_validate(repository: Path, validator: Validator) -> None:
    files = [repository / "config.yaml", *sorted((repository / "config").glob("*.yaml"))]
    assert len(files) >= 2
    for file in files:
        values = yaml.safe_load(file.read_text())
        load_study(values)
        validator.validate(values)


def test_the_schema_refuses_what_the_code_refuses(validator: Validator) -> None:
    validator.validate(STUDY)
    refused: list[tuple[str, Any]] = [
        ("methods.sgd.batchsize", 3),
        ("methods.sgd.head", "sdg"),
        ("epsilons", [0]),
        ("epsilons", [0.001]),
        ("delta", 1e-12),
        ("results_dir", "a b"),
        ("tracking", {"uri": "postgresql://h/db"}),
        ("unknown", 1),
    ]
    for path, value in refused:
        with pytest.raises(jsonschema.ValidationError):
            validator.validate(changed(path, value))
