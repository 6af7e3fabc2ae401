"""Model classes whose code is not in transformers, as far as a model builder looks at them.

onnxruntime-genai's model builder reads weights by the names of modules and never runs a model. So
these classes have the modules, names and extents that it asks for, and no arithmetic. ``register``
makes them known to transformers' Auto classes, as ``trust_remote_code`` does with code that comes
with a checkpoint.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import nn


class RootMeanSquare(nn.Module):
    """The scale of a norm without mean; its name is the layer's."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))


class Modules(nn.Module):
    """Modules by name, as attributes."""

    def __init__(self, **modules: nn.Module | None) -> None:
        super().__init__()
        for name, module in modules.items():
            setattr(self, name, module)


class GLMBlock(Modules):
    """A layer of ChatGLM."""


class InternLM2DecoderLayer(Modules):
    """A layer of InternLM 2."""


class Phi3SmallDecoderLayer(Modules):
    """A layer of Phi-3 small."""


class Phi4MMDecoderLayer(Modules):
    """A layer of Phi-4 multimodal."""


class Lent(transformers.PreTrainedModel):
    """A model without arithmetic."""

    def _init_weights(self, module: nn.Module) -> None:
        """Leaves weights as they are."""


class ChatGLMConfig(transformers.PretrainedConfig):
    """Any attributes."""

    model_type = "chatglm"


class ChatGLMModel(Lent):
    """ChatGLM 2 and 3: few heads of keys, half of each head turned in pairs."""

    config_class = ChatGLMConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        width, inner = config.hidden_size, config.ffn_hidden_size
        head = width // config.num_attention_heads
        packed = width + 2 * head * config.multi_query_group_num
        layers = [
            GLMBlock(
                input_layernorm=RootMeanSquare(width),
                self_attention=Modules(
                    query_key_value=nn.Linear(width, packed),
                    dense=nn.Linear(width, width, bias=False),
                ),
                post_attention_layernorm=RootMeanSquare(width),
                mlp=Modules(
                    dense_h_to_4h=nn.Linear(width, 2 * inner, bias=False),
                    dense_4h_to_h=nn.Linear(inner, width, bias=False),
                ),
            )
            for _ in range(config.num_layers)
        ]
        self.transformer = Modules(
            embedding=Modules(word_embeddings=nn.Embedding(config.vocab_size, width)),
            encoder=Modules(layers=nn.ModuleList(layers), final_layernorm=RootMeanSquare(width)),
            output_layer=nn.Linear(width, config.vocab_size, bias=False),
        )
        self.post_init()


class InternLM2Config(transformers.PretrainedConfig):
    """Any attributes."""

    model_type = "internlm2"


class InternLM2ForCausalLM(Lent):
    """InternLM 2: queries, keys and values of a group beside each other in one matrix."""

    config_class = InternLM2Config

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        width, inner = config.hidden_size, config.intermediate_size
        head = width // config.num_attention_heads
        packed = width + 2 * head * config.num_key_value_heads
        layers = [
            InternLM2DecoderLayer(
                attention_norm=RootMeanSquare(width),
                attention=Modules(
                    wqkv=nn.Linear(width, packed, bias=config.bias),
                    wo=nn.Linear(width, width, bias=config.bias),
                ),
                ffn_norm=RootMeanSquare(width),
                feed_forward=Modules(
                    w1=nn.Linear(width, inner, bias=False),
                    w2=nn.Linear(inner, width, bias=False),
                    w3=nn.Linear(width, inner, bias=False),
                ),
            )
            for _ in range(config.num_hidden_layers)
        ]
        self.model = Modules(
            tok_embeddings=nn.Embedding(config.vocab_size, width),
            layers=nn.ModuleList(layers),
            norm=RootMeanSquare(width),
        )
        self.output = nn.Linear(width, config.vocab_size, bias=False)
        self.post_init()


class Phi3SmallConfig(transformers.PretrainedConfig):
    """Any attributes."""

    model_type = "phi3small"
    max_position_embeddings = 256


class Phi3SmallForCausalLM(Lent):
    """Phi-3 small: attention over blocks in some layers, gated Gelus of even and odd channels."""

    config_class = Phi3SmallConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        width, inner = config.hidden_size, config.intermediate_size
        head = width // config.num_attention_heads
        packed = width + 2 * head * config.num_key_value_heads
        layers = [
            Phi3SmallDecoderLayer(
                input_layernorm=nn.LayerNorm(width),
                self_attn=Modules(
                    query_key_value=nn.Linear(width, packed), dense=nn.Linear(width, width)
                ),
                post_attention_layernorm=nn.LayerNorm(width),
                mlp=Modules(up_proj=nn.Linear(width, 2 * inner), down_proj=nn.Linear(inner, width)),
            )
            for _ in range(config.num_hidden_layers)
        ]
        self.model = Modules(
            embed_tokens=nn.Embedding(config.vocab_size, width),
            layers=nn.ModuleList(layers),
            final_layernorm=nn.LayerNorm(width),
        )
        self.lm_head = nn.Linear(width, config.vocab_size, bias=False)
        self.post_init()


class PhiMoEDecoderLayer(Modules):
    """A layer of Phi-3.5 MoE."""


