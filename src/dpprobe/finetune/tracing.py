"""Traces the modules around a network's blocks, without tracing into the blocks.

A network's code may depend on sizes, such as the number of patches. Tracing runs the network on two
batches, and treats equal values as constants. Code must not depend on tensor values.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import fx, nn

Outputs = list[dict[int, list[Any]]]


class _Tracer(fx.Tracer):
    """Traces only the modules that contain blocks."""

    def __init__(
        self, model: nn.Module, around: set[int], batches: list[torch.Tensor], outputs: Outputs
    ) -> None:
        super().__init__()
        self._around, self._batches, self._outputs = around, batches, outputs
        # Listed before tracing, because tracing replaces attributes of modules.
        self._modules = dict(model.named_modules(remove_duplicate=False))
        self._constants: dict[str, torch.Tensor] = {
            **dict(model.named_parameters(remove_duplicate=False)),
            **dict(model.named_buffers(remove_duplicate=False)),
        }

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:  # noqa: ARG002
        return id(m) not in self._around

    def to_bool(self, obj: fx.Proxy) -> bool:
        """Returns a condition's value if both batches agree, as then it depends only on sizes."""
        answers = [self._find_value(obj.node, batch, {}) for batch in range(len(self._batches))]
        if answers[0] is answers[1] and isinstance(answers[0], bool):
            return answers[0]
        return super().to_bool(obj)

    def _find_value(self, node: fx.Node, batch: int, known: dict[fx.Node, Any]) -> Any:
        """Computes a node's value; outputs of modules were recorded before the trace."""
        if node not in known:
            known[node] = self._compute_value(node, batch, known)
        return known[node]

    def _compute_value(self, node: fx.Node, batch: int, known: dict[fx.Node, Any]) -> Any:
        if node.op == "placeholder":
            return self._batches[batch] if node.prev.op == "root" else None
        if node.op == "call_module":
            calls = [one for one in node.graph.nodes if one.target == node.target]
            module = self._modules[str(node.target)]
            return self._outputs[batch][id(module)][calls.index(node)]
        if node.op == "get_attr":
            return self._constants[str(node.target)]
        inputs = (node.args, node.kwargs)
        args, kwargs = fx.map_arg(inputs, lambda one: self._find_value(one, batch, known))
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        assert callable(node.target)
        return node.target(*args, **kwargs)


@torch.no_grad()
def trace_graph(
    model: nn.Module, blocks: list[nn.Module], batches: tuple[torch.Tensor, torch.Tensor]
) -> fx.GraphModule:
    """Returns a network's graph, in which blocks are single nodes.

    Tracing changes torch's modules for all threads, so no other thread may run a network meanwhile.
    """
    ids = {id(block) for block in blocks}
    around = {id(one) for one in model.modules() if any(id(m) in ids for m in one.modules())} - ids
    # Arguments other than the images, such as a mask, get their defaults.
    given = {
        name: one.default
        for name, one in inspect.signature(model.forward).parameters.items()
        if one.default is not one.empty
    }
    outputs = [_collect_outputs(model, around, batch) for batch in batches]
    tracer = _Tracer(model, around, list(batches), outputs)
    return fx.GraphModule(model, tracer.trace(model, concrete_args=given or None))


def _collect_outputs(
    model: nn.Module, around: set[int], batch: torch.Tensor
) -> dict[int, list[Any]]:
    """Returns the outputs of each untraced module, call by call."""
    outputs: dict[int, list[Any]] = {}
    hooks = [
        module.register_forward_hook(
            lambda module, _inputs, output: outputs.setdefault(id(module), []).append(output)
        )
        for module in model.modules()
        if id(module) not in around
    ]
    try:
        model(batch)
    finally:
        for hook in hooks:
            hook.remove()
    return outputs
