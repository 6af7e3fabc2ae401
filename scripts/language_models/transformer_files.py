"""Files of optimum's exporter, fused by onnxruntime's transformer optimizer, and quantized.

Runs in an environment of its own (``pip install optimum-onnx onnxruntime onnx olive-ai torch``)::

    python scripts/language_models/transformer_files.py FOLDER [MODEL]...

Two small layers of random weights each, no network: an export, the export with the operators that
onnxruntime's optimizer fuses, the weights-in-8-bits file of ``quantize_dynamic``, and what Olive's
passes make of it. Makes what is not there yet.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import torch
import transformers
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.transformers import optimizer
from onnxruntime.transformers.fusion_options import FusionOptions
from optimum.exporters.onnx import onnx_export_from_model

HEADS, HIDDEN = 4, 64
WORDS = {"vocab_size": 320, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
BERT = {
    **WORDS, "hidden_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": HEADS,
    "intermediate_size": 128, "max_position_embeddings": 256,
}  # fmt: skip
MODELS: dict[str, tuple[str, str, str, str, dict[str, Any]]] = {
    "bert": ("BertConfig", "BertModel", "feature-extraction", "bert", BERT),
    "roberta": ("RobertaConfig", "RobertaModel", "feature-extraction", "bert",
                {**BERT, "pad_token_id": 1, "bos_token_id": 0}),
    "distilbert": ("DistilBertConfig", "DistilBertModel", "feature-extraction", "bert",
                   {**WORDS, "dim": HIDDEN, "n_layers": 2, "n_heads": HEADS, "hidden_dim": 128,
                    "max_position_embeddings": 256}),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", "text-generation-with-past", "gpt2",
             {**WORDS, "n_embd": HIDDEN, "n_layer": 2, "n_head": HEADS, "n_positions": 256}),
    "llama": ("LlamaConfig", "LlamaForCausalLM", "text-generation-with-past", "gpt2",
              {**BERT, "num_key_value_heads": 2}),
    "t5": ("T5Config", "T5ForConditionalGeneration", "text2text-generation-with-past", "t5",
           {**WORDS, "d_model": HIDDEN, "d_kv": 16, "num_layers": 2, "num_heads": HEADS,
            "d_ff": 128, "decoder_start_token_id": 0}),
    "whisper": ("WhisperConfig", "WhisperForConditionalGeneration",
                "automatic-speech-recognition-with-past", "bart",
                {**WORDS, "d_model": HIDDEN, "encoder_layers": 2, "decoder_layers": 2,
                 "num_mel_bins": 16, "encoder_attention_heads": HEADS,
                 "decoder_attention_heads": HEADS, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128,
                 "max_source_positions": 1500, "max_target_positions": 64,
                 "decoder_start_token_id": 1, "suppress_tokens": None,
                 "begin_suppress_tokens": None}),
}  # fmt: skip
OLIVE = {
    "olive-rtn": {"type": "OnnxBlockWiseRtnQuantization", "block_size": 32},
    "olive-dynamic": {"type": "OnnxDynamicQuantization"},
    "olive-fused": {"type": "OrtTransformersOptimization", "opt_level": 0},
    "olive-fp16": {"type": "OnnxFloatToFloat16"},
}


def export(folder: Path, name: str) -> None:
    """Exports a model of random weights."""
    config_name, model_name, task, _, sizes = MODELS[name]
    torch.manual_seed(7)
    model = getattr(transformers, model_name)(getattr(transformers, config_name)(**sizes)).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0, 0.08) if weight.ndim > 1 else weight.add_(0.03)
    onnx_export_from_model(model, folder, task=task, opset=17, do_validation=False)


def fuse(source: Path, target: Path, kind: str) -> None:
    """Fuses what onnxruntime has operators for."""
    options = FusionOptions(kind)
    made = optimizer.optimize_model(
        str(source), kind, HEADS, HIDDEN, optimization_options=options, opt_level=0
    )
    made.save_model_to_file(str(target))


def olive(source: Path, target: Path, step: dict[str, Any]) -> None:
    """Runs one pass of Olive."""
    from olive.workflows import run

    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / "made"
        run({
            "input_model": {"type": "ONNXModel", "model_path": str(source)},
            "passes": {"step": step}, "output_dir": str(made), "no_artifacts": True,
            "cache_dir": str(Path(scratch) / "cache"), "log_severity_level": 4,
        })  # fmt: skip
        onnx.save(onnx.load(next(made.rglob("*.onnx"))), target)


def steps(exported: Path, kind: str) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Yields what is made of an export."""
    yield "fused", lambda target: fuse(exported, target, kind)
    yield "dynamic", lambda target: quantize_dynamic(exported, target, weight_type=QuantType.QInt8)
    for name, step in OLIVE.items():
        yield name, lambda target, step=step: olive(exported, target, step)


def main() -> int:
    """Runs the script."""
    folder, wanted = Path(sys.argv[1]), sys.argv[2:]
    for name in wanted or MODELS:
        made = folder / name
        if not any(made.glob("*.onnx")):
            export(made, name)
        for exported in sorted(made.glob("*.onnx")):
            for step, make in steps(exported, MODELS[name][3]):
                target = folder / f"{name}-{step}" / exported.name
                if target.exists():
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
                try:
                    make(target)
                    print(target.relative_to(folder), "made", flush=True)
                except Exception as error:  # these tools raise whatever their libraries do
                    print(target.relative_to(folder), type(error).__name__, str(error)[:200])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
