"""Describes classes with too few images to be learned or tested."""

from __future__ import annotations

from collections.abc import Sequence

from dpprobe.counted_nouns import count_noun

RARE = 5  # a class with fewer units (or images) is too small to be learned or tested
RARE_NAMED = 3  # the most classes with fewer than RARE images that a message names


def rare_words(class_names: Sequence[str], train: Sequence[int], test: Sequence[int]) -> str:
    """Lists classes with at least one but fewer than `RARE` training or test images."""
    few = [
        f"class {name}: {count_noun(rows, 'training image')}, {count_noun(tested, 'test image')}"
        for name, rows, tested in zip(class_names, train, test, strict=True)
        if 0 < min(rows, tested) < RARE
    ]
    if not few:
        return ""
    more = f"; and {len(few) - RARE_NAMED} more" if len(few) > RARE_NAMED else ""
    return (
        f"{'; '.join(few[:RARE_NAMED])}{more}: numbers about {'it' if len(few) == 1 else 'them'} "
        "are meaningless"
    )
