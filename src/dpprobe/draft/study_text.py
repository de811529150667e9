"""A study's YAML with comments, for a dataset and an available backbone.

The text has names of classes and columns, but no counts. Delta, and the hint to use public images,
reveal the order of magnitude of n units.
"""

from __future__ import annotations

import math
import os
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from dpprobe.data.options import ClassUnits, Headline
from dpprobe.draft.available_backbone import Chosen
from dpprobe.draft.seen_dataset import SPLIT, Line, Seen, name_of
from dpprobe.options import resolve_path
from dpprobe.planner.predicted_accuracy import Setting, public_images_help
from dpprobe.privacy.gaussian_mu import gaussian_mu
from dpprobe.privacy.limits import choose_delta
from dpprobe.privacy.noisy_totals import RESULT_CHANCE, units_for_result
from dpprobe.study.run_command import run_words

WIDTH = 110
EPSILONS = (0.5, 1, 2, 4, 8)
EPSILON = 1.0  # of the drafted release, and of the predicted accuracy
SEEDS = 5
METHODS = """\
methods:
  auto: # chooses a head and its options from public facts: rows, features, classes, epsilon, metric
    head: auto"""
# Included in every study with one label per image, so that it reveals nothing about class counts.
BALANCED = """\
  # balanced: # gives rare classes equal weight, as `auto` does with `metric: macro_accuracy`
  #   head: auto
  #   balanced: true"""
PUBLIC_IMAGES = (
    "With so few {unit}s, public images of a similar kind may raise the accuracy. They need no "
    "labels and cost no privacy (docs/few-patients.md). If you have some, name their folder, and "
    "uncomment these lines and the line `public` of `auto`. Images of your own hospital are not "
    "public."
)
PUBLIC_DATASETS = """\
# public_datasets:
#   {name}:
#     source: imagefolder
#     path: public/{name}
#     unlabelled: true"""
CEILING = (
    "The non-private baseline shows what privacy costs, and its results are not private. "
    "If you look at these results before you choose a release, the release keeps its epsilon. No "
    "epsilon covers the choice, and the model card says so. For a choice that epsilon covers, "
    "leave this method out, or choose on public images."
)
NONPRIVATE = """\
  nonprivate:
    head: nonprivate"""
RELEASE = """\
# To publish one head (docs/release.md), uncomment these lines and run the command above with
# `releases` after `--cores all`. A release spends its epsilon for good. If you choose method and
# epsilon before anyone sees a result, add `allow_useless: true`: then it looks at no result.
# releases:
#   {name}_v1:
#     dataset: {dataset}
#     backbone: {backbone}
#     method: auto
#     epsilon: {epsilon:g}
#     # Publishes a test result with noise, whose epsilon only test {unit}s spend. The metric
#     # follows from the public number of classes, not from the labels.{metric_words}
#     evaluate: {{epsilon: {test_epsilon}, metric: {metric}}}"""
TEST_EPSILON = 1
FEW_CLASSES = 10  # each class's recall needs test units of the class
# The metric of a release may depend on the number of classes, which is public.
METRIC_WORDS: dict[Headline, str] = {
    "accuracy": "",
    "macro_accuracy": "\n#     # macro_accuracy publishes the mean recall of the classes and the "
    "worst-class recall;\n#     # with {enough} test {unit}s in each class, {chance:.0%} of "
    "releases have a result.",
    "auc": "\n#     # auc is the mean over labels; labels that few {unit}s have are left out.",
}
# The effects of a dataset's metric on training and releases.
FOLLOWED = (
    "With this metric the cells of `auto` give rare classes equal weight. The metric does not "
    "change a release, which names its own metric."
)
SCHEMA = Path("workflow/schemas/study.schema.json")


