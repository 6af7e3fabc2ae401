"""Files of onnxruntime-genai's model builder: two small layers of random weights, no network.

Runs in an environment of its own
(``pip install onnxruntime-genai onnx-ir peft torch transformers``)::

    python scripts/language_models/language_model_files.py FOLDER [NAME]...

A name is an ARCHITECTURE-VARIANT, an ARCHITECTURE or a VARIANT.

Makes what is not there yet. Random weights have no tokenizer, which the builder wants to copy: it
is given an empty one.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import transformers
from language_model_classes import CLASSES, register
from onnxruntime_genai.models import builder
from onnxruntime_genai.models.builders import base
from safetensors.torch import load_file, save_file

SIZES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 320, "max_position_embeddings": 256,
}  # fmt: skip
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
HEAD = {"head_dim": 16}
SLIDING = {"sliding_window": 32, "layer_types": ["sliding_attention", "full_attention"]}
MIXED = {"layer_types": ["conv", "full_attention"]}
TEXT = {**SIZES, **HEAD}
PICTURES: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
    "depth": 1, "num_heads": 2, "image_size": 28, "patch_size": 14, "out_hidden_size": 64,
}  # fmt: skip
LINEAR: dict[str, Any] = {
    "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4, "mtp_num_hidden_layers": 0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 0],
                        "mrope_interleaved": True, "partial_rotary_factor": 0.25},
}  # fmt: skip
EXPERTS: dict[str, Any] = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
}  # fmt: skip
LONG: dict[str, Any] = {
    "original_max_position_embeddings": 64,
    "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 8,
                     "long_factor": [1 + i / 10 for i in range(8)]},
}  # fmt: skip
GEMMA4: dict[str, Any] = {
    **TEXT, **SLIDING, "global_head_dim": 32, "num_global_key_value_heads": 1,
    "vocab_size_per_layer_input": 320, "hidden_size_per_layer_input": 0,
}  # fmt: skip
SMALL: dict[str, Any] = {
    "original_max_position_embeddings": 256, "hidden_act": "gegelu", "gegelu_limit": 20.0,
    "layer_norm_epsilon": 1e-5, "mup_embedding_multiplier": 10.0, "mup_width_multiplier": 8.0,
    "mup_use_scaling": True, "mup_attn_multiplier": 1.0,
    "rope_theta": 10000.0, "dummy_token_indices": [310, 311],
}  # fmt: skip
SPARSE: dict[str, Any] = {
    "dense_attention_every_n_layers": 2, "blocksparse_block_size": 16,
    "blocksparse_triton_kernel_block_size": 16, "blocksparse_num_local_blocks": 2,
    "blocksparse_vert_stride": 2, "blocksparse_homo_head_pattern": False,
}  # fmt: skip
ARCHITECTURES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ernie": ("Ernie4_5Config", "Ernie4_5ForCausalLM", HEAD),
    "gemma": ("GemmaConfig", "GemmaForCausalLM", HEAD),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM",
               {**HEAD, "query_pre_attn_scalar": 16, "sliding_window": 32}),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM",
               {**HEAD, **SLIDING, "query_pre_attn_scalar": 16}),
    "gemma3vl": ("Gemma3Config", "Gemma3ForConditionalGeneration",
                 {"text_config": {**TEXT, **SLIDING, "query_pre_attn_scalar": 16},
                  "vision_config": PICTURES}),
    "gptoss": ("GptOssConfig", "GptOssForCausalLM",
               {**HEAD, **SLIDING, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "granite": ("GraniteConfig", "GraniteForCausalLM", {}),
    "granitemoe": ("GraniteMoeHybridConfig", "GraniteMoeHybridForCausalLM",
                   {"layer_types": ["attention"] * 2, "num_local_experts": 0,
                    "shared_intermediate_size": 128, "mamba_n_heads": 8, "mamba_d_head": 16}),
    "hunyuan": ("HunYuanDenseV1Config", "HunYuanDenseV1ForCausalLM", HEAD),
    "lfm2": ("Lfm2Config", "Lfm2ForCausalLM", {**MIXED, "block_auto_adjust_ff_dim": False}),
    "lfm2moe": ("Lfm2MoeConfig", "Lfm2MoeForCausalLM",
                {**MIXED, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
                 "num_dense_layers": 1}),
    "llama": ("LlamaConfig", "LlamaForCausalLM", {}),
    "lfm2vl": ("Lfm2VlConfig", "Lfm2VlForConditionalGeneration",
               {"text_config": {**TEXT, **MIXED, "block_auto_adjust_ff_dim": False,
                                "model_type": "lfm2"},
                "vision_config": {**PICTURES, "model_type": "siglip2_vision_model"}}),
    "mistral3": ("Mistral3Config", "Mistral3ForConditionalGeneration",
                 {"text_config": {**TEXT, "model_type": "mistral"},
                  "vision_config": {**PICTURES, "model_type": "pixtral", "head_dim": 16}}),
    "mistral": ("MistralConfig", "MistralForCausalLM", {**HEAD, "sliding_window": 32}),
    "nemotron": ("NemotronConfig", "NemotronForCausalLM", {"head_dim": 32}),
    "olmo": ("OlmoConfig", "OlmoForCausalLM", {}),
    "phi": ("PhiConfig", "PhiForCausalLM", {"partial_rotary_factor": 0.5, "hidden_size": 128}),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", {"original_max_position_embeddings": 256}),
    "phi3long": ("Phi3Config", "Phi3ForCausalLM", LONG),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", {}),
    "qwen25vl": ("Qwen2_5_VLConfig", "Qwen2_5_VLForConditionalGeneration",
                 {"text_config": {**TEXT, "rope_scaling": {
                      "rope_type": "default", "type": "mrope", "mrope_section": [2, 3, 3]}},
                  "vision_config": PICTURES}),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", HEAD),
    "qwen3vl": ("Qwen3VLConfig", "Qwen3VLForConditionalGeneration",
                {"text_config": {**TEXT, "rope_scaling": {
                     "rope_type": "default", "mrope_section": [2, 3, 3],
                     "mrope_interleaved": True}},
                 "vision_config": {**PICTURES, "deepstack_visual_indexes": [0],
                                   "num_position_embeddings": 16}}),
    "qwen35": ("Qwen3_5Config", "Qwen3_5ForConditionalGeneration",
               {"text_config": {**TEXT, **LINEAR}, "vision_config": PICTURES}),
    "qwen35moe": ("Qwen3_5MoeConfig", "Qwen3_5MoeForConditionalGeneration",
                  {"text_config": {**TEXT, **LINEAR, **EXPERTS}, "vision_config": PICTURES}),
    "qwen35mtp": ("Qwen3_5Config", "Qwen3_5ForConditionalGeneration",
                  {"text_config": {**TEXT, **LINEAR, "mtp_num_hidden_layers": 1},
                   "vision_config": PICTURES}),
    "qwen35moemtp": ("Qwen3_5MoeConfig", "Qwen3_5MoeForConditionalGeneration",
                     {"text_config": {**TEXT, **LINEAR, **EXPERTS, "mtp_num_hidden_layers": 1},
                      "vision_config": PICTURES}),
    "smollm3": ("SmolLM3Config", "SmolLM3ForCausalLM", {}),
    "chatglm": ("ChatGLMConfig", "ChatGLMModel",
                {"hidden_size": 128, "num_layers": 2, "multi_query_group_num": 2,
                 "ffn_hidden_size": 128, "seq_length": 256, "layernorm_epsilon": 1e-5}),
    "internlm2": ("InternLM2Config", "InternLM2ForCausalLM",
                  {"bias": False, "hidden_act": "silu", "rms_norm_eps": 1e-5}),
    "phi3small": ("Phi3SmallConfig", "Phi3SmallForCausalLM", {**SMALL, **SPARSE}),
    "phi3smalldense": ("Phi3SmallConfig", "Phi3SmallForCausalLM",
                       {**SMALL, **SPARSE, "dense_attention_every_n_layers": 1}),
    "phi3v": ("Phi3VConfig", "Phi3VForCausalLM", LONG),
    "phi4mm": ("Phi4MMConfig", "Phi4MMForCausalLM", LONG),
    "gemma4": ("Gemma4UnifiedConfig", "Gemma4UnifiedForConditionalGeneration",
               {"text_config": {**GEMMA4, "attention_k_eq_v": True}}),
    "gemma4moe": ("Gemma4Config", "Gemma4ForConditionalGeneration",
                  {"text_config": {**GEMMA4, "num_global_key_value_heads": 2,
                                   "enable_moe_block": True, "num_experts": 4,
                                   "top_k_experts": 2, "moe_intermediate_size": 64},
                   "vision_config": {**PICTURES, "head_dim": 16}}),
    "lfm2audio": ("Lfm2Config", "Lfm2ForCausalLM",
                  {**MIXED, "block_auto_adjust_ff_dim": False, "tie_word_embeddings": True}),
    "phimoe": ("PhiMoEConfig", "PhiMoEForCausalLM",
               {**LONG, "rope_theta": 10000.0, "hidden_act": "silu", "rms_norm_eps": 1e-5,
                "intermediate_size": 64, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "phi3smalllong": ("Phi3SmallConfig", "Phi3SmallForCausalLM", {**SMALL, **SPARSE, **LONG}),
    "videochat": ("VideoChatFlashQwenConfig", "VideoChatFlashQwenForCausalLM", {}),
    "whisper": ("WhisperConfig", "WhisperForConditionalGeneration",
                {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "num_mel_bins": 16,
                 "encoder_attention_heads": 4, "decoder_attention_heads": 4,
                 "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "max_source_positions": 1500,
                 "max_target_positions": 64, "decoder_start_token_id": 1}),
}  # fmt: skip
_SCHEME = "kv_cache_quant_scheme"
VARIANTS: dict[str, tuple[str, dict[str, str]]] = {
    "fp32": ("fp32", {}),
    "fp32-aux": ("fp32", {"aux_hidden_state_layers": "1"}),
    "fp16": ("fp16", {}),
    "int8": ("int8", {}),
    "int8-level0": ("int8", {"accuracy_level": "0"}),
    "int4": ("int4", {}),
    "int4-level0": ("int4", {"accuracy_level": "0"}),
    "int4-qdq": ("int4", {"use_qdq": "true", "op_types_to_quantize": "MatMul"}),
    "int4-b16": ("int4", {"block_size": "16"}),
    "int4-b128": ("int4", {"block_size": "128"}),
    "int4-asym": ("int4", {"is_symmetric": "false"}),
    "int4-embed": ("int4", {"op_types_to_quantize": "MatMul/Gather"}),
    "int4-kquant": ("int4", {"algo_config": "k_quant"}),
    "int4-mixed": ("int4", {"matmul_mixed_precision": "last_matmul:int8,mixed_layers:int8"}),
    **{f"{weights}-cache-{scheme}": (weights, {_SCHEME: scheme})
       for weights in ("fp32", "int4")
       for bits in ("int8", "int4")
       for scheme in (f"{bits}_per_tensor", f"{bits}_per_channel")},
}  # fmt: skip
DRAFTED = ("qwen35", "qwen35moe")
"""What the builder makes block drafters for."""
DRAFTERS: dict[str, dict[str, Any]] = {
    kind: {**TEXT, "num_hidden_layers": 1, "rms_norm_eps": 1e-6, "is_causal": False,
           "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, **own}
    for kind, own in {
        "dflash2": {"dflash_config": {
            "mask_token_id": 3, "target_layer_ids": [0], "block_size": 5, "conv_kernel_size": 2,
            "conv_group_size": 16, "selector_rank": 8, "selector_top_k": 4}},
        "dspark": {"block_size": 4, "markov_rank": 8,
                   "dflash_config": {"mask_token_id": 3, "target_layer_ids": [0]}},
    }.items()
}  # fmt: skip
"""Drafters of a block of tokens, each a file beside its target's, of pages of keys and values: the
builder makes neither for the CPU."""


class NoTokenizer:
    """What the builder asks a tokenizer for."""

    pad_token_id, eos_token_id, bos_token_id = 0, 2, 1

    @staticmethod
    def get_vocab() -> dict[str, int]:
        """Returns no words."""
        return {}

    def save_pretrained(self, *_: Any) -> None:
        """Saves nothing."""


def source(folder: Path, architecture: str) -> Path:
    """Returns the folder of an architecture's configuration and weights."""
    made = folder / "source" / architecture
    if (made / "generation_config.json").exists():
        return made
    config_name, model_name, more = ARCHITECTURES[architecture]
    torch.manual_seed(7)
    sizes = {"vocab_size": 320} if architecture == "whisper" else SIZES
    known = CLASSES.get(model_name)
    config_class, model_class = known or (
        getattr(transformers, config_name), getattr(transformers, model_name)
    )  # fmt: skip
    config = config_class(**{**sizes, **IDS, **more})
    config.architectures = [model_name]
    model = model_class(config).float().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1:
                weight.normal_(0, 0.08)
            elif "norm" in name:
                weight.add_(torch.randn_like(weight) * 0.1)
            else:
                weight.normal_(0, 0.05)
    model.save_pretrained(made)
    if architecture == "lfm2audio":
        _nest(made)
    if architecture == "gptoss":
        _store_experts(made)
    if architecture.endswith("mtp"):
        _add_head(made, config.text_config)
    if not (made / "generation_config.json").exists():
        (made / "generation_config.json").write_text(json.dumps(IDS))
    return made


