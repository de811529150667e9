"""dpprobe as its quickstart has it: (epsilon, delta) for rows, or for groups."""

import dpprobe
from peers import Fit, Predict


def train(fit: Fit) -> Predict:
    budget = dpprobe.Budget(max_epsilon=fit.epsilon, delta=fit.delta)
    head = dpprobe.PrivateClassifier(
        fit.epsilon,
        classes=range(fit.classes),
        unit="row" if fit.groups is None else "group",
        budget=budget,
    )
    return head.fit(fit.X, fit.y, groups=fit.groups).predict
