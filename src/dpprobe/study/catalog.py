"""The catalog of datasets and backbones: `catalog: cifar10` replaces all options.

An entry has the options that a study could write itself, with sizes, licence and access. If a study
names an entry, the entry fills in the options that the study does not set. Datasets are in
`resources/catalog/<name>.yaml`, backbones in `resources/backbones.yaml`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from dpprobe import project_files
from dpprobe.data.options import Headline
from dpprobe.errors import ConfigError
from dpprobe.options import Options
from dpprobe.wrong_keys_and_values import explain_fault

# Options that select rows or change the split, so that sizes may differ from the catalog's sizes.
# The option `limit` is not listed, because the sizes after a limit are known.
_RESIZE = ("exclude", "filters", "layout", "split_by", "test_fraction")
# Options that select rows in an entry's own source; with another source they only name files.
_SOURCE_RESIZE = ("split_column", "test", "test_values", "train", "train_values")
# Options that define how -1 and blank labels are read, which may drop rows.
_POLICIES = ("uncertain", "missing")
# Options of an entry that also apply if the dataset comes from another source.
_KEPT = ("duplicates", "missing_classes")
Text = Annotated[str, Field(min_length=1)]
Address = Annotated[str, Field(pattern=r"^https?://[^/\s]+\S*$")]


class Sizes(Options):
    """Sizes of the split tables, which are checked when the tables are made; null if unknown."""

    train: int | None = Field(ge=1, description="Number of images in the training table.")
    test: int | None = Field(ge=1, description="Number of images in the test table.")
    classes: int = Field(
        ge=2, description="Number of classes, or of labels if an image may have several."
    )


class Citation(Options):
    authors: Text
    title: Text
    year: int = Field(ge=1900, le=2100)
    venue: Text
    url: Address


class DatasetEntry(Options):
    title: Text
    description: Text = Field(description="Content of the images, and caveats to know beforehand.")
    homepage: Address
    licence: Text
    access: Literal["open", "gated", "credentialed"] = Field(
        description="open: downloaded without conditions; gated: downloaded once a licence is "
        "accepted; credentialed: a person downloads it and writes its path."
    )
    steps: Text | None = Field(
        None,
        description="Exact steps for a person before the first run; required unless access "
        "is open.",
    )
    citation: Citation
    papers: tuple[Annotated[str, Field(pattern="^[0-9]{3}$")], ...] = Field(
        (), description="Numbers of the papers that use the dataset."
    )
    provenance: Text = Field(
        description="Sources of checksums, revisions and sizes, and facts that could not be "
        "checked."
    )
    sizes: Sizes
    class_names: tuple[Text, ...] | None = Field(
        description="Names of the classes in the order of the labels; null if the files name them."
    )
    prompt_names: Literal["imagenet"] | dict[Text, Text] = Field(
        {},
        description="Words for prompts, by class name, if class names are codes; or imagenet: the "
        "names that CLIP's authors wrote for ImageNet.",
    )
    metric: Headline
    multi_label: bool = False
    groups: tuple[Text, ...] = Field((), description="Names of the subgroups in the tables.")
    prompts: Text = Field(description="Name of a set of prompts in resources/prompts.yaml.")
    required: tuple[Text, ...] = Field(
        (), description="Options that a person must write because the catalog cannot know them."
    )
    options: dict[str, Any] = Field(description="The source, with its options.")

    @property
    def unit_column(self) -> str | None:
        """The column with the patient of each image; None if images are the units of privacy."""
        return find_patients(self.options)[0]

    def common_options(self, *, resized: bool) -> dict[str, Any]:
        """Returns the options that are independent of the source of the images."""
        sizes = self.sizes.model_dump(exclude_none=True)
        return {
            **{name: self.options[name] for name in _KEPT if name in self.options},
            "expect": {"classes": sizes["classes"]} if resized else sizes,
            "metric": self.metric,
            "prompts": self.prompts,
        }

    def changes_rows(self, values: Mapping[str, Any]) -> bool:
        """Returns True if a study's options select other rows than the catalog entry's options."""
        choices: tuple[str, ...] = _RESIZE
        if values.get("source", self.options["source"]) == self.options["source"]:
            choices += _SOURCE_RESIZE
        if any(name in values and values[name] != self.options.get(name) for name in choices):
            return True
        policies = [values.get(name) for name in _POLICIES]
        policies += [
            part for policy in policies if isinstance(policy, Mapping) for part in policy.values()
        ]
        return "drop" in policies


def find_patients(options: Mapping[str, Any]) -> tuple[Any, Any]:
    """Returns the `unit_column` of a dataset's unchecked options, and the `extract` that makes it.

    Both are None if absent. A download's options are in `layout`.
    """
    layout = options.get("layout")
    table = layout if isinstance(layout, Mapping) else options
    column, made = table.get("unit_column"), table.get("extract")
    return column, made.get(column) if isinstance(made, Mapping) else None


def dataset_names() -> tuple[str, ...]:
    folder = project_files.resource_path("catalog")
    return tuple(sorted(path.stem for path in folder.glob("*.yaml")))


def dataset_entry(name: str) -> DatasetEntry:
    """Reads a dataset's catalog entry; raises ConfigError for an unknown name or a wrong file."""
    check_name(name, dataset_names(), "dataset")
    try:
        return DatasetEntry.model_validate(project_files.read_yaml("catalog", f"{name}.yaml"))
    except ValidationError as error:
        faults = "; ".join(map(explain_fault, error.errors()))
        raise ConfigError(
            f"resources/catalog/{name}.yaml: {faults}; docs/extending.md#add-a-dataset-to-the-"
            "catalog lists all keys"
        ) from error


