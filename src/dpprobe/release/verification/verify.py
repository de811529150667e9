"""Verifies a bundle, and the backbone if weights are given, without private data or a network.

Hashes alone prove little, because anyone who edits a file can also write new hashes. Every fact of
the statement is therefore derived again from the stated options, facts and noise. The plan's
accountant and other accountants recompute the stated epsilon. Model card and page must match word
for word if this version of dpprobe wrote them. Documents of another version are not compared, as
the verdict states; `dpprobe explain` writes them again from the verified facts.

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
- Another number of labels that an AUC leaves out is undetectable without published counts.
- Other noisy counts of a calibration, with all dependent numbers, are undetectable.
- Other counts of a monitor with equal totals, and other typical directions, are undetectable.
- The number and names of cells in a choice without an epsilon are undetectable, as is another
  epsilon of a choice that is above the release's own.
- Another number of test units of an AUC or a macro accuracy is undetectable, as are another number
  of cells in a choice, another public seed and fraction of the split, and other names of sites, of
  cohorts and of an earlier cohort's release.
- Another hash of a public file is undetectable without the file.
- Other documents are undetectable if bundle.json names another version of dpprobe as their writer.
- Another total of the ledger that is at least the release's own epsilon, another number of its
  releases, and another entry number are undetectable.

Only the maker can vouch that noise was drawn as stated, that training examples were clipped, and
that n and the units are true.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dpprobe.code_version import code_version
from dpprobe.errors import DataError
from dpprobe.heads.auto import Options as Auto
from dpprobe.privacy.statement_words import explain_statement
from dpprobe.release import bundle as bundles
from dpprobe.release.bundle import (
    CARD_FILE,
    FACTS_FILE,
    HEAD_FILE,
    LISTED_FILES,
    PAGE_FILE,
    RELEASES_FOLDER,
    STATEMENT_FILE,
    SUMS_FILE,
    Bundle,
    BundleFacts,
    damaged_files,
    read_bundle,
    read_statement,
    read_sums,
)
from dpprobe.release.checks import DOCUMENTS, NOT_COVERED, Checks, Report
from dpprobe.release.documents.rewritten_documents import (
    check_documents,
    check_facts,
    check_parts,
)
from dpprobe.release.leak_check import check_keys, check_text
from dpprobe.release.parts.part import Stated
from dpprobe.release.stated_plans import check_price, read_plan
from dpprobe.release.stated_values import Values, read_json, read_real, require_true
from dpprobe.release.verification.method import (
    check_engine,
    check_head,
    check_mechanisms,
    check_rule,
    read_options,
)
from dpprobe.release_part_registry import load_readers

# Image sizes for which pixel features are always checked; untrusted bundles may name huge sizes.
_SIZES = range(1, 513)


def verify_bundle(
    bundle: Path,
    *,
    public_key: Path | None = None,
    checkpoint: str | Path | Sequence[str | Path] | None = None,
    predecessors: Sequence[Path] = (),
) -> Report:
    """Runs all checks of a bundle that need no private data.

    `public_key` is the signer's key; `checkpoint` is the file of the backbone's weights, or
    several files for a joined backbone, to check features too. `predecessors` are earlier bundles,
    or folders that contain earlier bundles.
    Raises DataError for a folder without a bundle, ConfigError for an unusable key.
    """
    if not any((bundle / name).exists() for name in (FACTS_FILE, STATEMENT_FILE, SUMS_FILE)):
        raise DataError(f"{bundle}: no bundle in this folder; {_suggest_bundle(bundle)}")
    checks, readers = Checks(), load_readers().values()
    folder = checks.run_check("files", check_files, bundle)
    checks.run_check("hashes", check_hashes, folder)
    for reader in readers:
        reader.verify_files(checks, folder, public_key)
    facts = checks.run_check("bundle.json", read_facts, folder)
    options = checks.run_check("options", read_options, facts)
    checks.run_check("engine", check_engine, options)
    values = checks.run_check("privacy.json", read_promise, folder, facts)
    plan = checks.run_check("plan", read_plan, values)
    matched = checks.run_check("mechanisms", check_mechanisms, options, plan)
    checks.run_check("price", check_price, plan, matched)
    if isinstance(options, Auto):
        check_rule(checks, options, plan, facts, values)
    whole = checks.run_check("statement", check_facts, values, plan, options, facts)
    head = checks.run_check("head", check_head, folder, facts, options, plan, values)
    checks.run_check("parts", check_parts, values, facts)
    check_backbone(checks, folder, facts, head, checkpoint)
    stated = Stated(
        folder=folder,
        facts=facts,
        options=options,
        values=whole,
        plan=plan,
        predecessors=predecessors,
    )
    verified = [reader.verify(checks, stated) for reader in readers]
    _check_documents(checks, folder, facts, whole, *verified)
    checks.run_check("private-looking values", check_leaks, folder)
    for text in explain_statement(whole).not_covered if whole else ():
        checks.note_check(NOT_COVERED, None, text)
    return Report(tuple(checks.done))


def read_verified(bundle: Path, *, public_key: Path | None = None) -> Bundle:
    """Reads a bundle; raises DataError, with the first fault, if the bundle does not verify."""
    report = verify_bundle(bundle, public_key=public_key)
    for check in report.checks:
        if check.passed is False:
            raise DataError(
                f"{bundle}: does not verify ({check.name}: {check.detail}); run dpprobe verify "
                f"{bundle}, and fetch the bundle again"
            )
    return read_bundle(bundle)


def _check_documents(
    checks: Checks,
    folder: Path | None,
    facts: BundleFacts | None,
    whole: Values | None,
    *verified: bool | None,
) -> None:
    """Compares documents if this version of dpprobe wrote them: texts differ between versions."""
    if facts is not None and facts.dpprobe != code_version():
        detail = (
            f"{CARD_FILE} and {PAGE_FILE} were written by dpprobe {facts.dpprobe} and are not "
            f"compared; dpprobe explain {folder} writes them again from the verified facts"
        )
        checks.note_check(DOCUMENTS, None, detail)
        return
    checks.run_check(DOCUMENTS, check_documents, folder, facts, whole, *verified)


def _suggest_bundle(folder: Path) -> str:
    """Suggests bundles in and below a folder, such as the folder of a study's results."""
    places = (f"{below}*/{FACTS_FILE}" for below in ("", "*/", "*/*/"))
    bundles = (path.parent for place in places for path in folder.glob(place))
    near = sorted(str(path) for path in bundles if not path.name.startswith("."))
    named = f"did you mean {' or '.join(near[:5])}?"
    return named if near else f"name the folder that contains {FACTS_FILE}"


