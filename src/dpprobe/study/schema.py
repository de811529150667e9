"""The JSON schema of a study's file."""

from __future__ import annotations

from typing import Any

from dpprobe.backbones.registry import FAMILIES
from dpprobe.data.registry import SOURCES
from dpprobe.heads.registry import HEADS
from dpprobe.options import NAME_PATTERN, options_class
from dpprobe.privacy.limits import INFINITE, LARGEST_EPSILON, SMALLEST_EPSILON
from dpprobe.study import catalog
from dpprobe.study.study import Study


def study_schema() -> dict[str, Any]:
    """The JSON schema of a study's file, for editors and for reviewers."""
    schema = Study.model_json_schema(mode="validation")
    definitions = schema["$defs"]
    for field, key, registry in (
        ("datasets", "source", SOURCES),
        ("public_datasets", "source", SOURCES),
        ("backbones", "family", FAMILIES),
        ("methods", "head", HEADS),
    ):
        choices = []
        for name in sorted(registry):
            own = options_class(registry, name).model_json_schema(mode="validation")
            definitions.update(own.pop("$defs", {}))
            own["properties"][key] = {"const": name}
            own["required"] = sorted({*own.get("required", []), key})
            definitions[f"{key}_{name}"] = own
            choices.append({"$ref": f"#/$defs/{key}_{name}"})
        if field != "methods":
            choices.append(_catalog_schema(field))
        schema["properties"][field]["additionalProperties"] = {"anyOf": choices}
        schema["properties"][field].pop("patternProperties", None)
        schema["properties"][field]["propertyNames"] = {"pattern": f"^{NAME_PATTERN}$"}
    limits = {"minimum": SMALLEST_EPSILON, "maximum": LARGEST_EPSILON}
    epsilon = {"anyOf": [{"type": "number", **limits}, {"const": INFINITE}]}
    schema["properties"]["epsilons"].update({"items": epsilon, "uniqueItems": True})
    for unused in ("DatasetOptions", "BackboneOptions", "MethodOptions"):
        definitions.pop(unused, None)
    schema["title"] = "dpprobe study"
    return schema


def _catalog_schema(field: str) -> dict[str, Any]:
    """A dataset or backbone that is named by its entry; its other keys are those of the entry."""
    known = catalog.backbone_entries() if field == "backbones" else catalog.dataset_names()
    return {
        "type": "object",
        "properties": {"catalog": {"enum": sorted(known)}},
        "required": ["catalog"],
    }
