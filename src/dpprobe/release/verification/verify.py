"""Verifies a bundle without private data or a network, and the backbone if weights are given.

Hashes alone prove little, because anyone who edits a file can also write new hashes. Statement,
model card and page are therefore written again from the stated options, facts and noise, and must
match word for word. The plan's accountant and other accountants recompute the stated epsilon.

Only a signature protects a bundle against the following undetectable changes:

- Other weights, normalisation arrays or choices within a search space are undetectable.
- Another choice of `auto` by another version of its rule is undetectable.
- Other classes and facts of the backbone are undetectable if changed in bundle.json and in the
  statement's hashes. Given backbone weights, `verify` recomputes preprocessing and probe.
- Earlier cohorts with other labels and numbers of units are undetectable.
- Other names and, without sampling, another n are undetectable if changed everywhere, as are other
  words of `card`.
- Another predecessor, or no predecessor, is undetectable without the predecessor's bundle.
- A statement of more noise than was drawn, with all dependent numbers, is undetectable.
- A block is undetectable if removed with all its mentions: a test result, a calibration, a monitor,
  the cost of a choice, or patients if the unit is one image.
- Another unit of privacy, and other facts on near-duplicates and subsamples, are undetectable if
  changed everywhere.
- An invented audit, or other numbers of an audit below the guarantee, are undetectable.
- Another possible test result, and another interval of an AUC around the result, are undetectable.
- Other noisy counts of a calibration, with all dependent numbers, are undetectable.
- Other counts of a monitor with equal totals, and other typical directions, are undetectable.
- The number and names of cells in a choice without an epsilon are undetectable.
- A larger total of the ledger, or another entry number, is undetectable.

Only the maker can vouch that noise was drawn as stated, that training examples were clipped, and
that n and the units are true.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dpprobe.errors import DataError
from dpprobe.heads.auto import Options as Auto
from dpprobe.release.bundle import FACTS_FILE, STATEMENT_FILE, SUMS_FILE
from dpprobe.release.parts.part import Stated
from dpprobe.release.verification.checks import NOT_COVERED, Checks, Report
from dpprobe.release.verification.files import (
    check_backbone,
    check_files,
    check_hashes,
    check_leaks,
    read_facts,
)
from dpprobe.release.verification.method import (
    check_engine,
    check_head,
    check_mechanisms,
    check_rule,
    read_options,
)
from dpprobe.release.verification.rewritten_documents import (
    check_documents,
    check_parts,
    check_words,
)
from dpprobe.release.verification.stated_plan import check_price, read_plan, read_statement
from dpprobe.release_part_registry import load_readers


def verify_bundle(
    bundle: Path,
    *,
    public_key: Path | None = None,
    checkpoint: Path | None = None,
    predecessors: Sequence[Path] = (),
) -> Report:
    """Runs all checks of a bundle that need no private data.

    `public_key` is the signer's key; `checkpoint` is the file of the backbone's weights, to check
    features too. `predecessors` are earlier bundles, or folders that contain earlier bundles.
    Raises DataError for a folder without a bundle, ConfigError for an unusable key.
    """
    if not any((bundle / name).exists() for name in (FACTS_FILE, STATEMENT_FILE, SUMS_FILE)):
        raise DataError(f"{bundle}: no bundle in this folder; {_suggest_bundle(bundle)}")
    checks, readers = Checks(), load_readers()
    folder = checks.run_check("files", check_files, bundle)
    checks.run_check("hashes", check_hashes, folder)
    for reader in readers:
        reader.verify_files(checks, folder, public_key)
    facts = checks.run_check("bundle.json", read_facts, folder)
    options = checks.run_check("options", read_options, facts)
    checks.run_check("engine", check_engine, options)
    values = checks.run_check("privacy.json", read_statement, folder)
    plan = checks.run_check("plan", read_plan, values)
    matched = checks.run_check("mechanisms", check_mechanisms, options, plan)
    checks.run_check("price", check_price, plan, matched)
    if isinstance(options, Auto):
        check_rule(checks, options, plan, facts, values)
    words = checks.run_check("words", check_words, values, plan, options, facts)
    head = checks.run_check("head", check_head, folder, facts, options, plan, values)
    checks.run_check("parts", check_parts, values, facts)
    check_backbone(checks, folder, facts, head, checkpoint)
    stated = Stated(
        folder=folder,
        facts=facts,
        options=options,
        values=values,
        plan=plan,
        predecessors=predecessors,
    )
    verified = [reader.verify(checks, stated) for reader in readers]
    checks.run_check("documents", check_documents, folder, facts, values, words, *verified)
    checks.run_check("nothing private beside it", check_leaks, folder)
    uncovered = (values or {}).get("not_covered", ())
    for text in uncovered if isinstance(uncovered, list) else ():
        checks.note_check(NOT_COVERED, None, str(text))
    return Report(tuple(checks.done))


def _suggest_bundle(folder: Path) -> str:
    """Suggests bundles in and below a folder, such as the folder of a study's results."""
    places = (f"{below}*/{FACTS_FILE}" for below in ("", "*/", "*/*/"))
    bundles = (path.parent for place in places for path in folder.glob(place))
    near = sorted(str(path) for path in bundles if not path.name.startswith("."))
    named = f"did you mean {' or '.join(near[:5])}?"
    return named if near else f"name the folder that contains {FACTS_FILE}"
