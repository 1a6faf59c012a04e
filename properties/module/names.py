"""What people call the arguments of constructors and of ``forward``: names as counted in public code, and what each one means.

A name is looked up in lower case and without underscores at its ends. A name that stands in no table has no meaning here.
"""

from __future__ import annotations

from dataclasses import dataclass

# ---------------------------------------------------------------- constructors

CONSTRUCTOR = {
    "width": "d_model dim embed_dim n_embd d_in d_out input_dim output_dim emb_size embed_size embedding_size embedding_dim hidden_dim "
    "hidden_size n_state feats n_filters num_hiddens dim_model emb_dim model_dim d channels in_channels out_channels num_channels n_channels "
    "in_features out_features in_dim out_dim features query_dim context_dim cross_attention_dim key_size query_size value_size dim_in dim_out "
    "kdim vdim d_embed model_size embedding_dimension dims n_units units size c embed width dim_q dim_kv q_dim kv_dim embed_dims d_embedding "
    "memory_dim encoder_dim kv_size dim_context qdim emb d_emb embeddim dmodel nx embeddings_dim n_embed num_features input_size output_size "
    "in_feats out_feats in_feat out_feat feat_dim n_feats "
    "d_out_kq d_out_v true_hidden_size intra_bottleneck_size n_feat chan chans c_in c_out c_z c_m c_s hidden",
    "heads": "num_heads n_head heads h n_heads head num_head head_num nheads nhead num_attention_heads n_attention_heads attention_heads "
    "encoder_attention_heads decoder_attention_heads "
    "no_heads num_q_heads n_q_heads num_query_heads attn_heads nb_heads number_of_heads head_count heads_num num_of_heads",
    "kv_heads": "n_kv_heads num_key_value_heads num_kv_heads kv_heads n_kv_head num_kv_head n_kv num_kv_groups num_query_groups n_kv_groups "
    "n_query_groups n_local_heads n_local_kv_heads num_local_kv_heads",
    "head_dim": "dim_head head_dim d_k head_size key_dim d_v d_head dim_k dim_v d_q d_key d_value qk_dim v_dim attention_head_size "
    "c_hidden dim_heads attention_head_dim dim_key dim_value kv_channels dk dv head_width heads_dim dim_per_head value_dim d_qk d_kv "
    "qk_nope_head_dim v_head_dim nope_head_dim qk_nope_dim",
    "length": "max_len max_length block_size context_length max_seq_len max_seq_length seq_len seq_length n_ctx max_position_embeddings "
    "n_positions sequence_length t ctx_len max_positions maxlen context_size max_context_length max_sequence_length seqlen ctx max_context "
    "ctx_length segment_means_seq_len max_token_len n_tokens num_tokens max_tokens max_position",
    "hidden": "d_ff ffn_dim dim_feedforward intermediate_size mlp_dim ff_dim hidden_features ffn_hidden d_ffn d_inner n_inner dff d_hidden "
    "encoder_ffn_dim decoder_ffn_dim feedforward_dim mlp_hidden_dim ffn_size n_hidden ff_size ffn_hidden_size ffn_embed_dim",
    "dropout": "dropout dropout_p attn_dropout drop p dropout_rate attn_drop proj_drop attn_pdrop resid_pdrop embd_pdrop attention_dropout "
    "hidden_dropout_prob attention_probs_dropout_prob resid_dropout p_dropout drop_rate attn_drop_rate drop_path dropout_prob drop_prob "
    "p_drop drop_p attn_p dropout_ratio attn_dropout_rate attn_dropout_p attn_dropout_prob attn_drop_p attn_drop_prob attention_drop "
    "p_attn p_attn_drop resid_drop resid_p ff_dropout ffn_dropout ff_drop mlp_dropout relu_dropout act_dropout path_drop_prob "
    "attention_dropout_rate proj_dropout out_dropout residual_dropout droprate pdrop hidden_dropout activation_dropout",
    "layers": "num_layers n_layer n_layers layers depth num_hidden_layers",
    "layer": "layer_idx layer_id layer_number layer_index block_idx block_id layer_num",
    "vocabulary": "vocab_size n_vocab num_embeddings vocabulary_size num_tokens_vocab",
    "bias": "bias qkv_bias use_bias attention_bias proj_bias add_bias",
    "epsilon": "eps norm_eps layer_norm_eps layer_norm_epsilon rms_norm_eps norm_epsilon",
    "temperature": "temperature temp",
    "theta": "rope_theta rope_base base theta rotary_base",
    "side": "spacial_dim spatial_dim",
    "landmarks": "num_landmarks n_landmarks landmarks",
    "rows": "num_latents n_latents num_queries n_queries num_slots n_slots num_query_tokens",
    "resolution": "resolution input_resolution feat_size fmap_size feature_map_size img_size image_size spatial_size grid_size",
    "turned": "rotary_dim rotary_ndims rope_dim rot_dim rotary_embedding_dim qk_rope_head_dim rope_head_dim qk_rope_dim",
    "window": "window_size window attn_window local_window_size",
    "rank": "kv_lora_rank q_lora_rank kv_rank q_rank kv_latent_dim q_latent_dim kv_compression_dim q_compression_dim kv_lora_dim q_lora_dim",
    "memory": "",
}
FEWER_KEYS = {"sr_ratio", "reduction_ratio", "spatial_reduction_ratio", "sequence_reduction_ratio"}  # 1 by default: keys of all tokens
CONFIG = "config cfg args conf params hparams hp opt opts options model_args model_config configuration c_fg settings"

