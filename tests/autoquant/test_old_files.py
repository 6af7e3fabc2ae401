"""Float files of old opsets, in the forms of their time, are quantized by the defaults."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import qdqbridge as qb

OLD = pytest.mark.parametrize("opset", [7, 8, 9, 10, 11, 12])


class Net:
    """Collects the nodes of a detector's kind: folded norms, an upsampled branch, flat Softmax."""

    def __init__(self, opset):
        self.opset, self.nodes, self.stored = opset, [], []
        self.rng = np.random.default_rng(0)

    def constant(self, name, array):
        self.stored.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def numbers(self, name, shape, spread=1.0, middle=0.0):
        drawn = middle + spread * self.rng.uniform(-1, 1, shape)
        return self.constant(name, drawn.astype(np.float32))

    def node(self, op, inputs, name, **attributes):
        self.nodes.append(helper.make_node(op, inputs, [name], name, **attributes))
        return name

    def conv(self, x, channels, size, name, kernel=3):
        shape = (size, channels, kernel, kernel)
        weight = self.numbers(f"{name}_w", shape, (channels * kernel * kernel) ** -0.5 * 2)
        return self.node("Conv", [x, weight], name, pads=[kernel // 2] * 4)

    def norm(self, x, channels, name):
        parts = [
            self.numbers(f"{name}_{part}", channels, 0.3, middle)
            for part, middle in (("scale", 1.0), ("bias", 0.0), ("mean", 0.0), ("var", 1.0))
        ]
        spatial = {"spatial": 1} if self.opset < 9 else {}
        return self.node("BatchNormalization", [x, *parts], name, **spatial)

    def clip(self, x, name):
        if self.opset < 11:
            return self.node("Clip", [x], name, min=0.0, max=6.0)
        bounds = [self.constant(f"{name}_{b}", np.float32(b)) for b in (0, 6)]
        return self.node("Clip", [x, *bounds], name)

    def padded(self, x, name):
        if self.opset < 11:
            return self.node("Pad", [x], name, pads=[0, 0, 1, 1, 0, 0, 1, 1])
        return self.node("Pad", [x, self.constant(f"{name}_p", [0, 0, 1, 1, 0, 0, 1, 1])], name)

    def doubled(self, x, name):
        scales = np.array([1, 1, 2, 2], np.float32)
        if self.opset < 9:
            return self.node("Upsample", [x], name, scales=scales.tolist())
        given = self.constant(f"{name}_s", scales)
        if self.opset == 9:
            return self.node("Upsample", [x, given], name)
        if self.opset == 10:
            return self.node("Resize", [x, given], name)
        how = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return self.node("Resize", [x, self.constant(f"{name}_r", scales[:0]), given], name, **how)

    def cut(self, x, name):
        starts, ends, axes = [1, 1], [9, 9], [2, 3]
        if self.opset < 10:
            return self.node("Slice", [x], name, starts=starts, ends=ends, axes=axes)
        given = [self.constant(f"{name}_{i}", each) for i, each in enumerate((starts, ends, axes))]
        return self.node("Slice", [x, *given], name)

    def model(self):
        x = self.padded("x", "pad")
        x = self.node("Relu", [self.norm(self.conv(x, 3, 8, "c1"), 8, "n1")], "r1")
        x = self.clip(self.norm(self.conv(x, 8, 8, "c2", 1), 8, "n2"), "clip")
        x = self.node("Dropout", [x], "drop")
        half = self.node("MaxPool", [x], "pool", kernel_shape=[2, 2], strides=[2, 2])
        up = self.doubled(self.conv(half, 8, 8, "c3"), "up")
        x = self.cut(self.node("Add", [up, x], "sum"), "cut")
        flat = self.node("Softmax", [self.conv(x, 8, 4, "head")], "flat", axis=1)
        box = self.node("Transpose", [self.conv(x, 8, 4, "boxes", 1)], "last", perm=[0, 2, 3, 1])
        boxes = self.node("Reshape", [box, self.constant("shape", [0, -1, 4])], "box")
        pooled = self.node("Flatten", [self.node("GlobalAveragePool", [x], "gap")], "rows")
        weight, bias = self.numbers("g_w", (5, 8)), self.numbers("g_b", 5)
        logits = self.node("Gemm", [pooled, weight, bias], "logits", transB=1)
        names = {flat: 4, boxes: 3, logits: 2}
        real = TensorProto.FLOAT
        inputs = [helper.make_tensor_value_info("x", real, ["n", 3, 8, 8])]
        if self.opset < 9:  # initializers were inputs then
            inputs += [
                helper.make_tensor_value_info(each.name, each.data_type, list(each.dims))
                for each in self.stored
            ]
        outputs = [
            helper.make_tensor_value_info(name, real, ["n", *[None] * (rank - 1)])
            for name, rank in names.items()
        ]
        graph = helper.make_graph(self.nodes, "old", inputs, outputs, self.stored)
        ir_version = 3 if self.opset < 9 else 5
        own = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=own, ir_version=ir_version)


def by_onnxruntime(model: onnx.ModelProto | str, feeds: dict[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    content = model if isinstance(model, str) else model.SerializeToString()
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


@OLD
def test_old_files_are_quantized_and_exported(opset, tmp_path):
    model = Net(opset).model()
    onnx.checker.check_model(model)
    path = tmp_path / "old.onnx"
    onnx.save(model, path)
    images = np.random.default_rng(1).uniform(-1, 1, (48, 3, 8, 8)).astype(np.float32)
    fresh = {"x": images[32:]}
    wanted = by_onnxruntime(model, fresh)
    # Sums in another order.
    for mine, theirs in zip(qb.evaluate(qb.load(path), fresh).values(), wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=2e-6)
    graph = qb.quantize(path, {"x": images[:32]}, repair=())
    products = [n for n in graph.nodes if n.op.name in ("Conv", "Gemm")]
    assert all(node.operand(0).quant is not None for node in products)
    for profile in ("ort", "portable", "openvino"):
        out = tmp_path / f"{profile}.onnx"
        qb.save(graph, out, profile=profile)
        found = by_onnxruntime(str(out), fresh)
        for real, stored in zip(wanted, found, strict=True):
            assert np.sum(real**2) > 10**2.8 * np.sum((real - stored) ** 2)  # 28 dB
