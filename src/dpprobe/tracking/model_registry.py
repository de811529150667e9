"""Chosen heads in MLflow's model registry.

A version belongs to the run of its cell: as long as that run is there, its version stays.
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from mlflow import MlflowClient, pyfunc
from mlflow.entities.model_registry import RegisteredModel
from mlflow.exceptions import MlflowException
from mlflow.models import Model, ModelSignature
from mlflow.models.model import MLMODEL_FILE_NAME
from mlflow.types import Schema, TensorSpec

from dpprobe.results.best_private import best_private_cells
from dpprobe.results.cell_record import STATEMENT_FILE, CellRecord, read_statement
from dpprobe.tracking import served_model
from dpprobe.tracking.runs import CellFile
from dpprobe.tracking.store import search_all

logger = logging.getLogger("dpprobe")

CURRENT_ALIAS = "current"
FOLDER = "model"  # within the run's artifacts
LOADER = served_model.__name__  # the module that MLflow imports to load a head
REQUIRED = ("mlflow", "numpy", "pydantic", "safetensors", "torch")


def register_heads(
    client: MlflowClient,
    cells: Sequence[CellFile],
    runs: Mapping[str, str],
    *,
    study: str,
    which: bool | Sequence[str],
) -> dict[str, str]:
    """Registers the chosen cells' heads, each that has no version of its current run.

    Args:
      runs: run id by `study/dataset/backbone/method/eps-epsilon`.
      which: True for the best private cell of each dataset and epsilon, or patterns of
        `dataset/backbone/method/eps-epsilon`.

    Returns:
      Version by model name.
    """
    versions = {}
    for path, record in choose_cells(cells, which):
        cell = cell_name(record)
        name = f"{study}.{cell.replace('/', '.')}"
        versions[name] = _register_head(client, name, path, record, runs[f"{study}/{cell}"])
    return versions


def retire_heads(client: MlflowClient, *, study: str, dataset: str, runs: Collection[str]) -> None:
    """Takes the alias `current` from heads of a dataset whose cell has another run, or none.

    Args:
      runs: ids of the dataset's present runs.
    """
    prefix = f"{study}.{dataset}."
    search = partial(client.search_registered_models, f"name LIKE '{prefix}%'")
    models: Iterator[RegisteredModel] = search_all(search)
    for model in models:
        version = model.aliases.get(CURRENT_ALIAS)
        # in the filter an underscore stands for any character
        if version is None or not model.name.startswith(prefix):
            continue
        if client.get_model_version(model.name, version).run_id not in runs:
            client.delete_registered_model_alias(model.name, CURRENT_ALIAS)


def choose_cells(cells: Sequence[CellFile], which: bool | Sequence[str]) -> list[CellFile]:
    """Returns the cells whose heads are registered; those of networks are no heads on features."""
    cells = [(path, record) for path, record in cells if not record.tunes_network]
    if which is True:
        return best_private_cells(cells)
    patterns = which or ()
    return [item for item in cells if any(fnmatchcase(cell_name(item[1]), p) for p in patterns)]


def cell_name(record: CellRecord) -> str:
    """Returns `dataset/backbone/method/eps-epsilon`."""
    cell = record.cell
    return f"{cell.dataset}/{cell.backbone}/{cell.method}/eps-{cell.epsilon}"


def _register_head(
    client: MlflowClient, name: str, path: Path, record: CellRecord, run_id: str
) -> str:
    """Returns the version of a head's current run, made if there is none."""
    cell = record.cell
    return ensure_version(
        client,
        name,
        run_id,
        alias=CURRENT_ALIAS,
        model={
            "tags": cell.model_dump(),
            "description": f"{cell.method} on {cell.backbone} features of {cell.dataset}, "
            f"epsilon {cell.epsilon}. Each version has its own privacy promise.",
        },
        version={
            "tags": {
                "private": str(record.guaranteed).lower(),
                "epsilon": cell.epsilon,
                "release": "not for release",
            },
            "description": describe_head(path.parent, record),
        },
        is_whole=partial(_is_loadable, client, run_id),
        write_data=partial(_write_head, path.parent, record),
    )


