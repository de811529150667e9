"""Makes a small complete study with the code on PYTHONPATH, and packs it for later tests.

    PYTHONPATH=src python tests/stored/make_study.py tests/stored/studies/COMMIT.tar.xz

The archive contains the study's file, its data with the ledger, its results with the MLflow store,
and Snakemake's records about them. MLflow's artifact URIs contain the temporary folder in which the
study was made; no other file names a folder outside the study.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Any

import yaml

from dpprobe.project_files import project_root

STUDY: dict[str, Any] = {
    "study": "stored",
    "datasets": {
        "digits": {
            "source": "sklearn",
            "name": "digits",
            "split_by": "id",
            "subsample": {"fraction": 0.25},
        }
    },
    "backbones": {"pixels": {"family": "pixels"}},
    "methods": {
        "sgd": {"head": "sgd", "batch_size": 64, "epochs": 2},
        "covariance": {"head": "feature_covariance", "normalize": "l2"},
        "ceiling": {"head": "nonprivate"},
    },
    "epsilons": [2, 8],
    "seeds": 2,
    "features": {"shards": 1},
    "tsne": {"points": 60},
    "fairness": {},
    "privacy": {"max_epsilon": 12},
    "releases": {
        "first": {
            "dataset": "digits",
            "backbone": "pixels",
            "method": "covariance",
            "epsilon": 3,
            "evaluate": {"epsilon": 1},
            "card": {"license": "apache-2.0"},
        }
    },
}
FILE = "study.yaml"
# As in a clone, with the Snakefile in the working directory: records then name no other folder.
LINKED = ("Snakefile", "workflow", "scripts", "profiles", "envs")
# Snakemake's other folders belong to a single run.
PACKED = (FILE, "data", "results", ".snakemake/metadata")
OF_ONE_RUN = (".runs", "mlflow.db-shm", "mlflow.db-wal")  # MLflow's log is empty between runs
# The key in Snakemake's records with the path of the checkout's container, which nothing compares.
CONTAINER = "container_img_url"


def make_study(folder: Path) -> None:
    """Runs the study and its release in a folder."""
    for name in LINKED:
        (folder / name).symlink_to(project_root() / name)
    (folder / FILE).write_text(yaml.safe_dump(STUDY, sort_keys=False), encoding="utf-8")
    command = [sys.executable, "-m", "snakemake", "all", "releases", "--cores", "2"]
    subprocess.run([*command, "--configfile", FILE], cwd=folder, check=True)


def pack_study(folder: Path, archive: Path) -> None:
    """Packs a study without owners, with times rounded to seconds."""
    with tarfile.open(archive, "w:xz", preset=9) as packed:
        for name in PACKED:
            files = [folder / name] if name == FILE else sorted((folder / name).rglob("*"))
            for path in files:
                inside = path.relative_to(folder)
                if not path.is_file() or any(part in OF_ONE_RUN for part in inside.parts):
                    continue
                content = path.read_bytes()
                if name == ".snakemake/metadata":
                    content = json.dumps(json.loads(content) | {CONTAINER: None}).encode()
                member = tarfile.TarInfo(inside.as_posix())
                member.size, member.mode = len(content), path.stat().st_mode & 0o777
                member.mtime = int(path.stat().st_mtime)
                packed.addfile(member, BytesIO(content))


def main(archive: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="dpprobe-study-") as temporary:
        make_study(Path(temporary))
        pack_study(Path(temporary), archive)
    print(f"{archive}: {archive.stat().st_size} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
