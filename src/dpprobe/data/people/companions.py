"""Finds companions among a dataset's images by their names, and describes them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dpprobe.counted_nouns import count_noun
from dpprobe.data.people.companion_names import (
    NUMBERED,
    Kind,
    find_based,
    find_companions,
    find_named_folders,
)
from dpprobe.errors import ConfigError
from dpprobe.shown_text import join_lines

logger = logging.getLogger("dpprobe")

KEEP = "keep"
_SHOWN = 5
_YAML = frozenset({"false", "n", "no", "null", "off", "on", "true", "y", "yes"})  # not read as text
Judgement = tuple[tuple[str, ...], tuple[str, ...]]  # a run's errors, and its warnings


@dataclass(frozen=True, kw_only=True)
class FoundWord:
    """The companions with one word.

    Attributes:
      apart: how many of them are in another split than their base.
      example: the names of a companion and of its base.
    """

    word: str
    kind: Kind
    count: int
    apart: int
    example: tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class FoundCompanions:
    """The companions among the images of a dataset.

    Attributes:
      folders: word -> number of images in folders with this name, and an example. Only the folder
        shows that they are companions, because no other image has a similar name.
    """

    images: int = 0
    words: tuple[FoundWord, ...] = ()
    folders: Mapping[str, tuple[int, str]] = field(default_factory=dict)

    def judge(self, written: str | tuple[str, ...] | None) -> Judgement:
        """Returns the errors and warnings of a run; `written` is the study's option."""
        if written == KEEP:
            return (), ()
        masks = [each for each in self.words if each.kind == "mask"]
        others = [each for each in self.words if each.kind != "mask"]
        known = written if isinstance(written, tuple) else ()
        faults, warnings = [], []
        if masks:
            faults.append(
                f"companions: {self.describe('masks or previews', masks)}. Write "
                f"`{companions_key([*known, *(each.word for each in masks)])}` to leave them out, "
                "or `companions: keep` to use them as images"
            )
        if others:
            words = [*known, *(each.word for each in [*masks, *others])]
            warnings.append(
                f"companions: {self.describe('copies or variants', others)}, but each of them "
                "counts as an image of its own. Write "
                f"`{companions_key(words)}` to leave them out, name the common picture as the "
                "`unit_column` of a table, or write `companions: keep` if they are separate images"
            )
        if self.folders:
            count = sum(number for number, _ in self.folders.values())
            example = next(iter(self.folders.values()))[1]
            warnings.append(
                f"companions: {count:,} of {count_noun(self.images, 'image')} are in folders named "
                f"like masks or previews, such as {example}, and count as images of their own. "
                f"Write `{companions_key([*known, *self.folders])}` to leave them out, or "
                "`companions: keep` to use them as images"
            )
        return tuple(faults), tuple(warnings)

    def refuse(self, written: str | tuple[str, ...] | None) -> None:
        """Raises ConfigError for companions that a run refuses, and logs warnings about others."""
        faults, warnings = self.judge(written)
        if faults:
            raise ConfigError(join_lines(faults))
        for line in warnings:
            logger.warning("%s", line)

    def describe(self, what: str, words: Sequence[FoundWord]) -> str:
        """Writes how many companions there are, with an example, and how many are apart."""
        count, apart = sum(each.count for each in words), sum(each.apart for each in words)
        listed = ", ".join(f"{each.word!r} {each.count:,}" for each in words[:_SHOWN])
        more = f" and {len(words) - _SHOWN} more words" if len(words) > _SHOWN else ""
        companion, base = words[0].example
        sides = f"; {apart:,} of them {'is' if apart == 1 else 'are'} on the other side of the "
        return (
            f"{count:,} of {count_noun(self.images, 'image')} are named like {what} of other "
            f"images ({listed}{more}), such as {companion} next to {base}"
            + (f"{sides}split than their picture" if apart else "")
        )

    def drafted_words(self) -> list[str]:
        """Lists the words that a drafted study leaves out.

        Numbers in brackets are not listed, because `benign (1)` may be a separate picture.
        """
        return [x.word for x in self.words if x.kind != "other" and x.word != NUMBERED]


NO_COMPANIONS = FoundCompanions()


def companions_key(words: Iterable[str]) -> str:
    """Writes the option for words; quotes words that YAML would not read as text."""
    texts = (
        word if word.isalpha() and word.isascii() and word not in _YAML else json.dumps(word)
        for word in dict.fromkeys(words)
    )
    return f"companions: [{', '.join(texts)}]"


def look_for_companions(
    names: Sequence[str],
    sides: Sequence[str | None],
    *,
    units: Sequence[str] | None = None,
    outer: int | Sequence[int] = 0,
) -> FoundCompanions:
    """Finds companions among the rows of a dataset.

    A copy with the same unit as its base is no fault, because both are in the same split. A mask is
    always a fault, because it is no image of its unit.

    Args:
      names: empty for a row without a name, which does not count.
      sides: "train" or "test" for each row; None for a row that is left out, which does not count.
      units: the unit of each row, if a column names it.
      outer: see `companion_names.find_companions`.
    """
    used = [row for row, side in enumerate(sides) if side is not None and names[row]]
    named = [names[row] for row in used]
    depths = outer if isinstance(outer, int) else [outer[row] for row in used]
    words = []
    for each in find_companions(named, outer=depths):
        pairs = [(used[pair.companion], used[pair.base]) for pair in each.pairs]
        if units is not None and each.kind != "mask":
            pairs = [(one, other) for one, other in pairs if units[one] != units[other]]
        if pairs:
            apart = [(one, other) for one, other in pairs if sides[one] != sides[other]]
            one, other = (apart or pairs)[0]
            words.append(
                FoundWord(
                    word=each.word,
                    kind=each.kind,
                    count=len(pairs),
                    apart=len(apart),
                    example=(names[one], names[other]),
                )
            )
    known = {each.word for each in words}
    folders = {
        word: (len(positions), named[positions[0]])
        for word, positions in find_named_folders(named, outer=depths).items()
        if word not in known
    }
    return FoundCompanions(images=len(used), words=tuple(words), folders=folders)


def describe_alone(
    names: Sequence[str], left_out: Sequence[bool], *, outer: int | Sequence[int] = 0
) -> str:
    """Warns of images that are left out although they have no base; mostly empty."""
    if not any(left_out):
        return ""
    based = find_based(names, outer=outer)
    alone = [name for name, out, has in zip(names, left_out, based, strict=True) if out and not has]
    if not alone:
        return ""
    return (
        f"companions: {len(alone):,} of {count_noun(sum(left_out), 'image')} left out, such as "
        f"{alone[0]}, without a picture of the same name; if these are pictures, rename them, or "
        "remove their word from `companions`"
    )


def warn_of_companions(place: object, names: Sequence[str]) -> None:
    """Warns once of companions among a folder's or table's images to be predicted."""
    found = look_for_companions(names, ["test"] * len(names))
    if found.words:
        logger.warning(
            "%s: %s: each has a prediction of its own; leave them out, unless the head was "
            "trained on such images",
            place,
            found.describe("masks, previews or copies", found.words),
        )
