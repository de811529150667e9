"""Copies of the catalog's datasets and weights that a machine already has: the block `copies`.

The block is usually in a separate file that is merged over a study: `--configfile STUDY COPIES`.
A part of the study that names a catalog entry gets the options of the entry's copy. Records then
describe the copy instead of the entry's public source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from dpprobe.errors import ConfigError
from dpprobe.options import Options
from dpprobe.study import catalog
from dpprobe.wrong_keys_and_values import validate_options

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
    """Refuses options that a study decides, and a copy that loses or renames the entry's patients.

    A copy in another format has other columns, so it must name the column of patients itself.
    """
    entry = catalog.dataset_entry(name)
    for key in sorted(_DECIDED & copy.keys()):
        raise ConfigError(f"{key}: only a study decides this; move it to the study's dataset")
    if entry.unit_column is None:
        return
    if copy.get("source", entry.options["source"]) != entry.options["source"]:
        if catalog.find_patients(copy)[0] is None:
            raise ConfigError(
                "unit_column: missing; the catalog's dataset protects patients, so name the column "
                "with the patient of each image"
            )
        return
    where, decides = "layout." if "layout" in copy else "", "only a study decides the unit"
    column, made = catalog.find_patients({**entry.options, **copy})
    if column != entry.unit_column:
        raise ConfigError(
            f"{where}unit_column: {column or 'null'}, but the catalog's dataset protects each "
            f"{entry.unit_column} as one unit; remove this key, because {decides} of privacy"
        )
    if made != catalog.find_patients(entry.options)[1]:
        raise ConfigError(
            f"{where}extract.{column}: {made or 'missing'}, but the catalog's dataset reads its "
            f"patients by another pattern; remove `extract`, because {decides} of privacy"
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


class _Block(Options):
    copies: CopyOptions


def with_copies(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Fills in the options of copies of the catalog entries that a study names.

    Raises ConfigError for a wrong block, and for an option that a study and a copy set to different
    values. Faults of the study are not listed with a wrong block, because the block may cause them.
    """
    block = validate_options(_Block, {"copies": values.get("copies") or {}}, "config")
    copies = block.copies.model_dump()
    result = dict(values)
    for part, kind in PARTS.items():
        written = values.get(part)
        for name, ours in written.items() if isinstance(written, Mapping) else ():
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