@dataclass(frozen=True, kw_only=True)
class Draft:
    """The content of a study's file.

    Attributes:
      keys: the dataset's options, with the options that `init` adds.
      n: training units, images or patients.
      class_units: units of each class in train and test, only for the screen.
      init_words: the words of the command that wrote the file.
    """

    seen: Seen
    keys: Mapping[str, Line]
    backbone: Chosen
    n: int
    class_units: ClassUnits
    output: Path
    init_words: Sequence[str]

    @property
    def delta(self) -> float:
        return choose_delta(self.n)

    @property
    def setting(self) -> Setting:
        """The facts that determine the predicted accuracy of the drafted release."""
        return Setting(
            n=self.n,
            classes=len(self.seen.counts),
            epsilon=EPSILON,
            delta=self.delta,
            dimension=self.backbone.dimension,
        )

    @property
    def offers_public_images(self) -> bool:
        return public_images_help(self.setting)

    @property
    def public_name(self) -> str:
        """The name of the public dataset that a comment declares."""
        name = "similar_images"
        return f"more_{name}" if self.seen.study_name == name else name

    @property
    def study_name(self) -> str:
        """The name of the study and of its results folder, unique per study file."""
        return name_of([self.output.stem])

    def list_changed_names(self) -> list[str]:
        """Lists the study's names that differ from the names of the data and of the file."""
        place = resolve_path(self.seen.table or self.seen.place).resolve()
        given = {place.name if place.is_dir() else place.stem: self.seen.study_name}
        given[self.output.stem] = self.study_name
        return [f"{new} (from {old})" for old, new in given.items() if old != new]

    @property
    def run_words(self) -> list[str]:
        """The command that runs the study from the folder in which `init` was called."""
        return run_words(call=["--configfile", str(self.output)])


def make_draft(seen: Seen, backbone: Chosen, output: Path, init_words: Sequence[str]) -> Draft:
    keys = dict(seen.keys)
    if not seen.make_options().has_test():
        keys |= SPLIT
    if seen.is_imbalanced and not seen.multi_label:
        keys["metric"] = Line(
            value="macro_accuracy",
            comment="The classes are unequal: accuracy would reward always predicting the largest "
            f"class. This metric is used in tables and the report. {FOLLOWED} `init` chose "
            "the metric from the labels without noise, which reveals that the classes are unequal.",
        )
    split = replace(seen, keys=keys)
    return Draft(
        seen=seen,
        keys=keys,
        backbone=backbone,
        n=split.count_training_units(),
        class_units=split.count_class_units(),
        output=output,
        init_words=init_words,
    )


def study_text(draft: Draft) -> str:
    parts = (_write_head, _write_datasets, _write_backbones, _write_rest)
    return "".join(f"{line}\n" for write in parts for line in write(draft))


def _write_head(draft: Draft) -> Iterator[str]:
    if SCHEMA.is_file():
        yield f"# yaml-language-server: $schema={os.path.relpath(SCHEMA, draft.output.parent)}"
        yield "#"
    for comment, words in (
        ("Written by:", draft.init_words),
        ("Edit any line (docs/configuration.md). Run it:", draft.run_words),
    ):
        yield f"# {comment}"
        # A line break in a name would end the comment, so it is written in bash's quoting.
        yield "#     " + "".join(
            each if each.isprintable() else f"'$'{each.encode('unicode_escape').decode()}''"
            for each in shlex.join(words)
        )
    yield f"study: {_write_flow(draft.study_name)}"
    yield ""


def _write_datasets(draft: Draft) -> Iterator[str]:
    seen = draft.seen
    yield "datasets:"
    yield f"  {_write_flow(seen.study_name)}:"
    for key, line in draft.keys.items():
        yield from write_comment(line.comment, indent=4)
        yield from write_entry(key, line.value, indent=4)
    yield ""


def _write_backbones(draft: Draft) -> Iterator[str]:
    backbone = draft.backbone
    yield "backbones:"
    yield from write_comment(backbone.comment, indent=2)
    yield f"  {backbone.name}:"
    for key, value in backbone.keys.items():
        yield from write_entry(key, value, indent=4)
    for key, value in backbone.asked.items():
        yield from (f"    # {line}" for line in write_entry(key, value, indent=0))
    if not backbone.pretrained:
        yield from write_comment(
            "A better backbone, if its weights can be downloaded (or use your own file: "
            "`checkpoint: weights/...`):",
            indent=2,
        )
        yield "  # vit:"
        yield "  #   family: timm"
        yield "  #   model: vit_base_patch16_224.augreg_in21k"
    yield ""


