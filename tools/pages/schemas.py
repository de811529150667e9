"""Writes the JSON schemas of studies and of bundles to workflow/schemas."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpprobe.backbones.registry import FAMILIES
from dpprobe.data.registry import SOURCES
from dpprobe.heads.registry import METHODS
from dpprobe.options import NAME_PATTERN, options_class
from dpprobe.privacy.limits import INFINITE, LARGEST_EPSILON, SMALLEST_EPSILON
from dpprobe.release.bundle import BundleFacts
from dpprobe.study import catalog
from dpprobe.study.study import Study

FOLDER = Path(__file__).resolve().parents[2] / "workflow" / "schemas"


def study_schema() -> dict[str, Any]:
    schema = Study.model_json_schema(mode="validation")
    definitions = schema["$defs"]
    for field, key, registry in (
        ("datasets", "source", SOURCES),
        ("public_datasets", "source", SOURCES),
        ("backbones", "family", FAMILIES),
        ("methods", "head", METHODS),
    ):
        choices = [_define_options(definitions, registry, key, name) for name in sorted(registry)]
        if field != "methods":
            known = catalog.backbone_entries() if field == "backbones" else catalog.dataset_names()
            names = {"catalog": {"enum": sorted(known)}}
            choices.append({"type": "object", "properties": names, "required": ["catalog"]})
        schema["properties"][field]["additionalProperties"] = {"anyOf": choices}
        schema["properties"][field].pop("patternProperties", None)
        schema["properties"][field]["propertyNames"] = {"pattern": f"^{NAME_PATTERN}$"}
    limits = {"minimum": SMALLEST_EPSILON, "maximum": LARGEST_EPSILON}
    risk = {"$ref": "#/$defs/RiskOptions"}
    epsilon = {"anyOf": [{"type": "number", **limits}, {"const": INFINITE}, risk]}
    epsilons = {"items": epsilon, "uniqueItems": True}
    schema["properties"]["epsilons"].update(epsilons)
    audited = definitions["AuditOptions"]["properties"]["epsilons"]
    next(part for part in audited["anyOf"] if part.get("type") == "array").update(epsilons)
    for unused in ("DatasetOptions", "BackboneOptions", "MethodOptions"):
        definitions.pop(unused, None)
    schema["title"] = "dpprobe study"
    return schema


def _define_options(
    definitions: dict[str, Any], registry: Mapping[str, str], key: str, name: str
) -> dict[str, Any]:
    """Adds the schema of registered `Options` to the definitions; returns its reference."""
    options = options_class(registry, name).model_json_schema(mode="validation")
    nested = options.get("$defs", {})
    # Families use one name, such as `Preprocessing`, for different blocks.
    taken = [each for each, block in nested.items() if definitions.get(each, block) != block]
    text = json.dumps(options)
    for each in taken:
        text = text.replace(f'"#/$defs/{each}"', f'"#/$defs/{key}_{name}_{each}"')
    options = json.loads(text)
    for each, block in options.pop("$defs", {}).items():
        definitions[f"{key}_{name}_{each}" if each in taken else each] = block
    options["properties"][key] = {"const": name}
    options["required"] = sorted({*options.get("required", []), key})
    definitions[f"{key}_{name}"] = options
    return {"$ref": f"#/$defs/{key}_{name}"}


def bundle_schema() -> dict[str, Any]:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "bundle.json of a dpprobe release",
        **BundleFacts.model_json_schema(),
    }


if __name__ == "__main__":
    for name, schema in (("study", study_schema()), ("bundle", bundle_schema())):
        text = json.dumps(schema, indent=2) + "\n"
        (FOLDER / f"{name}.schema.json").write_text(text, encoding="utf-8")
