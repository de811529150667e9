"""Opacus with the settings of its MNIST example, untuned: (epsilon, delta) for rows."""

import torch
from opacus import PrivacyEngine
from torch.utils.data import DataLoader, TensorDataset

from peers import Fit, Predict


def train(fit: Fit) -> Predict:
    rows = TensorDataset(torch.from_numpy(fit.X), torch.from_numpy(fit.y))
    linear = torch.nn.Linear(fit.X.shape[1], fit.classes)
    model, optimizer, loader = PrivacyEngine().make_private_with_epsilon(
        module=linear,
        optimizer=torch.optim.SGD(linear.parameters(), lr=0.1),
        data_loader=DataLoader(rows, batch_size=64),
        target_epsilon=fit.epsilon,
        target_delta=fit.delta,
        epochs=10,
        max_grad_norm=1.0,
    )
    for _ in range(10):
        for features, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(features), labels).backward()
            optimizer.step()
    return lambda X: model(torch.from_numpy(X)).argmax(1).numpy()
