"""Networks that pytorch_route.py trains on the digits, beside those of make_models.py."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional


class Gate(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down = nn.Conv2d(channels, channels // 4, 1)
        self.up = nn.Conv2d(channels // 4, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.down(functional.adaptive_avg_pool2d(x, 1)))
        return x * functional.hardsigmoid(self.up(y))


class Inverted(nn.Module):
    """MobileNetV3's block: widen, depthwise, gate, narrow, add."""

    def __init__(self, before: int, after: int, stride: int, act: Callable[[], nn.Module]) -> None:
        super().__init__()
        wide = 3 * before
        self.adds = before == after and stride == 1
        self.body = nn.Sequential(
            nn.Conv2d(before, wide, 1, bias=False), nn.BatchNorm2d(wide), act(),
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide),
            act(), Gate(wide), nn.Conv2d(wide, after, 1, bias=False), nn.BatchNorm2d(after),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        return x + y if self.adds else y


class MobileNetV3(nn.Module):
    """Inverted residuals with depthwise convolutions, gates, HardSwish and SiLU."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.Hardswish()
        )
        self.body = nn.Sequential(
            Inverted(16, 16, 1, nn.ReLU), Inverted(16, 24, 2, nn.Hardswish),
            Inverted(24, 24, 1, nn.Hardswish), Inverted(24, 32, 2, nn.SiLU),
        )  # fmt: skip
        self.head = nn.Sequential(nn.Linear(32, 48), nn.Hardswish(), nn.Linear(48, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.adaptive_avg_pool2d(self.body(self.stem(x)), 1)
        return self.head(torch.flatten(x, 1))


class NextBlock(nn.Module):
    """ConvNeXt's block: depthwise convolution, LayerNorm and a GELU network channels-last, add."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 5, padding=2, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)
        self.scale = nn.Parameter(0.1 * torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(functional.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


class ConvNext(nn.Module):
    """ConvNeXt with a GroupNorm between its stages."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 24, 2, 2)
        self.first = nn.Sequential(NextBlock(24), NextBlock(24))
        self.between = nn.Sequential(nn.GroupNorm(1, 24), nn.Conv2d(24, 40, 2, 2))
        self.second, self.norm, self.head = NextBlock(40), nn.LayerNorm(40), nn.Linear(40, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.second(self.between(self.first(self.stem(x))))
        return self.head(self.norm(x.mean([-2, -1])))


class VitBlock(nn.Module):
    """Attention by PyTorch's own function from one product for queries, keys and values."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.mixed(self.before(x)).chunk(3, dim=-1)
        shape = (batch, length, self.heads, width // self.heads)
        query, key, value = (part.view(shape).transpose(1, 2) for part in parts)
        y = functional.scaled_dot_product_attention(query, key, value)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.after(x)), approximate="tanh"))


class Vit(nn.Module):
    """A vision transformer: patches, a class token, embedded positions."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.patches, self.positions = nn.Conv2d(1, width, 2, 2), nn.Embedding(17, width)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.register_buffer("index", torch.arange(17))
        self.blocks = nn.Sequential(VitBlock(width, 4), VitBlock(width, 4))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions(self.index)
        return self.head(self.norm(self.blocks(x))[:, 0])


class UNet(nn.Module):
    """Two scales down and up again: transposed convolution, nearest resize, concatenations."""

    def __init__(self) -> None:
        super().__init__()

        def block(before: int, after: int) -> nn.Module:
            return nn.Sequential(
                nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after),
                nn.LeakyReLU(0.1),
            )  # fmt: skip

        self.first, self.second, self.third = block(1, 16), block(16, 24), block(24, 24)
        self.up = nn.ConvTranspose2d(24, 16, 2, 2)
        self.fourth, self.fifth, self.head = block(40, 24), block(40, 24), nn.Linear(24, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.first(x)
        b = self.second(functional.max_pool2d(a, 2))
        y = self.up(self.third(functional.max_pool2d(b, 2)))
        y = functional.interpolate(self.fourth(torch.cat([y, b], 1)), scale_factor=2)
        y = self.fifth(torch.cat([y, a], 1))
        return self.head(functional.avg_pool2d(y, 8).flatten(1))
