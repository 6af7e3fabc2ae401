"""Executables as files: the same results, the interface, damage, other CPUs."""

from __future__ import annotations

import copy
import pickle
import platform
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm

import qdqbridge as qb
from qdqbridge.errors import (
    InputDataError,
    ModelFileError,
    OutputFileError,
    UnsupportedTargetError,
)
from qdqbridge.tvm.relax import files, saving
from qdqbridge.tvm.relax.kernel_times import kernel_times
from tests.tvm.relax.digits import MODEL, digits

_OTHER = "x86_64-linux-gnu" if platform.machine() == "aarch64" else "aarch64-linux-gnu"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: Any) -> tuple[Any, Path]:
    executable = digits()
    path = tmp_path_factory.mktemp("saved") / "digits.so"
    executable.save(path)
    return executable, path


def test_results_and_interface_are_the_same(saved: Any) -> None:
    executable, path = saved
    loaded = qb.load_executable(path)
    assert loaded.input_names == executable.input_names
    assert loaded.output_names == executable.output_names
    types = [v.type.dtype for v in (*executable.graph.inputs, *executable.graph.outputs)]
    assert [v.type.dtype for v in (*loaded.graph.inputs, *loaded.graph.outputs)] == types
    assert [v.type.shape for v in loaded.graph.inputs] == [
        v.type.shape for v in executable.graph.inputs
    ]
    shape = [e if isinstance(e, int) else 3 for e in loaded.graph.inputs[0].type.shape or ()]
    data = {loaded.input_names[0]: np.random.default_rng(0).normal(size=shape).astype(np.float32)}
    wanted = executable.run(data)
    for name, array in loaded.run(data).items():
        np.testing.assert_array_equal(array, wanted[name])


def test_wrong_inputs_are_refused_as_before(saved: Any) -> None:
    loaded = qb.load_executable(saved[1])
    with pytest.raises(InputDataError, match="not those of the model"):
        loaded.run({})
    with pytest.raises(InputDataError, match="wrong element type"):
        loaded.run({loaded.input_names[0]: np.zeros((1, 1, 8, 8), np.int32)})


def test_a_library_for_tvm_alone(saved: Any) -> None:
    assert tvm.runtime.load_module(str(saved[1]))["vm_load_executable"] is not None


def test_damage_is_found(saved: Any, tmp_path: Path) -> None:
    whole = saved[1].read_bytes()
    for name, data in (
        ("short", whole[: len(whole) // 2]),
        ("empty", b""),
        ("other", b"x" * 4096),
        ("changed", whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:]),
        ("interface", whole.replace(b'"threads"', b'"threadz"')),
    ):
        path = tmp_path / f"{name}.so"
        path.write_bytes(data)
        with pytest.raises(ModelFileError, match="cannot load"):
            qb.load_executable(path)
    with pytest.raises(ModelFileError):
        qb.load_executable(tmp_path / "missing.so")


def test_a_cpu_without_the_instructions(saved: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    least = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"})
    wanted = saving.features_of(saved[0].target)
    monkeypatch.setattr(saving, "host_target", lambda: least)
    if set(wanted) - set(saving.features_of(least)):
        with pytest.raises(UnsupportedTargetError, match="cannot run the library"):
            qb.load_executable(saved[1])


def test_code_for_another_architecture_is_compiled_and_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executable = qb.compile(qb.load(MODEL), {"kind": "llvm", "mtriple": _OTHER})
    data = {executable.input_names[0]: np.zeros((1, 1, 8, 8), np.float32)}
    for run in (executable.run, partial(kernel_times, executable)):
        with pytest.raises(UnsupportedTargetError, match="cannot run the executable"):
            run(data)
    monkeypatch.setattr(files, "_candidates", lambda triple: [None])
    for cc, why in (
        (None, "no compiler for"),
        ("no-such-cc -O2", "no command"),
        ("false", "ended with 1"),
    ):
        with pytest.raises(OutputFileError, match="cannot link") as caught:
            executable.save(tmp_path / "other.so", cc)
        assert caught.value.where == str(tmp_path / "other.so")
        assert why in str(caught.value) and "cc" in caught.value.fix
        assert not list(tmp_path.iterdir())


def test_habits_and_systems_instructions_do_not_matter() -> None:
    lesser = saving.features_of(tvm.target.Target({"kind": "llvm", "mcpu": "haswell"}))
    assert {"avx2", "fma"} <= set(lesser)
    assert not {"ermsb", "invpcid", "macrofusion", "xsave"} & set(lesser)


def test_loading_is_quiet(saved: Any, capfd: pytest.CaptureFixture[str]) -> None:
    loaded = qb.load_executable(saved[1])
    kernel_times(loaded, {loaded.input_names[0]: np.zeros((1, 1, 8, 8), np.float32)}, 1)
    assert "".join(capfd.readouterr()) == ""


def test_what_cannot_be_saved(saved: Any, tmp_path: Path) -> None:
    with pytest.raises(InputDataError, match="cannot save"):
        saved[0].save(tmp_path / "digits.bin")
    with pytest.raises(InputDataError, match="cannot save"):
        qb.load_executable(saved[1]).save(tmp_path / "again.bin")
    with pytest.raises(InputDataError, match="path"):
        saved[0].save(5)
    assert not list(tmp_path.iterdir())


def test_what_was_loaded_is_copied(saved: Any, tmp_path: Path) -> None:
    first, again = tmp_path / "first.so", tmp_path / "again.so"
    first.write_bytes(saved[1].read_bytes())
    loaded = qb.load_executable(first)
    loaded.save(again)
    loaded.save(first)  # over itself
    assert again.read_bytes() == first.read_bytes() == saved[1].read_bytes()
    again.write_bytes(b"kept")
    first.unlink()
    with pytest.raises(ModelFileError, match="cannot load"):
        loaded.save(again)
    assert again.read_bytes() == b"kept"


def test_what_a_cache_has_given_is_saved(tmp_path: Path) -> None:
    graph = qb.load(MODEL)
    qb.compile(graph, cache=tmp_path / "cache")
    executable = qb.compile(graph, cache=tmp_path / "cache")
    assert executable.source is not None
    executable.save(tmp_path / "saved.so")
    data = {executable.input_names[0]: np.ones((1, 1, 8, 8), np.float32)}
    (wanted,) = executable.run(data).values()
    (got,) = qb.load_executable(tmp_path / "saved.so").run(data).values()
    np.testing.assert_array_equal(got, wanted)


def test_pickles_and_copies_are_refused(saved: Any) -> None:
    for duplicate in (pickle.dumps, copy.deepcopy):
        with pytest.raises(InputDataError, match="cannot be pickled"):
            duplicate(saved[0])
