"""Three processes as three hospitals with three folders: from images to one verified bundle.

    python bench/three_sites.py FOLDER [--patients 150] [--epsilon 2]

Each hospital has X-rays of its own patients in ../shared/data, a study, a key and a ledger. They
share one folder. Prints every command, its time, and the bytes that went through the shared folder.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import yaml

REPOSITORY = Path(__file__).resolve().parents[1]
DATA = REPOSITORY.parent / "shared" / "data"
NAMES = ("east", "north", "south")
RELEASE = "chest"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "folder", type=Path, help="a new folder; or one of an earlier run, with its features"
    )
    parser.add_argument("--patients", type=int, default=150, help="of each hospital")
    parser.add_argument("--epsilon", type=float, default=2.0)
    parser.add_argument("--method", default="least_squares")
    parser.add_argument("--aggregator", choices=NAMES)
    asked = parser.parse_args()
    folder = asked.folder.resolve()
    if not folder.exists():
        folder.mkdir(parents=True)
        write_images(folder, asked.patients)
    members = dict.fromkeys(NAMES, "0" * 64)
    for name in NAMES:
        write_study(folder, name, members, asked)
    for name in NAMES:
        run(f"features of {name}", ["snakemake", "--cores", "2", "--quiet", "--configfile",
                                    f"{name}.yaml", "--directory", str(folder), "--snakefile",
                                    str(REPOSITORY / "Snakefile"), "features"], folder)  # fmt: skip
    for name in NAMES:
        said = run(f"key of {name}", site(name, "keys"), folder)
        members[name] = said.splitlines()[0].split(": ")[1]
    for name in NAMES:
        write_study(folder, name, members, asked)
        print(run(f"offer of {name}", site(name, "keys"), folder), end="")
    start = time.perf_counter()
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "dpprobe", *site(name, "sums")[1:], "--wait", "20"],
            cwd=folder, env=environment(),
        )
        for name in NAMES
    ]  # fmt: skip
    if any(process.wait() for process in running):
        sys.exit("a site failed")
    print(f"{time.perf_counter() - start:6.1f} s  three times: dpprobe site sums, at once")
    sent = sorted((folder / "exchange" / RELEASE).iterdir())
    for path in sent:
        print(f"{path.stat().st_size:12,} bytes  {path.name}")
    print(f"{sum(path.stat().st_size for path in sent):12,} bytes in all")
    for name in NAMES:
        bundle = f"results_{name}/releases/{RELEASE}"
        print(run(f"verify {name}", ["dpprobe", "verify", bundle], folder), end="")


def write_images(folder: Path, patients: int) -> None:
    """Writes one parquet file per hospital, of other patients each."""
    table = pq.read_table(DATA / "chest_xray" / "images.parquet")
    names = table.column("patient").to_pylist()
    known = list(dict.fromkeys(names))
    for place, name in enumerate(NAMES):
        chosen = set(known[place * patients : (place + 1) * patients])
        pq.write_table(
            table.filter([each in chosen for each in names]), folder / f"images_{name}.parquet"
        )


def write_study(
    folder: Path, name: str, members: dict[str, str], asked: argparse.Namespace
) -> None:
    """Writes a hospital's study."""
    sites = {"name": name, "members": members, "key": f"{name}.pem", "exchange": "exchange"}
    if asked.aggregator:
        sites["aggregator"] = asked.aggregator
    study = {
        "study": name,
        "datasets": {
            "chest_xray": {
                "source": "parquet", "train": f"images_{name}.parquet", "unit_column": "patient",
                "split_by": "id",
            }
        },
        "backbones": {
            "mobilenetv2": {
                "family": "timm", "model": "mobilenetv2_100",
                "checkpoint": str(DATA / "weights/mobilenetv2_100_imagenet.safetensors"),
                "model_args": {"pad_type": "same"},
                "preprocessing": {
                    "size": 128, "crop_pct": 1.0, "mean": [0.5] * 3, "std": [0.5] * 3,
                    "interpolation": "bicubic",
                },
            }
        },
        "methods": {"head": {"head": asked.method, "normalize": "l2"}},
        "epsilons": [asked.epsilon],
        "privacy": {"unit": "patient"},
        "delta": 1e-4,
        "releases": {
            RELEASE: {
                "dataset": "chest_xray", "backbone": "mobilenetv2", "method": "head",
                "epsilon": asked.epsilon, "evaluate": {"epsilon": 4, "metric": "auc"},
                "sites": sites,
            }
        },
        "data_dir": f"data_{name}",
        "results_dir": f"results_{name}",
    }  # fmt: skip
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(study, sort_keys=False))


def site(name: str, action: str) -> list[str]:
    return ["dpprobe", "site", action, RELEASE, "--configfile", f"{name}.yaml"]


def run(what: str, command: list[str], folder: Path) -> str:
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, env=environment(), capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    print(f"{time.perf_counter() - start:6.1f} s  {what}: {shlex.join(command)}")
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return done.stdout


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}


if __name__ == "__main__":
    main()
