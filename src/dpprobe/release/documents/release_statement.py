"""Writes a release's privacy statement: a cell's statement without private facts, with blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpprobe.heads.options import MethodOptions
from dpprobe.privacy.plan import Plan
from dpprobe.privacy.stated_facts import NOT_PUBLISHED
from dpprobe.privacy.statement import Declared, Statement
from dpprobe.release.bundle import ESTIMATOR, BundleFacts, published_options
from dpprobe.release.earlier_bundles import FORMAT, FORMAT_VERSION
from dpprobe.release_part_registry import ALWAYS_STATED, STATED_IF_ASKED

# Describes the backbone until the user names the model that computed the rows.
_UNNAMED = {"backbone": "vectors", "trained": True, "weights_sha256": None}


def release_statement(
    plan: Plan,
    options: MethodOptions,
    facts: BundleFacts | None,
    *,
    file_hashes: Mapping[str, str],
    blocks: Mapping[str, Mapping[str, Any] | None],
    subsample: Mapping[str, Any] | None = None,
    chosen_from: Mapping[str, Any] | None = None,
    test_units: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Writes the privacy statement of a release: JSON-compatible, and without private facts.

    Args:
      options: the method's options; public files may have any path.
      facts: bundle.json; None for an estimator's head until the user names a model.
      file_hashes: SHA-256 of each public file, by its path in the options.
      blocks: the statement blocks of release parts, by name; None for parts the release lacks.
      subsample: the `fraction` and the `public_seed` that chose the training examples.
      chosen_from: the rule that chose the head, and its facts; None if no rule chose the head.
      test_units: facts about the test units; None if no part measures test units.
    """
    named = {name: Path(path).name for name, path in options.public_files().items()}
    hashes = {Path(path).name: file_hashes[path] for path in options.public_files().values()}
    values = Statement(
        plan=plan,
        method=facts.head.method if facts else options.head,
        options=published_options(options),
        mode="release",
        seeds=(0,),
        public_data={
            **(facts.backbone.public_data if facts else _UNNAMED),
            "near_duplicate_check": NOT_PUBLISHED,
            **({"subsample": dict(subsample)} if subsample else {}),
        },
        epsilon_all_heads=plan.realised_epsilon,
        declared=Declared(study=facts.study if facts else ESTIMATOR, files=named, hashes=hashes),
        private_choices=options.private_choices,
        priced_normalisation=options.normalize.priced,
        released_priors=options.releases_priors,
        released_gain=options.has_student,
        engine_limits=options.engine_limits,
        chosen_from=chosen_from,
        test_units=test_units,
    ).to_dict()
    del values["epsilon_all_heads"]
    return {
        **values,
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "multi_label": facts is not None and facts.multi_label,
        **{name: blocks.get(name) for name in ALWAYS_STATED},
        **({"parts": facts.hash_parts()} if facts else {}),
        **{name: blocks[name] for name in STATED_IF_ASKED if blocks.get(name) is not None},
    }


def describe_test_units(*, n: int, rule: str, compared: Sequence[str]) -> dict[str, Any]:
    """Describes the test units: number, rule of the split, comparison with training units.

    `rule` is the public rule of a split, in the format of `PublicSplit`.
    """
    split: dict[str, Any] = {"by": rule}
    if rule != "source":
        by, seed, fraction = rule.split(", ")
        split = {
            "by": by,
            "public_seed": int(seed.removeprefix("seed ")),
            "fraction": float(fraction.removeprefix("fraction ")),
        }
    return {"n": n, "split": split, "compared": list(compared)}