# ---------------------------------------------------------------- constructors of caches

CACHE = {
    "batch": "batch batch_size max_batch max_batch_size bsz max_bsz bs max_bs b n_batch num_sequences",
    "heads": f"{CONSTRUCTOR['heads']} {CONSTRUCTOR['kv_heads']} num_local_heads",
    "head_dim": f"{CONSTRUCTOR['head_dim']} dim d hidden features hd",
    "width": "d_model n_embd embed_dim hidden_size model_dim dim_model",
    "length": f"{CONSTRUCTOR['length']} length size max_size capacity cache_len cache_size cache_length max_cache_len max_cache_length max_seqlen "
    "window_size max_tokens s l max_generated_length kv_len max_kv_len max_seq max_num_tokens",
    "layers": CONSTRUCTOR["layers"],
    "layer": CONSTRUCTOR["layer"],
    "type": "dtype cache_dtype kv_dtype torch_dtype",
    "device": "device",
}
CACHED = 128  # tokens for which a cache is made that asks for how many

# ---------------------------------------------------------------- forward

# Of what lengths are told: before "lens" and "lengths".
LENGTHS_OF = (
    "x xs q query src source tgt target enc_valid dec_valid seq sequence input in token valid memory mem enc encoder context ctx kv k key y "
    "feat feature frame text mel"
)
OF_LENGTHS = " ".join(f"{of}{word}" for of in ("", *(f"{name}_" for name in LENGTHS_OF.split())) for word in ("lens", "lengths"))

