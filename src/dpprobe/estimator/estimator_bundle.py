"""Releases an estimator's head: writes its privacy statement, and the bundle that users verify."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dpprobe.backbones.external import Options as External
from dpprobe.backbones.feature_digest import NO_PROBE
from dpprobe.code_version import code_version
from dpprobe.errors import ConfigError, PrivacyError
from dpprobe.estimator.fitted_head import Fit, hash_heads
from dpprobe.files.atomic_writes import PARTIAL_SUFFIX
from dpprobe.heads.auto import describe_choice
from dpprobe.options import NAME_PATTERN
from dpprobe.privacy.stated_facts import NOT_RUN
from dpprobe.privacy.statement import Statement
from dpprobe.release.bundle import ESTIMATOR, BackboneFacts, BundleFacts, CardFacts
from dpprobe.release.documents.release_statement import release_statement
from dpprobe.release.leak_check import check_published
from dpprobe.release.packing import describe_head, pack_head
from dpprobe.release.parts.choice import fits_block
from dpprobe.release.signing import read_private_key
from dpprobe.wrong_keys_and_values import explain_first, read_options


def state_release(fit: Fit, facts: BundleFacts | None = None) -> dict[str, Any]:
    """Returns the privacy statement of a private fit; `facts` is None until a bundle is written."""
    spent = fit.count_spent()
    return release_statement(
        fit.plan,
        fit.method,
        facts,
        file_hashes=fit.file_hashes,
        blocks={
            "choice": fits_block(spent.entries),
            "ledger": spent.to_block(entry=fit.entry, unit=fit.plan.unit, delta=fit.plan.delta),
        },
        subsample=None if fit.promise is None else fit.promise.subsample,
        chosen_from=describe_choice(fit.method, fit.facts),
    )


def state_benchmark(fit: Fit) -> dict[str, Any]:
    """Returns the privacy statement of a fit in benchmark mode."""
    return Statement(
        plan=fit.plan,
        method=fit.method.head,
        options=fit.method.model_dump(mode="json"),
        mode="benchmark",
        seeds=fit.heads.seeds,
        public_data={"trained": True, "near_duplicate_check": NOT_RUN},
        epsilon_all_heads=fit.plan.realised_epsilon,
        private_choices=fit.method.private_choices,
        priced_normalisation=fit.method.normalize.priced,
        released_priors=fit.method.releases_priors,
        released_gain=fit.method.has_student,
        engine_limits=fit.method.engine_limits,
        chosen_from=describe_choice(fit.method, fit.facts),
    ).to_dict()


def write_release(
    folder: Path,
    fit: Fit,
    *,
    dataset: str,
    external: Mapping[str, Any],
    sign_key: Path | None,
    card: Mapping[str, str],
) -> Path:
    """Writes the bundle of a private fit; see `PrivateClassifier.save_bundle`.

    `external` has the options of the backbone family `external` for the model that computed rows.
    """
    _check_names(folder, dataset)
    if hash_heads(fit.heads) != fit.digest:
        raise PrivacyError(
            "save_bundle: the numbers in fit_.heads have changed since the fit, so its guarantee "
            "does not cover them. Load a saved copy of the estimator, or fit again"
        )
    if external["each_by_itself"] is not True:
        raise PrivacyError(
            f"each_by_itself={external['each_by_itself']!r}: the guarantee holds only if each row "
            "was computed from its own item alone; pass each_by_itself=True if this is true"
        )
    options = read_options({"external": External.__module__}, "family", external, External)
    if sign_key is not None:
        read_private_key(sign_key)
    try:
        texts = CardFacts(**card)
    except ValidationError as error:
        known = ", ".join(CardFacts.model_fields)
        raise ConfigError(f"card: {explain_first(error)}; its keys are {known}") from None
    facts = BundleFacts(
        name=folder.name,
        study=ESTIMATOR,
        dataset=dataset,
        dpprobe=code_version(),
        class_names=fit.classes,
        multi_label=False,
        dimension=fit.facts.dimension,
        backbone=_describe_model(options),
        head=describe_head(fit.method, fit.heads, method=fit.method.head, multi_label=False),
        card=texts,
    )
    backbone = facts.backbone.model_dump(mode="json")
    check_published({"backbone": backbone, "method": facts.head.options, "card": dict(card)})
    statement = state_release(fit, facts)
    partial = folder.with_name(folder.name + PARTIAL_SUFFIX)
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        pack_head(partial, folder, facts, fit.heads, statement=statement, sign_key=sign_key)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def _check_names(folder: Path, dataset: str) -> None:
    if folder.exists():
        raise ConfigError(f"{folder}: the folder already exists; pass the path of a new folder")
    for what, name in (("folder", folder.name), ("dataset", dataset)):
        if re.fullmatch(NAME_PATTERN, name) is None:
            raise ConfigError(
                f"{what} {name!r}: use lower-case letters, digits and underscores, such as "
                "speech_2026"
            )


def _describe_model(options: External) -> BackboneFacts:
    return BackboneFacts(
        name=options.vectors or "vectors",
        options=options.extraction_params(),
        checkpoint=None,
        weights_sha256=options.weights_sha256,
        architecture=options.model,
        pretrained_tag=options.version,
        trained=options.pretrained,
        preprocessing={},
        precision="float32",
        dtype="float32",
        probe=NO_PROBE,
        versions={},
    )
