"""Float networks quantized by us, by onnxruntime and by others: ``scripts/bench quantize``.

Every method gets the same calibration samples; what is measured are other samples. All quantized
files run in onnxruntime with graph optimizations disabled, which computes what they say, and with
all of them. Figures are output SQNR in dB (of several outputs the mean noise counts) and, where
there are labels, top-1 in percent; beside them stands the share of operators that compute whose
operands are all stored as integers.

Other tools are run by Pythons of their own, for they may want other versions of our libraries:
``python -m venv nncf; nncf/bin/pip install nncf onnx onnxruntime`` and ``--nncf nncf/bin/python``;
``aimet-onnx`` and ``--aimet``; ``torch amd-quark onnx onnxruntime`` and ``--quark``;
``nvidia-modelopt[onnx]`` and ``--modelopt``. ``--folder`` reads what
``quantization_networks.py`` trained.

onnxruntime itself is in our Python, but for its MatMulNBitsQuantizer, which wants ``onnx_ir`` and
for HQQ ``torch``: ``--onnxruntime PYTHON``.

``--weights int4`` stores weights in 4 bits per channel and activations in 8; ``--weights int4/32``
stores weights alone, in 4 bits with a scale for every 32 of a sum, ``--weights int4/channel`` with
one for every channel. Of those two the share is that of the products' weights (their elements) that
have 4 bits.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))  # where NNCF's Python runs this file

from bench_networks import Array, Case, cases, cases_in, modern, results, session

ORT_METHODS = ("MinMax", "Percentile", "Entropy")
INT4, BLOCKS, CHANNELS = "int4", "int4/32", "int4/channel"
BLOCK = 32
ALONE = {BLOCKS: BLOCK, CHANNELS: None}
"""What stores weights alone, and the size of its blocks."""
OTHERS = {
    "nncf": ("mixed", "performance", "transformer"),
    "aimet": ("min-max",),
    "quark": ("A8W8", "INT8_TRANSFORMER_DEFAULT"),
    "modelopt": ("max", "entropy"),
}
"""Tools that have Pythons of their own, and their settings."""
OTHERS_IN_4_BITS = {
    INT4: {
        "aimet": ("int4", "int4-sequential-mse", "int4-adaround"),
    },
    BLOCKS: {
        "onnxruntime": ("symmetric", "asymmetric", "k-quant", "HQQ", "GPTQ"),
        "nncf": ("INT4_SYM", "INT4_ASYM", "INT4_ASYM+scales", "INT4_ASYM+scales+AWQ"),
        "aimet": ("int4+blocks", "int4-sequential-mse+blocks"),
        "quark": ("MATMUL_NBITS", "MATMUL_NBITS-HQQ"),
        "modelopt": ("rtn_dq", "awq_lite", "awq_clip"),
    },
    CHANNELS: {
        "nncf": ("INT4_SYM+channel", "INT4_SYM+channel+scales", "INT4_SYM+channel+scales+AWQ"),
        "aimet": ("int4+channel", "int4-sequential-mse+channel", "int4-adaround+channel"),
        "modelopt": ("rtn_dq+channel", "awq_lite+channel", "awq_clip+channel"),
    },
}
"""The same for weights of 4 bits; what a tool has no way to store is not here."""
FLOAT_IF_IT_FAILS = ("Gather", "Conv", "ConvTranspose", "Gemm")
"""Operators that are left float, one more each time, where weights in blocks do not run."""
ADAROUND_STEPS = 1000
"""For every layer; AIMET's own number is 10,000."""
NO_ARITHMETIC = frozenset(
    {
        "Cast", "Concat", "Constant", "ConstantOfShape", "DequantizeLinear",
        "DynamicQuantizeLinear", "Expand", "Flatten", "Gather", "Identity", "Pad",
        "QuantizeLinear", "Reshape", "Shape", "Slice", "Split", "Squeeze", "Transpose",
        "Unsqueeze",
    }
)  # fmt: skip
"""Operators that are not counted among those that run on integers or do not."""
WITH_WEIGHTS = frozenset({"Conv", "ConvTranspose", "GRU", "Gemm", "LSTM", "MatMul"})
WITHIN = 0.1
"""How far below the best of onnxruntime's methods we may be, in dB."""
OURS, ORT = "ours", "onnxruntime"
FLOAT = "float"


