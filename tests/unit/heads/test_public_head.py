"""A public head: steps against a plain loop, limits of small and large noise, and refusals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.numpy import save_file

from dpprobe.errors import ConfigError, PrivacyError
from dpprobe.heads import auto
from dpprobe.heads.facts import DataFacts
from dpprobe.heads.fit import fit_heads
from dpprobe.heads.fitted import Heads
from dpprobe.heads.gradient_options import GRADIENTS
from dpprobe.heads.normalisation import CENTRE
from dpprobe.heads.public_inputs import PublicInputs, hash_file
from dpprobe.heads.registry import method_options
from dpprobe.heads.scoring import score_rows
from dpprobe.heads.training_set import TrainingSet
from tests.support.linear_heads import plan_for
from tests.support.observers import Watching
from tests.support.refusals import refuses

Array = npt.NDArray[Any]
ROWS, DIMENSION, CLASSES, STEPS, INTERCEPT = 90, 12, 4, 5, 0.2
_MEANS = np.random.default_rng(7).normal(size=(CLASSES, DIMENSION))


def draw_rows(count: int, seed: int) -> tuple[Array, Array]:
    generator = np.random.default_rng(seed)
    labels = generator.integers(CLASSES, size=count)
    rows = 3.0 + _MEANS[labels] + generator.normal(size=(count, DIMENSION))
    return rows.astype(np.float32), labels


class Seeing(Watching):
    """Also stores the values that a fit shows, by name."""

    def __init__(self) -> None:
        super().__init__(through=True)
        self.values: dict[str, torch.Tensor] = {}

    def see_values(self, name: str, seeds: Sequence[int], values: torch.Tensor) -> None:
        del seeds
        self.values.setdefault(name, values[0].double().clone())


def fit_with(
    path: Path | None,
    noise: float,
    *,
    seeds: Sequence[int] = (1,),
    observer: Any = None,
    **options: Any,
) -> Heads:
    named = {} if path is None else {"public_head": str(path)}
    method = method_options({"head": "momentum", "steps": STEPS} | options | named)
    public = PublicInputs(hashes={each: str(hash_file(each)) for each in named.values()})
    features, labels = draw_rows(ROWS, 0)
    data = TrainingSet(torch.from_numpy(features), torch.from_numpy(labels), CLASSES, public=public)
    plan = plan_for(method, ROWS, noise)
    return fit_heads(method, data, plan, seeds, observer=observer)


def write_head(path: Path, weights: Array) -> Path:
    save_file({"weights": np.ascontiguousarray(weights, dtype=np.float32)}, path)
    return path


def expected_weights(public: Array, kind: str, noise: float, seen: Seeing) -> Array:
    """Takes heavy-ball steps by released gradients times a matrix of all weights."""
    classes, (centre, matrix) = np.eye(CLASSES) - 1 / CLASSES, (np.zeros(DIMENSION), None)
    if kind != "l2":
        centre = seen.values[CENTRE].numpy()
    if kind == "whitened":
        matrix = seen.values["whitener"].numpy()
    biases = (public[:, -1] + public[:, :-1] @ centre) / math.sqrt(1 - centre @ centre)
    weights = public[:, :-1] if matrix is None else public[:, :-1] @ np.linalg.inv(matrix)
    u = (classes @ np.column_stack([weights, biases / INTERCEPT])).ravel()
    u /= np.linalg.norm(u)
    basis = np.linalg.qr(u.reshape(CLASSES, -1)[:, :-1].T)[0][:, : CLASSES - 1]
    inside = np.zeros((DIMENSION + 1, DIMENSION + 1))
    inside[:-1, :-1], inside[-1, -1] = basis @ basis.T, 1
    options = method_options({"head": "momentum", "steps": STEPS, "normalize": kind})
    released = plan_for(options, ROWS, noise).find_mechanism(GRADIENTS)
    deviation = released.noise_scale / ROWS
    # momentum's rule: 0.9 times the largest rate that converges; noise of at most 1 in a logit
    longest = 0.9 * 2 * 1.9 / ((1 + INTERCEPT**2) / CLASSES)
    rate = min(longest, 1 / (deviation * math.sqrt(STEPS) / 0.1))
    along, within = longest / rate, min(3.0, longest / rate)
    stretched = np.eye(u.size) + (within - 1) * np.kron(np.eye(CLASSES), inside)
    factors = stretched + (along - within) * np.outer(u, u)
    sizes = [sum(0.9**j for j in range(k + 1)) for k in range(STEPS)]
    parameters = 2.5 * along * rate * deviation * math.sqrt(sum(s * s for s in sizes)) * u
    velocity = np.zeros_like(parameters)
    for output in seen.outputs[GRADIENTS]:
        velocity = 0.9 * velocity + factors @ (output.double().numpy().ravel() / ROWS)
        parameters = parameters - rate * velocity
    result = parameters.reshape(CLASSES, -1)
    result[:, -1] *= INTERCEPT
    if matrix is not None:
        result[:, :-1] = result[:, :-1] @ matrix
    return np.asarray(result)


@pytest.mark.parametrize("engine", ["closed_form", "exact"])
@pytest.mark.parametrize("kind", ["l2", "centred", "whitened"])
@pytest.mark.parametrize("noise", [2.0, 50.0])
def test_start_and_steps_are_a_plain_loop(
    kind: str, noise: float, engine: str, tmp_path: Path
) -> None:
    public = np.random.default_rng(3).normal(size=(CLASSES, DIMENSION + 1)).astype(np.float32)
    path, seen = write_head(tmp_path / "head.safetensors", public), Seeing()
    heads = fit_with(path, noise, observer=seen, normalize=kind, engine=engine)
    expected = expected_weights(public.astype(np.float64), kind, noise, seen)
    np.testing.assert_allclose(
        heads.weights[0], expected, rtol=2e-4, atol=2e-4 * np.abs(expected).max()
    )


def test_noise_decides_what_a_public_head_changes(tmp_path: Path) -> None:
    """Without noise the head has no effect, with much it decides; with little a wrong one fades."""
    rows, labels = draw_rows(2000, 1)
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    head = np.column_stack([_MEANS, -_MEANS @ units.mean(0)])
    right = write_head(tmp_path / "right.safetensors", head)
    wrong = write_head(tmp_path / "wrong.safetensors", np.roll(head, 1, 0))

    def accuracy_of(path: Path | None, noise: float) -> float:
        scores = score_rows(fit_with(path, noise, steps=40, seeds=range(1, 6)), rows)
        return float(np.median((scores.argmax(2) == labels).mean(1)))

    np.testing.assert_array_equal(fit_with(right, 0.0).weights, fit_with(None, 0.0).weights)
    free = float(((units @ head[:, :-1].T + head[:, -1]).argmax(1) == labels).mean())
    assert accuracy_of(None, 100.0) < 0.5 * free
    assert accuracy_of(right, 100.0) > free - 0.02
    assert accuracy_of(wrong, 100.0) < 0.2
    assert accuracy_of(wrong, 0.3) > accuracy_of(None, 0.3) - 0.02


def test_several_labels_take_no_bias_from_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file's path may begin with ~."""
    head = np.column_stack([_MEANS, np.full(CLASSES, 9.0)])
    write_head(tmp_path / "head.safetensors", head)
    monkeypatch.setenv("HOME", str(tmp_path))
    path = "~/head.safetensors"
    method = method_options({"head": "momentum", "loss": "sigmoid", "public_head": path})
    features, labels = draw_rows(30, 0)
    hot = torch.from_numpy(np.eye(CLASSES, dtype=np.uint8)[labels])
    public = PublicInputs(hashes={path: str(hash_file(path))})
    data = TrainingSet(torch.from_numpy(features), hot, CLASSES, public=public)
    first: list[torch.Tensor] = []

    def keep(step: int, weights: torch.Tensor, _: Any) -> None:
        first.append(weights[0].clone()) if step == 0 else None

    fit_heads(method, data, plan_for(method, 30, 5.0), [1], record=keep)
    start = first[0].numpy()
    assert not start[:, -1].any()
    cosine = (start[:, :-1] * _MEANS).sum() / np.linalg.norm(start) / np.linalg.norm(_MEANS)
    assert cosine == pytest.approx(1, abs=1e-6)


