"""Damages a finished study in 61 ways, and shows what a rerun, `doctor` and `doctor --fix` say.

    python bench/damages.py --folder build/damages            # all kinds; a table in Markdown
    python bench/damages.py --folder build/damages summary    # kinds whose name contains a word

Each kind of damage gets a copy of one finished study. The table tells if a plain rerun repaired the
copy, and if a rerun after `doctor --fix` restored the original bytes of every result.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

ROOT = Path(__file__).resolve().parents[1]
STUDY = {
    "study": "damaged",
    "datasets": {"digits": {"source": "sklearn", "name": "digits"}},
    "backbones": {"pixels": {"family": "pixels"}, "coarse": {"family": "pixels", "size": 4}},
    "methods": {
        "sgd": {"head": "sgd", "batch_size": 64, "epochs": 1},
        "least_squares": {"head": "least_squares"},
        "nonprivate": {"head": "nonprivate"},
    },
    "epsilons": [1, 8],
    "seeds": 2,
    "features": {"shards": 2},
    "tsne": {"points": 100},
}
DATA, RESULTS = Path("data/digits"), Path("results")
SHARD = RESULTS / "features/digits/pixels/train/shard-00000-of-00002.h5"
OTHER_SHARD = RESULTS / "features/digits/coarse/train/shard-00000-of-00002.h5"
CELL = RESULTS / "cells/digits/pixels/sgd/eps-1"
OTHER_CELL = RESULTS / "cells/digits/pixels/sgd/eps-8"
PLANS = RESULTS / "calibration/digits/eps-1.json"
SUMMARY = RESULTS / "summary/digits.parquet"
TSNE = RESULTS / "embeddings/digits"
RECEIPT, STORE = RESULTS / "tracking/digits.json", RESULTS / "mlflow.db"
RAISED = "set value = 0.999 where key = 'test/accuracy'"
STORE_EDITS = {
    "metrics 0.999": (f"update metrics {RAISED}", f"update latest_metrics {RAISED}"),
    "latest metrics 0.999": (f"update latest_metrics {RAISED}",),
    "a parameter": ("update params set value = '100' where key = 'epsilon'",),
    "ten runs deleted": (
        "update runs set lifecycle_stage = 'deleted' "
        "where run_uuid in (select run_uuid from runs limit 10)",
    ),
}


def keep_time(damage: Callable[..., None]) -> Callable[..., None]:
    """Wraps a damage so that the file keeps its modification time, as on a failing disk."""

    def quiet(path: Path, *arguments: Any) -> None:
        status = path.stat()
        damage(path, *arguments)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    return quiet


def lose_records(path: Path) -> None:
    """Edits a summary and deletes the recorded hashes, as a copy without dot files loses them."""
    remove(path.parents[1] / ".written")
    keep_time(raise_summary)(path)


def link_to_itself(path: Path) -> None:
    remove(path)
    path.symlink_to(path.name)


def swap_calibrations(path: Path) -> None:
    swap(*sorted(path.glob("*.json"))[:2])


def leave_partial(path: Path) -> None:
    (path.parent / f".{path.name}.00000000-1.00000000.partial").write_bytes(b"half")


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: 2 * len(content) // 3])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def swap(path: Path, other: Path) -> None:
    aside = path.with_name("aside")
    path.rename(aside)
    other.rename(path)
    aside.rename(other)


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def close_file(path: Path) -> None:
    path.chmod(0)


def dangle(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def raise_summary(path: Path) -> None:
    table = pq.read_table(path)
    named = table.column_names.index("accuracy")
    raised = pa.array([0.99] * table.num_rows, table.schema.field(named).type)
    pq.write_table(table.set_column(named, table.schema.field(named), raised), path)


def replace_text(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text, path
    path.write_text(text.replace(old, new))


def raise_metrics(path: Path) -> None:
    record = json.loads(path.read_text())
    record["summary"]["accuracy"]["mean"] = 0.99
    path.write_text(json.dumps(record, indent=2) + "\n")


def raise_table(path: Path) -> None:
    path.write_text("".join(f"{line.rpartition(',')[0]},99.9\n" for line in path.open()))


def edit_store(*statements: str) -> Callable[[Path], None]:
    def edit(path: Path) -> None:
        with sqlite3.connect(path) as database:
            for statement in statements:
                database.execute(statement)
        database.close()

    return edit


def halve_store(path: Path) -> None:
    """Makes a store as an interrupted creation leaves it: with some tables, without rows."""
    path.unlink()
    edit_store("create table trace_info (request_id varchar)", "create table runs (id varchar)")(
        path
    )


def change_artifact(path: Path) -> None:
    for copy in path.rglob("metrics.json"):
        raise_metrics(copy)


def list_damages() -> list[tuple[Any, ...]]:
    """Lists each kind of damage: its name, its function, and the function's arguments."""
    return [
        ("split table: cut", cut, DATA / "train.parquet"),
        ("split table: one bit", flip, DATA / "train.parquet"),
        ("split table: one bit, old time", keep_time(flip), DATA / "test.parquet"),
        ("split table: deleted", remove, DATA / "train.parquet"),
        ("dataset.json: cut", cut, DATA / "dataset.json"),
        ("dataset.json: deleted", remove, DATA / "dataset.json"),
        ("shard: cut", cut, SHARD),
        ("shard: one bit", flip, SHARD),
        ("shard: one bit, old time", keep_time(flip), SHARD),
        ("shard: empty", empty, SHARD),
        ("shard: deleted", remove, SHARD),
        ("shard: another backbone's", swap, SHARD, OTHER_SHARD),
        ("shard: a folder", make_folder, SHARD),
        ("shard: mode 0", close_file, SHARD),
        ("shard: a broken link", dangle, SHARD),
        ("manifest: cut", cut, SHARD.with_name("manifest.json")),
        ("manifest: deleted", remove, SHARD.with_name("manifest.json")),
        ("features: folder deleted", remove, SHARD.parents[1]),
        ("calibration: cut", cut, PLANS),
        ("calibration: edited", replace_text, PLANS, '"epsilon', '"epsilom'),
        ("calibration: deleted", remove, PLANS),
        ("cell record: accuracy 0.99", raise_metrics, CELL / "metrics.json"),
        ("cell record: cut", cut, CELL / "metrics.json"),
        ("cell record: deleted", remove, CELL / "metrics.json"),
        ("cell predictions: one bit", flip, CELL / "predictions.parquet"),
        ("cell predictions: cut", cut, CELL / "predictions.parquet"),
        ("cell heads: one bit", flip, CELL / "heads.safetensors"),
        ("cell heads: one bit, old time", keep_time(flip), CELL / "heads.safetensors"),
        ("cell heads: deleted", remove, CELL / "heads.safetensors"),
        ("cell history: empty", empty, CELL / "history.parquet"),
        ("cell statement: edited", flip, CELL / "privacy.json"),
        ("cells: two swapped", swap, CELL, OTHER_CELL),
        ("summary: accuracy 0.99", raise_summary, SUMMARY),
        ("summary: accuracy 0.99, old time", keep_time(raise_summary), SUMMARY),
        ("summary: cut", cut, SUMMARY),
        ("table: edited", raise_table, RESULTS / "tables/accuracy.csv"),
        ("table: edited, old time", keep_time(raise_table), RESULTS / "tables/digits_accuracy.csv"),
        ("table of Markdown: edited", flip, RESULTS / "tables/accuracy.md"),
        ("t-SNE: two swapped", swap, TSNE / "pixels/tsne.parquet", TSNE / "coarse/tsne.parquet"),
        ("t-SNE: cut", cut, TSNE / "pixels/tsne.parquet"),
        ("figure: zeros", zero, RESULTS / "figures/digits/accuracy.png"),
        (
            "figure: another",
            swap,
            RESULTS / "figures/digits/tsne_pixels.png",
            RESULTS / "figures/digits/tsne_coarse.png",
        ),
        ("report: edited, old time", keep_time(flip), RESULTS / "report.html"),
        ("report: empty", empty, RESULTS / "report.html"),
        ("receipt: cut", cut, RECEIPT),
        ("receipt: deleted", remove, RECEIPT),
        ("records lost, summary: accuracy 0.99", lose_records, SUMMARY),
        ("calibrations: two swapped", swap_calibrations, RESULTS / "calibration"),
        ("cell: a link to itself", link_to_itself, CELL),
        ("cell record: a link to itself", link_to_itself, CELL / "metrics.json"),
        ("shard: half of a killed job", leave_partial, SHARD),
        *((f"MLflow: {name}", edit_store(*do), STORE) for name, do in STORE_EDITS.items()),
        ("MLflow: store cut", cut, STORE),
        ("MLflow: store empty", empty, STORE),
        ("MLflow: store half-made", halve_store, STORE),
        ("MLflow: store deleted", remove, STORE),
        ("MLflow: artifacts edited", change_artifact, RESULTS / "mlartifacts/digits"),
        ("MLflow: artifacts deleted", remove, RESULTS / "mlartifacts"),
    ]


