"""The words that string options take: in Python for the type checker, on the command line for help.

Tables of lower rooms say what each word means; a test holds both together.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

ProfileName: TypeAlias = Literal[
    "ort", "portable", "tensorrt", "qnn", "qnn-v73", "openvino", "qoperator"
]
"""How ONNX files are written, and for whom: ``qdqbridge.targets.profiles.PROFILES``."""
TFLiteProfileName: TypeAlias = Literal["tflite", "ethos-u", "tosa"]
"""Profiles of files that are written through TFLite."""
AnyProfileName: TypeAlias = Literal[ProfileName, TFLiteProfileName]
FixTarget: TypeAlias = Literal[ProfileName, TFLiteProfileName, "onnxruntime", "onnxruntime-web"]
"""What :func:`qdqbridge.app.fixing.fix` makes a file right for: a profile, or an engine of one."""
TargetName: TypeAlias = Literal[
    "ort",
    "ort-s8",
    "tensorrt",
    "qnn",
    "a16w8",
    "openvino",
    "tflite",
    "tosa",
    "power-of-two",
    "weight-only",
    "dynamic",
    "dynamic-rows",
    "float8",
]
"""What a float model is quantized for: ``qdqbridge.autoquant.planning.targets.TARGETS``."""
ChooserName: TypeAlias = Literal[
    "mse", "minmax", "percentile", "mean-of-maxima", "extrapolated", "kl", "hqq"
]
"""How ranges are chosen: ``qdqbridge.autoquant.choosers.CHOOSERS``."""
WeightFormat: TypeAlias = Literal[
    "int8",
    "uint8",
    "int16",
    "int4",
    "uint4",
    "int2",
    "uint2",
    "float8_e4m3fn",
    "float8_e5m2",
    "mxfp8_e4m3",
    "mxfp8_e5m2",
    "mxfp4_e2m1",
]
"""Storage types of weights: ``qdqbridge.autoquant.planning.targets.WEIGHTS``."""
PresetName: TypeAlias = Literal["balanced", "full", "fast"]
"""How much is tried: ``qdqbridge.autoquant.quantize.PRESETS``."""
FallbackFormat: TypeAlias = Literal["int16", "float"]
"""What layers become that cost too much in 8 bits."""
EngineName: TypeAlias = Literal[
    "onnxruntime",
    "onnxruntime-optimized",
    "onnxruntime-avx2",
    "onnxruntime-arm",
    "onnxruntime-web",
    "qnn-htp",
    "qnn-htp-v73",
    "openvino",
    "litert",
    "iree",
    "tosa",
]
"""Engines of vendors: ``qdqbridge.targets.engines.ENGINES``."""
ProfilingEngine: TypeAlias = Literal["onnxruntime", "tvm"]
"""What runs a float model while its statistics are collected."""
EncodingsFormat: TypeAlias = Literal[
    "aimet-0.6.1", "aimet-1.0.0", "aimet-2.0.0", "ort-overrides", "tensorrt"
]
"""Files of quantization parameters that can be written: ``qdqbridge.targets.encodings.FORMATS``."""
IoType: TypeAlias = Literal["float", "as-stored", "int8", "uint8"]
"""How inputs and outputs of a file are stored."""
TFLiteLayout: TypeAlias = Literal["model", "nhwc"]
"""The axes of inputs and outputs of TFLite files: ``qdqbridge.tflite_io.writer.LAYOUTS``."""
RelaxVariant: TypeAlias = Literal["qnn", "qdq"]
"""How a Relax module says quantization: ``qdqbridge.tvm.relax.emit``."""
RelayVariant: TypeAlias = Literal["canonical", "tflite", "dnnl", "fq2i"]
"""Whose tables match a Relay module: ``qdqbridge.tvm.relay.emit.variants.FORMS``."""
Kernels: TypeAlias = Literal["fast", "reference"]
"""What computes on TVM: ``qdqbridge.tvm.relax.executable.KERNELS``."""
Requantize: TypeAlias = Literal["half-even", "fixed-point", "double-round", "truncation", "shift"]
"""How an accelerator scales sums."""
Overflow: TypeAlias = Literal["wraparound", "saturation"]
"""What an accelerator's sums do beyond their type."""
