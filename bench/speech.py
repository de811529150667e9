"""Speech without a download: synthesised words, an embedding that a package ships, voices as units.

`--help` prints the commands. None of the sound's packages is a dependency of dpprobe.
"""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import wave
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

RESULT = Path(__file__).parent / "results" / "speech.md"
RECIPE = """\
    apt-get install espeak-ng
    python -m venv speech-env && speech-env/bin/pip install pyopen-wakeword==1.1.0
    speech-env/bin/python bench/speech.py data/speech/speech.npz
    snakemake --cores all results/speech/summary/speech.parquet --configfile bench/speech.yaml
    .venv/bin/python bench/speech.py --table results/speech"""
WORDS = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")
ACCENTS = (
    "en-us", "en-029", "en-gb", "en-gb-scotland", "en-gb-x-rp", "en-gb-x-gbclan", "en-gb-x-gbcwmd",
)  # fmt: skip
RATE, CHUNK = 16_000, 1_280  # of the embedding: samples per second and per step
SAMPLES = 13 * CHUNK  # about a second: three windows of 775 ms
SILENCE = 300  # of 32,768

Sound = npt.NDArray[np.float64]


def list_variants() -> list[str]:
    """Lists the kinds of voice that espeak-ng can give an accent."""
    listed = subprocess.run(
        ["espeak-ng", "--voices=variant"], capture_output=True, text=True, check=True
    ).stdout
    return sorted(set(re.findall(r"!v/(\S+)", listed)))


def speak(word: str, voice: str, *, pitch: int, speed: int) -> Sound:
    """Returns a word at 16 kHz, in the middle of about a second of silence."""
    spoken = subprocess.run(
        ["espeak-ng", "-v", voice, "-p", str(pitch), "-s", str(speed), "--stdout", word],
        capture_output=True, check=True,
    ).stdout  # fmt: skip
    with wave.open(io.BytesIO(spoken)) as file:
        rate = file.getframerate()
        sound = np.frombuffer(file.readframes(2**30), np.int16).astype(np.float64)
    # No filter: the embedding hears nothing above 3.8 kHz, and 22 kHz folds onto 5 kHz and more.
    times = np.arange(0, len(sound) / rate, 1 / RATE)
    sound = np.interp(times, np.arange(len(sound)) / rate, sound)
    (loud,) = np.nonzero(np.abs(sound) > SILENCE)
    sound = sound[loud[0] : loud[-1] + 1][:SAMPLES] if len(loud) else sound[:SAMPLES]
    before = (SAMPLES - len(sound)) // 2
    return np.pad(sound, (before, SAMPLES - len(sound) - before))


@cache
def load_model() -> Any:
    from pyopen_wakeword import OpenWakeWordFeatures

    return OpenWakeWordFeatures.from_builtin()


def embed(sound: Sound) -> npt.NDArray[np.float32]:
    """Returns the mean of the 96 numbers of each window; they depend on this sound alone."""
    model = load_model()
    # Its `reset` would put eight seconds of silence before the sound.
    model.audio[:], model.mels[:] = 0, 0
    model.new_audio_samples = model.new_mels = 0
    heard = np.clip(sound, -32768, 32767).astype(np.int16).tobytes()
    windows = np.concatenate([each.reshape(-1, 96) for each in model.process_streaming(heard)])
    return np.asarray(windows.mean(axis=0), np.float32)


def record_voice(voice: str, seed: int) -> list[npt.NDArray[np.float32]]:
    """Embeds all words of one voice: one pitch, and a speed and a noise for each word."""
    generator = np.random.default_rng(seed)
    pitch = int(generator.integers(25, 76))
    vectors = []
    for word in WORDS:
        sound = speak(word, voice, pitch=pitch, speed=int(generator.integers(120, 201)))
        level = np.sqrt(np.mean(sound**2)) / 10 ** (generator.uniform(5, 25) / 20)  # 5 to 25 dB
        vectors.append(embed(sound + level * generator.normal(size=SAMPLES)))
    return vectors


def write_vectors(output: Path) -> None:
    voices = [f"{accent}+{kind}" for accent, kind in product(ACCENTS, list_variants())]
    with ProcessPoolExecutor(2) as pool:
        recorded = list(pool.map(record_voice, voices, range(len(voices)), chunksize=8))
    output.parent.mkdir(parents=True, exist_ok=True)
    both = [(voice, word) for voice in voices for word in WORDS]
    np.savez(
        output,
        X=np.concatenate(recorded),
        id=np.array([f"{voice}-{word}" for voice, word in both]),
        voice=np.array([voice for voice, _ in both]),
        word=np.array([word for _, word in both]),
    )
    print(f"{output}: {len(both)} words of {len(voices)} voices")


def write_table(results: Path) -> None:
    import dpprobe

    cells = dpprobe.read_cells(results)
    n, tested = cells["n"].iloc[0], cells["test_rows"].iloc[0]
    lines = [
        "# Speech: ten words, voices as units",
        "",
        "Google's speech embedding (96 numbers, as pyopen-wakeword 1.1.0 ships it) of words that",
        f"espeak-ng spoke. {n} voices of ten words are trained on, and {tested} words of other",
        "voices tested. The unit of privacy is a voice with all of its words. Accuracy in percent,",
        "mean and standard deviation over seeds; delta 1e-5; majority-class baseline 10%.",
        "",
    ]
    cells = cells.assign(percent=100 * cells["accuracy"])
    table = cells.groupby(["method", "epsilon"])["percent"].agg(["mean", "std"]).unstack()
    epsilons = sorted(cells["epsilon"].unique())
    lines += [f"| method | {' | '.join(f'epsilon {each:g}' for each in epsilons)} |"]
    lines += ["|---" * (len(epsilons) + 1) + "|"]
    for method, row in table.iterrows():
        values = [(row.get(("mean", each)), row.get(("std", each))) for each in epsilons]
        texts = ["" if m != m else f"{m:.1f} ± {s:.1f}" for m, s in values]
        lines.append(f"| {method} | {' | '.join(texts)} |")
    lines += ["", "Measured by:", "", RECIPE]
    RESULT.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(RESULT.read_text(encoding="utf-8"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=RECIPE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path, help="the .npz file, or with --table a results_dir")
    parser.add_argument("--table", action="store_true", help="write bench/results/speech.md")
    asked = parser.parse_args()
    (write_table if asked.table else write_vectors)(asked.path)


if __name__ == "__main__":
    main()
