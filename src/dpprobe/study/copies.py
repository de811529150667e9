"""Copies of the catalog's datasets and weights that a machine already has: the block `copies`.

The block is usually in a separate file that is merged over a study: `--configfile STUDY COPIES`.
A part of the study that names a catalog entry gets the options of the entry's copy. Records then
describe the copy instead of the entry's public source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError

from dpprobe.errors import ConfigError
from dpprobe.options import Options
from dpprobe.study import catalog

# The parts of a study that may name catalog entries, and the entries' kind.
PARTS = {"datasets": "datasets", "public_datasets": "datasets", "backbones": "backbones"}
# A part of a study with one of these keys already names its source, so no copy is used.
_OWN = {
    "datasets": frozenset({"downloads", "files", "path", "root", "source", "train"}),
    "backbones": frozenset({"checkpoint", "family", "model"}),
}
# Options that promise something about data; a file of local copies must not change them.
_DECIDED = frozenset(
    {
        "allow_delta_above_one_over_n",
        "catalog",
        "delta",
        "expect",
        "max_images_per_patient",
        "metric",
        "subsample",
        "unit",
    }
)
Copy = dict[str, Any]


def _check_copies(check: Callable[[str, Copy], None], copies: dict[str, Copy]) -> dict[str, Copy]:
    for name, copy in copies.items():
        try:
            check(name, copy)
        except ConfigError as error:
            raise ValueError(f"{name}: {error}") from None
    return copies


def _check_dataset(name: str, copy: Copy) -> None:
    options = catalog.dataset_entry(name).options
    for key in sorted(_DECIDED & copy.keys()):
        raise ConfigError(f"{key}: only a study decides this; move it to the study's dataset")
    patients = options.get("layout", options).get("unit_column")
    other = copy.get("source", options["source"]) != options["source"]
    if patients and other and copy.get("unit_column") is None:
        raise ConfigError(
            "unit_column: missing; the catalog's dataset protects patients, so name the column "
            "with the patient of each image"
        )


def _check_backbone(name: str, copy: Copy) -> None:
    catalog.check_name(name, catalog.backbone_entries(), "backbone")
    if "catalog" in copy:
        raise ConfigError("catalog: the copy's name is the entry's name; remove this key")


class CopyOptions(Options):
    """Where this machine has content of the catalog, by the names of the catalog's entries."""

    datasets: Annotated[dict[str, Copy], AfterValidator(partial(_check_copies, _check_dataset))] = (
        Field(
            {},
            description="Maps names of resources/catalog to the options of this machine's copy: "
            "`downloads`, a folder with the original files, or another `source` with its options.",
        )
    )
    backbones: Annotated[
        dict[str, Copy], AfterValidator(partial(_check_copies, _check_backbone))
    ] = Field(
        {},
        description="Maps names of resources/backbones.yaml to the options of this machine's "
        "weights: `checkpoint`, and options in which these weights differ from the entry.",
    )


def with_copies(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Fills in the options of copies of the catalog entries that a study names.

    Raises ConfigError for an option that a study and a copy set to different values.
    """
    try:
        copies = CopyOptions.model_validate(values.get("copies") or {}).model_dump()
    except ValidationError:
        return values  # the check of the block reports the error
    result = dict(values)
    for part, kind in PARTS.items():
        block = values.get(part)
        for name, ours in block.items() if isinstance(block, Mapping) else ():
            if isinstance(ours, Mapping) and _OWN[kind].isdisjoint(ours):
                entry = str(ours.get("catalog"))
                if (copy := copies[kind].get(entry)) is not None:
                    where = f"config: copies.{kind}.{entry}"
                    filled = _fill(ours, copy, where=where, taker=f"{part}.{name}")
                    result[part] = {**result[part], name: filled}
    return result


def _fill(ours: Mapping[str, Any], copy: Copy, *, where: str, taker: str) -> Copy:
    """Merges a copy's options into a study's options, mappings key by key."""
    filled = {**copy, **ours}
    for key in copy.keys() & ours.keys():
        if isinstance(copy[key], Mapping) and isinstance(ours[key], Mapping):
            inside = {"where": f"{where}.{key}", "taker": f"{taker}.{key}"}
            filled[key] = _fill(ours[key], copy[key], **inside)
        elif copy[key] != ours[key]:
            raise ConfigError(
                f"{where}.{key}: {copy[key]!r}, but {taker}.{key} is {ours[key]!r}; remove one of "
                "the two"
            )
    return filled
