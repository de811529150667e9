"""Releases in MLflow: one run per release, and one version of a registered model with the bundle.

All content comes from the bundle, except the time of writing and the path of the files. No seed,
training time or fingerprint of private data is written, so tracking costs no further privacy.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import warnings
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from mlflow import MlflowClient, pyfunc
from mlflow.exceptions import MlflowException
from mlflow.models import ModelSignature
from mlflow.models.model import MLMODEL_FILE_NAME
from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema
from mlflow.types.schema import Array

from dpprobe.json_values import hash_value
from dpprobe.privacy.limits import rounded_up
from dpprobe.privacy.risk import target_words
from dpprobe.privacy.statement_words import explain_statement
from dpprobe.release.bundle import (
    BUNDLE_FILES,
    CARD_FILE,
    SIGNATURE_FILE,
    Bundle,
    bundle_digest,
    read_bundle,
)
from dpprobe.release.documents.rewritten_documents import complete_statement
from dpprobe.release.parts.evaluation.show import is_telling
from dpprobe.release.prediction_table import value_columns
from dpprobe.release_part_registry import load_readers
from dpprobe.tracking import served_release
from dpprobe.tracking.release_aliases import (
    DIGEST,
    PREDECESSOR,
    RELEASE,
    RELEASES_FOLDER,
    ReleaseModel,
)
from dpprobe.tracking.runs import MetricValue, RunContents, allows_metrics, option_params, run_name
from dpprobe.tracking.store import search_all
from dpprobe.tracking.views import releases_experiment
from dpprobe.tracking.writer import Destination, fit_to_tag, leave_receipt, open_writer

logger = logging.getLogger("dpprobe")

FOLDER = "model"  # folder in the run's artifacts
DATA = "bundle"  # the bundle's folder in the model's data
DESCRIPTION_LENGTH = 4900  # PostgreSQL refuses descriptions above 5000 characters
LOADER = served_release.__name__  # the module that MLflow imports to load a release
REQUIRED = ("mlflow", "numpy", "pandas", "pillow", "pyarrow", "pydantic", "safetensors", "torch")


def register_release(bundle: Path, to: Destination) -> None:
    """Brings MLflow up to date with a release: its run, its model version, the aliases.

    Each bundle digest has one run and one version. A second call for a bundle only completes a
    first call that a crash interrupted. An older bundle with the same name keeps its version, but
    not the alias. A release with a predecessor becomes the next version of the predecessor's model,
    if that model is registered.
    """
    study, content = to.study, read_bundle(bundle)
    digest = bundle_digest(bundle)
    name = content.facts.name
    run = release_run(content, study=study, digest=digest)
    with open_writer(to, RELEASES_FOLDER) as writer:
        older = f"{_result_key(study, name)}/"
        page = writer.write(
            releases_experiment(writer.location), [run], outdates=lambda key: key.startswith(older)
        )
        model = _find_model(writer.client, study, content)
        version = _register_bundle(writer.client, model, content, writer.runs[run.key], digest)
    leave_receipt(
        to,
        writer,
        dataset=RELEASES_FOLDER,
        named={"release": name, DIGEST: digest},
        pages={"releases": page, "model": f"#/models/{model}/versions/{version}"},
        models={model: version},
    )


def model_name(study: str, release: str) -> str:
    return f"{study}.release.{release}"


def _find_model(client: MlflowClient, study: str, bundle: Bundle) -> str:
    """Returns the name of the model that has a release's predecessor, else of its own model."""
    default = model_name(study, bundle.facts.name)
    if (named := load_readers()["predecessor"].read(bundle.statement)) is None:
        return default
    condition = f"tags.{DIGEST} = '{named['sha256']}'"
    models = {each.name for each in search_all(partial(client.search_model_versions, condition))}
    # if several studies have the bundle, this study's model comes first
    return min(
        models,
        key=lambda model: (not model.startswith(model_name(study, "")), model),
        default=default,
    )


def release_run(bundle: Bundle, *, study: str, digest: str) -> RunContents:
    """Describes a release's run only from the bundle, so that no other change outdates the run."""
    facts, statement = bundle.facts, complete_statement(bundle)
    words = explain_statement(statement)
    epsilon, delta = f"{statement['epsilon_target']:g}", f"{statement['delta']:g}"
    guarantee = f"({epsilon}, {delta})-DP{target_words(statement)}"
    named = {
        "study": study,
        "release": facts.name,
        "dataset": facts.dataset,
        "backbone": facts.backbone.name,
        "method": facts.head.method,
        "epsilon": epsilon,
        "delta": delta,
        "unit": statement["ledger"]["unit"],
    }
    return RunContents(
        key=f"{_result_key(study, facts.name)}/{digest}",
        content_hash=hash_value(["release", digest]),
        name=run_name(facts.name, "ε" + epsilon),
        note=(
            f"Release {facts.name}: {facts.head.method} on {facts.backbone.name} features of "
            f"{facts.dataset}, {guarantee} for {words.unit.whole}.\n\n"
            f"{words.promise}\n\nThe bundle is under {FOLDER}/data/{DATA} in the artifacts."
        ),
        params={**named, **option_params(facts.head.options, named)},
        tags={**named, "private": "true", "guarantee": guarantee, DIGEST: digest},
        metrics=list_metrics(statement),
        artifacts=[],
    )


