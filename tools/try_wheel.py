"""Tests an installed dpprobe: releases, verifies and uses a head in a temporary folder.

    python tools/try_wheel.py 0.1.0

The argument is the expected version. Run the script with the Python of the installation.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import dpprobe


def main() -> None:
    (version,) = sys.argv[1:]
    command = Path(sys.executable).with_name("dpprobe")

    def call(*words: str) -> str:
        return subprocess.run(
            [command, *words], check=True, text=True, stdout=subprocess.PIPE
        ).stdout

    if (found := call("--version").strip()) != version:
        sys.exit(f"dpprobe --version: {found}, not {version}")
    labels = np.arange(300) % 3
    vectors = np.eye(3, 8)[labels] + 0.1 * np.random.default_rng(0).standard_normal((300, 8))
    with tempfile.TemporaryDirectory() as folder:
        bundle, given = f"{folder}/releases/tried_v1", f"{folder}/vectors.npy"
        head = dpprobe.PrivateClassifier(
            epsilon=8,
            classes=range(3),
            budget=dpprobe.Budget(max_epsilon=8, delta=1e-5),
            head="least_squares",
        )
        head.fit(vectors, labels)
        told = {"each_by_itself": True, "pretrained": False}
        head.save_bundle(bundle, dataset="tried", model="tried", **told)
        print(call("verify", bundle))
        np.save(given, np.eye(3, 8))
        rows = [line for line in call("predict", bundle, given).splitlines() if "tried_v1" in line]
    if [row.split(",")[1] for row in rows] != ["0", "1", "2"]:
        sys.exit("\n".join(["dpprobe predict: not the classes 0, 1 and 2 of these rows:", *rows]))
    print(f"dpprobe {version} releases, verifies and predicts")


if __name__ == "__main__":
    main()