def backbone_entries() -> dict[str, dict[str, Any]]:
    """Reads all backbones: title, options, sizes, pooling, licence, training images, source."""
    entries: dict[str, dict[str, Any]] = project_files.read_yaml("backbones.yaml")
    return entries


def complete_dataset(values: Mapping[str, Any]) -> dict[str, Any]:
    """Completes a dataset's options from its catalog entry.

    With another `source`, such as a copy on disk, only the entry's sizes, metric, prompts and the
    options in `_KEPT` apply. `prompt_names` does not apply, because classes of another source may
    have other names. Raises ConfigError if the name is unknown, or options that only a person
    knows are missing.
    """
    entry = dataset_entry(values["catalog"])
    common = entry.common_options(resized=entry.changes_rows(values))
    if values.get("source", entry.options["source"]) != entry.options["source"]:
        return {**common, **values}
    missing = [name for name in entry.required if values.get(name) is None]
    if missing:
        steps = " ".join(str(entry.steps).split())
        raise ConfigError(
            f"{', '.join(missing)}: missing; the catalog's entry of {entry.title} leaves this to "
            f"you. {steps}"
        )
    return {**common, "prompt_names": entry.prompt_names, **entry.options, **values}


def complete_backbone(values: Mapping[str, Any]) -> dict[str, Any]:
    """Completes a backbone's options; raises ConfigError for an unknown name."""
    entries = backbone_entries()
    name = values["catalog"]
    check_name(name, entries, "backbone")
    entry = entries[name]
    options = dict(entry["options"])
    if values.get("checkpoint") is not None:
        options.pop("pretrained", None)
    projected = values.get("with_projection", True)
    dimension = entry.get("dimension" if projected else "dimension_before_projection")
    merged = {"dimension": dimension, **options, **values}
    for key in ("model_args", "preprocessing"):
        if isinstance(options.get(key), Mapping) and isinstance(values.get(key), Mapping):
            merged[key] = {**options[key], **values[key]}
    return merged


def check_name(name: Any, known: Iterable[str], what: str) -> None:
    """Raises ConfigError, with similar names, if the catalog has no entry of this name."""
    names = sorted(known)
    if isinstance(name, str) and name in names:
        return
    close = difflib.get_close_matches(str(name), names, n=3)
    remedy = " or ".join(close) if close else f"one of: {', '.join(names)}"
    raise ConfigError(f"catalog: no {what} {name!r}; choose {remedy}")
