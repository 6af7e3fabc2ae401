"""Train the project's own small networks on scikit-learn's digits and quantize them.

``python scripts/generators/make_models.py`` rewrites ``models/``: float ONNX files, their twins
in QDQ form made by onnxruntime's ``quantize_static``, the test images, and a manifest that says
what each file is. Every step is seeded, so a second run with the same library versions gives the
same bytes.

Needs the ``models`` extra: ``pip install -e .[models]``.
"""

from __future__ import annotations

import hashlib
import io
import json
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import torch
from numpy.typing import NDArray
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from threadpoolctl import threadpool_limits
from torch import nn
from torch.nn import functional

MODELS = Path(__file__).resolve().parents[2] / "models"
SEED = 7
TEST_IMAGES = 360
CALIBRATION_IMAGES = 256
OPSET = 17
INPUT, OUTPUT = "input", "logits"
SIZE_LIMIT = 300_000

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Digits:
    """The seeded split of the data set; images are ``float32[N, 1, 8, 8]`` in 0..1."""

    train_x: Floats
    train_y: Labels
    test_x: Floats
    test_y: Labels


@dataclass(frozen=True, slots=True)
class Configuration:
    """One way to call ``quantize_static``."""

    name: str
    activation: QuantType
    weight: QuantType
    per_channel: bool
    symmetric_activations: bool


U8S8_PER_CHANNEL = Configuration(
    "u8s8_per_channel",
    QuantType.QUInt8,
    QuantType.QInt8,
    per_channel=True,
    symmetric_activations=False,
)
# Symmetric activations keep Relu and Clip as nodes of their own: their lower bound is not implied
# by the range of the type, as it is for uint8 with zero point 0.
S8S8_PER_TENSOR = Configuration(
    "s8s8_per_tensor",
    QuantType.QInt8,
    QuantType.QInt8,
    per_channel=False,
    symmetric_activations=True,
)


class DigitsCnn(nn.Module):
    """Convolutions (one depthwise), a residual sum, both ReLUs, both kinds of pooling, a Gemm."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, 24, 3, padding=1, bias=False), nn.BatchNorm2d(24), nn.ReLU()
        )
        self.depthwise = nn.Sequential(
            nn.Conv2d(24, 24, 3, padding=1, groups=24, bias=False), nn.BatchNorm2d(24), nn.ReLU6()
        )
        self.pointwise = nn.Sequential(nn.Conv2d(24, 24, 1, bias=False), nn.BatchNorm2d(24))
        self.widen = nn.Sequential(
            nn.Conv2d(24, 48, 3, padding=1, bias=False), nn.BatchNorm2d(48), nn.ReLU()
        )
        self.last = nn.Sequential(nn.Conv2d(48, 64, 2, bias=False), nn.BatchNorm2d(64), nn.ReLU6())
        self.average = nn.AvgPool2d(2, stride=1)
        self.classifier = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = functional.relu(x + self.pointwise(self.depthwise(x)))
        x = functional.max_pool2d(x, 2)
        x = self.average(self.last(self.widen(x)))
        x = functional.adaptive_avg_pool2d(x, 1)
        return self.classifier(torch.flatten(x, 1))


class Block(nn.Module):
    """One pre-LN transformer block: attention, then a GELU network, each added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.head_width = width // heads
        self.norm_attention = nn.LayerNorm(width)
        self.query, self.key, self.value, self.project = (nn.Linear(width, width) for _ in range(4))
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm_attention(x))
        return x + self.mlp(self.norm_mlp(x))

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            self.split_heads(part(x)) for part in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(-2, -1) * self.head_width**-0.5
        mixed = torch.softmax(scores, dim=-1) @ value
        return self.project(mixed.transpose(1, 2).reshape(-1, 8, self.heads * self.head_width))

    def split_heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1, 8, self.heads, self.head_width).transpose(1, 2)


class DigitsAttention(nn.Module):
    """A pre-LN transformer whose eight tokens are the rows of the image."""

    def __init__(self, width: int = 40, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.position = nn.Parameter(0.02 * torch.randn(1, 8, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.classifier = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x.reshape(-1, 8, 8)) + self.position
        return self.classifier(self.norm(self.blocks(x)).mean(dim=1))


def multilayer_perceptron(digits: Digits) -> nn.Module:
    """Three hidden layers with ReLU, trained by scikit-learn with its default settings.

    Every hidden channel may be scaled freely, which is what equalization is tried on.
    """
    classifier = MLPClassifier((64, 64, 32), random_state=SEED)
    with threadpool_limits(1):
        classifier.fit(digits.train_x.reshape(-1, 64), digits.train_y)
    layers: list[nn.Module] = [nn.Flatten()]
    for weight, bias in zip(classifier.coefs_, classifier.intercepts_, strict=True):
        linear = nn.Linear(*weight.shape)
        linear.weight.data = torch.from_numpy(weight.T.copy()).float()
        linear.bias.data = torch.from_numpy(bias).float()
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1]).eval()


class DigitsMobile(nn.Sequential):
    """Convolutions, depthwise ones between pointwise ones, no residual sum: triples of layers."""

    def __init__(self) -> None:
        def block(before: int, after: int, **how: int) -> list[nn.Module]:
            return [
                nn.Conv2d(before, after, bias=False, **how), nn.BatchNorm2d(after), nn.ReLU()
            ]  # fmt: skip

        super().__init__(
            *block(1, 16, kernel_size=3, padding=1),
            *block(16, 16, kernel_size=3, padding=1, groups=16),
            *block(16, 32, kernel_size=1),
            *block(32, 32, kernel_size=3, padding=1, stride=2, groups=32),
            *block(32, 64, kernel_size=1),
            *block(64, 64, kernel_size=3, padding=1, groups=64),
            *block(64, 64, kernel_size=1),
            nn.AvgPool2d(4),
            nn.Flatten(),
            nn.Linear(64, 10),
        )


class Calibration(CalibrationDataReader):
    """Feeds training images to onnxruntime's calibrator in batches of 32."""

    def __init__(self, images: Floats) -> None:
        self._batches: Iterator[Floats] = iter(np.split(images, len(images) // 32))

    def get_next(self) -> dict[str, Floats] | None:
        batch = next(self._batches, None)
        return None if batch is None else {INPUT: batch}


def load_split() -> Digits:
    data = load_digits()
    images = (data.images / 16.0).astype(np.float32)[:, None]
    labels = data.target.astype(np.int64)
    train_x, test_x, train_y, test_y = train_test_split(
        images, labels, test_size=TEST_IMAGES, random_state=SEED, stratify=labels
    )
    return Digits(train_x, train_y, test_x, test_y)


def train(network: nn.Module, digits: Digits, epochs: int) -> nn.Module:
    images, labels = torch.from_numpy(digits.train_x), torch.from_numpy(digits.train_y)
    batch, rate = 64, 4e-3
    steps = epochs * -(-len(images) // batch)
    optimizer = torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=rate, total_steps=steps)
    network.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(images)).split(batch):
            loss = functional.cross_entropy(
                network(shift(images[rows])), labels[rows], label_smoothing=0.05
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return network.eval()


def shift(images: torch.Tensor) -> torch.Tensor:
    """Move the whole batch by up to one pixel, the only augmentation."""
    down, right = (int(step) for step in torch.randint(-1, 2, (2,)))
    padded = functional.pad(images, (1, 1, 1, 1))
    return padded[:, :, 1 + down : 9 + down, 1 + right : 9 + right]


def export_float(network: nn.Module, path: Path) -> None:
    with warnings.catch_warnings():
        # The TorchScript exporter is deprecated, but folds BatchNorm and writes opset 17 directly;
        # the newer one exports opset 18 and converts down.
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.onnx.export(
            network,
            (torch.zeros(2, 1, 8, 8),),
            str(path),
            dynamo=False,
            opset_version=OPSET,
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_axes={INPUT: {0: "batch"}, OUTPUT: {0: "batch"}},
        )


def quantize(source: Path, target: Path, configuration: Configuration, digits: Digits) -> None:
    with tempfile.TemporaryDirectory() as folder:
        prepared = Path(folder) / "prepared.onnx"
        quant_pre_process(
            str(source), str(prepared), skip_optimization=True, skip_symbolic_shape=True
        )
        quantize_static(
            str(prepared),
            str(target),
            Calibration(digits.train_x[:CALIBRATION_IMAGES]),
            quant_format=QuantFormat.QDQ,
            activation_type=configuration.activation,
            weight_type=configuration.weight,
            per_channel=configuration.per_channel,
            calibrate_method=CalibrationMethod.MinMax,
            extra_options={"ActivationSymmetric": configuration.symmetric_activations},
        )


def accuracy(path: Path, digits: Digits) -> float:
    """Top-1 accuracy on the test images, onnxruntime on the CPU without graph optimizations."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    (logits,) = session.run([OUTPUT], {INPUT: digits.test_x})
    return float((logits.argmax(axis=1) == digits.test_y).mean())


def make_network(
    name: str,
    network: nn.Module,
    epochs: int,
    configurations: tuple[Configuration, ...],
    digits: Digits,
) -> list[dict[str, object]]:
    """Train, export and quantize one network; returns its rows of the manifest."""
    float_path = MODELS / f"{name}_float.onnx"
    export_float(train(network, digits, epochs), float_path)
    float_accuracy = accuracy(float_path, digits)
    exporter = f"torch {version('torch').split('+')[0]}, TorchScript exporter"
    rows = [describe(float_path, name, exporter, "float", float_accuracy, None)]
    for configuration in configurations:
        path = MODELS / f"{name}_{configuration.name}.onnx"
        quantize(float_path, path, configuration, digits)
        producer = f"onnxruntime {version('onnxruntime')}, quantize_static, QDQ"
        measured = accuracy(path, digits)
        rows.append(describe(path, name, producer, configuration.name, float_accuracy, measured))
    return rows


def make_mlp(digits: Digits) -> dict[str, object]:
    """Train and export the multilayer perceptron; returns its row of the manifest."""
    path = MODELS / "digits_mlp_float.onnx"
    export_float(multilayer_perceptron(digits), path)
    torch_version = version("torch").split("+")[0]
    exporter = f"scikit-learn {version('scikit-learn')}, torch {torch_version}"
    return describe(path, "digits_mlp", exporter, "float", accuracy(path, digits), None)


def describe(
    path: Path,
    network: str,
    producer: str,
    configuration: str,
    float_accuracy: float,
    quantized_accuracy: float | None,
) -> dict[str, object]:
    """One row of the manifest; refuses a file that is invalid or too large to keep."""
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    content = path.read_bytes()
    if len(content) > SIZE_LIMIT:
        raise SystemExit(f"{path.name} has {len(content)} bytes, more than {SIZE_LIMIT}")
    return {
        "file": path.name,
        "network": network,
        "producer": producer,
        "configuration": configuration,
        "opset": OPSET,
        "float_accuracy": round(float_accuracy, 6),
        "quantized_accuracy": quantized_accuracy and round(quantized_accuracy, 6),
        "inputs": [value.name for value in model.graph.input],
        "outputs": [value.name for value in model.graph.output],
        "nodes": len(model.graph.node),
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def write_test_images(path: Path, digits: Digits) -> None:
    """Write an .npz with a fixed time stamp; ``numpy.savez`` writes the current time."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in (("x", digits.test_x), ("labels", digits.test_y)):
            buffer = io.BytesIO()
            np.save(buffer, array)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), buffer.getvalue())


def write_manifest(path: Path, rows: list[dict[str, object]]) -> None:
    manifest = {
        "made_by": "python scripts/generators/make_models.py",
        "data": "scikit-learn digits, pixels divided by 16, "
        f"stratified split with seed {SEED}: 1437 training and {TEST_IMAGES} test images",
        "calibration": f"min-max over the first {CALIBRATION_IMAGES} training images",
        "accuracy": "top-1 on the test images, onnxruntime CPU, graph optimizations disabled",
        "test_images": "digits_test.npz",
        "models": rows,
    }
    path.write_text(json.dumps(manifest, indent=2) + "\n")


def main() -> None:
    # One thread: the order of float sums, and so the weights, must not depend on the core count.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    MODELS.mkdir(exist_ok=True)
    digits = load_split()
    torch.manual_seed(SEED)
    cnn = (U8S8_PER_CHANNEL, S8S8_PER_TENSOR)
    rows = make_network("digits_cnn", DigitsCnn(), 25, cnn, digits)
    torch.manual_seed(SEED)
    attention = (U8S8_PER_CHANNEL,)
    rows += make_network("digits_attention", DigitsAttention(), 60, attention, digits)
    rows.append(make_mlp(digits))
    torch.manual_seed(SEED)
    rows += make_network("digits_mobile", DigitsMobile(), 40, (), digits)
    write_test_images(MODELS / "digits_test.npz", digits)
    write_manifest(MODELS / "manifest.json", rows)
    for row in rows:
        print(row["file"], row["float_accuracy"], row["quantized_accuracy"], row["bytes"])


if __name__ == "__main__":
    main()