@dataclass(frozen=True)
class Figures:
    """What a quantized file is like, or why there is none."""

    decibels: float = float("-inf")
    optimized: float = float("-inf")
    integers: str = ""
    top1: float | None = None
    seconds: float = 0.0
    remark: str = ""

    @property
    def share(self) -> float:
        """Of the operators that compute, those that read stored integers."""
        done, _, all_ = self.integers.partition("/")
        return int(done) / max(int(all_), 1) if all_ else 0.0


@dataclass(frozen=True)
class Method:
    """A way to quantize: ``run(case, out)`` writes a file and returns what there is to remark."""

    tool: str
    name: str
    run: Callable[[Case, Path], str]

    def __str__(self) -> str:
        return f"{self.tool} {self.name}".strip()


@dataclass(frozen=True)
class Row:
    """The figures of one network by method."""

    case: Case
    top1: float | None
    figures: Mapping[Method, Figures] = field(default_factory=dict[Method, Figures])

    def best(self, *tools: str, share: float = 0.0) -> float:
        """Returns the largest SQNR that a tool reaches with as many operators on integers.

        A file that computes what the float one does, or on floats alone, does not count.
        """
        found = [
            figures.decibels
            for method, figures in self.figures.items()
            if method.tool in tools
            and np.isfinite(figures.decibels)
            and figures.share >= max(share, np.finfo(float).tiny)
        ]
        return max(found, default=float("-inf"))

    @property
    def share(self) -> float:
        """The share of operators on integers of the first of our methods."""
        return next(f.share for m, f in self.figures.items() if m.tool == OURS)

    @property
    def ours(self) -> float:
        """The SQNR of the first of our methods."""
        return next(f.decibels for m, f in self.figures.items() if m.tool == OURS)


@dataclass(frozen=True)
class Calibration:
    """What is given of the samples to calibrate with.

    Attributes:
        samples: So many of the first; None for all.
        repeat: Each so often.
    """

    samples: int | None = None
    repeat: int = 1

    def of(self, case: Case) -> Case:
        """Returns a network with fewer samples, or the same ones again and again."""
        held = {
            name: array[: self.samples].repeat(self.repeat, axis=0)
            for name, array in case.calibration.items()
        }
        return replace(case, calibration=held)


# ---- methods ------------------------------------------------------------------------------------


def ours(target: str, chooser: str | None, weights: str | None) -> Callable[[Case, Path], str]:
    """Returns what quantizes with qdqbridge."""
    alone = weights in ALONE

    def run(case: Case, out: Path) -> str:
        import qdqbridge

        graph = qdqbridge.quantize(
            case.path, case.calibration,
            target="weight-only" if alone else target, chooser=chooser,
            weights=INT4 if alone else weights, block=ALONE.get(weights or ""),
        )  # fmt: skip
        qdqbridge.save(graph, out, overwrite=True)
        return ""

    return run


def by_onnxruntime(method: str, weights: str | None) -> Callable[[Case, Path], str]:
    """Returns what quantizes with onnxruntime: uint8 activations, int8 weights per channel."""
    stored = "QInt4" if weights == "int4" else "QInt8"

    def run(case: Case, out: Path) -> str:
        try:
            quantize_static(case, out, method, stored, per_channel=True)
        except ValueError:  # 1.31 cannot compare scales per channel with that of a bias
            quantize_static(case, out, method, stored, per_channel=False)
            return "per tensor; it fails per channel"
        return ""

    return run


def quantize_static(case: Case, out: Path, method: str, weights: str, *, per_channel: bool) -> None:
    """Quantizes with onnxruntime."""
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    prepared = out.with_suffix(".prepared.onnx")
    quant_pre_process(str(modern(case.path, out.parent)), str(prepared), skip_symbolic_shape=True)
    quantization.quantize_static(
        str(prepared),
        str(out),
        reader_of(case.calibration),
        quant_format=quantization.QuantFormat.QDQ,
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType[weights],
        per_channel=per_channel,
        calibrate_method=quantization.CalibrationMethod[method],
    )


def reader_of(data: Mapping[str, Array]) -> Any:
    """Returns samples as onnxruntime, Quark and ModelOpt read them."""
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.rewind()

        def rewind(self) -> None:
            self.samples = iter(one_by_one(data))

        def get_next(self) -> Any:
            return next(self.samples, None)

    return Reader()


def one_by_one(data: Mapping[str, Array]) -> list[dict[str, Array]]:
    """Returns samples as other tools take them."""
    count = len(next(iter(data.values())))
    return [{name: array[i : i + 1] for name, array in data.items()} for i in range(count)]