class PhiMoEConfig(transformers.PretrainedConfig):
    """Any attributes; the name is not that of transformers' own class, which packs experts."""

    model_type = "phimoe_unpacked"
    max_position_embeddings = 256


class PhiMoEForCausalLM(Lent):
    """Phi-3.5 MoE as its checkpoints' code has it: each expert by itself."""

    config_class = PhiMoEConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        width, inner = config.hidden_size, config.intermediate_size
        keys = width // config.num_attention_heads * config.num_key_value_heads
        expert = lambda: Modules(  # noqa: E731
            w1=nn.Linear(width, inner, bias=False),
            w2=nn.Linear(inner, width, bias=False),
            w3=nn.Linear(width, inner, bias=False),
        )
        layers = [
            PhiMoEDecoderLayer(
                input_layernorm=nn.LayerNorm(width),
                self_attn=Modules(
                    q_proj=nn.Linear(width, width),
                    k_proj=nn.Linear(width, keys),
                    v_proj=nn.Linear(width, keys),
                    o_proj=nn.Linear(width, width),
                ),
                post_attention_layernorm=nn.LayerNorm(width),
                block_sparse_moe=Modules(
                    gate=nn.Linear(width, config.num_local_experts, bias=False),
                    experts=nn.ModuleList(expert() for _ in range(config.num_local_experts)),
                ),
            )
            for _ in range(config.num_hidden_layers)
        ]
        self.model = Modules(
            embed_tokens=nn.Embedding(config.vocab_size, width),
            layers=nn.ModuleList(layers),
            norm=nn.LayerNorm(width),
        )
        self.lm_head = nn.Linear(width, config.vocab_size)
        self.post_init()


class Phi3VConfig(transformers.Phi3Config):
    """Phi-3's."""

    model_type = "phi3_v"


class Phi3VForCausalLM(transformers.Phi3ForCausalLM):
    """The part of Phi-3 vision that writes text: Phi-3's."""

    config_class = Phi3VConfig


class Adapted(nn.Module):
    """A product with a low-rank adapter for pictures."""

    def __init__(self, terms: int, results: int, rank: int = 4) -> None:
        super().__init__()
        self.base_layer = nn.Linear(terms, results, bias=False)
        self.lora_A = nn.ModuleDict({"vision": nn.Linear(terms, rank, bias=False)})
        self.lora_B = nn.ModuleDict({"vision": nn.Linear(rank, results, bias=False)})
        self.scaling = {"vision": 0.5}

    @property
    def weight(self) -> nn.Parameter:
        """The matrix without the adapter."""
        return self.base_layer.weight

    @property
    def bias(self) -> None:
        """There is none."""
        return


class Phi4MMConfig(transformers.Phi3Config):
    """Phi-3's."""

    model_type = "phi4mm"


class Phi4MMForCausalLM(Lent):
    """The part of Phi-4 multimodal that writes text, with the adapters for pictures."""

    config_class = Phi4MMConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        width, inner = config.hidden_size, config.intermediate_size
        head = width // config.num_attention_heads
        packed = width + 2 * head * config.num_key_value_heads
        layers = [
            Phi4MMDecoderLayer(
                input_layernorm=RootMeanSquare(width),
                self_attn=Modules(qkv_proj=Adapted(width, packed), o_proj=Adapted(width, width)),
                post_attention_layernorm=RootMeanSquare(width),
                mlp=Modules(
                    gate_up_proj=Adapted(width, 2 * inner), down_proj=Adapted(inner, width)
                ),
            )
            for _ in range(config.num_hidden_layers)
        ]
        self.model = Modules(
            embed_tokens=nn.Embedding(config.vocab_size, width),
            layers=nn.ModuleList(layers),
            norm=RootMeanSquare(width),
        )
        self.lm_head = nn.Linear(width, config.vocab_size, bias=False)
        self.post_init()


class VideoChatFlashQwenConfig(transformers.Qwen2Config):
    """Qwen 2's."""

    model_type = "videochat_flash_qwen"


class VideoChatFlashQwenForCausalLM(transformers.Qwen2ForCausalLM):
    """The part of VideoChat-Flash that writes text: Qwen 2's."""

    config_class = VideoChatFlashQwenConfig


CLASSES = {
    "ChatGLMModel": (ChatGLMConfig, ChatGLMModel),
    "InternLM2ForCausalLM": (InternLM2Config, InternLM2ForCausalLM),
    "PhiMoEForCausalLM": (PhiMoEConfig, PhiMoEForCausalLM),
    "Phi3SmallForCausalLM": (Phi3SmallConfig, Phi3SmallForCausalLM),
    "Phi3VForCausalLM": (Phi3VConfig, Phi3VForCausalLM),
    "Phi4MMForCausalLM": (Phi4MMConfig, Phi4MMForCausalLM),
    "VideoChatFlashQwenForCausalLM": (VideoChatFlashQwenConfig, VideoChatFlashQwenForCausalLM),
}
"""Configuration and model by the name of the architecture."""


def register() -> None:
    """Makes the classes known to transformers."""
    for config, model in CLASSES.values():
        transformers.AutoConfig.register(config.model_type, config)
        transformers.AutoModelForCausalLM.register(config, model)
