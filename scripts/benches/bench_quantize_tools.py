"""Ways to quantize a float network: ours, onnxruntime's and other tools'.

Other tools are run by Pythons of their own, for they may want other versions of our libraries:
``python -m venv nncf; nncf/bin/pip install nncf onnx onnxruntime`` and ``--nncf nncf/bin/python``;
``aimet-onnx`` and ``--aimet``; ``torch amd-quark onnx onnxruntime`` and ``--quark``;
``nvidia-modelopt[onnx]`` and ``--modelopt``. onnxruntime itself is in our Python, but for its
MatMulNBitsQuantizer, which wants ``onnx_ir`` and for HQQ ``torch``: ``--onnxruntime PYTHON``.

In such a Python this file is run as ``PYTHON bench_quantize_tools.py TOOL MODEL DATA OUT SETTING``.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))  # where NNCF's Python runs this file

from bench_networks import Array, Case, modern, session

OURS, ORT = "ours", "onnxruntime"
ORT_METHODS = ("MinMax", "Percentile", "Entropy")
INT4, BLOCKS, CHANNELS = "int4", "int4/32", "int4/channel"
BLOCK, WIDE = 32, "uint16"
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


@dataclass(frozen=True)
class Method:
    """A way to quantize: ``run(case, out)`` writes a file and returns what there is to remark."""

    tool: str
    name: str
    run: Callable[[Case, Path], str]

    def __str__(self) -> str:
        return f"{self.tool} {self.name}".strip()


def ours(
    target: str, chooser: str | None, weights: str | None, activations: str | None = None
) -> Callable[[Case, Path], str]:
    """Returns what quantizes with qdqbridge."""
    alone = weights in ALONE

    def run(case: Case, out: Path) -> str:
        import qdqbridge
        from qdqbridge.autoquant.planning.plan import format_of

        formats = {} if activations is None else {"*": format_of(activations)}
        graph = qdqbridge.quantize(
            case.path, case.calibration,
            target="weight-only" if alone else target, chooser=chooser,
            weights=INT4 if alone else weights, block=ALONE.get(weights or ""), formats=formats,
        )  # fmt: skip
        qdqbridge.save(graph, out, overwrite=True)
        return ""

    return run


def by_onnxruntime(
    method: str, weights: str | None, activations: str | None = None
) -> Callable[[Case, Path], str]:
    """Returns what quantizes with onnxruntime: uint8 activations, int8 weights per channel."""
    stored = "QInt4" if weights == "int4" else "QInt8"
    read = "QUInt16" if activations == WIDE else "QUInt8"

    def run(case: Case, out: Path) -> str:
        try:
            quantize_static(case, out, method, (read, stored), per_channel=True)
        except ValueError:  # 1.31 cannot compare scales per channel with that of a bias
            quantize_static(case, out, method, (read, stored), per_channel=False)
            return "per tensor; it fails per channel"
        return ""

    return run


def quantize_static(
    case: Case, out: Path, method: str, types: tuple[str, str], *, per_channel: bool
) -> None:
    """Quantizes with onnxruntime, with these types of activations and weights."""
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    prepared = out.with_suffix(".prepared.onnx")
    quant_pre_process(str(modern(case.path, out.parent)), str(prepared), skip_symbolic_shape=True)
    quantization.quantize_static(
        str(prepared),
        str(out),
        reader_of(case.calibration),
        quant_format=quantization.QuantFormat.QDQ,
        activation_type=quantization.QuantType[types[0]],
        weight_type=quantization.QuantType[types[1]],
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
    activations: str | None = None,
    without: Sequence[str] = (),
) -> list[Method]:
    """Returns what quantizes; ours first.

    Args:
        target: Ours.
        choosers: Ours to try.
        pythons: By tool of :data:`OTHERS`, the Python that has it.
        weights: How weights are stored: None for int8, ``int4`` or one of :data:`ALONE`.
        others: Other tools as well; those of other Pythons not with 16-bit activations.
        activations: :data:`WIDE`, or None for 8 bits.
        without: Parts of names of methods that are left out.
    """
    found = [
        Method(OURS, c, ours(target, None if c == "default" else c, weights, activations))
        for c in choosers
    ]
    if others and weights not in ALONE:
        found += [
            Method(ORT, name, by_onnxruntime(name, weights, activations)) for name in ORT_METHODS
        ]
    settings = OTHERS if weights is None else OTHERS_IN_4_BITS[weights]
    for tool, python in pythons.items():
        if others and activations is None:
            found += [
                Method(tool, name, by_other(tool, python, name)) for name in settings.get(tool, ())
            ]
    return [method for method in found if not any(part in str(method) for part in without)]


if __name__ == "__main__":
    print(JOBS[sys.argv[1]](*sys.argv[2:]))
