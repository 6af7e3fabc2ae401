"""Writes the files of docs/walkthrough.md into the working directory.

The wheel of rapidocr-onnxruntime, which has the network, has to be there. Lines of text are drawn
with Pillow; class 1 are those that are upside down.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

wheel = zipfile.ZipFile(next(Path().glob("rapidocr_onnxruntime-*.whl")))
name = "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx"
Path("direction.onnx").write_bytes(wheel.read(name))

rng = np.random.default_rng(0)
letters = np.array(list("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"))
images, labels = [], []
for _ in range(300):
    text = "".join(rng.choice(letters, rng.integers(6, 14)))
    ground, ink = rng.integers(150, 256, 3), rng.integers(0, 110, 3)
    line = Image.new("RGB", (192, 48), tuple(int(c) for c in ground))
    font = ImageFont.load_default(int(rng.integers(18, 34)))
    ImageDraw.Draw(line).text((4, rng.integers(2, 10)), text, tuple(int(c) for c in ink), font)
    turned = int(rng.integers(2))
    line = line.rotate(180) if turned else line
    pixels = np.asarray(line, np.float32) + rng.normal(0, 6, (48, 192, 3))
    images.append(((pixels / 255 - 0.5) / 0.5).transpose(2, 0, 1))
    labels.append(turned)
x, y = np.array(images, np.float32), np.array(labels)
np.savez("lines.npz", x=x[:100], labels=y[:100])
np.savez("others.npz", x=x[100:], labels=y[100:])