def by_other(tool: str, python: str, setting: str) -> Callable[[Case, Path], str]:
    """Returns what quantizes with a tool in another Python."""

    def run(case: Case, out: Path) -> str:
        data, model = out.with_suffix(".npz"), modern(case.path, out.parent)
        np.savez(data, **case.calibration)  # pyright: ignore[reportArgumentType]
        files = [str(path.resolve()) for path in (model, data, out)]
        command = [python, str(Path(__file__).resolve()), tool, *files, setting]
        # Quark leaves a table where it runs.
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=out.parent)
        if done.returncode:
            raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr else "failed")
        return done.stdout.strip().splitlines()[-1].split("%")[-1]  # behind a bar of progress

    return run


def whatever_runs(
    compress: Callable[[Sequence[str]], None], out: str, sample: Mapping[str, Array]
) -> str:
    """Stores weights in blocks; of fewer operators where what comes out does not run."""
    for count in range(len(FLOAT_IF_IT_FAILS) + 1):
        without = FLOAT_IF_IT_FAILS[:count]
        try:
            compress(without)
            session(Path(out)).run(None, dict(sample))
        except Exception:  # other tools raise what they like
            if without == FLOAT_IF_IT_FAILS:
                raise
        else:
            return f"fails with {', '.join(without)}" if without else "whole"
    raise AssertionError


def nncf_job(model: str, data: str, out: str, setting: str) -> str:
    """Quantizes with NNCF; runs in the Python that has it."""
    import nncf  # pyright: ignore[reportMissingImports]
    import onnx
    from nncf.quantization import advanced_parameters as advanced  # pyright: ignore

    samples = one_by_one(dict(np.load(data)))
    dataset: Any = nncf.Dataset(samples)
    mode, *extras = setting.split("+")
    if mode.startswith("INT4"):

        def compress(without: Sequence[str]) -> None:
            compressed: Any = nncf.compress_weights(
                onnx.load(model), mode=nncf.CompressWeightsMode[mode], ratio=1.0, all_layers=True,
                group_size=-1 if "channel" in extras else BLOCK,
                dataset=dataset if "scales" in extras else None,
                awq="AWQ" in extras or None, scale_estimation="scales" in extras or None,
                ignored_scope=nncf.IgnoredScope(types=list(without), validate=False),
                advanced_parameters=nncf.AdvancedCompressionParameters(
                    group_size_fallback_mode=advanced.GroupSizeFallbackMode.ADJUST,
                    min_adjusted_group_size=BLOCK // 2,
                ),
            )  # fmt: skip
            onnx.save(compressed, out)

        return f"{setting}; " + whatever_runs(compress, out, samples[0])
    kinds: dict[str, Any] = {"preset": nncf.QuantizationPreset.MIXED}
    if setting == "transformer":
        kinds["model_type"] = nncf.ModelType.TRANSFORMER
    else:
        kinds["preset"] = nncf.QuantizationPreset[setting.upper()]
    for fast in (False, True):
        try:
            quantized: Any = nncf.quantize(
                onnx.load(model),
                dataset,
                subset_size=len(samples),
                fast_bias_correction=fast,
                **kinds,
            )
        except Exception:  # NNCF raises what it likes: the fast correction works of more models
            if fast:
                raise
        else:
            onnx.save(quantized, out)
            return "fast bias correction; the full one fails" if fast else "full bias correction"
    raise AssertionError


def onnxruntime_job(model: str, data: str, out: str, setting: str) -> str:
    """Stores weights of products in blocks with onnxruntime's MatMulNBitsQuantizer."""
    import onnx
    from onnxruntime.quantization import matmul_nbits_quantizer as tool

    configs: dict[str, Callable[[], Any]] = {
        "k-quant": tool.KQuantWeightOnlyQuantConfig,
        "HQQ": lambda: tool.HQQWeightOnlyQuantConfig(block_size=BLOCK, bits=4),
        "GPTQ": lambda: tool.GPTQWeightOnlyQuantConfig(
            reader_of(dict(np.load(data))), block_size=BLOCK
        ),
    }
    quantizer = tool.MatMulNBitsQuantizer(
        onnx.load(model), block_size=BLOCK, is_symmetric=setting == "symmetric",
        algo_config=configs[setting]() if setting in configs else None,
    )  # fmt: skip
    quantizer.process()
    made: Any = quantizer.model
    made.save_model_to_file(out)
    return setting


