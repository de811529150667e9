"""The option `companions` of sources that list their images by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from dpprobe.data.options import DatasetOptions
from dpprobe.data.people.companion_names import find_left_out, is_word, read_word
from dpprobe.data.people.companions import KEEP, NO_COMPANIONS, FoundCompanions, Judgement


def _read_value(value: Any) -> Any:
    """Reads `keep` or a list of words; `_Mask` and `masks` become the word `mask`."""
    if value is None or value == KEEP:
        return value
    if not isinstance(value, list | tuple) or not value:
        raise ValueError(
            f"{value!r}: neither keep nor a list of words; write keep, or words such as "
            "[mask, thumb]"
        )
    words = []
    for each in value:
        word = each if is_word(str(each)) else read_word(f"_{each}")
        if not isinstance(each, str) or word is None:
            raise ValueError(
                f"{each!r}: not a word of names, such as mask in x_mask.png; write a word with "
                "letters, or remove it"
            )
        words.append(word)
    return tuple(dict.fromkeys(words))


Companions = Annotated[
    Literal["keep"] | tuple[str, ...] | None,
    BeforeValidator(_read_value),
    Field(
        exclude_if=lambda value: value is None,  # so that existing split tables stay up to date
        description="Treatment of companions: images named like another image, with one more "
        "word, such as x_mask.png next to x.png. A list of words, such as [mask, flip], leaves out "
        "each image whose name has one of the words. keep uses companions as images. By default, "
        "masks, segmentations, thumbnails and previews are an error, and other companions a "
        "warning.",
    ),
]


class CompanionOptions(DatasetOptions):
    """Options of a source that lists its images by name."""

    companions: Companions = None

    def find_companions(self) -> FoundCompanions:
        """Finds the companions among the images that are used; opens no image.

        Finds none if names are unknown until the split tables are made.
        """
        return NO_COMPANIONS

    def judge_companions(self) -> Judgement:
        return self.find_companions().judge(self.companions)

    def judges_companions(self) -> bool:
        return True

    def left_out_words(self) -> tuple[str, ...]:
        """Returns the words of images to leave out."""
        return self.companions if isinstance(self.companions, tuple) else ()

    def leave_out(self, names: Sequence[str], *, outer: int = 0) -> list[bool]:
        """Returns True for each image that `companions` leaves out; only its own name decides."""
        words = self.left_out_words()
        return find_left_out(names, words, outer=outer) if words else [False] * len(names)