class Tool(NamedTuple):
    """Runs the commands of one clone of dpprobe in one folder."""

    clone: Path
    folder: Path

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        variables = {**os.environ, "PYTHONPATH": str(self.clone / "src")}
        return subprocess.run(
            [sys.executable, "-m", *words],
            cwd=self.folder,
            env=variables,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=900,
        )

    def run(self) -> subprocess.CompletedProcess[str]:
        profile = self.clone / "profiles/default"
        words = ["--snakefile", str(self.clone / "Snakefile"), "--profile", str(profile)]
        return self.call("snakemake", *words, "--cores", "2", "--configfile", "study.yaml")

    def doctor(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.call("dpprobe", "doctor", *words)


def hash_results(folder: Path) -> dict[str, str]:
    """Hashes the results that people read or publish; of MLflow's runs, only the metrics."""
    kinds = ("cells", "features", "summary", "tables", "figures", "embeddings", "calibration")
    hashes = {}
    for path in sorted((folder / RESULTS).rglob("*")):
        name = path.relative_to(folder / RESULTS)
        timed = name.suffix in (".svg", ".json") or name.stem == "time_cost"
        if path.is_file() and name.parts[0] in kinds and not timed:
            hashes[str(name)] = hashlib.sha256(path.read_bytes()).hexdigest()
    for path in sorted((folder / RESULTS / "cells").rglob("metrics.json")):
        record = json.loads(path.read_text())
        hashes[str(path.relative_to(folder))] = json.dumps([record["summary"], record["files"]])
    try:
        with sqlite3.connect(folder / STORE) as database:
            rows = database.execute(
                "select runs.name, m.key, m.value, l.value from runs join metrics m using "
                "(run_uuid) join latest_metrics l on l.run_uuid = m.run_uuid and l.key = m.key "
                "where lifecycle_stage = 'active' and m.key not like 'time/%'"
            ).fetchall()
        hashes["runs"] = repr(sorted(rows))
    except sqlite3.Error as error:
        hashes["runs"] = str(error)
    copies = {
        json.loads(path.read_text())["summary"]["accuracy"]["mean"]
        for path in (folder / RESULTS / "mlartifacts").rglob("metrics.json")
    }
    hashes["copies"] = repr(sorted(copies))
    return hashes


def describe_state(first: Mapping[str, str], folder: Path) -> str:
    try:
        now = hash_results(folder)
    except (OSError, ValueError, KeyError) as error:
        return f"unreadable ({type(error).__name__})"
    wrong = [name for name in first if first[name] != now.get(name)]
    return f"{len(wrong)} wrong, as {wrong[0]}" if wrong else "whole"


def say(done: subprocess.CompletedProcess[str]) -> str:
    """Returns a command's exit status and dpprobe's last message."""
    if "Traceback" in done.stdout:
        return f"{done.returncode}, traceback"
    told = [line for line in done.stdout.splitlines() if line.startswith("dpprobe: ")]
    nothing = "nothing to do" if "Nothing to be done" in done.stdout else ""
    return f"{done.returncode} {told[-1][:150] if told else nothing}".strip()


def try_damage(
    damage: tuple[Any, ...], tool: Tool, template: Path, first: Mapping[str, str]
) -> list[str]:
    name, do, *paths = damage

    def prepare() -> None:
        shutil.rmtree(tool.folder, ignore_errors=True)
        subprocess.run(["cp", "-a", str(template), str(tool.folder)], check=True)
        do(*(tool.folder / each if isinstance(each, Path) else each for each in paths))

    prepare()
    plain = say(tool.run())
    state = describe_state(first, tool.folder)
    prepare()
    doctor, fixed = tool.doctor(), tool.doctor("--fix")
    rerun = say(tool.run())
    healed = describe_state(first, tool.folder)
    told = [done.stdout.splitlines()[-1].rpartition(": ")[2] for done in (doctor, fixed)]
    checks = [f"{doctor.returncode}, {told[0]}", f"{fixed.returncode}, {told[1]}"]
    return [name, plain, state, *checks, rerun, healed]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("words", nargs="*", help="only kinds whose name contains one of the words")
    parser.add_argument(
        "--folder", type=Path, required=True, help="folder of the runs, outside the clone"
    )
    parser.add_argument("--clone", type=Path, default=ROOT, help="the code that runs the study")
    arguments = parser.parse_args()
    template, tool = arguments.folder / "whole", Tool(arguments.clone, arguments.folder / "run")
    if not template.exists():
        tool.folder.mkdir(parents=True, exist_ok=True)
        (tool.folder / "study.yaml").write_text(yaml.safe_dump(STUDY))
        made = tool.run()
        if made.returncode:
            sys.exit(made.stdout)
        tool.run()  # a second run has nothing to do, and records the times of files
        tool.folder.rename(template)  # copies get the original path, which MLflow's store contains
    first = hash_results(template)
    columns = ("damage", "plain rerun", "then", "doctor", "doctor --fix", "rerun", "then")
    print("|", " | ".join(columns), "|")
    print("|", " | ".join(["---"] * len(columns)), "|")
    for damage in list_damages():
        if arguments.words and not any(word in damage[0] for word in arguments.words):
            continue
        row = try_damage(damage, tool, template, first)
        print("|", " | ".join(cell.replace("|", "/") for cell in row), "|", flush=True)


if __name__ == "__main__":
    main()