def aimet_job(model: str, data: str, out: str, setting: str) -> str:
    """Quantizes with AIMET: weights of 8 or 4 bits, int8 activations, as it simulates them.

    By settings with ``+`` it stores weights alone, for each channel or in blocks.
    """
    import aimet_onnx  # pyright: ignore[reportMissingImports]
    import onnx
    from aimet_onnx import quantsim  # pyright: ignore[reportMissingImports]
    from aimet_onnx.common.quantsim_config import (  # pyright: ignore[reportMissingImports]
        utils as configs,
    )

    samples, kinds = one_by_one(dict(np.load(data))), dict[str, Any]()
    if setting.startswith(INT4):
        kinds["config_file"] = configs.get_path_for_per_channel_config()
    simulation: Any = aimet_onnx.QuantizationSimModel(
        onnx.load(model), param_type=INT4 if kinds else "int8", activation_type="int8", **kinds
    )
    algorithm, _, alone = setting.partition("+")
    for name in simulation.activation_names if alone else ():
        if (quantizer := simulation.qc_quantize_op_dict.get(name)) is not None:
            quantizer.enabled = False
    if alone == "blocks":
        quantsim.set_blockwise_quantization_for_weights(
            simulation, ("Conv", "ConvTranspose", "Gemm", "MatMul"), 4, True, BLOCK
        )
    if algorithm.endswith("sequential-mse"):
        aimet_onnx.apply_seq_mse(simulation, samples)
    elif algorithm.endswith("adaround"):
        aimet_onnx.apply_adaround(simulation, samples, num_iterations=ADAROUND_STEPS)
    simulation.compute_encodings(samples)
    onnx.save(simulation.to_onnx_qdq(), out)
    return setting


def quark_job(model: str, data: str, out: str, setting: str) -> str:
    """Quantizes with Quark by one of its named configurations."""
    from quark.onnx import ModelQuantizer  # pyright: ignore[reportMissingImports]
    from quark.onnx.quantization.config.config import (  # pyright: ignore[reportMissingImports]
        Config,
    )
    from quark.onnx.quantization.config.custom_config import (  # pyright: ignore[reportMissingImports]
        get_default_config,
    )

    name, _, algorithm = setting.partition("-")
    wanted: Any = get_default_config(name)
    if name == "MATMUL_NBITS":
        wanted.extra_options["MatMulNBitsParams"] |= {
            "GroupSize": BLOCK, "AccuracyLevel": 0, "Algorithm": algorithm or "DEFAULT"
        }  # fmt: skip
    config = Config(global_quant_config=wanted)
    ModelQuantizer(config).quantize_model(model, out, reader_of(dict(np.load(data))))
    return setting


def modelopt_job(model: str, data: str, out: str, setting: str) -> str:
    """Quantizes with NVIDIA's ModelOpt: int8, whatever is not quantized staying float32.

    By other settings it stores the weights of products in blocks of 4 bits.
    """
    import onnx
    from modelopt.onnx.quantization import (  # pyright: ignore[reportMissingImports]
        quantize,  # pyright: ignore[reportUnknownVariableType]
    )

    if setting.startswith(("rtn", "awq")):
        samples, nodes = dict(np.load(data)), onnx.load(model).graph.node
        method, _, channel = setting.partition("+")

        def compress(without: Sequence[str]) -> None:
            quantize(
                model, quantize_mode=INT4, calibration_method=method,
                block_size=-1 if channel else BLOCK,
                calibration_data_reader=reader_of(samples), calibration_eps=["cpu"],
                nodes_to_exclude=[node.name for node in nodes if node.op_type in without],
                high_precision_dtype="fp32", output_path=out,
            )  # fmt: skip

        return f"{setting}; " + whatever_runs(compress, out, one_by_one(samples)[0])
    quantize(
        model,
        quantize_mode="int8",
        calibration_data=dict(np.load(data)),
        calibration_method=setting,
        calibration_eps=["cpu"],
        high_precision_dtype="fp32",
        output_path=out,
    )
    return setting


JOBS = {
    "onnxruntime": onnxruntime_job,
    "nncf": nncf_job,
    "aimet": aimet_job,
    "quark": quark_job,
    "modelopt": modelopt_job,
}


