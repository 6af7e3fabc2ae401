"""Asks AIMET's QuantAnalyzer which layer of spoiled files costs most, in AIMET's environment.

Run as ``PYTHON scripts/beside_quant_analyzer.py FOLDER`` with the Python of an environment that has
AIMET (``pip install aimet-onnx``), after ``python -m scripts.beside_loss_debug 20 FOLDER``. The
analyzer switches off the quantizers of one layer at a time and gives each the score of a callback:
here the signal to noise of the outputs, against the float model's. The layer without which it is
the best is what it names; it names layers, no tensors, causes or repairs. (Its other analysis, with
one layer switched on, knows no float model here: onnxruntime's quantizer has put each Relu into the
range of a quantization, and without that it is another network.)
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx


def with_shared_parameters(model: onnx.ModelProto) -> onnx.ModelProto:
    """Gives both nodes of a pair the same constants: AIMET takes no pair with equal ones.

    Nor a scale and a zero point of other ranks, as onnxruntime's quantizer writes them.
    """
    held = {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}
    places = {each.name: each for each in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            pair = [held.get(name) for name in node.input[1:3]]
            if len(pair) == 2 and pair[0] is not None and pair[1] is not None:
                wanted = pair[0].reshape(pair[1].shape)
                scale = onnx.numpy_helper.from_array(wanted, node.input[1])
                places[node.input[1]].CopyFrom(scale)
                held[node.input[1]] = wanted
    makers = {name: node for node in model.graph.node for name in node.output}
    for node in model.graph.node:
        maker = makers.get(node.input[0]) if node.op_type == "DequantizeLinear" else None
        if maker is None or maker.op_type != "QuantizeLinear":
            continue
        for index in range(1, len(node.input)):
            own, other = held.get(node.input[index]), held.get(maker.input[index])
            if own is not None and other is not None and np.array_equal(own, other):
                node.input[index] = maker.input[index]
    return model


def worst_layer(spoiled: Path, model: Path, feeds: dict[str, np.ndarray]) -> str:
    """Returns the name of the node whose quantizers cost the outputs most."""
    import onnxruntime
    from aimet_onnx.quant_analyzer import QuantAnalyzer  # pyright: ignore
    from aimet_onnx.quantsim import QuantizationSimModel  # pyright: ignore

    sim: Any = QuantizationSimModel.from_onnx_qdq(with_shared_parameters(onnx.load(spoiled)))
    for quantizer in sim.qc_quantize_op_dict.values():  # what the file does not round stays float
        quantizer.enabled = bool(quantizer.enabled and quantizer.is_initialized())
    clean: Any = onnxruntime.InferenceSession(str(model)).run(None, feeds)

    def score(session: Any) -> float:
        ratios = [
            float(np.square(b - a).sum() / np.square(a).sum())
            for a, b in zip(clean, session.run(None, feeds), strict=True)
        ]
        noise = float(np.mean(ratios))
        return -10 * float(np.log10(noise)) if noise else np.inf

    analyzer: Any = QuantAnalyzer(sim.model.model, feeds, score, score)
    scores = analyzer.perform_per_layer_analysis_by_disabling_quantizers(sim)
    return max(scores, key=scores.__getitem__)


def main(folder: Path) -> int:
    right = done = 0
    for case in sorted(folder.glob("*.json"), key=lambda path: int(path.stem)):
        known = json.loads(case.read_text())
        with np.load(case.with_suffix(".npz")) as arrays:
            feeds = {name: arrays[name].astype(np.float32) for name in arrays.files}
        nodes = onnx.load(case.with_suffix(".onnx")).graph.node
        # A layer is the spoiled tensor's where it makes it or reads it, roundings looked through.
        tensors = set(known["tensors"])
        own = {
            name
            for node in nodes
            for name in (node.name, *node.input, *node.output)
            if tensors & {node.name, *node.input, *node.output}
        }
        try:
            layer = worst_layer(case.with_suffix(".onnx"), Path(known["float"]), feeds)
        except Exception as error:  # whatever it does not take counts as not named, and is shown
            layer = f"refused: {type(error).__name__}: {error}"[:120]
        beside = {node.name for node in nodes if own & {*node.input, *node.output}} | own
        named = layer in beside
        right, done = right + named, done + 1
        print(case.stem, known["label"], known["kind"], "->", layer, named, flush=True)
    print(f"{done} files: the layer that QuantAnalyzer ranks first is the spoiled one in {right}")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
