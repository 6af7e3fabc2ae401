"""TVM's TFLite converter, completed: more quantized operators, each between DQ and Q.

TVM 0.27 has TFLite's movers for floats and refuses them on quantized tensors; it averages
quantized tensors in integers and cuts the fraction off, which TFLite rounds. Here each is the float
operator between a dequantize and a quantize, as TVM does it for the operators it knows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax
from tvm.relax.frontend.tflite.tflite_frontend import OperatorConverter, get_tensor_name

_MOVERS = (
    "BATCH_TO_SPACE_ND", "BROADCAST_TO", "DEPTH_TO_SPACE", "EXPAND_DIMS", "GATHER", "GATHER_ND",
    "MIRROR_PAD", "PACK", "RESIZE_NEAREST_NEIGHBOR", "REVERSE_V2", "SLICE", "SPACE_TO_BATCH_ND",
    "SPACE_TO_DEPTH", "SPLIT", "SPLIT_V", "SQUEEZE", "STRIDED_SLICE", "TILE", "TRANSPOSE", "UNPACK",
)  # fmt: skip
_STORED = ("PAD", "PADV2")
"""Movers that TVM writes on the stored integers themselves: the number they add is one of these."""
_COMPUTED = ("AVERAGE_POOL_2D", "BATCH_MATMUL", "ELU", "PRELU")


class CompletedConverter(OperatorConverter):  # type: ignore[misc] # TVM has no type stubs
    """TVM's converter that knows these operators on quantized tensors too."""

    _SUPPORTED_QUANTIZED_OPS = OperatorConverter._SUPPORTED_QUANTIZED_OPS.union(
        _MOVERS, _STORED, _COMPUTED
    )

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._real = False
        for name in (*_MOVERS, *_COMPUTED):
            if name in self.convert_map:
                self.convert_map[name] = self._between(self.convert_map[name])

    def get_tensors(self, tensors_idx_list: Any) -> list[Any]:
        """Returns TVM's records of tensors; without quantization while a float operator is made."""
        found = super().get_tensors(tensors_idx_list)
        if self._real:
            for tensor in found:
                tensor.qnn_params = None
        return found

    def _between(self, convert: Callable[..., Any]) -> Callable[..., Any]:
        def run(op: Any) -> Any:
            outputs = self.get_output_tensors(op)
            tensors = {
                get_tensor_name(self.subgraph, tensor.tensor_idx): tensor
                for tensor in self.get_input_tensors(op)
                if tensor.qnn_params
            }
            kept = dict(self.exp_tab.exprs)
            for name, tensor in tensors.items():
                real = self.dequantize(self.get_tensor_expr(tensor), tensor)
                self.exp_tab.exprs[name] = self.bb.normalize(real)
            self._real = True
            try:
                result = convert(op=op)
            finally:
                self._real = False
                for name in tensors:
                    del self.exp_tab.exprs[name]
                self.exp_tab.exprs.update({n: kept[n] for n in tensors if n in kept})
            return self._stored(result, outputs)

        return run

    def _stored(self, result: Any, tensors: list[Any]) -> Any:
        """Returns results as integers where their tensors are quantized."""
        if len(tensors) == 1:
            return self.quantize(result, tensors[0]) if tensors[0].qnn_params else result
        whole = self.bb.normalize(result)
        fields = [relax.TupleGetItem(whole, index) for index in range(len(tensors))]
        pairs = zip(fields, tensors, strict=True)
        return relax.Tuple([self.quantize(f, t) if t.qnn_params else f for f, t in pairs])
