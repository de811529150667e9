"""A sketch: regression on the sums that the head `least_squares` releases.

    python bench/regression_sketch.py HOUSING.csv RED.csv WHITE.csv

prints the table of bench/results/regression_sketch.md.
"""

from __future__ import annotations

import sys

import numpy as np
import pandas as pd
import torch
from sklearn.linear_model import RidgeCV
from sklearn.preprocessing import PolynomialFeatures

import dpprobe
from dpprobe.heads.second_order import estimate_spectrum

DELTA, SEEDS, GRAM_SHARE = 1e-5, 20, 0.3
# public limits of each column, from its meaning and not from the rows
HOUSING = {
    "longitude": (-125, -114),
    "latitude": (32, 43),
    "housing_median_age": (0, 52),
    "total_rooms": (0, 5),  # this and the next three as log10
    "total_bedrooms": (0, 5),
    "population": (0, 5),
    "households": (0, 5),
    "median_income": (0, 15),
}
WINE = dict(
    zip(
        ("fixed acidity", "volatile acidity", "citric acid", "residual sugar", "chlorides")
        + ("free sulfur dioxide", "total sulfur dioxide", "density", "pH", "sulphates", "alcohol"),
        [(3, 16), (0, 2), (0, 2), (0, 70), (0, 1), (0, 300), (0, 450), (0.98, 1.04), (2.5, 4.5)]
        + [(0, 2), (7, 16)],
        strict=True,
    )
)


def scale(table: pd.DataFrame, limits: dict[str, tuple[float, float]]) -> np.ndarray:
    """Maps each column from its public limits to [-1, 1]; values outside are clipped."""
    low, high = np.array(list(limits.values())).T
    return np.clip(2 * (table[list(limits)].to_numpy() - low) / (high - low) - 1, -1, 1)


def read_housing(path: str) -> tuple[np.ndarray, np.ndarray]:
    table = pd.read_csv(path).dropna(subset=["median_income"])
    for name in ("total_rooms", "total_bedrooms", "population", "households"):
        table[name] = np.log10(table[name].fillna(1).clip(lower=1))
    near = np.stack([table["ocean_proximity"] == each for each in ("INLAND", "NEAR OCEAN")], 1)
    rows = np.hstack([scale(table, HOUSING), 2.0 * near - 1])
    return rows, np.clip(table["median_house_value"].to_numpy() / 250_000 - 1, -1, 1)


def read_wine(*paths: str) -> tuple[np.ndarray, np.ndarray]:
    table = pd.concat([pd.read_csv(path) for path in paths])
    colour = np.repeat([-1.0, 1.0], [len(pd.read_csv(path)) for path in paths])
    rows = np.column_stack([scale(table, WINE), colour])
    return rows, table["quality"].to_numpy() / 5 - 1


def spread(rows: np.ndarray, degree: int) -> np.ndarray:
    """Returns polynomial columns with an intercept, of norm at most 1 for any row in the limits."""
    wide = PolynomialFeatures(degree).fit_transform(rows)
    return wide / np.sqrt(wide.shape[1])


def draw_symmetric(size: int, deviation: float, rng: np.random.Generator) -> np.ndarray:
    """Isometric noise: variance s^2 on the diagonal, s^2 / 2 beside it."""
    noise = rng.normal(0, deviation / np.sqrt(2), (size, size))
    upper = np.triu(noise, 1)
    return upper + upper.T + np.diag(rng.normal(0, deviation, size))


def fit_sums(x: np.ndarray, y: np.ndarray, epsilon: float, rng: np.random.Generator) -> np.ndarray:
    """`least_squares` with y in [-1, 1] in place of the one-hot label: both sensitivities are 1."""
    noise = dpprobe.calibrate(epsilon=epsilon, delta=DELTA, steps=1)
    gram_noise, target_noise = noise / np.sqrt(GRAM_SHARE), noise / np.sqrt(1 - GRAM_SHARE)
    size = x.shape[1]
    gram = x.T @ x + draw_symmetric(size, gram_noise, rng)
    right = x.T @ y + rng.normal(0, target_noise, size)
    matrix = estimate_spectrum(torch.from_numpy(gram), gram_noise)
    # the rule of `ridge_of` without its constants of classification; see the page
    ridge = 0.3 * np.sqrt(size) * (gram_noise + target_noise)
    vectors, values = matrix.vectors.double().numpy(), matrix.values.numpy()
    return vectors @ ((vectors.T @ right) / (values + ridge))


def fit_adassp(
    x: np.ndarray, y: np.ndarray, epsilon: float, rng: np.random.Generator
) -> np.ndarray:
    """AdaSSP (Wang 2018, algorithm 2), with rows and targets of norm at most 1."""
    size, third, log = x.shape[1], epsilon / 3, np.log(6 / DELTA)
    gram = x.T @ x
    least = np.linalg.eigvalsh(gram)[0] + np.sqrt(log) / third * rng.normal() - log / third
    bound = np.sqrt(size * log * np.log(2 * size**2 / 0.05)) / third
    ridge = max(0.0, bound - max(least, 0.0))
    noise = np.triu(rng.normal(0, 1, (size, size)))
    noise = noise + np.triu(noise, 1).T
    noisy = gram + np.sqrt(log) / third * noise
    right = x.T @ y + np.sqrt(log) / third * rng.normal(0, 1, size)
    return np.linalg.solve(noisy + ridge * np.eye(size), right)


def explained(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> float:
    return 1 - float(np.square(y - np.clip(x @ weights, -1, 1)).mean() / y.var())


def main() -> None:
    housing, red, white = sys.argv[1:]
    print("| table | columns | non-private ridge |", " | ".join(f"ε = {e}" for e in EPSILONS), "|")
    for name, (rows, y) in {
        "California housing": read_housing(housing),
        "wine quality": read_wine(red, white),
    }.items():
        for degree in (1, 2):
            x = spread(rows, degree)
            order = np.random.default_rng(0).permutation(len(x))
            test, train = np.split(order, [len(x) // 5])
            ridge = RidgeCV(np.logspace(-6, 3, 19), fit_intercept=False).fit(x[train], y[train])
            best = explained(x[test], y[test], ridge.coef_)
            for words, fit in (("sums", fit_sums), ("AdaSSP", fit_adassp)):
                cells = []
                for epsilon in EPSILONS:
                    found = [
                        explained(
                            x[test],
                            y[test],
                            fit(x[train], y[train], epsilon, np.random.default_rng(seed)),
                        )
                        for seed in range(SEEDS)
                    ]
                    cells.append(f"{np.mean(found):.3f} ± {np.std(found, ddof=1):.3f}")
                print(f"| {name}, {words} | {x.shape[1]} | {best:.3f} |", " | ".join(cells), "|")


EPSILONS = (0.1, 0.5, 1, 2, 8)

if __name__ == "__main__":
    main()
