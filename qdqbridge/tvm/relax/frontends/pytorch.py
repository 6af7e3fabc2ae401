"""A program that ``torch.export`` made, float or quantized by PT2E, as a graph."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqbridge.core.arguments import renamed
from qdqbridge.core.canonical import canonicalize
from qdqbridge.core.graph.graph import Graph
from qdqbridge.core.graph.verify import verify
from qdqbridge.core.options import ReadingOptions
from qdqbridge.errors import (
    InputDataError,
    QdqBridgeError,
    UnsupportedModelError,
)
from qdqbridge.tvm.relax.frontends import dynamic_parameters
from qdqbridge.tvm.relax.frontends.missing import imported
from qdqbridge.tvm.relax.frontends.quantized_decomposed import converters
from qdqbridge.tvm.relax.read import read_function

_WHOLE = (
    "aten.elu.default", "aten.gelu.default", "aten.hardsigmoid.default", "aten.hardswish.default",
    "aten.leaky_relu.default", "aten.linear.default", "aten.matmul.default",
    "aten.scaled_dot_product_attention.default",
    "aten.selu.default", "aten.softplus.default",
    "aten.upsample_nearest2d.vec",
)  # fmt: skip
"""Operators that TVM's frontend knows as one, and that PyTorch's decompositions would take apart.

Batch norms are not among them: TVM 0.27 reads the undecomposed one's arguments one place off.
"""


@renamed(reroll="fuse")
def from_torch(program: Any, *, canonical: bool = True, fuse: bool = False) -> Graph:
    """Reads an exported PyTorch program through TVM's frontend.

    A program quantized by PT2E (operators ``quantized_decomposed.*``) becomes the graph that the
    QDQ ONNX file of the same program is read as. Products whose activations it quantizes while it
    runs (``choose_qparams``) are a ``DynamicDense`` or ``DynamicConv``.

    Args:
        program: What ``torch.export.export`` returned, of a model in evaluation mode.
        canonical: Rewrite the graph to the canonical form.
        fuse: As for :func:`qdqbridge.load`.

    Returns:
        The graph; inputs have the names of the module's arguments.

    Raises:
        InputDataError: It is no exported program.
        UnsupportedModelError: PyTorch is not installed, TVM's frontend does not know an operator,
            or an operator has no counterpart here; all of them are listed.
        UnsupportedQuantization: Scales that it finds while it runs are not those of ONNX's
            DynamicQuantizeLinear, or a type is not known.
    """
    torch = imported("torch", "from_torch", "torch")
    if not isinstance(program, torch.export.ExportedProgram):
        raise InputDataError(
            f"from_torch was given {type(program).__name__}, no exported program",
            fix="give it torch.export.export(model.eval(), example_inputs)",
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's about itself
        program = program.run_decompositions(_decompositions(torch))
    dynamic_parameters.check(program)
    module = _imported(program)
    names = [str(name) for name in program.graph_signature.user_outputs]
    graph = read_function(module["main"], module, output_names=names, where="the exported program")
    verify(graph)
    if canonical:
        verify(canonicalize(graph, ReadingOptions(fuse=fuse, dynamic=True)))
    graph.notes.extend(dynamic_parameters.notes(program))
    return graph


def _decompositions(torch: Any) -> dict[Any, Any]:
    table = torch.export.default_decompositions()
    for operator in list(table):
        if str(operator) in _WHOLE:
            table.pop(operator)
    return table


def _imported(program: Any) -> Any:
    """Returns the program as TVM's frontend imports it; what that raises is mapped here."""
    from tvm.relax.frontend.torch import from_exported_program

    try:
        return from_exported_program(
            program,
            run_ep_decomposition=False,
            unwrap_unit_return_tuple=True,
            custom_convert_map={
                **converters(dict(_constants(program))),
                "hardsigmoid.default": _hard_sigmoid,
            },
        )
    except QdqBridgeError:
        raise
    except Exception as error:  # TVM's frontend raises what its converters meet
        raise UnsupportedModelError(
            "TVM's PyTorch frontend cannot import the program",
            why=str(error).strip().partition("\n")[0] or type(error).__name__,
            fix="write the operator with others, or export the model as ONNX and load that",
        ) from error


def _hard_sigmoid(node: Any, importer: Any) -> Any:
    """``clip(x / 6 + 1/2, 0, 1)``, which is read as ONNX's HardSigmoid; TVM clips to 6 first."""
    from tvm import relax

    x = importer.env[node.args[0]]
    sixth, half = (relax.const(number, x.ty.dtype.dtype) for number in (1 / 6, 0.5))
    line = relax.op.add(relax.op.multiply(sixth, x), half)
    clipped = relax.op.clip(line, 0, 1)  # type: ignore[arg-type] # TVM takes numbers
    return importer.block_builder.emit(clipped)


def _constants(program: Any) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yields the program's tensors by the name of the node that stands for them."""
    held: dict[str, Any] = {**program.state_dict, **program.constants}
    for spec in program.graph_signature.input_specs:
        tensor = held.get(spec.target) if spec.target is not None else None
        if tensor is not None and hasattr(tensor, "detach"):
            yield str(spec.arg.name), np.asarray(tensor.detach().cpu().numpy())
