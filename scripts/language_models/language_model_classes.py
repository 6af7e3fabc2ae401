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


class PhiMoEDecoderLayer(Modules):
    """A layer of Phi-3.5 MoE."""


class Phi4MMDecoderLayer(Modules):
    """A layer of Phi-4 multimodal."""


def packed_rows(config: Any, groups: int) -> int:
    """Returns how many rows queries, keys and values have in one matrix."""
    return config.hidden_size + 2 * groups * (config.hidden_size // config.num_attention_heads)


def gated(config: Any) -> Modules:
    """Returns the three products of a gated activation."""
    width, inner = config.hidden_size, config.intermediate_size
    return Modules(
        w1=nn.Linear(width, inner, bias=False),
        w2=nn.Linear(inner, width, bias=False),
        w3=nn.Linear(width, inner, bias=False),
    )


class Lent(transformers.PreTrainedModel):
    """A model without arithmetic."""

    def _init_weights(self, module: nn.Module) -> None:
        """Leaves weights as they are."""


class Decoder(Lent):
    """A table of tokens, layers, a norm and a product for the logits.

    Attributes:
        norm: The kind of the norm.
        names: What table, norm and product are called.
        head_bias: Whether the product has a bias.
    """

    norm: type[nn.Module] = RootMeanSquare
    names = ("embed_tokens", "norm", "lm_head")
    head_bias = False

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        width, (table, norm, head) = config.hidden_size, self.names
        layers = nn.ModuleList(self.layer(config) for _ in range(config.num_hidden_layers))
        tokens = nn.Embedding(config.vocab_size, width)
        self.model = Modules(**{table: tokens, "layers": layers, norm: self.norm(width)})
        setattr(self, head, nn.Linear(width, config.vocab_size, bias=self.head_bias))
        self.post_init()

    def layer(self, config: Any) -> nn.Module:
        """Returns a layer."""
        raise NotImplementedError


class ChatGLMConfig(transformers.PretrainedConfig):
    """Any attributes."""

    model_type = "chatglm"


class ChatGLMModel(Lent):
    """ChatGLM 2 and 3: few heads of keys, half of each head turned in pairs."""

    config_class = ChatGLMConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        width = config.hidden_size
        layers = nn.ModuleList(self.layer(config) for _ in range(config.num_layers))
        self.transformer = Modules(
            embedding=Modules(word_embeddings=nn.Embedding(config.vocab_size, width)),
            encoder=Modules(layers=layers, final_layernorm=RootMeanSquare(width)),
            output_layer=nn.Linear(width, config.vocab_size, bias=False),
        )
        self.post_init()

    def layer(self, config: Any) -> nn.Module:
        """Returns a layer."""
        width, inner = config.hidden_size, config.ffn_hidden_size
        return GLMBlock(
            input_layernorm=RootMeanSquare(width),
            self_attention=Modules(
                query_key_value=nn.Linear(width, packed_rows(config, config.multi_query_group_num)),
                dense=nn.Linear(width, width, bias=False),
            ),
            post_attention_layernorm=RootMeanSquare(width),
            mlp=Modules(
                dense_h_to_4h=nn.Linear(width, 2 * inner, bias=False),
                dense_4h_to_h=nn.Linear(inner, width, bias=False),
            ),
        )


class InternLM2Config(transformers.PretrainedConfig):
    """Any attributes."""

    model_type = "internlm2"


class InternLM2ForCausalLM(Decoder):
    """InternLM 2: queries, keys and values of a group beside each other in one matrix."""

    config_class = InternLM2Config
    names = ("tok_embeddings", "norm", "output")

    def layer(self, config: Any) -> nn.Module:
        """Returns a layer."""
        width, bias = config.hidden_size, config.bias
        packed = packed_rows(config, config.num_key_value_heads)
        return InternLM2DecoderLayer(
            attention_norm=RootMeanSquare(width),
            attention=Modules(
                wqkv=nn.Linear(width, packed, bias=bias), wo=nn.Linear(width, width, bias=bias)
            ),
            ffn_norm=RootMeanSquare(width),
            feed_forward=gated(config),
        )


class Phi3SmallConfig(transformers.PretrainedConfig):
    """Any attributes."""

    model_type = "phi3small"
    max_position_embeddings = 256


class Phi3SmallForCausalLM(Decoder):
    """Phi-3 small: attention over blocks in some layers, gated Gelus of even and odd channels."""

    config_class = Phi3SmallConfig
    norm = nn.LayerNorm
    names = ("embed_tokens", "final_layernorm", "lm_head")

    def layer(self, config: Any) -> nn.Module:
        """Returns a layer."""
        width, inner = config.hidden_size, config.intermediate_size
        packed = packed_rows(config, config.num_key_value_heads)
        return Phi3SmallDecoderLayer(
            input_layernorm=nn.LayerNorm(width),
            self_attn=Modules(
                query_key_value=nn.Linear(width, packed), dense=nn.Linear(width, width)
            ),
            post_attention_layernorm=nn.LayerNorm(width),
            mlp=Modules(up_proj=nn.Linear(width, 2 * inner), down_proj=nn.Linear(inner, width)),
        )


class PhiMoEConfig(transformers.PretrainedConfig):
    """Any attributes; the name is not that of transformers' own class, which packs experts."""

    model_type = "phimoe_unpacked"
    max_position_embeddings = 256


class PhiMoEForCausalLM(Decoder):
    """Phi-3.5 MoE as its checkpoints' code has it: each expert by itself."""

    config_class = PhiMoEConfig
    norm = nn.LayerNorm
    head_bias = True

    def layer(self, config: Any) -> nn.Module:
        """Returns a layer."""
        width, experts = config.hidden_size, config.num_local_experts
        keys = width // config.num_attention_heads * config.num_key_value_heads
        return PhiMoEDecoderLayer(
            input_layernorm=nn.LayerNorm(width),
            self_attn=Modules(
                q_proj=nn.Linear(width, width),
                k_proj=nn.Linear(width, keys),
                v_proj=nn.Linear(width, keys),
                o_proj=nn.Linear(width, width),
            ),
            post_attention_layernorm=nn.LayerNorm(width),
            block_sparse_moe=Modules(
                gate=nn.Linear(width, experts, bias=False),
                experts=nn.ModuleList(gated(config) for _ in range(experts)),
            ),
        )


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


class Phi4MMForCausalLM(Decoder):
    """The part of Phi-4 multimodal that writes text, with the adapters for pictures."""

    config_class = Phi4MMConfig

    def layer(self, config: Any) -> nn.Module:
        """Returns a layer."""
        width, inner = config.hidden_size, config.intermediate_size
        packed = packed_rows(config, config.num_key_value_heads)
        return Phi4MMDecoderLayer(
            input_layernorm=RootMeanSquare(width),
            self_attn=Modules(qkv_proj=Adapted(width, packed), o_proj=Adapted(width, width)),
            post_attention_layernorm=RootMeanSquare(width),
            mlp=Modules(gate_up_proj=Adapted(width, 2 * inner), down_proj=Adapted(inner, width)),
        )


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
