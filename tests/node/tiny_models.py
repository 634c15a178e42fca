"""Tiny random models of every architecture whose split is verified: the tensors llama.cpp wants, and nothing real.

No small file of most architectures can be had in a test. What a split must preserve is the computation, and
random weights show any difference at once.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGUFWriter

HIDDEN = 64
HEADS = 2
HEAD = 32
FEED_FORWARD = 96
EXPERTS = 4
EXPERT_FEED_FORWARD = 32
VOCABULARY = 160
CONTEXT = 512
ORIGINAL_CONTEXT = 256

STATE, GROUPS, VALUE_HEADS, KERNEL = 16, 2, 4, 4
KEYS, VALUES = STATE * GROUPS, STATE * VALUE_HEADS

Shapes = Mapping[str, tuple[int, ...]]

ATTENTION: Shapes = {
    "attn_norm.weight": (HIDDEN,),
    "attn_q.weight": (HEADS * HEAD, HIDDEN),
    "attn_k.weight": (HEAD, HIDDEN),
    "attn_v.weight": (HEAD, HIDDEN),
    "attn_output.weight": (HIDDEN, HEADS * HEAD),
}
HEAD_NORMS: Shapes = {"attn_q_norm.weight": (HEAD,), "attn_k_norm.weight": (HEAD,)}
BIASES: Shapes = {"attn_q.bias": (HEADS * HEAD,), "attn_k.bias": (HEAD,), "attn_v.bias": (HEAD,)}
DENSE: Shapes = {
    "ffn_norm.weight": (HIDDEN,),
    "ffn_gate.weight": (FEED_FORWARD, HIDDEN),
    "ffn_up.weight": (FEED_FORWARD, HIDDEN),
    "ffn_down.weight": (HIDDEN, FEED_FORWARD),
}
MIXTURE: Shapes = {
    "ffn_norm.weight": (HIDDEN,),
    "ffn_gate_inp.weight": (EXPERTS, HIDDEN),
    "ffn_gate_exps.weight": (EXPERTS, EXPERT_FEED_FORWARD, HIDDEN),
    "ffn_up_exps.weight": (EXPERTS, EXPERT_FEED_FORWARD, HIDDEN),
    "ffn_down_exps.weight": (EXPERTS, HIDDEN, EXPERT_FEED_FORWARD),
}
SHARED_EXPERT: Shapes = {
    "ffn_gate_inp_shexp.weight": (HIDDEN,),
    "ffn_gate_shexp.weight": (EXPERT_FEED_FORWARD, HIDDEN),
    "ffn_up_shexp.weight": (EXPERT_FEED_FORWARD, HIDDEN),
    "ffn_down_shexp.weight": (HIDDEN, EXPERT_FEED_FORWARD),
}
POST_NORMS: Shapes = {"post_attention_norm.weight": (HIDDEN,), "post_ffw_norm.weight": (HIDDEN,)}
LINEAR_ATTENTION: Shapes = {
    "attn_norm.weight": (HIDDEN,),
    "attn_qkv.weight": (2 * KEYS + VALUES, HIDDEN),
    "attn_gate.weight": (VALUES, HIDDEN),
    "ssm_conv1d.weight": (2 * KEYS + VALUES, KERNEL),
    "ssm_dt.bias": (VALUE_HEADS,),
    "ssm_a": (VALUE_HEADS,),
    "ssm_beta.weight": (VALUE_HEADS, HIDDEN),
    "ssm_alpha.weight": (VALUE_HEADS, HIDDEN),
    "ssm_norm.weight": (STATE,),
    "ssm_out.weight": (HIDDEN, VALUES),
}
GATED_ATTENTION: Shapes = {**ATTENTION, **HEAD_NORMS, "attn_q.weight": (2 * HEADS * HEAD, HIDDEN)}
NEXT_TOKENS: Shapes = {
    "nextn.eh_proj.weight": (HIDDEN, 2 * HIDDEN),
    "nextn.enorm.weight": (HIDDEN,),
    "nextn.hnorm.weight": (HIDDEN,),
}

NEEDS_OUTPUT = {"qwen2moe", "olmo2"}
"""Their embedding is never tied to the output matrix."""


def _hybrid(layer: int, feed_forward: Shapes) -> Shapes:
    attention = GATED_ATTENTION if (layer + 1) % 4 == 0 else LINEAR_ATTENTION
    return {**attention, "post_attention_norm.weight": (HIDDEN,), **feed_forward}


_DENSE_ONLY = {name: shape for name, shape in DENSE.items() if name != "ffn_norm.weight"}
_MIXTURE_ONLY = {name: shape for name, shape in MIXTURE.items() if name != "ffn_norm.weight"}

LAYERS: dict[str, Callable[[int], Shapes]] = {
    "llama": lambda _: {**ATTENTION, **DENSE},
    "mistral3": lambda _: {**ATTENTION, **DENSE},
    "qwen2": lambda _: {**ATTENTION, **BIASES, **DENSE},
    "qwen2moe": lambda _: {**ATTENTION, **BIASES, **MIXTURE, **SHARED_EXPERT},
    "qwen3": lambda _: {**ATTENTION, **HEAD_NORMS, **DENSE},
    "qwen3moe": lambda _: {**ATTENTION, **HEAD_NORMS, **MIXTURE},
    "qwen35": lambda layer: _hybrid(layer, _DENSE_ONLY),
    "qwen35moe": lambda layer: _hybrid(layer, {**_MIXTURE_ONLY, **SHARED_EXPERT}),
    "gemma3": lambda _: {**ATTENTION, **HEAD_NORMS, **DENSE, **POST_NORMS},
    "phi3": lambda _: {
        "attn_norm.weight": (HIDDEN,),
        "attn_qkv.weight": (HEADS * HEAD + 2 * HEAD, HIDDEN),
        "attn_output.weight": (HIDDEN, HIDDEN),
        "ffn_norm.weight": (HIDDEN,),
        "ffn_up.weight": (2 * FEED_FORWARD, HIDDEN),
        "ffn_down.weight": (HIDDEN, FEED_FORWARD),
    },
    "granite": lambda _: {**ATTENTION, **DENSE},
    "granitemoe": lambda _: {
        **ATTENTION,
        **MIXTURE,
        "ffn_gate_exps.weight": (EXPERTS, FEED_FORWARD, HIDDEN),
        "ffn_up_exps.weight": (EXPERTS, FEED_FORWARD, HIDDEN),
        "ffn_down_exps.weight": (EXPERTS, HIDDEN, FEED_FORWARD),
    },
    "olmo2": lambda _: {
        **{name: shape for name, shape in ATTENTION.items() if name != "attn_norm.weight"},
        **_DENSE_ONLY,
        **POST_NORMS,
        "attn_q_norm.weight": (HIDDEN,),
        "attn_k_norm.weight": (HEAD,),
    },
}

GLOBALS: dict[str, Shapes] = {
    "llama": {"rope_freqs.weight": (HEAD // 2,)},
    "phi3": {"rope_factors_long.weight": (HEAD // 2,), "rope_factors_short.weight": (HEAD // 2,)},
}


def _add_particulars(writer: GGUFWriter, architecture: str) -> None:
    match architecture:
        case "gemma3" | "olmo2":
            writer.add_sliding_window(16)
        case "mistral3":
            writer.add_attn_temperature_scale(0.1)
            writer.add_rope_scaling_orig_ctx_len(16)
        case "phi3":
            writer.add_rope_scaling_orig_ctx_len(ORIGINAL_CONTEXT)
        case "granite" | "granitemoe":
            writer.add_logit_scale(7.0)
            writer.add_embedding_scale(12.0)
            writer.add_residual_scale(0.22)
        case "qwen35" | "qwen35moe":
            writer.add_rope_dimension_sections([6, 5, 5, 0])
            writer.add_ssm_conv_kernel(KERNEL)
            writer.add_ssm_inner_size(VALUES)
            writer.add_ssm_state_size(STATE)
            writer.add_ssm_time_step_rank(VALUE_HEADS)
            writer.add_ssm_group_count(GROUPS)
            writer.add_full_attention_interval(4)
    if "moe" in architecture:
        writer.add_expert_count(EXPERTS)
        writer.add_expert_used_count(2)
        writer.add_expert_feed_forward_length(EXPERT_FEED_FORWARD)
        if architecture != "granitemoe":
            writer.add_expert_shared_feed_forward_length(EXPERT_FEED_FORWARD)


def write_tiny(
    path: Path,
    architecture: str,
    *,
    layer_count: int = 8,
    tied: bool = True,
    next_token_layers: int = 0,
    extend: Callable[[GGUFWriter], None] = lambda _: None,
) -> Path:
    """A seeded random model: always the same bytes. ``next_token_layers`` stand behind ``layer_count`` others."""
    writer = GGUFWriter(path, architecture)
    _add_metadata(writer, architecture, layer_count + next_token_layers)
    if next_token_layers:
        writer.add_nextn_predict_layers(next_token_layers)
    extend(writer)
    tensors: dict[str, tuple[int, ...]] = {"token_embd.weight": (VOCABULARY, HIDDEN), "output_norm.weight": (HIDDEN,)}
    if not tied or architecture in NEEDS_OUTPUT:
        tensors["output.weight"] = (VOCABULARY, HIDDEN)
    tensors |= GLOBALS.get(architecture, {})
    for layer in range(layer_count + next_token_layers):
        parts = LAYERS[architecture](layer) if layer < layer_count else {**LAYERS[architecture](3), **NEXT_TOKENS}
        tensors |= {f"blk.{layer}.{name}": shape for name, shape in parts.items()}
    rng = np.random.default_rng(11)
    for name, shape in tensors.items():
        writer.add_tensor(name, _random(rng, name, shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _random(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    values = (1.0 if name == "token_embd.weight" else 0.2) * rng.standard_normal(shape)
    if name.endswith("norm.weight") or name.startswith("rope_"):
        values = 1.0 + np.abs(values)
    if name.endswith("ssm_a"):
        values = -np.abs(values)
    return values.astype(np.float32)


def _add_metadata(writer: GGUFWriter, architecture: str, block_count: int) -> None:
    writer.add_name("Tiny Random")
    writer.add_block_count(block_count)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(1)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_rope_dimension_count(HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    _add_particulars(writer, architecture)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([f"t{index:03}" for index in range(VOCABULARY)])
    writer.add_token_types([1] * VOCABULARY)
    writer.add_token_merges(["t 0"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
