"""What an ESPnet2 config.yaml may contain beyond Tympan's options."""

from __future__ import annotations

from typing import Any

from tympan.config.yaml_text import Document

_WRITTEN = frozenset({"config", "print_config", "required", "version", "distributed"})
"""Keys that are not options: ESPnet2 writes them into every run's config.yaml."""

_ORDER = """
    log_level drop_last_iter dry_run iterator_type valid_iterator_type output_dir seed num_workers num_att_plot
    dist_backend dist_init_method dist_world_size dist_rank local_rank dist_master_addr dist_master_port
    dist_launcher multiprocessing_distributed unused_parameters sharded_ddp use_deepspeed deepspeed_config
    gradient_as_bucket_view ddp_comm_hook cudnn_enabled cudnn_benchmark cudnn_deterministic use_tf32 collect_stats
    write_collected_feats max_epoch patience val_scheduler_criterion early_stopping_criterion best_model_criterion
    keep_nbest_models nbest_averaging_interval grad_clip grad_clip_type grad_noise accum_grad no_forward_run
    resume train_dtype use_amp log_interval use_matplotlib use_tensorboard create_graph_in_tensorboard use_wandb
    wandb_project wandb_id wandb_entity wandb_name wandb_model_log_interval wandb_allow_val_change detect_anomaly
    use_adapter adapter save_strategy adapter_conf pretrain_path init_param ignore_init_mismatch freeze_param
    num_iters_per_epoch batch_size valid_batch_size batch_bins valid_batch_bins category_sample_size
    upsampling_factor category_upsampling_factor dataset_upsampling_factor dataset_scaling_factor max_batch_size
    min_batch_size train_shape_file valid_shape_file batch_type valid_batch_type fold_length sort_in_batch
    shuffle_within_batch sort_batch multiple_iterator chunk_length chunk_shift_ratio num_cache_chunks
    chunk_excluded_key_prefixes chunk_default_fs chunk_max_abs_length chunk_discard_short_samples
    train_data_path_and_name_and_type valid_data_path_and_name_and_type multi_task_dataset
    allow_variable_data_keys max_cache_size max_cache_fd allow_multi_rates valid_max_cache_size
    exclude_weight_decay exclude_weight_decay_conf optim optim_conf scheduler scheduler_conf token_list init
    input_size ctc_conf joint_net_conf use_preprocessor use_lang_prompt use_nlp_prompt token_type bpemodel
    non_linguistic_symbols cleaner g2p speech_volume_normalize rir_scp rir_apply_prob noise_scp noise_apply_prob
    noise_db_range short_noise_thres aux_ctc_tasks frontend frontend_conf specaug specaug_conf normalize
    normalize_conf lm lm_conf model model_conf preencoder preencoder_conf encoder encoder_conf postencoder
    postencoder_conf decoder decoder_conf preprocessor preprocessor_conf
"""
OPTION_ORDER = tuple(_ORDER.split())
"""The order in which ESPnet2 prints its options, of all tasks: people compare printed configurations line by line."""

# Keys by `option:class` that only ESPnet2's class has: accepted at ESPnet2's default, rejected otherwise.
LACKING: dict[str, dict[str, Any]] = {
    "encoder_conf:beats": {"is_pretraining": False},
    "model_conf:maskctc": {"joint_network": None},
    # A function, which YAML can't hold.
    "scheduler_conf:cycliclr": {"scale_fn": None, "verbose": False},
    # Keys of torch before 2.7, and of ESPnet2's own class.
    **{
        f"scheduler_conf:{name}": {"verbose": False}
        for name in (
            "warmupreducelronplateau",
            "reducelronplateau",
            "steplr",
            "multisteplr",
            "exponentiallr",
            "cosineannealinglr",
            "cosineannealingwarmrestarts",
            "onecyclelr",
        )
    },
}

_OWN_KEYS: dict[str, frozenset[str]] = {
    "frontend_conf": frozenset({"architecture", "cache_dir"}),
    "preencoder_conf:sinc": frozenset({"input_size"}),
    "encoder_conf": frozenset({"architecture"}),
    "postencoder_conf": frozenset({"architecture"}),
    "decoder_conf": frozenset({"architecture"}),
    # ESPnet2 gives it to the class itself.
    "decoder_conf:transducer": frozenset({"embed_pad"}),
    "decoder_conf:stateless": frozenset({"embed_pad"}),
    "optim_conf:sgd": frozenset({"maximize", "foreach", "differentiable", "fused"}),
    # The others differ in speech translation only: ESPnet2's class lacks them, or has another default of text_name.
    "preprocessor_conf": frozenset(
        {
            "text_length_warning_thres",
            "force_single_channel",
            "nonsplit_symbol",
            "min_sample_size",
            "audio_pad_value",
            "text_name",
        }
    ),
    "model_conf:lm": frozenset({"length_normalized_loss"}),
}
"""Keys by `option` or `option:class` that releases of ESPnet2 do not have, or have with another default."""


def own_keys(option: str, chosen: str) -> frozenset[str]:
    """The keys of this option that releases of ESPnet2 do not have, where it configures the class `chosen`."""
    return _OWN_KEYS.get(option, frozenset()) | _OWN_KEYS.get(f"{option}:{chosen}", frozenset())


_OLD_ADAPTER = {"use_lora": "use_adapter", "save_lora_only": "save_strategy", "lora_conf": "adapter_conf"}
"""Options that ESPnet2 had while LoRA was its only adapter, with their current names."""


def today(document: Document) -> Document:
    """Rename options to ESPnet2's current names, and remove the keys that only ESPnet2 writes into its config.yaml."""
    document = without_notes(document)
    old = {key: new for key, new in _OLD_ADAPTER.items() if key in document.value}
    if not old or old.values() & document.value.keys():
        return document
    value = {old.get(key, key): item for key, item in document.value.items()}
    if "save_lora_only" in document.value:
        value["save_strategy"] = "adapter_only" if value["save_strategy"] and value.get("use_adapter") else "all"
    lines = {(*(old.get(str(key), key) for key in path[:1]), *path[1:]): line for path, line in document.lines.items()}
    notes = tuple(f"{key} became {new}, its current name in ESPnet2" for key, new in old.items())
    return Document(document.name, value, lines, (*document.notes, *notes))


def without_notes(document: Document) -> Document:
    """Remove the keys that only ESPnet2 writes from its config.yaml; a file that a user wrote is left unchanged."""
    if not {"print_config", "required"} <= set(document.value):
        return document
    value = {key: item for key, item in document.value.items() if key not in _WRITTEN}
    return Document(document.name, value, document.lines, document.notes)
