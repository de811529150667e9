"""The schema of an entry in the public registry of differentially private deployments.

Contains names, types and requirements of schemas/deployments-schema.yaml in
github.com/opendp/deployments-registry-data at commit 3e9c812a924cf01d228f26f6c462c59c391c3f2a,
without descriptions. The registry validates entries with JSON Schema draft 7 and formats. All its
texts have one type; `MARKDOWN` marks texts whose description asks for sentences or lists.
"""

from __future__ import annotations

from typing import Any

import jsonschema

TEXT: dict[str, Any] = {"type": "string"}
MARKDOWN: dict[str, Any] = {**TEXT, "contentMediaType": "text/markdown"}
TEXTS = {"type": "array", "items": TEXT, "minItems": 1}
NUMBER = {"type": "number"}
ANYTHING: dict[str, Any] = {}


def one_of(*values: str | int) -> dict[str, Any]:
    kind = "integer" if isinstance(values[0], int) else "string"
    return {"type": kind, "enum": list(values)}


def block(required: str = "", **properties: Any) -> dict[str, Any]:
    made = {"type": "object", "additionalProperties": False, "properties": properties}
    return {**made, "required": required.split()} if required else made


BASIC = block(
    "name data_curators description intended_use data_product_type data_product_region "
    "publication_date",
    name=TEXT,
    data_curators=TEXTS,
    intended_use=MARKDOWN,
    data_product_type=one_of(
        "Summary statistics",
        "Machine learning model",
        "Dataset",
        "Synthetic data",
        "Interactive API",
        "SQL queries",
    ),
    data_product_region=TEXT,
    description=MARKDOWN,
    publication_date={**TEXT, "format": "date"},
    data_product_sector=one_of(
        "Technology", "Healthcare", "Education", "Government", "Energy", "Finance"
    ),
)
DP_VARIANT = block(
    variant_name=one_of("Pure DP", "Approximate DP", "Zero-concentrated DP", "Renyi DP", "Custom"),
    data_domain=MARKDOWN,
    unprotected_quantities=MARKDOWN,
)
PRIVACY_LOSS = block(
    privacy_unit=TEXT,
    privacy_unit_details=MARKDOWN,
    privacy_parameters=block(epsilon=NUMBER, delta={"type": ["number", "string"]}, rho=NUMBER),
    privacy_parameters_details=MARKDOWN,
)
DEPLOYMENT_MODEL = block(
    model_name=one_of("Local", "Central", "Shuffle", "Federated", "Varies"),
    model_name_details=MARKDOWN,
    actors=MARKDOWN,
    release_type=one_of("One release", "Many releases"),
    release_type_details=MARKDOWN,
    data_source_type=one_of("Static", "Dynamic"),
    data_source_type_details=ANYTHING,
    access_type=one_of("Interactive", "Non-interactive"),
    access_type_details=MARKDOWN,
)
SCHEMA = block(
    "url_slug status tier deployment",
    url_slug=TEXT,
    status=one_of(
        "Converted",
        "Draft",
        "Pending",
        "Changes Required",
        "Approved",
        "Approved (Update Requested)",
        "Approved (Pending)",
    ),
    tier=one_of(1, 2, 3),
    deployment=block(
        "basic",
        basic=BASIC,
        dp_variant=DP_VARIANT,
        privacy_loss=PRIVACY_LOSS,
        deployment_model=DEPLOYMENT_MODEL,
        accounting=block(post_processing=MARKDOWN, composition=MARKDOWN),
        implementation=block(
            preprocessing_and_hyperparameter_tuning=MARKDOWN,
            mechanisms=MARKDOWN,
            justification=MARKDOWN,
        ),
        administrative=block(
            "registry_authors", sources=TEXT, notes=MARKDOWN, registry_authors=TEXTS
        ),
    ),
)


def find_faults(entry: Any) -> list[str]:
    """Returns the errors that the registry's schema check would report."""
    checker = jsonschema.Draft7Validator.FORMAT_CHECKER
    validator = jsonschema.Draft7Validator(SCHEMA, format_checker=checker)
    return [fault.message for fault in validator.iter_errors(entry)]


def list_properties(schema: dict[str, Any] = SCHEMA) -> list[str]:
    """Returns the names of all properties but `rho`, which approximate DP does not have."""
    names = []
    for name, value in schema.get("properties", {}).items():
        names += [name, *list_properties(value)] if name != "rho" else []
    return names
