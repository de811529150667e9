"""Cuts a network before one of its blocks: images -> activations, activations -> features.

torch.fx traces only the modules that contain blocks; blocks and other modules are not traced. Only
one tensor, the input of the first block after the cut, may cross the cut.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn

from dpprobe.backbones.network_forward import one_line
from dpprobe.errors import ConfigError
from dpprobe.finetune.blocks import blocks_of
from dpprobe.finetune.options import blocks_fault
from dpprobe.finetune.tracing import trace_graph

# The largest difference of features before and after cutting, relative to the largest feature.
_TOLERANCE = 1e-4


def cut_network(
    model: nn.Module, blocks: int, *, example: torch.Tensor, name: str = "the network"
) -> tuple[nn.Module, nn.Module, tuple[int, ...]]:
    """Cuts a network, normalised images -> features [m, d], before its last `blocks` blocks.

    Returns two parts (images -> activations, activations -> features), with the same parameters and
    names, and an activation's shape. `example` has at least two normalised images.

    Tracing changes torch's modules for all threads, so no other thread may run a network meanwhile.
    Raises ConfigError if there are too few blocks, the network cannot be traced, more than one
    tensor would cross the cut, or the parts' results differ from the whole network's.
    """
    modules = blocks_of(model, name)
    if fault := blocks_fault(blocks, len(modules), name):
        raise ConfigError(fault)
    try:
        graph = trace_graph(model, modules, (example[:1], example[:2]))
    except Exception as error:  # the model's code may raise any error
        raise ConfigError(
            f"tune: blocks: the forward pass of {name} cannot be traced, so it cannot be "
            f"cut ({one_line(error)}); write `tune: all`, or choose another backbone"
        ) from error
    entry = _find_entry(graph, model, modules[-blocks], name)
    runs = [_compute_values(graph, part) for part in (example[:1], example[:2])]
    crossing = entry.args[0]
    assert isinstance(crossing, fx.Node)
    prefix = _copy_prefix(graph, crossing)
    nodes = list(graph.graph.nodes)
    suffix = _copy_suffix(graph, crossing, nodes[nodes.index(entry) :], runs, name)
    shape = _read_shape(runs, crossing, name)
    with torch.no_grad():
        whole, parts = model(example[:2]), suffix(prefix(example[:2]))
    if not (whole - parts).abs().max() <= _TOLERANCE * whole.abs().max():
        raise ConfigError(
            f"tune: blocks: {blocks}: {name} gives different features when it is cut into two "
            "parts; write `augment`, which trains from images, or choose another backbone"
        )
    return prefix, suffix, shape


def _compute_values(graph: fx.GraphModule, images: torch.Tensor) -> dict[fx.Node, Any]:
    """Computes the value of each node of a traced network, for a batch of images."""
    interpreter = fx.Interpreter(graph, garbage_collect_values=False)
    with torch.no_grad():
        interpreter.run(images)
    return interpreter.env


def _find_entry(whole: fx.GraphModule, model: nn.Module, block: nn.Module, name: str) -> fx.Node:
    paths = {path for path, one in model.named_modules(remove_duplicate=False) if one is block}
    for node in whole.graph.nodes:
        if node.op == "call_module" and node.target in paths:
            if node.args and isinstance(node.args[0], fx.Node):
                return node
            break
    raise ConfigError(
        f"tune: blocks: {name} does not pass a tensor through its blocks one by one; write tune: "
        "all, or choose another backbone"
    )


def _copy_prefix(whole: fx.GraphModule, crossing: fx.Node) -> nn.Module:
    needed = {crossing}
    for node in reversed(whole.graph.nodes):
        if node in needed:
            needed.update(node.all_input_nodes)
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in whole.graph.nodes:
        if node in needed or node.op == "placeholder":
            copies[node] = graph.node_copy(node, lambda n: copies[n])
    graph.output(copies[crossing])
    return _make_module(whole, graph)


def _copy_suffix(
    whole: fx.GraphModule,
    crossing: fx.Node,
    behind: list[fx.Node],
    runs: list[dict[fx.Node, Any]],
    name: str,
) -> nn.Module:
    """Copies the graph after the cut, with the constants it needs from before the cut."""
    graph = fx.Graph()
    copies: dict[fx.Node, Any] = {crossing: graph.placeholder("activations")}
    from_images = _from_images(whole.graph)

    def find_needed(node: fx.Node) -> Any:
        if node not in copies:
            copies[node] = (
                _read_constant(node, runs, name) if node in from_images else copy_node(node)
            )
        return copies[node]

    def copy_node(node: fx.Node) -> fx.Node:
        for one in node.all_input_nodes:
            find_needed(one)
        return graph.node_copy(node, find_needed)

    for node in behind:
        copies[node] = copy_node(node)
    return _make_module(whole, graph)


def _from_images(graph: fx.Graph) -> set[fx.Node]:
    depending: set[fx.Node] = set()
    for node in graph.nodes:
        first = node.op == "placeholder" and not depending
        if first or depending & set(node.all_input_nodes):
            depending.add(node)
    return depending


def _read_constant(node: fx.Node, runs: list[dict[fx.Node, Any]], name: str) -> Any:
    """Returns a node's value, such as an image height, if all runs agree; refuses tensors."""
    first, second = (values[node] for values in runs)
    if isinstance(first, int | float | torch.dtype | torch.device) and first == second:
        return first
    raise ConfigError(
        f"tune: blocks: more than one tensor of {name} would cross the cut ({node.name} in "
        "addition to the block's input); choose another number of blocks, or `tune: all`"
    )


def _read_shape(runs: list[dict[fx.Node, Any]], crossing: fx.Node, name: str) -> tuple[int, ...]:
    first, second = (values[crossing] for values in runs)
    if (len(first), len(second)) != (1, 2) or first.shape[1:] != second.shape[1:]:
        raise ConfigError(
            f"tune: blocks: activations of {name} have shape {list(first.shape)} for one image "
            f"but {list(second.shape)} for two; write `tune: all`, or choose another "
            "backbone"
        )
    return tuple(first.shape[1:])


def _make_module(whole: fx.GraphModule, graph: fx.Graph) -> nn.Module:
    graph.lint()
    return fx.GraphModule(whole, graph).eval()
