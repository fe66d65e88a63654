"""Translate ESPnet1's transducers: RNN encoders, lists of equal Conformer or Transformer blocks, and their search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tympan.config.espnet1_file import Translation, show
from tympan.config.espnet1_keys import ANY, RNN_DEFAULTS, Names
from tympan.config.espnet1_training import translate_rnn_encoder, translate_training

LOSSES = ("use_lm_loss", "use_aux_transducer_loss", "use_symm_kl_div_loss", "use_aux_ctc", "use_aux_cross_entropy")
_UNUSED = ("adim", "atype", "aheads", "awin", "aconv_chans", "aconv_filts", "mtlalpha", "rnnt_mode")
_DECODER: Names = {
    "dlayers": ("decoder_conf.num_layers",),
    "dropout_rate_decoder": ("decoder_conf.dropout",),
    "dropout_rate_embed_decoder": ("decoder_conf.dropout_embed",),
    "dtype": ("decoder_conf.rnn_type",),
    "dunits": ("decoder_conf.hidden_size",),
    "joint_activation_type": ("joint_net_conf.joint_activation_type",),
    "joint_dim": ("joint_net_conf.joint_space_size",),
}
_DECODER_DEFAULTS = {"dlayers": 1, "dropout_rate_decoder": 0.0, "dropout_rate_embed_decoder": 0.0, "dtype": "lstm"}
_DECODER_DEFAULTS |= {"dunits": 320, "joint_dim": 320}
_COMMON: Names = {
    **ANY,
    "epochs": ("max_epoch",),
    "freeze_mods": ("freeze_param",),
    "grad_clip": ("grad_clip",),
    "report_cer": ("model_conf.report_cer",),
    "report_wer": ("model_conf.report_wer",),
    "sym_blank": ("model_conf.sym_blank",),
    "sym_space": ("model_conf.sym_space",),
}
_RNN: Names = {
    "dropout_rate": ("encoder_conf.dropout",),
    "elayers": ("encoder_conf.num_layers",),
    "eprojs": ("encoder_conf.output_size",),
    "eunits": ("encoder_conf.hidden_size",),
}
_TRANSFORMER: Names = {
    "adim": ("encoder_conf.output_size",),
    "aheads": ("encoder_conf.attention_heads",),
    "dropout_rate": ("encoder_conf.dropout_rate", "encoder_conf.positional_dropout_rate"),
    "elayers": ("encoder_conf.num_blocks",),
    "eunits": ("encoder_conf.linear_units",),
    "transformer_attn_dropout_rate_encoder": ("encoder_conf.attention_dropout_rate",),
}
_TRANSFORMER_DEFAULTS = {"adim": 320, "aheads": 4, "dropout_rate": 0.0, "elayers": 4, "eunits": 300}
_BLOCK = {"d_hidden": "output_size", "d_ff": "linear_units", "heads": "attention_heads"}
"""Keys of a block, and those of `encoder_conf`."""
_ATTENTION = {"self_attn": "selfattn", "rel_self_attn": "rel_selfattn"}
_SEARCH: dict[str, dict[str, Any]] = {
    "default": {},
    "tsd": {"max_sym_exp": 2},
    "alsd": {"u_max": 400},
    "nsc": {"nstep": 1, "prefix_alpha": 2},
    "maes": {"nstep": 1, "prefix_alpha": 2, "expansion_gamma": 2.3, "expansion_beta": 2},
}
"""ESPnet1's defaults of the options of each search."""


def translate_transducer(file: Translation) -> None:
    """`model-module: ...e2e_asr_transducer:E2E`. What is not the same here is in a note."""
    _refuse_parts(file)
    file.put("decoder", "transducer", "model_module")
    blocks = file.take("enc_block_arch")
    etype = file.left.get("etype", ("", "blstmp"))[1]
    if blocks is not None:
        file.take("etype")
        size = _translate_blocks(file, blocks)
    elif etype in ("transformer", "custom"):
        size = _translate_transformer(file)
    else:
        translate_rnn_encoder(file)
        file.rename(_RNN, {key: value for key, value in RNN_DEFAULTS.items() if key in _RNN})
        conf = file.document.value["encoder_conf"]
        size = conf["output_size"]
        if conf.get("bidirectional") and not conf["use_projection"]:
            file.note(
                "etype",
                f"etype: {etype} differs: a layer's two directions are concatenated; ESPnet1's transducer adds them",
            )
    file.note("model_module", f"model-module became decoder: transducer, encoder: {file.document.value.get('encoder')}")
    _translate_decoder(file)
    file.rename(_COMMON, {"epochs": 30, "grad_clip": 5.0, "seed": 1})
    _translate_ctc(file)
    for key in _UNUSED:
        file.drop(key, "a transducer has no attention decoder")
    for old, new in (("noam_lr", "transformer_lr"), ("optimizer_warmup_steps", "transformer_warmup_steps")):
        file.known.add(old)
        if old in file.left:
            file.left[new] = file.left.pop(old)
    translate_training(file, file.take("noam_adim") or size, criterion="loss")


