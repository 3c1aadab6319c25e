"""The recorded networks: classes of `transformers` and options, each with an effect in sequences of 12 tokens."""

import pathlib

FOLDER = pathlib.Path(__file__).parent / "recordings"
OF_OTHERS = FOLDER.with_name("recordings_of_others")  # adapters of peft, and networks that others have quantized
SIZES = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "initializer_range": 0.3}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8}
TWO = {**HEADS, "num_key_value_heads": 2}
SHORT = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
WINDOW = {"sliding_window": 4}
YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 8}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 8}
LLAMA3 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONG = {"rope_type": "longrope", "rope_theta": 100.0, "partial_rotary_factor": 0.5}
LONG |= {"original_max_position_embeddings": 8, "short_factor": [1.0, 1.5], "long_factor": [2.0, 3.0]}
LINEAR = {"rope_type": "linear", "rope_theta": 100.0, "factor": 8.0}
KINDS = ["sliding_attention", "full_attention"]
ROTARIES = {"rope_type": "default", "rope_theta": 50.0}, LINEAR
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
LARGER = {"num_attention_heads": 4, "hidden_size": 32}
FACTORS = {"embedding_multiplier": 3.5, "attention_multiplier": 0.11, "residual_multiplier": 0.22}
FACTORS |= {"logits_scaling": 6.0}
ODD = {"vocab_size": 67, "hidden_size": 18, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3}
QUARTER = {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.25}}
GROWING = {"original_max_position_embeddings": 3, "llama_4_scaling_beta": 0.5}
TWO_HEADS = {"num_attention_heads": 2, "hidden_size": 16, "local_attention": 4}
BY_KIND = dict(zip(KINDS, ROTARIES, strict=True))
NETWORKS = {
    "llama": ("LlamaForCausalLM", {**TWO, "rope_parameters": LLAMA3, "attention_bias": True, "mlp_bias": True}),
    "mistral": ("MistralForCausalLM", {**HEADS, **WINDOW, "rope_parameters": YARN, "max_position_embeddings": 32}),
    "qwen2": (
        "Qwen2ForCausalLM",
        {**HEADS, **WINDOW, "use_sliding_window": True, "max_window_layers": 1, "tie_word_embeddings": True},
    ),
    "qwen3": ("Qwen3ForCausalLM", {**TWO, "rope_parameters": YARN, "rms_norm_eps": 1e-3}),
    "gemma2": (
        "Gemma2ForCausalLM",
        {**HEADS, **WINDOW, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0, "query_pre_attn_scalar": 20},
    ),
    "gemma3_text": (
        "Gemma3ForCausalLM",
        {**TWO, **WINDOW, "query_pre_attn_scalar": 20, "layer_types": KINDS, "rope_parameters": BY_KIND},
    ),
    "gpt2": (
        "GPT2LMHeadModel",
        {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16, "n_inner": 24},
    ),
    "phi3": (
        "Phi3ForCausalLM",
        {
            **HEADS,
            "hidden_size": 32,
            "rope_parameters": LONG,
            "max_position_embeddings": 32,
            "original_max_position_embeddings": 8,
        },
    ),
    "olmo2": ("Olmo2ForCausalLM", {**TWO, "attention_bias": True}),
    "mixtral": ("MixtralForCausalLM", {**TWO, **WINDOW, "num_local_experts": 4, "rms_norm_eps": 1e-3}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", {**TWO, **EXPERTS, "norm_topk_prob": True}),
    "qwen3_moe_dense": (
        "Qwen3MoeForCausalLM",
        {
            **HEADS,
            **WINDOW,
            **EXPERTS,
            "use_sliding_window": True,
            "num_hidden_layers": 4,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [1],
            "attention_bias": True,
        },
    ),
    "smollm3": (
        "SmolLM3ForCausalLM",
        {**HEADS, **WINDOW, "use_sliding_window": True, "no_rope_layers": [1, 0], "attention_bias": True},
    ),
    "granite": ("GraniteForCausalLM", {**TWO, **FACTORS, "attention_bias": True, "mlp_bias": True}),
    "granite_tied": (
        "GraniteForCausalLM",
        {**ODD, **FACTORS, "attention_multiplier": 1.0, "num_key_value_heads": 1, "tie_word_embeddings": True},
    ),
    "granite_divided": (
        "GraniteForCausalLM",
        {**HEADS, "logits_scaling": 0.3, "residual_multiplier": 1.7, "rope_parameters": LINEAR, "hidden_act": "gelu"},
    ),
    "glm4": ("Glm4ForCausalLM", {**TWO, "attention_bias": True, "rms_norm_eps": 1e-3}),
    "glm4_quarter": (
        "Glm4ForCausalLM",
        {**ODD, **QUARTER, "head_dim": 8, "num_key_value_heads": 1, "tie_word_embeddings": True},
    ),
    "glm4_whole": (
        "Glm4ForCausalLM",
        {**HEADS, "rope_parameters": {**LINEAR, "partial_rotary_factor": 1.0}, "attention_bias": False},
    ),
    "ministral": ("MinistralForCausalLM", {**TWO, **WINDOW, "layer_types": KINDS, "rope_parameters": LINEAR}),
    "ministral_tied": (
        "MinistralForCausalLM",
        {**ODD, "sliding_window": 5, "num_key_value_heads": 1, "head_dim": 10, "tie_word_embeddings": True},
    ),
    "ministral3": (
        "Ministral3ForCausalLM",
        {**TWO, **WINDOW, "rope_parameters": {**YARN, "llama_4_scaling_beta": 0.7}},
    ),
    "ministral3_default": (
        "Ministral3ForCausalLM",
        {
            **ODD,
            "num_key_value_heads": 3,
            "head_dim": 10,
            "rope_parameters": {"rope_type": "default", "rope_theta": 50.0, **GROWING},
        },
    ),
    "gpt_oss": ("GptOssForCausalLM", {**TWO, **WINDOW, **LOCAL, "rope_parameters": {**YARN, "truncate": False}}),
    "gpt_oss_limited": (
        "GptOssForCausalLM",
        {**TWO, **LOCAL, "layer_types": KINDS[::-1], "sliding_window": 3, "swiglu_limit": 0.4, "swiglu_alpha": 0.9},
    ),
    "gpt_oss_tied": (
        "GptOssForCausalLM",
        {
            **ODD,
            "num_key_value_heads": 1,
            "head_dim": 10,
            "num_local_experts": 5,
            "num_experts_per_tok": 3,
            "attention_bias": False,
            "sliding_window": 2,
            "tie_word_embeddings": True,
        },
    ),
    "modernbert": (
        "ModernBertModel",
        {**TWO_HEADS, "layer_types": KINDS, "rope_parameters": BY_KIND, "norm_eps": 1e-3},
    ),
    "modernbert_biased": (
        "ModernBertModel",
        {
            **ODD,
            **{key: True for key in ("norm_bias", "attention_bias", "mlp_bias")},
            "global_attn_every_n_layers": 2,
            "local_attention": 6,
        },
    ),
    "modernbert_local": (
        "ModernBertModel",
        {**TWO_HEADS, "layer_types": KINDS[:1] * 2, "local_attention": 2, "hidden_activation": "silu"},
    ),
    "bert": (
        "BertModel",
        {
            "num_attention_heads": 4,
            "hidden_size": 32,
            "max_position_embeddings": 16,
            "layer_norm_eps": 1e-3,
            "hidden_act": "gelu_new",
        },
    ),
    "vit": ("ViTModel", {**LARGER, "image_size": 8, "patch_size": 4, "layer_norm_eps": 1e-3}),
}
