"""A dataset that `init` inspected: its options for a study, and private counts for the screen."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from dpprobe.data.options import IMBALANCED, ClassUnits, DatasetOptions, compute_imbalance
from dpprobe.data.people.class_units import CountedRows, list_pairs, share_units
from dpprobe.data.people.companion_options import CompanionOptions
from dpprobe.data.people.companions import FoundCompanions, companions_key
from dpprobe.data.registry import SOURCES
from dpprobe.errors import ConfigError
from dpprobe.options import options_class
from dpprobe.study.reserved_names import TAKEN
from dpprobe.wrong_keys_and_values import validate_options

Value = str | float | bool | list[str] | dict[str, object]
RARE = 10  # a class with fewer images may show only one person
# Names of files and folders that do not describe the content.
_GENERAL = {
    "train", "training", "labels", "metadata", "data", "index", "images", "img", "table",
}  # fmt: skip

PUBLIC_NAMES = "Every head publishes the class names, so each name must be public."
COMPANIONS = (
    "Leaves out each image whose name has one of these words, such as masks, previews and copies "
    "of other images. To use them, write `companions: keep`; then name the common picture as the "
    "unit_column of a CSV, because each would be a unit of its own."
)


@dataclass(frozen=True, kw_only=True)
class Line:
    """A key of a dataset in a study: its value, and a comment above it."""

    value: Value
    comment: str = ""


# Keys for a dataset without a test split.
SPLIT = {
    "test_fraction": Line(value=0.2),
    "split_by": Line(
        value="id",
        comment="Each image's name alone decides between training and test, as a release requires. "
        "`class` splits each class in one proportion, but is for benchmarks only.",
    ),
}


@dataclass(frozen=True, kw_only=True)
class ItemVectors:
    """The vectors in a folder of item files: the name of their backbone, and their length."""

    name: str
    dimension: int | None


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A dataset that `init` inspected.

    Attributes:
      keys: the dataset's options, in the order of the file.
      counts: images of both splits by class, or by label if images have several labels. The counts
        are private, and never written to a file.
      patients: number of patients; None if no column names patients.
      by_patient: number of patients by class, where the images of a patient share a weight of 1;
        None without patients or with several labels.
      notes: facts and tasks for the user, one line each.
      table: the table of a folder of item files; the study is named after the table.
      vectors: the backbone of item files; None for images.
    """

    place: str
    keys: Mapping[str, Line]
    counts: Mapping[str, int]
    images: int
    patients: int | None = None
    by_patient: Mapping[str, float] | None = None
    multi_label: bool = False
    notes: tuple[str, ...] = ()
    table: str | None = None
    vectors: ItemVectors | None = None

    @property
    def study_name(self) -> str:
        return study_name(Path(self.table or self.place))

    @property
    def example_name(self) -> str:
        return "image" if self.vectors is None else "item"

    @property
    def unit_name(self) -> str:
        return self.example_name if self.patients is None else "patient"

    @property
    def largest_class(self) -> str:
        weights = self._class_weights
        return max(weights, key=lambda name: weights[name])

    @property
    def imbalance(self) -> float:
        return compute_imbalance(tuple(self.counts.values()))

    @property
    def is_imbalanced(self) -> bool:
        return self.imbalance > IMBALANCED

    @property
    def majority_share(self) -> float:
        """The accuracy of the majority-class baseline, computed as in results."""
        weights = self._class_weights
        return weights[self.largest_class] / sum(weights.values())

    @property
    def _class_weights(self) -> Mapping[str, float]:
        return self.counts if self.by_patient is None else self.by_patient

    def make_options(self) -> DatasetOptions:
        return make_options(self.place, self.keys)

    def count_class_units(self) -> ClassUnits:
        """Counts the units of each class in train and test, only for the screen."""
        counts = self.make_options().count_class_units()
        assert counts is not None  # drafted datasets need no download
        return counts

    def count_training_units(self) -> int:
        """Counts training units: patients if they are named, otherwise images."""
        options = self.make_options()
        n = options.count_units() if options.named_people().column else None
        if n is None:
            rows = options.count_rows()
            assert rows is not None  # drafted datasets need no download
            n = rows[0]
        return n


def make_options(place: str, keys: Mapping[str, Line]) -> DatasetOptions:
    """Parses a dataset's keys like the keys of a study."""
    values = {key: line.value for key, line in keys.items()}
    options = validate_options(options_class(SOURCES, str(values["source"])), values, place)
    assert isinstance(options, DatasetOptions)
    return options


