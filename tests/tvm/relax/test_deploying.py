"""Models for other machines: targets, the page, and what 64-bit Arm computes, under qemu-user."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qdqbridge as qb
from qdqbridge.app import hosting
from qdqbridge.errors import UnsupportedTargetError
from qdqbridge.tvm.relax.kernels.codegen.processors import PROCESSORS, C, cpu_of, target_of
from tests.places import MODELS, ROOT

PAGE = (ROOT / "docs" / "deploy.md").read_text("utf-8")
ARM = Path(os.environ.get("QDQBRIDGE_ARM_VENV") or ROOT / ".venv-arm")
SYSROOT, CROSS = "/usr/aarch64-linux-gnu", "aarch64-linux-gnu-g++"
on_arm = pytest.mark.skipif(
    not (ARM / "tvm").exists() or not all(map(shutil.which, ("qemu-aarch64", CROSS))),
    reason=f"it takes qemu-aarch64, {CROSS}, and TVM for Arm (scripts/arm_env)",
)


TARGETS: list[tuple[Any, str]] = [
    ("aarch64-linux-gnu", "neon"),
    ("aarch64-linux-gnu/cortex-a53", "neon"),
    ("aarch64-linux-gnu/cortex-a72", "neon"),
    ("aarch64-linux-gnu/cortex-a55", "neon_dot"),
    ("aarch64-linux-gnu/cortex-a76", "neon_dot"),
    ("aarch64-linux-gnu/neoverse-n1", "neon_dot"),
    ("aarch64-unknown-linux-gnu/neoverse-v1", "neon_i8mm"),
    ("arm64-apple-darwin/apple-m4", "neon_i8mm"),
    ("armv7a-linux-gnueabihf/cortex-a15", "generic"),
    ("riscv64-linux-gnu", "generic"),
    ("x86_64-linux-gnu/haswell", "avx2"),
    ("x86_64-linux-gnu/znver4", "avx512_vnni"),
    ("x86_64-linux-gnu/alderlake", "avx_vnni"),
    ({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+dotprod"]}, "neon_dot"),
]


@pytest.mark.parametrize(("target", "name"), TARGETS)
def test_targets_have_the_kernels_of_their_processors(target: Any, name: str) -> None:
    assert cpu_of(target_of(target)).name == name


def test_every_class_of_llvm_is_that_of_a_target() -> None:
    classes = {cpu.name for cpu in PROCESSORS if cpu.architecture != C}
    assert {name for _, name in TARGETS} == classes


@pytest.mark.parametrize(
    "target", ["foo-bar", "aarch64-linux-gnu/neoverse-n9", "x86_64-linux/", "a/b"]
)
def test_unknown_machines_are_refused(target: str) -> None:
    with pytest.raises(UnsupportedTargetError):
        target_of(target)


def _block(language: str, index: int = 0) -> str:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)[index]


def _loader(folder: Path, site: Path, compiler: str) -> Path:
    """Builds the page's program as the page says."""
    (folder / "load.cc").write_text(_block("cpp"))
    links = f"-Wl,-rpath,{site}/tvm_ffi/lib:{site}/tvm/lib"
    command = _block("bash").rstrip().replace("-ltvm_runtime", f"-ltvm_runtime {links}")
    wanted = {**os.environ, "SITE": str(site), "CXX": compiler}
    subprocess.run(["bash", "-ec", command], cwd=folder, env=wanted, check=True, timeout=240)
    return folder / "load"


def _digits(count: int) -> Any:
    with np.load(MODELS / "digits_test.npz") as held:
        return next(held[name] for name in held.files if held[name].ndim == 4)[:count]


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
def test_the_page_deploys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copyfile(MODELS / "digits_cnn_u8s8_per_channel.onnx", tmp_path / "model.onnx")
    names: dict[str, Any] = {}
    exec(_block("python"), names)
    if shutil.which("aarch64-linux-gnu-gcc"):
        exec(_block("python", 1), names)
        assert ("aarch64" in hosting.library_needs("model-arm.so")["missing"]) == (
            platform.machine() != "aarch64"
        )
    spec = find_spec("tvm_ffi")
    assert spec is not None and spec.origin is not None
    load = _loader(tmp_path, Path(spec.origin).parents[1], "g++")
    image = _digits(1).astype(np.float32)
    image.tofile("input.bin")
    subprocess.run([load, "./model.so", "input.bin", "output.bin"], check=True, timeout=240)
    (wanted,) = qb.load_executable("model.so").run({"input": image}).values()
    assert np.fromfile("output.bin", np.float32).tobytes() == wanted.tobytes()


@on_arm
def test_bits_on_arm_are_those_of_here(tmp_path: Path) -> None:
    load = _loader(tmp_path, ARM, CROSS)
    image = _digits(1).astype(np.float32)
    image.tofile(tmp_path / "input.bin")
    run = ["qemu-aarch64", "-L", SYSROOT, "-E", "TVM_NUM_THREADS=1", "-cpu"]
    for name, processors in _ON.items():
        graph = qb.load(MODELS / f"digits_{name}.onnx")
        (wanted,) = qb.compile(graph, threads=1).run({"input": image}).values()
        for qemu in processors:
            qb.compile(graph, _TARGETS[qemu], threads=1).save(tmp_path / "model.so")
            files = [tmp_path / file for file in ("model.so", "input.bin", "output.bin")]
            subprocess.run([*run, qemu, load, *files], check=True, timeout=240)
            found = np.fromfile(tmp_path / "output.bin", np.float32)
            assert found.tobytes() == wanted.tobytes(), (name, qemu)


_ON = {
    "cnn_s8s8_per_tensor": ("cortex-a57", "max,sve=off"),
    "attention_u8s8_per_channel": ("neoverse-n1", "max,sve=off"),
}
"""Networks, each with the processors that run it."""


_TARGETS: dict[str, Any] = {
    "cortex-a57": "aarch64-linux-gnu/cortex-a57",
    "neoverse-n1": "aarch64-linux-gnu/neoverse-n1",
    "max,sve=off": {
        "kind": "llvm", "mtriple": "aarch64-linux-gnu", "mattr": ["+dotprod", "+i8mm"],
    },
}  # fmt: skip