def methods(
    target: str,
    choosers: Sequence[str],
    pythons: Mapping[str, str],
    weights: str | None = None,
    *,
    others: bool,
    without: Sequence[str] = (),
) -> list[Method]:
    """Returns what quantizes; ours first.

    Args:
        target: Ours.
        choosers: Ours to try.
        pythons: By tool of :data:`OTHERS`, the Python that has it.
        weights: How weights are stored: None for int8, ``int4`` or one of :data:`ALONE`.
        others: Other tools as well.
        without: Parts of names of methods that are left out.
    """
    found = [
        Method(OURS, c, ours(target, None if c == "default" else c, weights)) for c in choosers
    ]
    if others and weights not in ALONE:
        found += [Method(ORT, name, by_onnxruntime(name, weights)) for name in ORT_METHODS]
    settings = OTHERS if weights is None else OTHERS_IN_4_BITS[weights]
    for tool, python in pythons.items():
        if others:
            found += [
                Method(tool, name, by_other(tool, python, name)) for name in settings.get(tool, ())
            ]
    return [method for method in found if not any(part in str(method) for part in without)]


# ---- measuring ----------------------------------------------------------------------------------


def row(case: Case, ways: Sequence[Method], coverage: Callable[[Path], str]) -> Row:
    """Returns the figures of one network by method; ``coverage`` is said of each file."""
    reference = results(case.path, case.measured)
    found: dict[Method, Figures] = {}
    with tempfile.TemporaryDirectory() as folder:
        for way in ways:
            out, start = Path(folder) / "quantized.onnx", time.perf_counter()
            try:
                with quiet():
                    remark = way.run(case, out)
                seconds = time.perf_counter() - start
                got = results(out, case.measured)
                fused, remark = optimized(out, case, remark)
            except Exception as error:  # whatever another tool raises is a result
                found[way] = Figures(remark=" ".join(str(error).split())[:160])
                continue
            found[way] = Figures(
                decibels(reference, got),
                decibels(reference, fused) if fused else float("nan"),
                coverage(out),
                top1(case, got),
                seconds,
                remark,
            )
    return Row(case, top1(case, reference), found)


def optimized(out: Path, case: Case, remark: str) -> tuple[list[Array], str]:
    """Returns what onnxruntime's optimizations make of a file, nothing where they break it."""
    try:
        return results(out, case.measured, optimized=True), remark
    except Exception as error:  # its fusions fail on some files
        return [], f"{remark}; optimized: {' '.join(str(error).split())[:100]}"


def decibels(reference: Sequence[Array], other: Sequence[Array]) -> float:
    """Returns the SQNR of ``other``; of several outputs the mean share of noise counts."""
    shares = [
        float(np.sum((a - b) ** 2)) / max(float(np.sum(a**2)), np.finfo(float).tiny)
        for a, b in zip(reference, other, strict=True)
    ]
    noise = float(np.mean(shares))
    return float("inf") if not noise else -10 * float(np.log10(noise))


def top1(case: Case, outputs: Sequence[Array]) -> float | None:
    """Returns the share of right classes in percent, where there are labels."""
    if case.labels is None:
        return None
    return 100 * float(np.mean(outputs[0].argmax(1) == case.labels))


def integers(path: Path) -> str:
    """Returns how many of the operators that compute read stored integers, and how many compute."""
    import onnx

    graph = onnx.load(path).graph
    producers = {name: node for node in graph.node for name in node.output}
    constants = {tensor.name for tensor in graph.initializer}

    def stored(name: str) -> bool:
        node = producers.get(name)
        while node is not None and node.op_type in NO_ARITHMETIC and node.input:
            if node.op_type == "DequantizeLinear":
                return True
            name = node.input[0]
            node = producers.get(name)
        return name in constants or (node is not None and node.op_type == "Constant")

    computing = [node for node in graph.node if node.op_type not in NO_ARITHMETIC]
    found = sum(
        "Integer" in node.op_type
        or node.op_type.startswith("QLinear")
        or all(stored(name) for name in node.input[:2] if name)
        for node in computing
    )
    return f"{found}/{len(computing)}"


