"""Companions that make a run stop, and companions that only cause a warning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpprobe.data.people.companion_options import CompanionOptions
from dpprobe.data.people.companions import FoundCompanions, FoundWord
from dpprobe.data.registry import dataset_options
from tests.support.refusals import check_tokens


def word(name: str, kind: Any, count: int, apart: int = 0) -> FoundWord:
    example = (f"a_{name}.png", "a.png")
    return FoundWord(word=name, kind=kind, count=count, apart=apart, example=example)


MASKS = word("mask", "mask", 30), word("gt", "mask", 20, apart=1)
COPIES = word("flip", "copy", 7, apart=3), word("draft", "other", 5)
FOLDERS = {"mask": (9, "masks/1.png")}


def test_keep_leaves_out_no_image(tmp_path: Path) -> None:
    """Not even images whose names have a letter of the word keep as a word."""
    names = [f"{n}{end}.png" for n in range(4) for end in ("", "_k", "_e", "_p", "_mask")]
    given = {"source": "imagefolder", "path": str(tmp_path)}
    for companions, left_out in (("keep", 0), (None, 0), (["mask"], 4)):
        options = dataset_options(given | {"companions": companions})
        assert isinstance(options, CompanionOptions)
        assert sum(options.leave_out(names)) == left_out


@pytest.mark.parametrize(
    ("found", "written", "faults", "warnings"),
    [
        ((MASKS, {}), None, [("50 of 1,000", "'mask' 30", "[mask, gt]", "1 of them is")], []),
        ((MASKS, {}), ("crop",), [("[crop, mask, gt]",)], []),
        ((COPIES, {}), None, [], [("12 of 1,000", "[flip, draft]", "3 of them are")]),
        ((COPIES, {}), ("crop",), [], [("[crop, flip, draft]",)]),
        (((*COPIES, *MASKS), {}), None, [("[mask, gt]",)], [("[mask, gt, flip, draft]",)]),
        (((), FOLDERS), ("crop",), [], [("9 of 1,000", "masks/1.png", "[crop, mask]")]),
        (((*COPIES, *MASKS), FOLDERS), "keep", [], []),
        (((), {}), None, [], []),
    ],
)
def test_masks_are_refused_and_others_are_warned_of(
    found: tuple[tuple[FoundWord, ...], dict[str, tuple[int, str]]],
    written: Any,
    faults: list[tuple[str, ...]],
    warnings: list[tuple[str, ...]],
) -> None:
    words, folders = found
    judged = FoundCompanions(images=1000, words=words, folders=folders).judge(written)
    for lines, expected in zip(judged, (faults, warnings), strict=True):
        assert len(lines) == len(expected)
        for line, tokens in zip(lines, expected, strict=True):
            check_tokens(line, *tokens)
