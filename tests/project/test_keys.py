"""Each key of a study is used in a study, page, paper's table or benchmark, or has a reason."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from schemas import study_schema

# Keys that the repository mentions only in docs/options.md, and the reason for each key.
REASONS = {
    "activation": "networks of papers have tanh; other random networks usually have relu",
    "crop_seed": "other inception crops without another study's seed",
    "image_column": "parquet files of others name their column of images",
    "max_labels": "several labels per image: a limit below the number of labels needs less noise",
    "mislabelled": "the share of outliers that a membership attack gets",
    "negatives": "the counterpart of `positives`",
    "resamples": "narrower rounding of intervals for more time",
    "resize_mode": "open_clip's weights name one, and a study may correct it",
    "score_share": "the part of a search's budget that chooses the best run",
    "several_labels": "a download's labels are not known before it",
    "weights_sha256": "the record of which weights an external program used",
}
# For each kind of use: the files that may use keys, and the pattern of a key in these files.
USES = {
    "study": (["config.yaml", "config/*.yaml", "resources/**/*.yaml"], r"(?<![\w.])KEY:"),
    "page": (["README.md", "docs/*.md"], r"`[^`\n]*\bKEY\b[^`\n]*`|^ .*\bKEY:"),
    "paper's table": (
        ["src/dpprobe/reporting/paper_tables/*.py", "src/dpprobe/study/ablations.py"],
        r"[\"'.]KEY\b",
    ),
    "bench": (["bench/**/*.py", "bench/**/*.yaml"], r"[\"'. ({,]KEY[\"'=:]|\.KEY\b|^ *KEY:"),
}
GENERATED = {"options.md", "python-reference.md"}  # these list every key


def list_keys() -> set[str]:
    """Returns the keys of all blocks; a key means the same in most blocks."""
    schema = study_schema()
    blocks = [schema, *schema["$defs"].values()]
    return {key for block in blocks for key in block.get("properties", {})}


def read_uses(repository: Path) -> Iterator[tuple[str, str]]:
    """Yields the pattern and the text of each file that may use keys."""
    for patterns, pattern in USES.values():
        files = {file for each in patterns for file in repository.glob(each)}
        assert files, patterns
        for file in sorted(files):
            if file.name not in GENERATED:
                yield pattern, file.read_text(encoding="utf-8")


def find_unused(keys: set[str], repository: Path) -> set[str]:
    unused = set(keys)
    for pattern, text in read_uses(repository):
        unused -= {
            key
            for key in unused
            if key in text and re.search(pattern.replace("KEY", key), text, re.M)
        }
    return unused


def test_a_key_is_used_or_has_a_reason(repository: Path) -> None:
    keys = list_keys()
    assert find_unused(keys | {"no_such_key"}, repository) == {*REASONS, "no_such_key"}
    assert keys >= REASONS.keys()
