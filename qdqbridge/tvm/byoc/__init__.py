"""Bring your own codegen: pattern tables for the QNN dialect, on Relax and on Relay.

From a model to regions for a backend, in one page::

    import qdqbridge as qb
    from qdqbridge.tvm.byoc import Constraints, Limits, canonical, composites, describe, partition

    npu = canonical("npu", constraints=Constraints(Limits(activations=("int8",), batch=1)))
    module, _ = qb.to_relax(qb.load("model.onnx"))
    module, coverage = partition(module, npu)
    print(coverage.text())                     # what was taken, what was left, and why
    for composite in composites(module):
        record = describe(composite, npu)      # Convolution(input=…, weight=…, bias=…, strides=…)

* a table: :func:`canonical`, or :class:`Table` of own :class:`Entry` rows (name, pattern,
  describing function, check); ``table.only("conv2d", "dense")``, ``entry.checked(check)``
* patterns: :class:`CallPattern`, :class:`ConstantPattern`, :class:`Anything`, :class:`Tuple`,
  :class:`Either`, :func:`optional`, with Relay's operator names on both hosts
* constraints: :class:`Constraints` and :class:`Limits`, data that turn into reasons
* rewrites before emission: ``graph, done = prepare(graph, npu)``
* records: :mod:`qdqbridge.tvm.byoc.records`
* ``compare_regions(module)``: which region's code is wrong
* ``runnable(module)``: a partitioned module that any build runs without a codegen

Nothing here imports TVM before a module is given.
"""

from qdqbridge.core.arguments import renamed_in
from qdqbridge.tvm.byoc.constraints import Constraints, Limits
from qdqbridge.tvm.byoc.coverage import Composite, Coverage, Left, Taken
from qdqbridge.tvm.byoc.partition import (
    RegionDifference,
    compare_regions,
    composites,
    describe,
    partition,
    runnable,
)
from qdqbridge.tvm.byoc.pattern import (
    Anything,
    CallPattern,
    ConstantPattern,
    Either,
    Optional,
    Tuple,
    optional,
)
from qdqbridge.tvm.byoc.rewrites import Rewrite, prepare
from qdqbridge.tvm.byoc.table import Entry, Table
from qdqbridge.tvm.byoc.tables import canonical

__all__ = [
    "Anything",
    "CallPattern",
    "Composite",
    "ConstantPattern",
    "Constraints",
    "Coverage",
    "Either",
    "Entry",
    "Left",
    "Limits",
    "Optional",
    "RegionDifference",
    "Rewrite",
    "Table",
    "Taken",
    "Tuple",
    "canonical",
    "compare_regions",
    "composites",
    "describe",
    "optional",
    "partition",
    "prepare",
    "runnable",
]

__getattr__ = renamed_in(globals(), Call="CallPattern", Constant="ConstantPattern")
