"""ESPnet1's keys and their defaults."""

from __future__ import annotations

from collections.abc import Mapping

# ESPnet1's key -> our options, for keys that only change their name. An empty tuple: the key is not needed; a note
# says so.
Names = Mapping[str, tuple[str, ...]]

ANY: Names = {
    "accum_grad": ("accum_grad",),
    "backend": (),
    "debugmode": (),
    "grad_noise": ("grad_noise",),
    "n_iter_processes": ("num_workers",),
    "num_save_ctc": (),
    "ngpu": ("ngpu",),
    "num_save_attention": ("num_att_plot",),
    "report_interval_iters": ("log_interval",),
    "save_interval_iters": ("save_interval_steps",),
    "seed": ("seed",),
    "train_dtype": ("train_dtype",),
    "verbose": (),
}
ASR: Names = {
    **ANY,
    "adim": ("encoder_conf.output_size",),
    "aheads": ("encoder_conf.attention_heads", "decoder_conf.attention_heads"),
    "dlayers": ("decoder_conf.num_blocks",),
    "dropout_rate": (
        "encoder_conf.dropout_rate",
        "encoder_conf.positional_dropout_rate",
        "decoder_conf.dropout_rate",
        "decoder_conf.positional_dropout_rate",
        "ctc_conf.dropout_rate",
    ),
    "dunits": ("decoder_conf.linear_units",),
    "elayers": ("encoder_conf.num_blocks",),
    "epochs": ("max_epoch",),
    "eunits": ("encoder_conf.linear_units",),
    "freeze_mods": ("freeze_param",),
    "grad_clip": ("grad_clip",),
    "intermediate_ctc_weight": ("model_conf.interctc_weight",),
    "lsm_weight": ("model_conf.lsm_weight",),
    "mtlalpha": ("model_conf.ctc_weight",),
    "report_cer": ("model_conf.report_cer",),
    "report_wer": ("model_conf.report_wer",),
    "self_conditioning": ("encoder_conf.interctc_use_conditioning",),
    "stochastic_depth_rate": ("encoder_conf.stochastic_depth_rate",),
    "sym_blank": ("model_conf.sym_blank",),
    "sym_space": ("model_conf.sym_space",),
    "transformer_attn_dropout_rate": (
        "encoder_conf.attention_dropout_rate",
        "decoder_conf.self_attention_dropout_rate",
        "decoder_conf.src_attention_dropout_rate",
    ),
    "transformer_init": ("init",),
    "transformer_input_layer": ("encoder_conf.input_layer",),
    "transformer_length_normalized_loss": ("model_conf.length_normalized_loss",),
}
CONFORMER: Names = {
    "cnn_module_kernel": ("encoder_conf.cnn_module_kernel",),
    "macaron_style": ("encoder_conf.macaron_style",),
    "rel_pos_type": ("encoder_conf.rel_pos_type",),
    "transformer_encoder_activation_type": ("encoder_conf.activation_type",),
    "transformer_encoder_pos_enc_layer_type": ("encoder_conf.pos_enc_layer_type",),
    "transformer_encoder_selfattn_layer_type": ("encoder_conf.selfattention_layer_type",),
    "use_cnn_module": ("encoder_conf.use_cnn_module",),
    "zero_triu": ("encoder_conf.zero_triu",),
}
RNN: Names = {
    **ANY,
    **{key: (f"decoder_conf.att_conf.{key}",) for key in ("adim", "aheads", "atype", "awin")},
    "aconv_chans": ("decoder_conf.att_conf.aconv_chans",),
    "aconv_filts": ("decoder_conf.att_conf.aconv_filts",),
    "context_residual": ("decoder_conf.context_residual",),
    "dlayers": ("decoder_conf.num_layers",),
    "dropout_rate": ("encoder_conf.dropout", "ctc_conf.dropout_rate"),
    "dropout_rate_decoder": ("decoder_conf.dropout",),
    "dtype": ("decoder_conf.rnn_type",),
    "dunits": ("decoder_conf.hidden_size",),
    "elayers": ("encoder_conf.num_layers",),
    "epochs": ("max_epoch",),
    "eprojs": ("encoder_conf.output_size",),
    "eunits": ("encoder_conf.hidden_size",),
    "freeze_mods": ("freeze_param",),
    "grad_clip": ("grad_clip",),
    "mtlalpha": ("model_conf.ctc_weight",),
    "report_cer": ("model_conf.report_cer",),
    "report_wer": ("model_conf.report_wer",),
    "sampling_probability": ("decoder_conf.sampling_probability",),
    "sym_blank": ("model_conf.sym_blank",),
    "sym_space": ("model_conf.sym_space",),
}
RNN_DEFAULTS = {
    "adim": 320,
    "atype": "dot",
    "dlayers": 1,
    "dropout_rate": 0.0,
    "dropout_rate_decoder": 0.0,
    "dtype": "lstm",
    "dunits": 320,
    "elayers": 4,
    "epochs": 30,
    "eprojs": 320,
    "eunits": 300,
    "grad_clip": 5.0,
    "mtlalpha": 0.5,
    "seed": 1,
}
ASR_DEFAULTS = {
    "adim": 320,
    "aheads": 4,
    "dlayers": 1,
    "dropout_rate": 0.0,
    "dunits": 320,
    "elayers": 4,
    "epochs": 30,
    "eunits": 300,
    "grad_clip": 5.0,
    "lsm_weight": 0.0,
    "mtlalpha": 0.5,
    "seed": 1,
    "transformer_init": "pytorch",
    "transformer_input_layer": "conv2d",
    "transformer_length_normalized_loss": True,
}
CONFORMER_DEFAULTS = {
    "cnn_module_kernel": 31,
    "macaron_style": False,
    "rel_pos_type": "legacy",
    "transformer_encoder_activation_type": "swish",
    "transformer_encoder_pos_enc_layer_type": "abs_pos",
    "transformer_encoder_selfattn_layer_type": "selfattn",
    "use_cnn_module": False,
    "zero_triu": False,
}
LM: Names = {
    **ANY,
    "batchsize": ("batch_size",),
    "dropout": ("lm_conf.dropout_rate",),
    "dropout_rate": ("lm_conf.dropout_rate",),
    "epoch": ("max_epoch",),
    "gradclip": ("grad_clip",),
    "layer": ("lm_conf.nlayers",),
    "tie_weights": ("lm_conf.tie_weights",),
    "type": ("lm_conf.rnn_type",),
    "unit": ("lm_conf.unit",),
}
LM_DEFAULTS = {
    "batchsize": 300,
    "dropout_rate": 0.5,
    "epoch": 20,
    "gradclip": 5.0,
    "layer": 2,
    "seed": 1,
    "type": "lstm",
    "unit": 650,
}
TRANSFORMER_LM: Names = {
    **{key: item for key, item in LM.items() if key not in ("type", "tie_weights")},
    "att_dropout_rate": ("lm_conf.attention_dropout_rate",),
    "att_unit": ("lm_conf.att_unit",),
    "embed_unit": ("lm_conf.embed_unit",),
    "head": ("lm_conf.head",),
    "layer": ("lm_conf.layer",),
    "pos_enc": ("lm_conf.pos_enc",),
}
TRANSFORMER_LM_DEFAULTS = {
    **{key: item for key, item in LM_DEFAULTS.items() if key != "type"},
    "att_dropout_rate": 0.0,
    "att_unit": 256,
    "embed_unit": 128,
    "head": 2,
    "layer": 4,
    "pos_enc": "sinusoidal",
    "unit": 1024,
}
DECODE: Names = {
    "backend": (),
    "batch": (),
    "batch_size": ("batch_size",),
    "batchsize": (),
    "beam_size": ("beam_size",),
    "ctc_weight": ("ctc_weight",),
    "debugmode": (),
    "lm_weight": ("lm_weight",),
    "maxlenratio": ("maxlenratio",),
    "minlenratio": ("minlenratio",),
    "nbest": ("nbest",),
    "ngpu": ("ngpu",),
    "ngram_scorer": ("ngram_scorer",),
    "ngram_weight": ("ngram_weight",),
    "penalty": ("penalty",),
    "verbose": (),
}
TRANSDUCER_DECODE_DEFAULTS = {"beam_size": 1, "lm_weight": 0.1}
DECODE_DEFAULTS = {**TRANSDUCER_DECODE_DEFAULTS, "ctc_weight": 0.0, "ngram_scorer": "part", "ngram_weight": 0.1}
LM_MODULES = ("default", "seq_rnn", "transformer")
OTHER_MODELS = {
    "e2e_asr_mix": "the multi-speaker recognizer",
    "e2e_asr_mix_transformer": "the multi-speaker recognizer",
    "e2e_asr_mulenc": "the multi-encoder model",
}
"""ESPnet1's models that have no translation, by module name."""
CONVOLUTIONS = {
    "lightconv": "lightweight_conv",
    "lightconv2d": "lightweight_conv2d",
    "dynamicconv": "dynamic_conv",
    "dynamicconv2d": "dynamic_conv2d",
}
"""ESPnet1's layers instead of self-attention, and the encoders and decoders here."""
ASR_SIGNS = {"elayers", "adim", "mtlalpha", "eunits", "dlayers", "model-module", "transformer-lr"}
LM_SIGNS = {"layer", "unit", "batchsize", "epoch"}
_COMPUTED = """
    batch_bins batch_frames_in batch_seqs batch_size dec_embed_dim enc_block_repeat eps intermediate_ctc_weight
    lr lr_cosine_total lr_cosine_warmup lr_noam_warmup lsm_weight maxlen maxlen_in maxlen_out noam_adim noam_lr
    optimizer_warmup_steps patience stochastic_depth_rate transformer_attn_dropout_rate transformer_lr
    transformer_warmup_steps weight_decay wshare
"""
_DEFAULTS = (RNN_DEFAULTS, ASR_DEFAULTS, CONFORMER_DEFAULTS, LM_DEFAULTS, TRANSFORMER_LM_DEFAULTS)
NUMBERS = frozenset(_COMPUTED.split()) | {
    key
    for defaults in _DEFAULTS
    for key, value in defaults.items()
    if isinstance(value, int | float) and not isinstance(value, bool)
}
"""Keys whose values are numbers."""
NULLABLE = ("transformer_attn_dropout_rate", "lr", "weight_decay", "noam_adim", "lsm_weight", "patience")
"""Numbers that may be null."""
REPEATS = ("elayers", "dlayers", "layer", "enc_block_repeat")
"""Numbers of layers."""
MOST_LAYERS = 1000
LISTS = ("process", "enc_block_arch", "dec_block_arch")
"""Keys whose values are lists; every other key has one value."""