def _nest(made: Path) -> None:
    """Puts a decoder and its weights where a checkpoint of LFM2-Audio has them."""
    config = json.loads((made / "config.json").read_text())
    nested = {"architectures": ["Lfm2AudioForConditionalGeneration"], "lfm": config}
    (made / "config.json").write_text(json.dumps(nested))
    file = made / "model.safetensors"
    weights = load_file(file)
    save_file({name.replace("model.", "lfm.", 1): w for name, w in weights.items()}, file)


def _store_experts(made: Path) -> None:
    """Puts experts of MXFP4 beside the floats that they mean, by the names of gpt-oss's checkpoint.

    A builder of integers reads these blocks of 32 codes, each with a power of two, a builder of
    floats what transformers makes of a checkpoint.
    """
    magnitudes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    file = made / "model.safetensors"
    weights = load_file(file)
    for name in [each for each in weights if each.endswith(("gate_up_proj", "down_proj"))]:
        experts, terms, results = weights[name].shape
        codes = torch.randint(16, (experts, results, terms // 32, 32), dtype=torch.uint8)
        powers = torch.randint(121, 124, codes.shape[:-1], dtype=torch.uint8)
        numbers = torch.cat([magnitudes, -magnitudes])[codes.long()]
        numbers = torch.ldexp(numbers, powers[..., None].int() - 127)
        weights[name] = numbers.reshape(experts, results, terms).transpose(1, 2).contiguous()
        weights[f"{name}_blocks"] = codes[..., 0::2] | codes[..., 1::2] << 4
        weights[f"{name}_scales"] = powers
    save_file(weights, file)


def _add_head(made: Path, config: Any) -> None:
    """Adds a head that predicts a further token (MTP), as checkpoints have it, to the weights."""
    kind = config.model_type.removesuffix("_text")
    module = import_module(f"transformers.models.{kind}.modeling_{kind}")
    kept = config.num_hidden_layers, config.layer_types
    config.num_hidden_layers, config.layer_types = 1, ["full_attention"]
    layer = next(c for n, c in vars(module).items() if n.endswith("DecoderLayer"))(config, 0)
    config.num_hidden_layers, config.layer_types = kept
    width = config.hidden_size
    shapes = {f"layers.0.{name}": weight.shape for name, weight in layer.state_dict().items()}
    shapes["fc.weight"] = torch.Size((width, 2 * width))
    for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
        shapes[f"{name}.weight"] = torch.Size((width,))
    file = made / "model.safetensors"
    drawn = {f"mtp.{name}": torch.randn(shape) * 0.08 for name, shape in shapes.items()}
    save_file({**load_file(file), **drawn}, file)


def drafter(folder: Path, kind: str) -> Path:
    """Returns the folder of a block drafter's configuration and weights."""
    made, config = folder / "source" / kind, DRAFTERS[kind]
    made.mkdir(parents=True, exist_ok=True)
    (made / "config.json").write_text(json.dumps(config))
    width, inner, words = (config[n] for n in ("hidden_size", "intermediate_size", "vocab_size"))
    head, heads, keys = (
        config[n] for n in ("head_dim", "num_attention_heads", "num_key_value_heads")
    )
    layer = {
        "self_attn.q_proj.weight": (heads * head, width), "self_attn.q_norm.weight": (head,),
        "self_attn.k_proj.weight": (keys * head, width), "self_attn.k_norm.weight": (head,),
        "self_attn.v_proj.weight": (keys * head, width),
        "self_attn.o_proj.weight": (width, heads * head),
        "mlp.gate_proj.weight": (inner, width), "mlp.up_proj.weight": (inner, width),
        "mlp.down_proj.weight": (width, inner),
        "input_layernorm.weight": (width,), "post_attention_layernorm.weight": (width,),
    }  # fmt: skip
    shapes = {"fc.weight": (width, width), "hidden_norm.weight": (width,), "norm.weight": (width,)}
    if kind == "dspark":
        rank = config["markov_rank"]
        shapes |= {f"markov_head.markov_w{i}.weight": (words, rank) for i in (1, 2)}
    else:
        own = config["dflash_config"]
        taps, rank = own["conv_kernel_size"], own["selector_rank"]
        for name in ("attention_conv", "mlp_conv"):
            rows = 2 * taps * (width // own["conv_group_size"])
            layer[f"{name}.kernel_projection.weight"] = (rows, width)
            layer[f"{name}.base_kernel"] = (2, taps, width)
        shapes["candidate_selector.hidden_projection.weight"] = (rank, width)
        for name in ("predecessor_codebook", "successor_codebook"):
            shapes[f"candidate_selector.{name}"] = (words, rank)
    shapes |= {f"layers.0.{name}": shape for name, shape in layer.items()}
    torch.manual_seed(7)
    save_file(
        {name: (torch.randn(shape) * 0.08 + (len(shape) == 1)).bfloat16()
         for name, shape in shapes.items()},
        made / "model.safetensors",
    )  # fmt: skip
    return made


def _mend(architecture: str, config: Any) -> None:
    """Says what the builder asks a configuration for, and transformers 5.24 has elsewhere."""
    stated = ARCHITECTURES[architecture][2].get("text_config", {})
    if "global_head_dim" in stated:
        for each in (config, config.text_config):
            each.allow_global_per_layer_attribute_access = True
        for name in ("global_head_dim", "num_global_key_value_heads"):
            setattr(config, name, stated[name])
    if architecture.startswith("gemma3"):
        text = getattr(config, "text_config", config)
        text.rope_local_base_freq = 10000.0
        text.rope_parameters = {"rope_type": "default", "rope_theta": 1000000.0}


def scales(folder: Path, weights: str, scheme: str) -> Path:
    """Returns a file with scales of keys and values, for each layer one or one per channel."""
    config = json.loads((Path(weights) / "config.json").read_text())
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    layers, channels = config["num_hidden_layers"], config["num_key_value_heads"] * head
    one = 0.02 if scheme.endswith("tensor") else [0.01 + i / 2000 for i in range(channels)]
    made = folder / "source" / f"{Path(weights).name}-{scheme}.json"
    made.write_text(json.dumps({"scales": {f"{x}_scales": [one] * layers for x in "kv"}}))
    return made


def make(folder: Path, architecture: str, variant: str) -> None:
    """Makes one file."""
    target, cache = folder / f"{architecture}-{variant}", str(folder / "cache")
    precision, options = VARIANTS.get(variant, ("fp16", {}))
    processor = "cpu"
    if variant in DRAFTERS:
        processor = "cuda"
        options = {"use_paged_attention": "true", "aux_hidden_state_layers": "1",
                   f"{variant}_path": str(drafter(folder, variant))}  # fmt: skip
    weights = str(source(folder, architecture))
    stated = [f"{name}={value}" for name, value in options.items()]
    if _SCHEME in options:
        stated.append(f"kv_cache_scale_file={scales(folder, weights, options[_SCHEME])}")
    found = builder.parse_extra_options(
        weights, weights, str(target), precision, processor, cache, stated
    )
    _mend(architecture, found["hf_details"]["hf_config"])
    builder.create_model(weights, weights, str(target), precision, processor, cache, **found)
    (target / "done").touch()


def main() -> int:
    """Runs the script."""
    folder, wanted = Path(sys.argv[1]), set(sys.argv[2:])
    for loader in (transformers.AutoTokenizer, transformers.AutoProcessor):
        loader.from_pretrained = staticmethod(lambda *_, **__: NoTokenizer())
    base.Model.save_processing = lambda *_, **__: None
    register()
    for model in (builder.Phi3MoELongRoPEModel, builder.Phi3SmallLongRoPEModel):
        model.make_rope_init = builder.Phi3MiniLongRoPEModel.make_rope_init  # they lack it in 0.18
    for architecture in ARCHITECTURES:
        for variant in (*VARIANTS, *(DRAFTERS if architecture in DRAFTED else ())):
            name = f"{architecture}-{variant}"
            asked = not wanted or wanted & {name, architecture, variant}
            if not asked or (folder / name / "done").exists():
                continue
            try:
                make(folder, architecture, variant)
                print(name, "made", flush=True)
            except Exception as error:  # the builder raises whatever its libraries do
                print(name, type(error).__name__, str(error)[:200], flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