FORWARD = {
    "query": "query q queries q_in inputs_q x_q query_states x_query qs query_input input_q hidden_q xq",
    "key": "key k keys k_in x_k key_states x_key ks key_input input_k xk",
    "value": "value v values v_in x_v value_states x_value vs value_input input_v xv",
    "memory": "context memory encoder_hidden_states key_value_states inputs_kv enc_output encoder_output encoder_outputs kv cond x_kv xa "
    "enc_out kv_input memory_tokens ctx encoder_out enc y kv_states input_kv mem context_tokens kv_x encoder_x x_kv_in media cross",
    "padding": "key_padding_mask padding_mask src_key_padding_mask input_mask src_padding_mask v_padding_mask pad_mask "
    "context_mask encoder_attention_mask key_mask kv_mask memory_key_padding_mask encoder_mask encoder_padding_mask tgt_key_padding_mask "
    "tgt_padding_mask value_mask enc_mask src_pad_mask tgt_pad_mask mask_pad pad src_pad tgt_pad trg_pad memory_pad mem_pad enc_pad dec_pad "
    "key_pad key_padding is_pad memory_pad_mask mem_mask media_mask latent_mask",
    "lengths": f"{OF_LENGTHS} ilens",
    "mask": "mask attn_mask attention_mask src_mask self_attn_mask masks attention_bias attn_bias valid_len "
    "memory_mask tgt_mask trg_mask target_mask self_mask cross_mask cross_attn_mask dec_mask decoder_mask look_ahead_mask lookahead_mask",
    "causal": "is_causal causal autoregressive_mask masked use_causal_mask causal_mask is_casual casual casual_mask autoregressive future_mask_flag",
    "weights": "need_weights output_attentions return_attention return_attn return_weights return_attn_weights need_attn return_attentions",
    "angles": "position_embeddings rotary_pos_emb position_embedding cos_sin rotary_emb image_rotary_emb rope",
    "complex angles": "freqs_cis freqs freq_cis rotary_freqs freqs_complex",
    "cosine": "cos freqs_cos cos_cached rope_cos cos_emb rotary_cos",
    "sine": "sin freqs_sin sin_cached rope_sin sin_emb rotary_sin",
    "distances": "pos_emb pos_embs rel_pos_emb rel_pos_embs relative_position_embeddings relative_position_embedding rel_pos_enc rel_pos rel_emb "
    "relative_positions_embeddings r_emb pos_encoding",
    "pairs": "pair pairs pair_repr pair_rep pairwise_repr pairwise pair_act pair_embedding pair_embeddings pair_feats pairwise_feats z edges "
    "edge_attr edge_feats edge_features edge_embedding edge_repr",  # features of each token beside each other one (AlphaFold)
    "added": "query_pos query_pos_embed query_position_embeddings query_position_embedding object_queries pos pos_embed pos_embedding "
    "positional_encoding position_encoding spatial_position_embeddings",  # what is added to tokens, or to queries and keys, as in DETR
    "added to memory": "memory_pos memory_pos_embed key_pos key_pos_embed encoder_position_embeddings memory_position_embeddings "
    "key_value_position_embeddings",
    "no bias": "alibi",  # of positions, for each head: zeros
    "height": "h height nh hh",
    "breadth": "w width nw ww",
    "grid": "hw_shape hw feat_size x_size grid_size spatial_shape spatial_size hw_size patch_resolution",
    "boundaries": "cu_seqlens cu_seq_lens cu_seqlens_q cu_seqlens_k cu_seqlens_kv cu_seq_len cu_seqlen",
    "longest": "max_seqlen max_seq_len max_seqlen_q max_seqlen_k max_seqlen_kv",
    "position ids": "position_ids positions pos_ids",
    "position row": "cache_position input_pos",
    "start": "start_pos offset start_position pos_offset cache_offset",
    "past": "past_key_value past_key_values layer_past kv_cache cache past past_kv layer_cache past_key_value_states past_kvs kvcache "
    "key_value_cache prev_kv cache_kv incremental_state",
    "past keys": "prev_k past_k k_cache cache_k cached_k past_key prev_key key_cache cached_key prev_keys past_keys cached_keys keys_cache k_past",
    "past values": "prev_v past_v v_cache cache_v cached_v past_value prev_value value_cache cached_value prev_values past_values cached_values "
    "values_cache v_past",
    "use cache": "use_cache return_cache use_kv_cache store_cache return_intermediates",
}
ALWAYS_CAUSAL = ("causal", "casual", "autoregressive")  # in the name of a class: tokens see no later ones
OFTEN_CAUSAL = ("masked", "gpt")  # the same, where nothing says otherwise
NOT_CAUSAL = ("autoencoder", "cross", "bidirectional")  # beside one of those, in the name of a class
# Positions that weights alone depend on; and all.
IN_LOGITS = ("rope", "rotary", "alibi", "relative", "rel_", "slopes", "freq", "bucket", "distance")
POSITIONS = ("pos", *IN_LOGITS, "time_shift", "token_shift", "shift_token")
TABLES = {"cos", "sin"}  # as whole words
SINKS = (
    "sink",
    "null",
    "register",
    "reg_tok",
    "mem_tok",
    "prompt",
    "bias_k",
    "bias_v",
    "zero_attn",
    "extra",
    "persistent",
    "mem_k",
    "mem_kv",
    "cls",
    "latent",
    "class_token",
)


def _table(rows: dict[str, str]) -> dict[str, str]:
    return {name: role for role, names in rows.items() for name in names.split()}


CONSTRUCTOR_ROLES = _table(CONSTRUCTOR)
FORWARD_ROLES = _table(FORWARD)
CACHE_ROLES = _table(CACHE)
CONFIGS = frozenset(CONFIG.split())


def role(name: str, roles: dict[str, str]) -> str:
    """What a name means; empty if nothing known."""
    return roles.get(name, "") or roles.get(name.lower().strip("_"), "")


@dataclass(frozen=True)
class Sizes:
    """What a module is made with: small, so that a case costs milliseconds."""

    heads: int = 4
    head_dim: int = 8
    dropout: float = 0.0
    ungrouped: bool = False  # as many heads of keys as of queries
    whole: bool = False  # keys of all tokens, where a constructor can make them fewer
    usual: bool = False  # what has a default is as by default, and not small

    def value(self, role: str) -> object:
        """The value of a role of the constructor."""
        width = self.heads * self.head_dim
        known: dict[str, object] = {
            "width": width,
            "heads": self.heads,
            "kv_heads": self.heads if self.ungrouped else max(self.heads // 2, 1),
            "head_dim": self.head_dim,
            "length": LONGEST,
            "hidden": 2 * width,
            "dropout": self.dropout,
            "layers": 2,
            "layer": 0,
            "vocabulary": 50,
            "bias": True,
            "epsilon": 1e-5,
            "temperature": self.head_dim**0.5,
            "theta": 10000.0,
            "side": 3,
            "landmarks": 4,
            "rows": 3,  # no length that is tried first
            "resolution": 3,
            "window": 4,
            "rank": max(3 * width // 8 * 2, 2),  # of a latent, no other size here; even, as all that are in use
            "turned": max(self.head_dim // 4 * 2, 2),  # half the features of a head, in pairs
        }
        return known[role]


LONGEST = 64  # what a module that asks for it is made to take