def draft_companions(place: str, keys: Mapping[str, Line]) -> tuple[dict[str, Line], list[str]]:
    """Drafts the option that omits companions, and a note; both are empty without companions.

    Training and test images are counted as in the drafted study, which has the keys of `SPLIT`.
    """
    own_test = make_options(place, keys).has_test()
    options = make_options(place, keys if own_test else {**keys, **SPLIT})
    if not isinstance(options, CompanionOptions):
        return {}, []
    found = options.find_companions()
    words = found.drafted_words()
    if not words:
        return {}, []
    drafted = FoundCompanions(
        images=found.images, words=tuple(each for each in found.words if each.word in words)
    )
    line = Line(value=words, comment=COMPANIONS)
    note = (
        f"{drafted.describe('masks, previews or copies', drafted.words)}; the study leaves them "
        f"out by `{companions_key(words)}`, or uses them with `companions: keep`"
    )
    return {"companions": line}, [note]


def study_name(place: Path) -> str:
    place = place.expanduser()
    words = [place.resolve().name if place.is_dir() else place.name.split(".")[0]]
    if words[0].lower() in _GENERAL:
        words.insert(0, place.resolve().parent.name)
    return name_of(words)


def name_of(words: Iterable[str]) -> str:
    """Makes a name from the first word with letters or digits."""
    for word in words:
        plain = unicodedata.normalize("NFKD", word).encode("ascii", "ignore").decode()
        name = re.sub(r"[^a-z0-9]+", "_", plain.lower()).strip("_")
        if name:
            # TAKEN has the names of dpprobe's own folders in results and data
            return f"{name}_images" if name in TAKEN else name
    return "study"


def count_classes(
    options: CountedRows, place: str, keys: Mapping[str, Line], notes: Sequence[str]
) -> Seen:
    """Counts patients, and images by class; skips labels of unknown classes."""
    options.check_files()
    drafted, told = draft_companions(place, keys)
    if drafted:
        keys, notes = {**keys, **drafted}, [*notes, *told]
        left = make_options(place, keys)
        assert isinstance(left, CountedRows)
        options = left
    index, multi_label = options.read_index(), options.multi_label()
    names = options.class_names_or_labels() or ()
    labels = [*chain(*map(index.labels, index.rows))]
    patients = None if index.units is None else [*chain(*index.units.values())]
    pairs = [(row, n) for row, n in list_pairs(labels) if 0 <= n < len(names)]
    images = Counter(n for _, n in pairs)
    counts = {name: images[n] for n, name in enumerate(names)}
    check_counts(counts, place)
    weights: dict[str, float] = {}
    if patients is not None and not multi_label:
        shares = share_units(pairs, [None] * len(labels), patients)
        weights = {name: shares[None, n] for n, name in enumerate(names)}
    return Seen(
        place=place,
        keys=keys,
        counts=counts,
        images=len(labels),
        patients=None if patients is None else len({*patients} - {""}),
        by_patient=weights or None,
        multi_label=multi_label,
        notes=(
            *notes,
            *_repeat_notes(index.ids("train")),
            *chain(*options.judge_units()),
            *rare_notes(counts, multi_label=multi_label),
        ),
    )


def _repeat_notes(ids: Sequence[str]) -> list[str]:
    counts = Counter(ids)
    if (repeated := len(ids) - len(counts)) == 0:
        return []
    first = next(name for name, count in counts.items() if count > 1)
    rows = "1 row repeats" if repeated == 1 else f"{repeated:,} rows repeat"
    return [f"{rows} an id, such as {first}, at which a run stops; keep one row per image"]


def check_counts(counts: Mapping[str, int], place: str) -> None:
    if len(counts) < 2:
        name = next(iter(counts), "none")
        raise ConfigError(
            f"{place}: only one class, {name}, but a classifier needs two or more; add images of "
            "a second class"
        )


def rare_notes(counts: Mapping[str, int], *, multi_label: bool = False) -> list[str]:
    """Returns warnings of rare classes, whose names may identify a person."""
    few = [name for name, count in counts.items() if count < RARE]
    if not few:
        return []
    kind = "labels" if multi_label else "classes"
    return [
        f"{kind} of fewer than {RARE} images: {', '.join(few)}. Names are published with every "
        "head, so a rare class name may identify a person; merge the class with another or leave "
        "it out"
    ]
