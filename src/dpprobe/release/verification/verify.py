"""Verifies a bundle without private data or a network, and the backbone if weights are given.

Hashes alone prove little, because anyone who edits a file can also write new hashes. Statement,
model card and page are therefore written again from the stated options, facts and noise, and must
match word for word. The plan's accountant and other accountants recompute the stated epsilon.

**Undetectable changes.** Nothing in a bundle reveals the following changes; only a signature
protects against them:

- other weights, other arrays of a normalisation, and another choice within a search space;
- another choice of `auto` by another version of its rule;
- classes, and facts of the backbone (a hash, preprocessing, its probe, versions of libraries),
  changed in bundle.json and in the hashes of the statement; if backbone weights are given,
  preprocessing and probe are recomputed;
- earlier cohorts with other labels and numbers of units;
- n if no mechanism samples, and names of release, study, dataset, method and backbone, each changed
  everywhere; words of `card`;
- another predecessor or no predecessor, unless the predecessor's bundle is passed too;
- a statement of more noise than was drawn, with all dependent numbers and sentences;
- a block removed with all its mentions: a test result, a calibration, a monitor's tables and
  directions, the cost of a choice, patients if the unit is one image;
- another unit of privacy, or other facts on near-duplicates and subsamples, changed everywhere;
- an invented audit, or other numbers of an audit, below the guarantee;
- another possible test result, and the interval of an AUC around the result;
- other noisy counts of a calibration, with all dependent numbers;
- other counts of a monitor with equal totals, and other typical directions;
- the number and names of cells in a choice without an epsilon;
- a larger total of the ledger, or another entry number.

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
        check_rule(checks, options, plan, facts)
    words = checks.run_check("words", check_words, values, plan, options, facts)
    head = checks.run_check("head", check_head, folder, facts, options, plan, values)
    checks.run_check("parts", check_parts, values, facts)
    check_backbone(checks, folder, facts, head, checkpoint)
    stated = Stated(
        folder=folder, facts=facts, options=options, values=values, plan=plan,
        predecessors=predecessors,
    )  # fmt: skip
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