def _refuse_parts(file: Translation) -> None:
    """Stop at what has no counterpart, with one sentence."""
    losses = [file.left[key][0] for key in LOSSES if file.left.get(key, ("", False))[1]]
    if losses:
        file.stop(
            losses[0].replace("-", "_"),
            f"{', '.join(losses)}: these losses of ESPnet1's transducer are not supported; remove them and their "
            "options to train with the losses of the transducer and of CTC",
        )
    if file.left.get("dtype", ("", ""))[1] == "custom":
        file.stop("dtype", "dtype: custom (a prediction network of blocks) is not supported; use dtype: lstm")
    if file.left.get("rnnt_mode", ("", "rnnt"))[1] != "rnnt":
        file.stop("rnnt_mode", "rnnt-mode: only rnnt is supported, not a transducer with attention")
    for key in ("enc_init", "dec_init"):
        if file.left.get(key, ("", None))[1] is not None:
            name = key.replace("_", "-")
            file.stop(
                key, f"{name}: weights of ESPnet1 can't be read; remove it, or give init_param a model of ESPnet2"
            )


def _translate_blocks(file: Translation, blocks: Any) -> int:
    """`enc-block-arch`: a list of one kind of block, repeated `enc-block-repeat` times. Returns their size."""
    listed = [dict(item) if isinstance(item, Mapping) else {} for item in blocks] if isinstance(blocks, list) else []
    first = {str(key).replace("-", "_"): value for key, value in listed[0].items()} if listed else {}
    kind = first.pop("type", None)
    if kind not in ("conformer", "transformer") or any(item != listed[0] for item in listed[1:]):
        file.stop(
            "enc_block_arch",
            "enc-block-arch: a list of equal conformer or transformer blocks is translated, not different blocks",
        )
    missing = [key for key in _BLOCK if key not in first]
    if missing:
        file.stop("enc_block_arch", f"enc-block-arch: the block has no {missing[0]}")
    file.put("encoder", kind, "enc_block_arch")
    for key, name in _BLOCK.items():
        file.put(f"encoder_conf.{name}", first.pop(key), "enc_block_arch")
    count = len(listed) * int(file.take("enc_block_repeat", 1) or 1)
    file.put("encoder_conf.num_blocks", count, "enc_block_arch")
    dropout = first.pop("dropout_rate", 0.0)
    file.put("encoder_conf.dropout_rate", dropout, "enc_block_arch")
    file.put("encoder_conf.attention_dropout_rate", first.pop("att_dropout_rate", 0.0), "enc_block_arch")
    file.put("encoder_conf.positional_dropout_rate", first.pop("pos_dropout_rate", 0.0), "enc_block_arch")
    if kind == "conformer":
        file.put("encoder_conf.macaron_style", bool(first.pop("macaron_style", False)), "enc_block_arch")
        file.put("encoder_conf.use_cnn_module", bool(first.pop("use_conv_mod", False)), "enc_block_arch")
        file.put("encoder_conf.cnn_module_kernel", first.pop("conv_mod_kernel", 31), "enc_block_arch")
    if first:
        file.refuse("enc_block_arch", f"enc-block-arch: {next(iter(first))} has no translation for a {kind} block")
    file.note("enc_block_arch", f"enc-block-arch became encoder: {kind} with {count} blocks")
    _translate_input(file, kind=str(kind))
    size: int = file.document.value["encoder_conf"]["output_size"]
    return size


def _translate_transformer(file: Translation) -> int:
    """`etype: transformer` of older files, with the keys of the Transformer."""
    file.take("etype")
    file.put("encoder", "transformer", "etype")
    dropout = file.left.get("dropout_rate", ("", 0.0))[1]
    defaults = {**_TRANSFORMER_DEFAULTS, "transformer_attn_dropout_rate_encoder": dropout}
    file.rename(_TRANSFORMER, defaults)
    _translate_input(file, kind="transformer")
    size: int = file.document.value["encoder_conf"]["output_size"]
    return size