def in_4_bits(path: Path) -> str:
    """Returns how many elements of the weights of products have 4 bits, and how many there are."""
    import onnx

    graph = onnx.load(path).graph
    producers = {name: node for node in graph.node for name in node.output}
    constants = {tensor.name: tensor for tensor in graph.initializer}
    constants |= {n.output[0]: n.attribute[0].t for n in graph.node if n.op_type == "Constant"}

    def held(name: str) -> tuple[Any, int | None]:
        """Returns the constant behind a name, and the type of what a QuantizeLinear makes of it."""
        stored = None
        while (made := producers.get(name)) is not None and name not in constants:
            if made.op_type == "QuantizeLinear" and len(made.input) > 2:
                stored = constants[made.input[2]].data_type
            name = made.input[0] if made.input else ""
        return constants.get(name), stored

    narrow, total = 0, 0
    for node in graph.node:
        if node.op_type == "MatMulNBits":
            sizes = {a.name: a.i for a in node.attribute}
            total += sizes["K"] * sizes["N"]
            narrow += sizes["K"] * sizes["N"] if sizes.get("bits", 4) == 4 else 0
        for name in node.input[1:3] if node.op_type in WITH_WEIGHTS else ():
            tensor, stored = held(name)
            if tensor is not None and len(tensor.dims) > 1:
                total += int(np.prod(tensor.dims))
                types = (onnx.TensorProto.INT4, onnx.TensorProto.UINT4)
                narrow += int(np.prod(tensor.dims)) if (stored or tensor.data_type) in types else 0
    return f"{narrow}/{total}"


@contextlib.contextmanager
def quiet() -> Generator[None, None, None]:
    """Keeps warnings and chatter of other tools from the table."""
    logging.disable(logging.WARNING)
    with warnings.catch_warnings(), open(os.devnull, "w") as sink:
        warnings.simplefilter("ignore")
        with contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
            yield
    logging.disable(logging.NOTSET)


# ---- the table ----------------------------------------------------------------------------------


def show(found: Row) -> None:
    """Prints the figures of one network."""
    accuracy = "" if found.top1 is None else f", float top-1 {found.top1:.2f} %"
    print(f"{found.case.name}{accuracy}")
    for method, figures in found.figures.items():
        none = "  nothing quantized" if figures.decibels > 0 else "    no file"
        number = f"{figures.decibels:7.2f} dB" if np.isfinite(figures.decibels) else none
        accuracy = "" if figures.top1 is None else f"  top-1 {figures.top1:6.2f} %"
        if np.isfinite(figures.decibels):
            number += f" ({figures.optimized:.2f} optimized)  {figures.integers:>7}"
        print(f"    {method!s:<32}{number}{accuracy}  {figures.seconds:6.1f} s  {figures.remark}")
    for told, share in (("", 0.0), (" with as many operators on integers", found.share)):
        margin = found.ours - found.best(ORT, *OTHERS, share=share)
        if np.isfinite(margin):
            print(f"    ours over the best of the others{told}: {margin:+.2f} dB")
    sys.stdout.flush()


def as_json(rows: Sequence[Row]) -> str:
    """Returns the figures for programs."""
    return json.dumps(
        {
            found.case.name: {
                "float top-1": found.top1,
                **{
                    str(m): {
                        "dB": f.decibels,
                        "dB optimized": f.optimized,
                        "covered": f.integers,
                        "top-1": f.top1,
                        "seconds": f.seconds,
                        "remark": f.remark,
                    }
                    for m, f in found.figures.items()
                },
            }
            for found in rows
        },
        indent=1,
    )


def bench(
    networks: Sequence[str],
    seed: int,
    ways: Sequence[Method],
    out: Path | None,
    folder: Path | None = None,
    weights: str | None = None,
    calibration: Calibration | None = None,
) -> int:
    """Prints the tables.

    Args:
        networks: Names; all where there is none.
        seed: Of the drawn pictures.
        ways: Methods.
        out: A file for the figures.
        folder: Of networks of :mod:`quantization_networks`; None for those of the repository.
        weights: As :func:`methods` has them.
        calibration: What is given of the samples to calibrate with; None for all.

    Returns:
        1 where onnxruntime is better than we are by more than 0.1 dB.
    """
    rows: list[Row] = []
    every = cases(networks, seed) if folder is None else cases_in(folder, networks)
    coverage = in_4_bits if weights in ALONE else integers
    for case in every:
        rows.append(row(calibration.of(case) if calibration else case, ways, coverage))
        show(rows[-1])
    if out is not None:
        out.write_text(as_json(rows))
    below = [r.case.name for r in rows if r.ours < r.best(ORT, *OTHERS, share=r.share)]
    missed = [r.case.name for r in rows if r.ours < r.best(ORT) - WITHIN]
    told = "below the best of the others with as many operators on integers: "
    print(told + (", ".join(below) or "none"))
    print(f"below onnxruntime by more than {WITHIN} dB: " + (", ".join(missed) or "none"))
    return 1 if missed else 0


if __name__ == "__main__":
    print(JOBS[sys.argv[1]](*sys.argv[2:]))