def ensure_version(
    client: MlflowClient,
    name: str,
    run_id: str,
    *,
    alias: str,
    model: Mapping[str, Any],
    version: Mapping[str, Any],
    is_whole: Callable[[], bool],
    write_data: Callable[[Path], dict[str, Any]],
) -> str:
    """Returns the version of a model that belongs to a run, made if there is none.

    Args:
      alias: given to that version.
      model, version: tags and description, where either must be made.
      is_whole: tells if the run has the model's files.
      write_data: writes the model's data into a folder, and returns the arguments of
        `pyfunc.save_model`.
    """
    try:
        client.create_registered_model(name, **model)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    versions = search_all(partial(client.search_model_versions, f"name = '{name}'"))
    registered = next((each for each in versions if each.run_id == run_id), None)
    if registered is None or not is_whole():
        with tempfile.TemporaryDirectory() as temporary, warnings.catch_warnings():
            # It asks for an example of the input, which would be private.
            warnings.simplefilter("ignore", UserWarning)
            folder = Path(temporary, FOLDER)
            pyfunc.save_model(folder, **write_data(Path(temporary)))
            client.log_artifacts(run_id, str(folder), FOLDER)
    if registered is None:
        source = f"runs:/{run_id}/{FOLDER}"
        registered = client.create_model_version(name, source=source, run_id=run_id, **version)
        logger.info("MLflow: registered %s, version %s", name, registered.version)
    # Old versions too: a crash may have come between a version and its alias.
    current = client.get_registered_model(name).aliases.get(alias)
    if str(current) != str(registered.version):  # a store may give either as a number
        client.set_registered_model_alias(name, alias, registered.version)
    return str(registered.version)


def _is_loadable(client: MlflowClient, run_id: str) -> bool:
    """Returns True if a run has the files of a model, and they name today's loader.

    An earlier dpprobe had its loader in another module, which can no longer be imported.
    """
    path = f"{FOLDER}/{MLMODEL_FILE_NAME}"
    if path not in {item.path for item in client.list_artifacts(run_id, FOLDER)}:
        return False
    with tempfile.TemporaryDirectory() as temporary:
        model = Model.load(client.download_artifacts(run_id, path, temporary))
    return model.flavors[pyfunc.FLAVOR_NAME][pyfunc.MAIN] == LOADER


def describe_head(cell: Path, record: CellRecord) -> str:
    """Returns what a reader of the registry must know of a head."""
    statement = read_statement(cell / STATEMENT_FILE)
    backbone, dimension = record.cell.backbone, record.dimension
    return (
        f"**{statement['release']}**\n\n{statement['promise']}\n\n"
        "This is the head of the first seed alone. Which cell was chosen, if by its test results, "
        f"is not part of the promise. It takes feature rows of {backbone}, {dimension} numbers "
        "each, as extracted, and gives a probability for each class. The run has the whole privacy "
        "statement."
    )


def _write_head(cell: Path, record: CellRecord, folder: Path) -> dict[str, Any]:
    """Writes the head's own file; returns our loader, its path and a signature."""
    data = folder / "data"
    served_model.write_head(data, cell, record)
    rows = TensorSpec(np.dtype(np.float32), (-1, record.dimension))
    scores = TensorSpec(np.dtype(np.float32), (-1, len(record.class_names)))
    return {
        "loader_module": LOADER,
        "data_path": str(data),
        "signature": ModelSignature(inputs=Schema([rows]), outputs=Schema([scores])),
        "pip_requirements": [f"{package}=={metadata.version(package)}" for package in REQUIRED],
        "metadata": {
            "cell": cell_name(record),
            "classes": [str(name) for name in record.class_names],
        },
    }