def _translate_input(file: Translation, *, kind: str) -> None:
    """Input layer, positions and activation, under their newer and older names."""

    def taken(name: str, default: str) -> str:
        found = [file.take(f"{prefix}_{name}") for prefix in ("custom_enc", "transformer_enc", "transformer")]
        return str(next((item for item in found if item is not None), default))

    layer = taken("input_layer", "conv2d")
    if layer == "vgg2l":
        file.add("the input layer vgg2l became conv2d, which differs: it reduces the frames to a quarter as well, with "
                 "two convolutions instead of four")  # fmt: skip
    file.put("encoder_conf.input_layer", "conv2d" if layer == "vgg2l" else layer)
    file.drop("custom_enc_input_dropout_rate", "the input layer has the dropout of the blocks")
    file.drop("custom_enc_input_pos_enc_dropout_rate", "the input layer has the dropout of the blocks")
    position, attention = taken("positional_encoding_type", "abs_pos"), taken("self_attn_type", "self_attn")
    activation = taken("pw_activation_type", "relu")
    if kind == "conformer":
        file.put("encoder_conf.pos_enc_layer_type", position)
        file.put("encoder_conf.selfattention_layer_type", _ATTENTION.get(attention, attention))
        file.put("encoder_conf.activation_type", activation)
        file.put("encoder_conf.rel_pos_type", "legacy")
    elif (position, attention, activation) != ("abs_pos", "self_attn", "relu"):
        file.refuse(
            "enc_block_arch",
            f"a Transformer encoder has abs_pos, self_attn and relu here, not {position}, {attention}, {activation}",
        )


def _translate_decoder(file: Translation) -> None:
    """Prediction and joint network. Its embedding has the size of its layers."""
    if "dlayer" in file.left and "dlayers" not in file.left:  # argparse took the abbreviation
        file.left["dlayers"] = file.left.pop("dlayer")
    units = file.left.get("dunits", ("", _DECODER_DEFAULTS["dunits"]))[1]
    embed = file.take("dec_embed_dim", 320)
    if embed != units:
        file.note("dec_embed_dim", f"dec-embed-dim: {embed} became {units}, which differs: the embedding has the size "
                                   "of the layers, dunits")  # fmt: skip
    file.rename(_DECODER, _DECODER_DEFAULTS)
    file.drop("trans_type", "Tympan has its own loss of transducers")


def _translate_ctc(file: Translation) -> None:
    """CTC as a second loss, under its newer and older names."""
    is_used = bool(file.take("use_ctc_loss", False)) | bool(file.take("aux_ctc", False))
    weight = _first(file, ("ctc_loss_weight", "aux_ctc_weight"), 0.5)
    dropout = _first(file, ("ctc_loss_dropout_rate", "aux_ctc_dropout_rate"), 0.0)
    file.put("model_conf.ctc_weight", weight if is_used else 0.0)
    if is_used:
        file.put("ctc_conf.dropout_rate", dropout)
        file.add(f"the CTC loss became model_conf.ctc_weight: {show(weight)}, ctc_conf.dropout_rate: {show(dropout)}")


def _first(file: Translation, keys: tuple[str, ...], default: Any) -> Any:
    return next((item for item in [file.take(key) for key in keys] if item is not None), default)


def translate_transducer_search(file: Translation) -> bool:
    """`search-type` and its options became ESPnet2's `transducer_conf`. False for files of other models."""
    keys = {key for options in _SEARCH.values() for key in options} | {"search_type", "score_norm"}
    if not (keys | {"score_norm_transducer"}) & set(file.left):
        return False
    name = file.take("search_type", "default")
    if name not in _SEARCH:
        file.refuse("search_type", f"search-type: must be one of {', '.join(_SEARCH)}, found {name}")
        return True
    norm = _first(file, ("score_norm", "score_norm_transducer"), True)
    conf = {"search_type": name, "score_norm": norm}
    conf |= {key: file.take(key, default) for key, default in _SEARCH[name].items()}
    for key in keys - set(conf):
        file.drop(key, f"search {name} does not use it")
    file.refuse_unless("softmax_temperature", (1.0,))
    file.put("transducer_conf", conf, "search_type")
    file.note("search_type", f"search-type and its options became transducer_conf: {_shown(conf)}")
    return True


def _shown(conf: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}: {show(value)}" for key, value in conf.items())
