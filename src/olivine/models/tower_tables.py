"""Vision and audio towers: their tensors in both formats, and the metadata that GGUF readers need.

A tower is a table, a line a tensor: Hugging Face's name, GGUF's name, and the shape in letters of `sizes`
(with a size of 0 there is no such tensor). N is a layer, and a name that ends in .* is a weight and a bias;
beside a `.linear` may lie its limits. The converter writes by these tables, and `towers.py` reads by them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from olivine.dtypes import F16, F32, DType
from olivine.models.fields import Fields

Values = npt.NDArray[np.float32]
AnyValues = npt.NDArray[Any]
Sizes = dict[str, int]


@dataclass(frozen=True)
class TowerTable:
    about: Literal["vision", "audio"]
    home: str  # the prefix of all names but the projector's
    tensors: str
    sizes: Callable[[Fields, Fields], Sizes]  # by the tower's configuration, and the whole model's
    defaults: Mapping[str, Any]  # of Hugging Face's configuration
    told: Mapping[str, Any]  # metadata that is the same for every such tower
    fixed: Mapping[str, Any] = field(default_factory=dict)  # constants of readers, which the model must match
    pooling: int = 3  # the side of the square of patches pooled to a token, unless metadata has it
    colours: tuple[float, float] = (0.0, 1.0)  # mean and deviation of pixels, if no processor file has them
    # By GGUF's name, with the placeholder N.
    changes: Mapping[str, Callable[[Values], Values]] = field(default_factory=dict)
    types: Mapping[str, DType] = field(default_factory=dict)  # other than the file's


# Beside a clipped linear op: what it limits its input and its output to.
LIMITS = ("input_min", "input_max", "output_min", "output_max")


def _transformer(c: Fields) -> Sizes:
    return {
        "D": c.integer("hidden_size"),
        "F": c.integer("intermediate_size"),
        "L": c.integer("num_hidden_layers", high=1024),
        "H": c.integer("num_attention_heads"),
    }


def _plus_one(values: Values) -> Values:
    return values + np.float32(1)


def _softplus(values: Values) -> Values:
    return np.logaddexp(values, np.float32(0))


def channels_first(values: AnyValues) -> AnyValues:
    """Pixels of square patches from (row, column, channel) to (channel, row, column)."""
    side = math.isqrt(values.shape[-1] // 3)
    return values.reshape(-1, side, side, 3).transpose(0, 3, 1, 2)


def channels_last(values: AnyValues) -> AnyValues:
    """The inverse, of patches that are rows of a matrix, one vector, or of three axes each."""
    pixels = values[0].size if values.ndim > 1 else values.size
    side = math.isqrt(pixels // 3)
    moved = values.reshape(-1, 3, side, side).transpose(0, 2, 3, 1).reshape(-1, pixels)
    return moved if values.ndim > 1 else moved[0]


def short_name(name: str) -> str:
    """A Hugging Face name as in the tables: the prefixes of publishers and of transformers differ."""
    return name.removeprefix("model.").replace("vision_tower.vision_model.", "vision_tower.", 1)


def _gemma3_vision(c: Fields, config: Fields) -> Sizes:
    side = c.integer("image_size") // c.integer("patch_size")
    pool = side // math.isqrt(config.integer("mm_tokens_per_image", 256))
    if not pool:
        raise config.refuse("mm_tokens_per_image", f"is more than the {side * side} patches of an image")
    return {**_transformer(c), "p": c.integer("patch_size"), "T": side * side, "pool": pool}


GEMMA3_VISION = TowerTable(
    "vision",
    "vision_tower.",
    """
    embeddings.patch_embedding.*                      v.patch_embd.*              D 3 p p
    embeddings.position_embedding.weight              v.position_embd.weight      T D
    encoder.layers.N.layer_norm1.*                    v.blk.N.ln1.*               D
    encoder.layers.N.self_attn.q_proj.*               v.blk.N.attn_q.*            D D
    encoder.layers.N.self_attn.k_proj.*               v.blk.N.attn_k.*            D D
    encoder.layers.N.self_attn.v_proj.*               v.blk.N.attn_v.*            D D
    encoder.layers.N.self_attn.out_proj.*             v.blk.N.attn_out.*          D D
    encoder.layers.N.layer_norm2.*                    v.blk.N.ln2.*               D
    encoder.layers.N.mlp.fc1.*                        v.blk.N.ffn_up.*            F D
    encoder.layers.N.mlp.fc2.*                        v.blk.N.ffn_down.*          D F
    post_layernorm.*                                  v.post_ln.*                 D
    multi_modal_projector.mm_soft_emb_norm.weight     mm.soft_emb_norm.weight     D
    multi_modal_projector.mm_input_projection_weight  mm.input_projection.weight  D W
    """,
    _gemma3_vision,
    defaults={
        "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
        "image_size": 224, "patch_size": 16,
    },
    told={"clip.projector_type": "gemma3", "clip.use_gelu": True},
    fixed={"hidden_act": "gelu_pytorch_tanh", "num_channels": 3},
    pooling=4,
    colours=(0.5, 0.5),
    changes={"mm.soft_emb_norm.weight": _plus_one},
    types={"v.patch_embd.weight": F32, "v.position_embd.weight": F32, "mm.input_projection.weight": F16},
)  # fmt: skip


def _gemma4_vision(c: Fields, config: Fields) -> Sizes:
    sizes, patch = _transformer(c), c.integer("patch_size")
    return {
        **sizes,
        "d": c.integer("head_dim"),
        "p": patch,
        "P": 3 * patch * patch,
        "T": c.integer("position_embedding_size"),
        "S": sizes["D"] if c.flag("standardize") else 0,
        "pool": c.integer("pooling_kernel_size"),
    }


GEMMA4_VISION = TowerTable(
    "vision",
    "vision_tower.",
    """
    patch_embedder.input_proj.weight                    v.patch_embd.weight            D P → D 3 p p
    patch_embedder.position_embedding_table             v.position_embd.weight         2 T D
    encoder.layers.N.input_layernorm.weight             v.blk.N.ln1.weight             D
    encoder.layers.N.self_attn.q_proj.linear.weight     v.blk.N.attn_q.weight          D D
    encoder.layers.N.self_attn.k_proj.linear.weight     v.blk.N.attn_k.weight          D D
    encoder.layers.N.self_attn.v_proj.linear.weight     v.blk.N.attn_v.weight          D D
    encoder.layers.N.self_attn.o_proj.linear.weight     v.blk.N.attn_out.weight        D D
    encoder.layers.N.self_attn.q_norm.weight            v.blk.N.attn_q_norm.weight     d
    encoder.layers.N.self_attn.k_norm.weight            v.blk.N.attn_k_norm.weight     d
    encoder.layers.N.post_attention_layernorm.weight    v.blk.N.attn_post_norm.weight  D
    encoder.layers.N.pre_feedforward_layernorm.weight   v.blk.N.ln2.weight             D
    encoder.layers.N.mlp.gate_proj.linear.weight        v.blk.N.ffn_gate.weight        F D
    encoder.layers.N.mlp.up_proj.linear.weight          v.blk.N.ffn_up.weight          F D
    encoder.layers.N.mlp.down_proj.linear.weight        v.blk.N.ffn_down.weight        D F
    encoder.layers.N.post_feedforward_layernorm.weight  v.blk.N.ffn_post_norm.weight   D
    std_bias                                            v.std_bias                     S
    std_scale                                           v.std_scale                    S
    embed_vision.embedding_projection.weight            mm.input_projection.weight     W D
    """,
    _gemma4_vision,
    defaults={
        "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 16, "num_attention_heads": 12,
        "head_dim": 64, "patch_size": 16, "pooling_kernel_size": 3, "position_embedding_size": 10240,
        "standardize": False,
        "image_size": 224,  # unused, but readers require it
    },
    # Without the second one, llama.cpp computes another GELU than the published model.
    told={"clip.vision.projector_type": "gemma4v", "clip.use_gelu": True},
    fixed={"hidden_activation": "gelu_pytorch_tanh", "rope_parameters.rope_theta": 100.0},
    changes={"v.patch_embd.weight": channels_first},
    types={"v.position_embd.weight": F32},
)  # fmt: skip


def _gemma4_audio(c: Fields, config: Fields) -> Sizes:
    width, heads = c.integer("hidden_size"), c.integer("num_attention_heads")
    first, second = c.per_layer("subsampling_conv_channels", 2)
    return {
        "D": width,
        "E": 2 * width,
        "F": 4 * width,
        "L": c.integer("num_hidden_layers", high=1024),
        "H": heads,
        "d": width // heads,
        "k": c.integer("conv_kernel_size"),
        "A": first,
        "B": second,
        "I": first // 4 * second,
        "O": c.integer("output_proj_dims"),
    }


GEMMA4_AUDIO = TowerTable(
    "audio",
    "audio_tower.",
    """
    subsample_conv_projection.layer0.conv.weight        a.conv1d.0.weight              A 1 3 3
    subsample_conv_projection.layer0.norm.weight        a.conv1d.0.norm.weight         A
    subsample_conv_projection.layer1.conv.weight        a.conv1d.1.weight              B A 3 3
    subsample_conv_projection.layer1.norm.weight        a.conv1d.1.norm.weight         B
    subsample_conv_projection.input_proj_linear.weight  a.input_projection.weight      D I
    layers.N.feed_forward1.pre_layer_norm.weight        a.blk.N.ffn_norm.weight        D
    layers.N.feed_forward1.ffw_layer_1.linear.weight    a.blk.N.ffn_up.weight          F D
    layers.N.feed_forward1.ffw_layer_2.linear.weight    a.blk.N.ffn_down.weight        D F
    layers.N.feed_forward1.post_layer_norm.weight       a.blk.N.ffn_post_norm.weight   D
    layers.N.norm_pre_attn.weight                       a.blk.N.attn_pre_norm.weight   D
    layers.N.self_attn.q_proj.linear.weight             a.blk.N.attn_q.weight          D D
    layers.N.self_attn.k_proj.linear.weight             a.blk.N.attn_k.weight          D D
    layers.N.self_attn.v_proj.linear.weight             a.blk.N.attn_v.weight          D D
    layers.N.self_attn.post.linear.weight               a.blk.N.attn_out.weight        D D
    layers.N.self_attn.relative_k_proj.weight           a.blk.N.attn_k_rel.weight      D D
    layers.N.self_attn.per_dim_scale                    a.blk.N.per_dim_scale.weight   d
    layers.N.norm_post_attn.weight                      a.blk.N.attn_post_norm.weight  D
    layers.N.lconv1d.pre_layer_norm.weight              a.blk.N.conv_norm.weight       D
    layers.N.lconv1d.linear_start.linear.weight         a.blk.N.conv_pw1.weight        E D
    layers.N.lconv1d.depthwise_conv1d.weight            a.blk.N.conv_dw.weight         D 1 k → D k
    layers.N.lconv1d.conv_norm.weight                   a.blk.N.norm_conv.weight       D
    layers.N.lconv1d.linear_end.linear.weight           a.blk.N.conv_pw2.weight        D D
    layers.N.feed_forward2.pre_layer_norm.weight        a.blk.N.ffn_norm_1.weight      D
    layers.N.feed_forward2.ffw_layer_1.linear.weight    a.blk.N.ffn_up_1.weight        F D
    layers.N.feed_forward2.ffw_layer_2.linear.weight    a.blk.N.ffn_down_1.weight      D F
    layers.N.feed_forward2.post_layer_norm.weight       a.blk.N.ffn_post_norm_1.weight D
    layers.N.norm_out.weight                            a.blk.N.ln2.weight             D
    output_proj.weight                                  a.pre_encode.out.weight        O D
    output_proj.bias                                    a.pre_encode.out.bias          O
    embed_audio.embedding_projection.weight             mm.a.input_projection.weight   W O
    """,
    _gemma4_audio,
    defaults={
        "hidden_size": 1024, "num_hidden_layers": 12, "num_attention_heads": 8, "conv_kernel_size": 5,
        "subsampling_conv_channels": [128, 32], "output_proj_dims": 1536,
    },
    told={"clip.audio.projector_type": "gemma4a", "clip.audio.num_mel_bins": 128},
    fixed={
        "hidden_act": "silu", "residual_weight": 0.5, "rms_norm_eps": 1e-6, "attention_logit_cap": 50.0,
        "attention_chunk_size": 12, "attention_context_left": 13, "attention_context_right": 0,
        "gradient_clipping": 1e10,
    },
    changes={"a.blk.N.per_dim_scale.weight": _softplus},
    types=dict.fromkeys(
        ("a.conv1d.0.weight", "a.conv1d.1.weight", "a.input_projection.weight", "a.blk.N.conv_dw.weight"), F32
    ),
)  # fmt: skip

# Gemma 4 12B has no towers: patches of pixels and of audio are projected directly.
_NO_LAYERS = {"F": 0, "L": 0, "H": 0}


def _unified_vision(c: Fields, config: Fields) -> Sizes:
    pool = c.integer("pooling_kernel_size")
    return {
        **_NO_LAYERS,
        "D": c.integer("mm_embed_dim"),
        "P": 3 * (c.integer("patch_size") * pool) ** 2,
        "T": c.integer("mm_posemb_size"),
        "pool": pool,
    }


UNIFIED_VISION = TowerTable(
    "vision",
    "vision_embedder.",
    """
    patch_ln1.*                               v.patch_norm.1.*            P
    patch_dense.*                             v.patch_embd.*              D P
    patch_ln2.*                               v.patch_norm.2.*            D
    pos_embedding                             v.position_embd.weight      T 2 D → 2 T D
    pos_norm.*                                v.patch_norm.3.*            D
    embed_vision.embedding_projection.weight  mm.input_projection.weight  W D
    """,
    _unified_vision,
    defaults={
        "mm_embed_dim": 3840, "mm_posemb_size": 1120, "patch_size": 16, "pooling_kernel_size": 3,
        "image_size": 224,
    },
    told={"clip.vision.projector_type": "gemma4uv"},
    changes={
        "v.patch_norm.1.weight": channels_first,
        "v.patch_norm.1.bias": channels_first,
        "v.patch_embd.weight": channels_first,
        "v.position_embd.weight": lambda values: values.swapaxes(0, 1),
    },
    types={"v.position_embd.weight": F32},
)  # fmt: skip

UNIFIED_AUDIO = TowerTable(
    "audio",
    "",
    "embed_audio.embedding_projection.weight  mm.a.input_projection.weight  W D",
    lambda c, config: {**_NO_LAYERS, "D": c.integer("audio_embed_dim")},
    defaults={"audio_embed_dim": 640},
    told={"clip.audio.projector_type": "gemma4ua", "clip.audio.num_mel_bins": 128},
    fixed={"audio_embed_dim": 640, "rms_norm_eps": 1e-6},
)

# By `model_type`.
TOWERS: dict[str, tuple[TowerTable, ...]] = {
    "gemma3": (GEMMA3_VISION,),
    "gemma4": (GEMMA4_VISION, GEMMA4_AUDIO),
    "gemma4_unified": (UNIFIED_VISION, UNIFIED_AUDIO),
}

# Where towers are in a folder; all other tensors belong to the text model.
PREFIXES = (
    "vision_tower.",
    "multi_modal_projector.",
    "audio_tower.",
    "vision_embedder.",
    "embed_vision.",
    "embed_audio.",
)
UNUSED = "vision_tower.head."  # SigLIP's pooling head, which Gemma 3 does not use