def _result_key(study: str, release: str) -> str:
    return f"{study}/release/{release}"


def list_metrics(statement: Any) -> list[MetricValue]:
    """Lists the metrics of a release's run."""
    values = {
        "privacy/epsilon_target": statement["epsilon_target"],
        "privacy/epsilon_realised": rounded_up(statement["epsilon_realised"]),
    }
    evaluation = statement["evaluation"]
    if evaluation is not None and is_telling(evaluation):
        title = f"evaluation/{evaluation['metric']}"
        low, high = evaluation["interval"]
        values |= {title: evaluation["value"], f"{title}_low": low, f"{title}_high": high}
    metrics = [(name, value, 0) for name, value in values.items()]
    return metrics + allows_metrics(statement["allows"])


def _register_bundle(
    client: MlflowClient, name: str, bundle: Bundle, run_id: str, digest: str
) -> str:
    """Registers a bundle's model version if needed; sets aliases; returns the version."""
    facts, named = bundle.facts, load_readers()["predecessor"].read(bundle.statement)
    try:
        client.create_registered_model(
            name,
            tags={"release": facts.name},
            description=f"Release {facts.name}, from {facts.dataset}: made for publication. Each "
            "version is a separate release with its own noise, and the epsilons of published "
            "versions add up.",
        )
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    versions = ReleaseModel.read(client, name).versions
    registered = next((each for each in versions if each.run_id == run_id), None)
    if registered is None or not _is_whole(client, run_id, bundle):
        with tempfile.TemporaryDirectory() as temporary, warnings.catch_warnings():
            # MLflow warns that no input example is stored, but an example would be private.
            warnings.simplefilter("ignore", UserWarning)
            folder = Path(temporary, FOLDER)
            pyfunc.save_model(folder, **write_bundle(bundle, Path(temporary)))
            client.log_artifacts(run_id, str(folder), FOLDER)
    if registered is None:
        registered = client.create_model_version(
            name,
            source=f"runs:/{run_id}/{FOLDER}",
            run_id=run_id,
            tags={
                DIGEST: digest,
                RELEASE: facts.name,
                "epsilon": f"{bundle.statement['epsilon_target']:g}",
                **({PREDECESSOR: named["sha256"]} if named else {}),
            },
            description=describe_release(bundle),
        )
        logger.info("MLflow: registered %s, version %s", name, registered.version)
    # Existing versions get the alias too, because a crash may leave a version without its alias.
    ReleaseModel.read(client, name).release(registered)
    for other in versions:
        # deletes older versions of this bundle, whose run was deleted
        if other.tags.get(DIGEST) == digest and other.run_id != run_id:
            client.delete_model_version(name, other.version)
    return str(registered.version)


def describe_release(bundle: Bundle) -> str:
    """Returns the model card without the Hub's front matter."""
    card = (bundle.folder / CARD_FILE).read_text(encoding="utf-8")
    if card.startswith("---\n"):
        card = card.removeprefix("---\n").partition("\n---\n")[2] or card
    return fit_to_tag(card.strip(), length=DESCRIPTION_LENGTH)


def _list_files(bundle: Bundle) -> list[Path]:
    """Lists the bundle's own files, without other files in its folder."""
    paths = [bundle.folder / name for name in (*BUNDLE_FILES, SIGNATURE_FILE)]
    return [path for path in paths if path.is_file()]


def _is_whole(client: MlflowClient, run_id: str, bundle: Bundle) -> bool:
    """Returns True if a run has the model's files, and all the bundle's files in full size."""
    if f"{FOLDER}/{MLMODEL_FILE_NAME}" not in {
        item.path for item in client.list_artifacts(run_id, FOLDER)
    }:
        return False
    folder = f"{FOLDER}/data/{DATA}"
    sizes = {item.path: item.file_size for item in client.list_artifacts(run_id, folder)}
    return all(
        sizes.get(f"{folder}/{path.name}") == path.stat().st_size for path in _list_files(bundle)
    )


def write_bundle(bundle: Bundle, folder: Path) -> dict[str, Any]:
    """Copies the bundle's files; returns the MLflow model's settings, such as its signature."""
    data = folder / DATA
    data.mkdir()
    for path in _list_files(bundle):
        shutil.copyfile(path, data / path.name)
    facts = bundle.facts
    images = ColSpec("string", served_release.COLUMN)
    vectors = ColSpec(Array(DataType.double), served_release.VECTORS)
    columns = [ColSpec("float", name) for name in value_columns(facts.class_names, bundle.link)]
    if bundle.calibration is not None:
        columns += [ColSpec("string", "set"), ColSpec("boolean", "abstain")]
    versions = {name: metadata.version(name) for name in REQUIRED} | facts.backbone.versions
    return {
        "loader_module": LOADER,
        "data_path": str(data),
        "signature": ModelSignature(
            inputs=Schema([vectors if facts.backbone.takes_vectors else images]),
            outputs=Schema([ColSpec("string", "class"), *columns]),
            params=ParamSchema([ParamSpec(served_release.CHECKPOINT, "string", "")]),
        ),
        # dpprobe itself is not in any package index
        "pip_requirements": [f"{k}=={v}" for k, v in sorted(versions.items()) if k != "dpprobe"],
        "metadata": {"release": facts.name, "classes": list(facts.class_names)},
    }
