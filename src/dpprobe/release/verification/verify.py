"""Checks a bundle without the private data or a network; with the backbone where it is here.

Nothing in a bundle is believed that can be computed: whoever can edit a file can hash it again. The
statement is written again from the options, the facts and the noise that it states, and has to be
the same, word for word; so are card and page. The noise is priced again, by the accountant that
priced it and by others.

**Not noticed**, as nothing in a bundle can tell, and a signature alone protects it:

- other weights, other arrays of a normalisation, and what a search is said to have chosen from its
  space;
- what another version of `auto`'s rule than this one's is said to have chosen;
- classes, and facts of the backbone (a hash, preprocessing, its probe, versions of libraries),
  changed in bundle.json and in the hashes of the statement; in bundles of an earlier dpprobe, which
  lack these, in bundle.json alone. With the backbone, preprocessing and probe are computed again;
- n where no mechanism samples, and names of release, study, dataset, method and backbone, each
  changed everywhere; words of `card`;
- more noise in the statement than was drawn, with every number and sentence that follows from it;
- blocks that are taken out whole, with all that speaks of them: a test result, the price of a
  choice, patients where the unit is one image; or another unit, changed everywhere;
- whether near-duplicates of public images were left out or rows chosen by a subsample, and by what,
  changed wherever it stands;
- the numbers of an audit below the promise, or one that was made up;
- a test result within what it may be, and the AUC's interval round it; how many cells a choice
  without a price was among, and their names; a larger sum of the ledger, or its entry's number.

That noise was drawn as stated, that training examples were clipped, and that n and the units are
what the data has, rests on the word of who made the bundle.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dpprobe.errors import DataError
from dpprobe.heads.auto import Options as Auto
from dpprobe.release.bundle import FACTS_FILE
from dpprobe.release.verification.backbone_check import check_backbone
from dpprobe.release.verification.checks import Checks, Report
from dpprobe.release.verification.evidence_checks import (
    check_choice,
    check_evaluation,
    check_evidence,
    check_ledger,
)
from dpprobe.release.verification.files import (
    check_files,
    check_hashes,
    check_leaks,
    check_signature,
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


def verify_bundle(
    bundle: Path, *, public_key: Path | None = None, checkpoint: Path | None = None
) -> Report:
    """Checks all of a bundle that can be checked by whoever was handed it.

    Args:
      public_key: of who signed it, Ed25519, PEM, from another place than the bundle.
      checkpoint: the file of the backbone's weights, if the backbone is to be computed too.

    Raises:
      DataError: when there is no such folder.
      ConfigError: when the public key cannot be read.
    """
    if not bundle.is_dir():
        raise DataError(f"{bundle}: not a folder; name the folder that holds {FACTS_FILE}")
    checks = Checks()
    folder = checks.run_check("files", check_files, bundle)
    checks.run_check("hashes", check_hashes, folder)
    check_signature(checks, folder, public_key)
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
    head = checks.run_check("head", check_head, folder, facts, options, plan)
    check_parts(checks, values, facts)
    check_backbone(checks, folder, facts, head, checkpoint)
    blocks = (
        checks.run_check("evaluation", check_evaluation, values, plan, facts),
        checks.run_check("choice", check_choice, values, plan),
        checks.run_check("ledger", check_ledger, values, plan),
        checks.run_check("evidence", check_evidence, values, plan),
    )
    checks.run_check("documents", check_documents, folder, facts, values, words, *blocks)
    checks.run_check("nothing private beside it", check_leaks, folder)
    for text in _list_texts((values or {}).get("not_covered", ())):
        checks.note_check("not covered", None, text)
    return Report(tuple(checks.done))


def _list_texts(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []
