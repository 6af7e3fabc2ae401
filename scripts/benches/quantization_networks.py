"""Trains float networks of many kinds on bundled data, to be quantized by several tools.

``python scripts/benches/quantization_networks.py FOLDER [NAME...] [--seed N]`` (PyTorch,
scikit-learn and onnx; two to ten minutes) writes ``NAME.onnx`` and ``NAME.npz`` for each: arrays
``seen_INPUT`` to calibrate with, ``fresh_INPUT`` to measure with, and ``labels`` where there are
some. ``scripts/bench quantize --folder FOLDER`` reads them. Digits are scikit-learn's, signals
are drawn. Another seed is another start, another order of training and, where the data are given,
another split of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from pytorch_networks import MobileNetV3, UNet, Vit
from sklearn.datasets import load_diabetes, load_digits
from torch import nn
from torch.nn import functional

Tensor = torch.Tensor
Loss = Callable[..., Tensor]
LOUD, HIDDEN, FRAME, KEYWORDS, CLOSE = 32.0, 64, 64, 12, 0.25
TRAINED, SEEN, FRESH = slice(0, 1200), slice(1200, 1264), slice(1264, 1392)
PRIORS = ((8, (0.25, 0.35)), (4, (0.4, 0.6)))
"""The grids of the detector, and the sizes of boxes on each, as shares of the picture."""


def fit(
    net: nn.Module, x: Tensor, y: tuple[Tensor, ...], epochs: int, loss: Loss,
    rate: float = 3e-3, batch: int = 64,
) -> None:  # fmt: skip
    """Trains a network with Adam."""
    optimizer = torch.optim.Adam(net.parameters(), rate)
    steps = len(x) // batch
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=epochs * steps)
    rng = np.random.default_rng(torch.initial_seed())
    net.train()
    for _ in range(epochs):
        order = rng.permutation(len(x))
        for i in range(steps):
            rows = order[i * batch : (i + 1) * batch]
            error = loss(net(x[rows]), *(each[rows] for each in y))
            optimizer.zero_grad()
            error.backward()
            optimizer.step()
            schedule.step()
    net.eval()


class Folder:
    """Where networks and samples are written."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path, self.seed = path, seed
        path.mkdir(parents=True, exist_ok=True)
        digits = load_digits()
        order = np.random.default_rng(seed).permutation(len(digits.target))
        images = digits.data.reshape(-1, 1, 8, 8)[order] / 16
        self.images = torch.tensor(images, dtype=torch.float32)
        self.labels = torch.tensor(digits.target[order])

    def write(
        self, name: str, net: nn.Module, seen: Sequence[Tensor], fresh: Sequence[Tensor],
        labels: Tensor | None = None, inputs: Sequence[str] = ("x",),
        outputs: Sequence[str] = ("y",), opset: int = 17,
    ) -> None:  # fmt: skip
        """Writes a network of open batches, and samples."""
        file = self.path / f"{name}.onnx"
        torch.onnx.export(
            net.eval(), tuple(each[:2] for each in seen), file, dynamo=False, opset_version=opset,
            input_names=list(inputs), output_names=list(outputs),
            dynamic_axes={key: {0: "n"} for key in (*inputs, *outputs)},
        )  # fmt: skip
        arrays = {f"seen_{k}": a.numpy() for k, a in zip(inputs, seen, strict=True)}
        arrays |= {f"fresh_{k}": a.numpy() for k, a in zip(inputs, fresh, strict=True)}
        if labels is not None:
            arrays["labels"] = labels.numpy()
        np.savez(file.with_suffix(".npz"), **arrays)  # pyright: ignore[reportArgumentType]
        print(name, flush=True)

    def drawn(self, number: int) -> int:
        """Returns the seed of a set of drawn samples."""
        return number + 100 * self.seed

    def classifier(self, name: str, net: nn.Module, epochs: int, *, rows: bool = False) -> None:
        """Trains on the digits; ``rows`` gives them as sequences of eight rows."""
        x = self.images[:, 0] if rows else self.images
        fit(net, x[TRAINED], (self.labels[TRAINED],), epochs, functional.cross_entropy)
        self.write(name, net, (x[SEEN],), (x[FRESH],), self.labels[FRESH])


class Recurrent(nn.Module):
    """A recurrent layer or two over rows, and a classifier of one step."""

    def __init__(self, kind: type[nn.LSTM | nn.GRU], width: int, *, both: bool = False) -> None:
        super().__init__()
        self.body = kind(8, width, 1 if both else 2, batch_first=True, bidirectional=both)
        self.head, self.step = nn.Linear(width * (1 + both), 10), 3 if both else -1

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)[0][:, self.step])


class GruCells(nn.Module):
    """A GRU written step by step."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.x, self.h = nn.Linear(8, 3 * width), nn.Linear(width, 3 * width)
        self.head, self.width = nn.Linear(width, 10), width

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(x.shape[0], self.width)
        for t in range(8):
            ar, az, an = self.x(x[:, t]).chunk(3, 1)
            br, bz, bn = self.h(h).chunk(3, 1)
            r, z = torch.sigmoid(ar + br), torch.sigmoid(az + bz)
            h = (1 - z) * torch.tanh(an + r * bn) + z * h
        return self.head(h)


class WaveNet(nn.Module):
    """Dilated causal convolutions with gates, residuals and skips."""

    def __init__(self, width: int = 24, layers: int = 6) -> None:
        super().__init__()

        def each(size: int = 1, dilated: bool = False) -> nn.ModuleList:
            return nn.ModuleList(
                nn.Conv1d(width, width, size, dilation=2**i if dilated else 1)
                for i in range(layers)
            )

        self.first = nn.Conv1d(1, width, 1)
        self.filters, self.gates = each(2, True), each(2, True)
        self.residuals, self.skips = each(), each()
        self.last = nn.Sequential(
            nn.ReLU(), nn.Conv1d(width, width, 1), nn.ReLU(), nn.Conv1d(width, 1, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        y, total = self.first(x), torch.zeros(1)
        for i, layer in enumerate(
            zip(self.filters, self.gates, self.residuals, self.skips, strict=True)
        ):
            filter_, gate, residual, skip = layer
            z = functional.pad(y, (2**i, 0))
            z = torch.tanh(filter_(z)) * torch.sigmoid(gate(z))
            total = total + skip(z)
            y = y + residual(z)
        return self.last(total)


class Denoiser(nn.Module):
    """Frames encoded, masked by two LSTMs and decoded; states go in and out."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Conv1d(FRAME, HIDDEN, 1, bias=False)
        self.norm = nn.LayerNorm(HIDDEN, eps=1e-7)
        self.one, self.two = nn.LSTM(HIDDEN, HIDDEN), nn.LSTM(HIDDEN, HIDDEN)
        self.mask = nn.Linear(HIDDEN, HIDDEN)
        self.decode = nn.Conv1d(HIDDEN, FRAME, 1, bias=False)

    def step(self, x: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        """Returns ``[time, n, FRAME]`` without noise, and the states."""
        seen = self.encode(x.permute(1, 2, 0)).permute(2, 0, 1)
        y, first = self.one(self.norm(seen), states[:2])
        y, second = self.two(y, states[2:])
        made = torch.sigmoid(self.mask(y)) * seen
        return self.decode(made.permute(1, 2, 0)).permute(2, 0, 1), *first, *second

    def forward(self, x: Tensor) -> Tensor:
        return self.step(x.transpose(0, 1), *[torch.zeros(1, len(x), HIDDEN)] * 4)[0].transpose(
            0, 1
        )


class OneFrame(nn.Module):
    """A denoiser of one frame, batch first."""

    def __init__(self, net: Denoiser) -> None:
        super().__init__()
        self.net = net

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        return tuple(y.transpose(0, 1) for y in self.net.step(*(x.transpose(0, 1) for x in given)))


class Detector(nn.Module):
    """Depthwise convolutions, two scales, a Softmax and decoded boxes."""

    def __init__(self) -> None:
        super().__init__()

        def block(before: int, after: int, stride: int) -> nn.Module:
            return nn.Sequential(
                nn.Conv2d(before, before, 3, stride, 1, groups=before, bias=False),
                nn.BatchNorm2d(before), nn.ReLU(), nn.Conv2d(before, after, 1, bias=False),
                nn.BatchNorm2d(after), nn.ReLU(),
            )  # fmt: skip

        self.stem = nn.Sequential(
            nn.Conv2d(1, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()
        )
        self.fine = nn.Sequential(block(16, 32, 1), block(32, 32, 2), block(32, 32, 1))
        self.coarse = nn.Sequential(block(32, 64, 2), block(64, 64, 1))
        self.scores = nn.ModuleList(nn.Conv2d(c, 4, 3, 1, 1) for c in (32, 64))
        self.boxes = nn.ModuleList(nn.Conv2d(c, 8, 3, 1, 1) for c in (32, 64))
        priors = [
            ((j + 0.5) / grid, (i + 0.5) / grid, size, size)
            for grid, sizes in PRIORS
            for i in range(grid)
            for j in range(grid)
            for size in sizes
        ]
        self.register_buffer("priors", torch.tensor(priors))

    def raw(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns scores and offsets of every prior."""
        fine = self.fine(self.stem(x))
        maps = (fine, self.coarse(fine))

        def joined(heads: nn.ModuleList, size: int) -> Tensor:
            parts = [head(m).permute(0, 2, 3, 1) for head, m in zip(heads, maps, strict=True)]
            pairs = zip(parts, maps, strict=True)
            flat = [p.reshape(-1, 2 * m.shape[2] * m.shape[3], size) for p, m in pairs]
            return torch.cat(flat, 1)

        return joined(self.scores, 2), joined(self.boxes, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores, offsets = self.raw(x)
        centre = offsets[..., :2] * 0.1 * self.priors[:, 2:] + self.priors[:, :2]
        half = torch.exp(offsets[..., 2:] * 0.2) * self.priors[:, 2:] / 2
        return torch.softmax(scores, 2), torch.cat([centre - half, centre + half], 2)


class DsCnn(nn.Module):
    """A keyword spotter: one wide convolution, then depthwise and pointwise ones."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()

        def each(before: int, size: tuple[int, int], stride: int, groups: int) -> list[nn.Module]:
            half = (size[0] // 2, size[1] // 2)
            conv = nn.Conv2d(before, width, size, stride, half, groups=groups, bias=False)
            return [conv, nn.BatchNorm2d(width), nn.ReLU()]

        layers = each(1, (9, 5), 2, 1)
        for _ in range(4):
            layers += each(width, (3, 3), 1, width) + each(width, (1, 1), 1, 1)
        self.body, self.head = nn.Sequential(*layers), nn.Linear(width, KEYWORDS)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean((2, 3)))


class RepVgg(nn.Module):
    """Convolutions of 3x3 alone, each made of three branches that were trained."""

    def __init__(self, widths: Sequence[int] = (1, 32, 32, 64, 64, 64)) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            nn.ModuleList(
                [nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b)]
                + [nn.Conv2d(a, b, 1, bias=False), nn.BatchNorm2d(b)]
                + ([nn.Identity(), nn.BatchNorm2d(b)] if a == b else [])
            )
            for a, b in pairwise(widths)
        )
        self.fused: nn.ModuleList | None = None
        self.head = nn.Linear(widths[-1], 10)

    def forward(self, x: Tensor) -> Tensor:
        for index, branch in enumerate(self.branches):
            if self.fused is not None:
                x = functional.relu(self.fused[index](x))
            else:
                assert isinstance(branch, nn.ModuleList)
                each = zip(branch[::2], branch[1::2], strict=True)
                x = functional.relu(sum(norm(conv(x)) for conv, norm in each))
            x = functional.max_pool2d(x, 2) if index in (1, 3) else x
        return self.head(x.mean((2, 3)))

    def deploy(self) -> RepVgg:
        """Makes one convolution of every three branches."""
        made = list[nn.Module]()
        for branch in self.branches:
            assert isinstance(branch, nn.ModuleList)
            wide = branch[0]
            assert isinstance(wide, nn.Conv2d)
            conv = nn.Conv2d(wide.in_channels, wide.out_channels, 3, padding=1)
            weight, bias = torch.zeros_like(wide.weight), torch.zeros(wide.out_channels)
            for one, norm in zip(branch[::2], branch[1::2], strict=True):
                kernel = torch.eye(wide.out_channels)[:, :, None, None]
                kernel = one.weight if isinstance(one, nn.Conv2d) else kernel
                kernel = kernel if kernel.shape[-1] == 3 else functional.pad(kernel, (1, 1, 1, 1))
                assert isinstance(norm, nn.BatchNorm2d)
                assert norm.running_var is not None and norm.running_mean is not None
                factor = norm.weight / torch.sqrt(norm.running_var + norm.eps)
                weight = weight + kernel * factor[:, None, None, None]
                bias = bias + norm.bias - norm.running_mean * factor
            conv.weight, conv.bias = nn.Parameter(weight.detach()), nn.Parameter(bias.detach())
            made.append(conv)
        self.fused = nn.ModuleList(made)
        return self


class EfficientBlock(nn.Module):
    """EfficientNet's block: widen, depthwise, SiLU, a gate of a Sigmoid, narrow, add."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        wide = 4 * before
        self.adds = before == after and stride == 1
        self.spread = nn.Sequential(
            nn.Conv2d(before, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.SiLU(),
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide),
            nn.SiLU(),
        )  # fmt: skip
        self.down, self.up = nn.Conv2d(wide, before // 4, 1), nn.Conv2d(before // 4, wide, 1)
        self.narrow = nn.Sequential(nn.Conv2d(wide, after, 1, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        y = self.spread(x)
        gate = torch.sigmoid(self.up(functional.silu(self.down(y.mean((2, 3), keepdim=True)))))
        y = self.narrow(y * gate)
        return x + y if self.adds else y


def efficientnet() -> nn.Module:
    """Returns blocks with squeeze, excitation and SiLU, over digits."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.SiLU(),
        EfficientBlock(16, 16, 1), EfficientBlock(16, 24, 2), EfficientBlock(24, 24, 1),
        EfficientBlock(24, 40, 2), EfficientBlock(40, 40, 1),
        nn.Conv2d(40, 96, 1, bias=False), nn.BatchNorm2d(96), nn.SiLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 10),
    )  # fmt: skip


# ---- samples ------------------------------------------------------------------------------------


def waves(count: int, length: int, seed: int) -> tuple[Tensor, Tensor]:
    """Returns sums of tones that swell and fade, with noise and without."""
    rng, t = np.random.default_rng(seed), np.arange(length)
    pitch, phase = rng.uniform(0.01, 0.2, (count, 4, 1)), rng.uniform(0, 6.3, (count, 4, 1))
    loud, pace = rng.lognormal(-1, 0.6, (count, 4, 1)), rng.uniform(0.002, 0.02, (count, 4, 1))
    swelling = loud * (0.2 + np.abs(np.sin(t * pace + phase)))
    clean = (swelling * np.sin(2 * np.pi * pitch * t + phase)).sum(1)
    noisy = clean + rng.normal(0, 0.3, clean.shape)
    return torch.tensor(noisy, dtype=torch.float32), torch.tensor(clean, dtype=torch.float32)


def scenes(images: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Returns pictures of 32x32 with a digit somewhere, and its box."""
    rng = np.random.default_rng(seed)
    pictures, boxes = np.zeros((count, 1, 32, 32), np.float32), np.zeros((count, 4), np.float32)
    for k in range(count):
        scale = int(rng.integers(1, 3))
        size = 8 * scale
        digit = images[k % TRAINED.stop, 0].numpy().repeat(scale, 0).repeat(scale, 1)
        y, x = (int(n) for n in rng.integers(0, 32 - size + 1, 2))
        pictures[k, 0, y : y + size, x : x + size] = digit * rng.uniform(0.5, 1)
        boxes[k] = (x, y, x + size, y + size)
    noisy = pictures + rng.normal(0, 0.05, pictures.shape).astype(np.float32)
    return torch.tensor(noisy), torch.tensor(boxes / 32)


def keywords(count: int, seed: int, apart: float = 1.0) -> tuple[Tensor, Tensor]:
    """Returns pictures of 49 frames and 10 cepstral coefficients, and which word each is of.

    Words that are less than 1 ``apart`` have as much in common.
    """
    words = np.random.default_rng(0).normal(0, 1, (KEYWORDS, 6, 10, 2))
    words = apart * words + (1 - apart) * words[:1]
    rng, t = np.random.default_rng(seed), np.arange(49)
    labels = rng.integers(0, KEYWORDS, count)
    begin, pace = rng.uniform(4, 16, (count, 1)), rng.uniform(3.5, 5.5, (count, 1))
    at = (t[None] - begin) / pace
    near = np.exp(-((at[:, :, None] - np.arange(6)) ** 2))
    loud = rng.lognormal(0, 0.5, (count, 1, 1))
    made = np.einsum("nts,nsc->ntc", near, words[labels, ..., 0]) * 4 * loud
    made += rng.normal(0, 1, made.shape)
    made[:, :, 0] -= 12 * rng.uniform(0.5, 1.5, (count, 1))
    return torch.tensor(made[:, None], dtype=torch.float32), torch.tensor(labels)


# ---- the networks -------------------------------------------------------------------------------


def vit(folder: Folder) -> None:
    """A ViT, and the same function with loud channels behind its norms."""
    net = Vit()
    folder.classifier("vit", net, 25)
    rng = np.random.default_rng(folder.seed)
    with torch.no_grad():
        for block in net.blocks:
            for norm, product in ((block.before, block.mixed), (block.after, block.up)):
                factor = torch.ones(len(norm.weight))
                factor[rng.permutation(len(factor))[:3]] = LOUD
                norm.weight *= factor
                norm.bias *= factor
                product.weight /= factor
    x = folder.images
    folder.write("vit_outliers", net, (x[SEEN],), (x[FRESH],), folder.labels[FRESH])


def detector(folder: Folder) -> None:
    """Finds a digit."""
    net, (x, box) = Detector(), scenes(folder.images, 2000, folder.drawn(1))
    priors = net.priors
    ends = torch.cat([priors[:, :2] - priors[:, 2:] / 2, priors[:, :2] + priors[:, 2:] / 2], 1)
    low = torch.maximum(ends[None, :, :2], box[:, None, :2])
    high = torch.minimum(ends[None, :, 2:], box[:, None, 2:])
    both, own = (high - low).clamp(min=0).prod(-1), (box[:, 2:] - box[:, :2]).prod(-1)
    share = both / ((ends[:, 2:] - ends[:, :2]).prod(-1)[None] + own[:, None] - both)
    found = (share > 0.35) | (share == share.max(1, keepdim=True)[0])
    centre, size = (box[:, :2] + box[:, 2:]) / 2, box[:, 2:] - box[:, :2]
    moved = (centre[:, None] - priors[:, :2]) / priors[:, 2:] / 0.1
    grown = torch.log(size[:, None] / priors[:, 2:]) / 0.2

    class Raw(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
            return self.net.raw(pictures)

    def loss(made: tuple[Tensor, Tensor], hit: Tensor, offsets: Tensor) -> Tensor:
        scores, boxes = made
        each = functional.cross_entropy(scores.transpose(1, 2), hit.long(), reduction="none")
        off = functional.smooth_l1_loss(boxes, offsets, reduction="none").sum(-1)
        return (each * torch.where(hit, 10.0, 1.0)).mean() + (off * hit).sum() / hit.sum()

    fit(Raw(), x, (found, torch.cat([moved, grown], -1)), 8, loss)
    seen, fresh = (scenes(folder.images, n, folder.drawn(k))[0] for n, k in ((64, 5), (128, 6)))
    folder.write("detector", net, (seen,), (fresh,), outputs=("scores", "boxes"))


def regression(folder: Folder) -> None:
    """An MLP on scikit-learn's diabetes data, whose ten inputs have long tails."""
    data = load_diabetes()
    order = np.random.default_rng(folder.seed).permutation(len(data.target))
    x = torch.tensor((data.data / data.data.std(0))[order], dtype=torch.float32)
    wanted = ((data.target - data.target.mean()) / data.target.std())[order]
    y = torch.tensor(wanted, dtype=torch.float32)[:, None]
    sizes = (10, HIDDEN, HIDDEN, HIDDEN)
    layers = [each for a, b in pairwise(sizes) for each in (nn.Linear(a, b), nn.ReLU())]
    net = nn.Sequential(*layers, nn.Linear(HIDDEN, 1))
    fit(net, x[:250], (y[:250],), 60, functional.mse_loss, 2e-3, 50)
    folder.write("regression", net, (x[250:314],), (x[314:],))


def wavenet(folder: Folder) -> None:
    """Takes noise from a signal."""
    net, (x, y) = WaveNet(), waves(256, 256, folder.drawn(1))
    fit(net, x[:, None], (y[:, None],), 12, functional.mse_loss, 4e-3, 16)
    seen, fresh = (waves(64, 256, folder.drawn(k))[0][:, None] for k in (2, 3))
    folder.write("wavenet", net, (seen,), (fresh,))


def denoiser(folder: Folder) -> None:
    """The same frame by frame, with states."""
    drawn = waves(192, 24 * FRAME, folder.drawn(1))
    net, (x, y) = Denoiser(), (each.reshape(-1, 24, FRAME) for each in drawn)
    fit(net, x, (y,), 12, functional.mse_loss, 5e-3, 16)
    one, samples = OneFrame(net).eval(), list[list[Tensor]]()
    for k in (2, 3):
        drawn, rows = waves(16, 24 * FRAME, folder.drawn(k))[0], list[list[Tensor]]()
        frames = drawn.reshape(16, 24, FRAME)
        states = [torch.zeros(16, 1, HIDDEN)] * 4
        with torch.no_grad():
            for t in range(24):
                now = [frames[:, t : t + 1], *states]
                rows += [now] if t % 4 == 3 else []
                states = list(one(*now)[1:])
        samples.append([torch.cat(column) for column in zip(*rows, strict=True)])
    seen = [each[: SEEN.stop - SEEN.start] for each in samples[0]]
    folder.write(
        "lstm_denoiser", one, seen, samples[1], inputs=("x", "ha", "ca", "hb", "cb"),
        outputs=("y", "ha_after", "ca_after", "hb_after", "cb_after"),
    )  # fmt: skip


def keyword_spotter(folder: Folder) -> None:
    """Tells twelve words."""
    net, (x, labels) = DsCnn(), keywords(3000, folder.drawn(1))
    fit(net, x, (labels,), 5, functional.cross_entropy)
    (seen, _), (fresh, wanted) = keywords(64, folder.drawn(2)), keywords(256, folder.drawn(3))
    folder.write("ds_cnn", net, (seen,), (fresh,), wanted)


def close_keywords(folder: Folder) -> None:
    """Tells twelve words that are nearly alike."""
    net, (x, labels) = DsCnn(), keywords(6000, folder.drawn(1), CLOSE)
    fit(net, x, (labels,), 12, functional.cross_entropy)
    seen, (fresh, wanted) = keywords(64, folder.drawn(2), CLOSE)[0], keywords(
        1024, folder.drawn(3), CLOSE
    )  # fmt: skip
    folder.write("ds_cnn_close", net, (seen,), (fresh,), wanted)


def repvgg(folder: Folder) -> None:
    """Trained with branches, written without."""
    net, x = RepVgg(), folder.images
    fit(net, x[TRAINED], (folder.labels[TRAINED],), 10, functional.cross_entropy)
    folder.write("repvgg", net.deploy(), (x[SEEN],), (x[FRESH],), folder.labels[FRESH])


def opset_12(folder: Folder) -> None:
    """A plain network in the operators of 2020."""
    net, x = RepVgg((1, 16, 32, 32)).deploy(), folder.images
    fit(net, x[TRAINED], (folder.labels[TRAINED],), 12, functional.cross_entropy)
    wanted = folder.labels[FRESH]
    folder.write("opset_12", net, (x[SEEN],), (x[FRESH],), wanted, opset=12)


NETWORKS: dict[str, Callable[[Folder], None]] = {
    "mobilenetv3": lambda f: f.classifier("mobilenetv3", MobileNetV3(), 12),
    "vit": vit,
    "unet": lambda f: f.classifier("unet", UNet(), 8),
    "lstm": lambda f: f.classifier("lstm", Recurrent(nn.LSTM, 48), 20, rows=True),
    "gru": lambda f: f.classifier("gru", Recurrent(nn.GRU, 48), 20, rows=True),
    "gru_both_ways": lambda f: f.classifier(
        "gru_both_ways", Recurrent(nn.GRU, 32, both=True), 20, rows=True
    ),
    "gru_cells": lambda f: f.classifier("gru_cells", GruCells(), 12, rows=True),
    "detector": detector,
    "regression": regression,
    "wavenet": wavenet,
    "ds_cnn": keyword_spotter,
    "ds_cnn_close": close_keywords,
    "opset_12": opset_12,
    "repvgg": repvgg,
    "efficientnet": lambda f: f.classifier("efficientnet", efficientnet(), 15),
    "lstm_denoiser": denoiser,
}


def main() -> None:
    """Trains those that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help="by default all")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    folder = Folder(given.folder, given.seed)
    torch.set_num_threads(1)
    for name in given.names or NETWORKS:
        torch.manual_seed(given.seed)
        NETWORKS[name](folder)


if __name__ == "__main__":
    main()