# files


def check_files(folder: Path) -> tuple[str, Path]:
    """Checks that the folder contains the files of a bundle and no others."""
    return f"{bundles.check_files(folder)} files: all files of a bundle and no others", folder


def check_hashes(folder: Path) -> tuple[str, bool]:
    damaged = damaged_files(folder)
    require_true(
        not damaged,
        f"these files differ from {SUMS_FILE}: {', '.join(damaged)}; fetch the bundle again",
    )
    sums = read_sums(folder)
    lines = "".join(f"{sums[name]}  {name}\n" for name in LISTED_FILES)
    require_true(
        (folder / SUMS_FILE).read_bytes() == lines.encode(),
        f"{SUMS_FILE}: its form differs from dpprobe's; fetch the bundle again",
    )
    return f"all files match {SUMS_FILE}", True


def read_facts(folder: Path) -> tuple[str, BundleFacts]:
    facts = bundles.read_facts(folder)
    place = folder.resolve()
    require_true(
        place.name == facts.name or place.parent.name != RELEASES_FOLDER,
        f"{folder} holds the release {facts.name}; move it to {place.with_name(facts.name)}",
    )
    return f"release {facts.name} of {facts.dataset}, by dpprobe {facts.dpprobe}", facts


def check_leaks(folder: Path) -> tuple[str, bool]:
    for name in (FACTS_FILE, STATEMENT_FILE):
        check_keys(read_json(folder / name), where=name)
    for name in LISTED_FILES:
        if name != HEAD_FILE:
            check_text((folder / name).read_text(encoding="utf-8"), where=name)
    return "no keys or texts that look like seeds, fingerprints, paths or times", True


def read_promise(folder: Path, facts: BundleFacts) -> tuple[str, Values]:
    """Reads a bundle's privacy statement; raises DataError unless it is of a private release."""
    values = read_statement(folder, facts)
    require_true(values["mode"] == "release", f"mode {values['mode']!r}, not release")
    require_true(values["private"] is True, "private: not true, so there is no guarantee")
    epsilon, delta = (read_real(name, values[name]) for name in ("epsilon_target", "delta"))
    return f"epsilon {epsilon:g} at delta {delta:g}", values


def check_backbone(
    checks: Checks,
    folder: Path | None,
    facts: BundleFacts | None,
    head: bool | None,
    checkpoint: str | Path | Sequence[str | Path] | None,
) -> None:
    """Compares preprocessing and features of a public test image, and scores the features."""
    parts = [one.options for one in facts.backbone.parts] if facts else [{}]
    if facts and facts.backbone.takes_vectors:
        detail = f"vectors of {parts[0].get('model')}, which dpprobe does not compute"
        checks.note_check("backbone", None, detail)
        return
    cheap = all(one.get("family") == "pixels" and one.get("size") in _SIZES for one in parts)
    if checkpoint is None and not cheap:
        detail = "pass --checkpoint, or run dpprobe predict, which checks the backbone too"
        checks.note_check("backbone", None, detail)
        return

    def score_probe(place: Path, *_: object) -> tuple[str, bool]:
        # slow to import
        from dpprobe.backbones.feature_digest import compute_probe
        from dpprobe.heads.scoring import compute_probabilities, one_head
        from dpprobe.release.released_backbone import load_released_backbone

        read = read_bundle(place)
        probe = compute_probe(load_released_backbone(read, checkpoint, device="cpu"))
        row = probe.astype(read.facts.backbone.dtype).astype(np.float32)  # as stored features
        head = one_head(read.weights, read.arrays, read.facts.head.read_options().normalize)
        rescale = read.calibration.rescale if read.calibration else None
        values = compute_probabilities(head, row[None], read.link, rescale)[0]
        require_true(
            bool(np.isfinite(values).all()), "the head's scores of the test image are not finite"
        )
        first = values.argmax()
        return (
            "preprocessing and features of the test image match the release; the head predicts "
            f"{read.facts.class_names[first]}, {values[first]:.6g}"
        ), True

    checks.run_check("backbone", score_probe, folder, facts, head)