def _write_rest(draft: Draft) -> Iterator[str]:
    name, unit = draft.seen.study_name, draft.seen.unit_name
    if draft.offers_public_images:
        yield from write_comment(PUBLIC_IMAGES.format(unit=unit))
        yield PUBLIC_DATASETS.format(name=draft.public_name)
    yield METHODS
    if draft.offers_public_images:
        yield f"    # public: {draft.public_name}"
    if not draft.seen.multi_label:
        yield BALANCED
    yield from write_comment(CEILING, indent=2)
    yield NONPRIVATE
    yield ""
    yield f"epsilons: [{', '.join(f'{epsilon:g}' for epsilon in EPSILONS)}]"
    yield (f"delta: {format_number(draft.delta)} # at most a tenth of 1 / (training {unit}s)")
    yield f"seeds: {SEEDS}"
    yield ""
    metric = _choose_metric(draft.seen)
    # The number of a class's units has the noise of two counts of sensitivity 1.
    deviation = math.sqrt(2) / gaussian_mu(TEST_EPSILON, draft.delta)
    enough = math.ceil(units_for_result(deviation, len(draft.seen.counts)))
    words = METRIC_WORDS[metric].format(unit=unit, enough=enough, chance=RESULT_CHANCE)
    yield RELEASE.format(
        name=name,
        dataset=_write_flow(name),
        backbone=draft.backbone.name,
        unit=unit,
        metric=metric,
        metric_words=words,
        epsilon=EPSILON,
        test_epsilon=TEST_EPSILON,
    )
    yield ""
    yield from write_comment(
        "Keep results_dir and data_dir outside the folder of images, or results are read as "
        "images. Each results_dir has its own MLflow store (docs/tracking.md)."
    )
    yield f"results_dir: {_choose_folder('results', draft.study_name, draft.seen)}"
    if draft.study_name != name:
        yield from write_comment(
            "All studies of these images share one data_dir: split tables are made once, and one "
            "ledger adds up the cost of all releases."
        )
    yield f"data_dir: {_choose_folder('data', name, draft.seen)}"


def _choose_folder(top: str, name: str, seen: Seen) -> str:
    """Returns a folder for results or data that is outside the folder of the images."""
    images = resolve_path(seen.place).resolve()
    inside = Path(top, name).resolve().is_relative_to(images)
    return f"{f'dpprobe_{top}' if inside else top}/{name}"


def _choose_metric(seen: Seen) -> Headline:
    """Chooses the metric of a drafted release only from public facts."""
    if seen.multi_label:
        return "auc"
    return "macro_accuracy" if len(seen.counts) <= FEW_CLASSES else "accuracy"


def write_comment(text: str, *, indent: int = 0) -> list[str]:
    """Wraps text as lines of a comment; no line for an empty text."""
    before = " " * indent + "# "
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=before,
        subsequent_indent=before,
        break_long_words=False,
        break_on_hyphens=False,
    )


def write_entry(key: str, value: Any, *, indent: int) -> list[str]:
    """Formats a key and its value, with quotes if YAML would otherwise read a different value."""
    before = " " * indent
    if isinstance(value, dict):
        parts = [
            f"{before}  {_write_flow(name)}: {_write_flow(part)}" for name, part in value.items()
        ]
        return [f"{before}{key}:", *parts]
    return [f"{before}{key}: {_write_flow(value)}"]


def _write_flow(value: Any) -> str:
    text = yaml.safe_dump(
        value, default_flow_style=True, allow_unicode=True, sort_keys=False, width=math.inf
    )
    return text.removesuffix("\n").removesuffix("\n...")


def format_number(value: float) -> str:
    """Formats a small number with a dot, as in 1.0e-5, because YAML reads 1e-5 as text."""
    return f"{value:.1e}".replace("e-0", "e-")