def test_auto_hands_the_public_head_on() -> None:
    facts = DataFacts(
        n=300, dimension=512, classes=10, multi_label=False, epsilon=1, delta=1e-5, unit="image"
    )
    asked = auto.Options(public_head="heads/{dataset}/{backbone}.safetensors")
    chosen = asked.resolve_choice(facts)
    assert chosen.public_files() == {"public_head": "heads/{dataset}/{backbone}.safetensors"}
    filled = chosen.fill_paths(dataset="food", backbone="clip")
    assert filled.chosen is not None
    for options in (filled, filled.chosen):
        assert options.public_files() == {"public_head": "heads/food/clip.safetensors"}
    assert "heads/" not in str(filled.identity_options())
    assert method_options(filled.model_dump(mode="json")) == filled
    plain = auto.Options().resolve_choice(facts)
    assert filled.list_mechanisms(300) == plain.list_mechanisms(300)
    large = DataFacts(**{**facts.to_dict(), "n": 10**6})
    assert asked.resolve_choice(large).normalize.kind == "whitened"


@pytest.mark.parametrize(
    ("weights", "says"),
    [
        (np.ones((CLASSES, DIMENSION)), ("same weights",)),
        (np.ones((CLASSES + 1, DIMENSION)), ("[5, 12]", "[4, 12]")),
        (np.ones((CLASSES, DIMENSION - 2)), ("[4, 10]", "[4, 12]")),
        (np.full((CLASSES, DIMENSION), np.nan), ("not finite",)),
    ],
)
def test_heads_that_do_not_fit_are_refused(
    weights: Array, says: tuple[str, ...], tmp_path: Path
) -> None:
    path = write_head(tmp_path / "head.safetensors", weights)
    with refuses(ConfigError, "public_head", "head.safetensors", *says):
        fit_with(path, 1.0)


def test_options_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with refuses(ConfigError, "public_head", "normalize", "layer_norm"):
        method_options(
            {"head": "momentum", "public_head": "a", "normalize": "layer_norm", "learning_rate": 1}
        )
    with refuses(ConfigError, "public_head", "init_file", "only one"):
        method_options({"head": "momentum", "public_head": "a", "init": "file", "init_file": "b"})
    path = write_head(tmp_path / "head.safetensors", _MEANS)
    method = method_options({"head": "momentum", "public_head": str(path)})
    rows, labels = draw_rows(20, 0)
    data = TrainingSet(torch.from_numpy(rows), torch.from_numpy(labels), CLASSES)
    with refuses(PrivacyError, "public_head", "head.safetensors", "compared"):
        fit_heads(method, data, plan_for(method, 20), [1])
