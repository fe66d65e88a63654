"""The pretrained models that ESPnet2's `frontend: s3prl` can name: their repositories and architectures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from tympan.config.mistakes import did_you_mean
from tympan.errors import UserError

_SIZES: dict[str, dict[str, int]] = {
    "base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    "large": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
    "1b": {"hidden_size": 1280, "num_hidden_layers": 48, "num_attention_heads": 16, "intermediate_size": 5120},
    "2b": {"hidden_size": 1920, "num_hidden_layers": 48, "num_attention_heads": 16, "intermediate_size": 7680},
}


@dataclass(frozen=True)
class Upstream:
    """One pretrained model: its repository on the Hugging Face hub, and what its architecture depends on."""

    repository: str
    family: str
    size: str = "base"
    is_layer_norm: bool = False
    """Layer normalization in the convolutions and before each block, instead of one group normalization."""
    conv_bias: bool = False
    file: str = ""
    """File name of the checkpoint that s3prl downloads."""

    def architecture(self) -> dict[str, Any]:
        """The keys of its config.json that matter, and `do_normalize` of its preprocessor_config.json."""
        rate = 0.1 if self.size == "base" else 0.0
        return {
            "model_type": self.family,
            **_SIZES[self.size],
            "feat_extract_norm": "layer" if self.is_layer_norm else "group",
            "do_stable_layer_norm": self.is_layer_norm,
            "conv_bias": self.conv_bias,
            "hidden_dropout": rate,
            "attention_dropout": rate,
            "activation_dropout": 0.0,
            "feat_proj_dropout": rate,
            "do_normalize": self.is_layer_norm,
        }


UPSTREAMS: dict[str, Upstream] = {
    "wav2vec2_base_960": Upstream("facebook/wav2vec2-base", "wav2vec2", file="wav2vec_small.pt"),
    "wav2vec2_large_960": Upstream("facebook/wav2vec2-large", "wav2vec2", "large", file="libri960_big.pt"),
    "wav2vec2_large_ll60k": Upstream(
        "facebook/wav2vec2-large-lv60", "wav2vec2", "large", True, True, "wav2vec_vox_new.pt"
    ),
    "wav2vec2_large_lv60_cv_swbd_fsh": Upstream(
        "facebook/wav2vec2-large-robust", "wav2vec2", "large", True, True, "w2v_large_lv_fsh_swbd_cv.pt"
    ),
    "wav2vec2_large_voxpopuli_100k": Upstream(
        "facebook/wav2vec2-large-100k-voxpopuli", "wav2vec2", "large", True, True, "wav2vec2_large_100k.pt"
    ),
    "xlsr_53": Upstream("facebook/wav2vec2-large-xlsr-53", "wav2vec2", "large", True, True, "xlsr_53_56k.pt"),
    "xls_r_300m": Upstream("facebook/wav2vec2-xls-r-300m", "wav2vec2", "large", True, True, "xlsr2_300m.pt"),
    "xls_r_1b": Upstream("facebook/wav2vec2-xls-r-1b", "wav2vec2", "1b", True, True, "xlsr2_960m_1000k.pt"),
    "xls_r_2b": Upstream("facebook/wav2vec2-xls-r-2b", "wav2vec2", "2b", True, True, "xlsr2_2B_1000k.pt"),
    "hubert_base": Upstream("facebook/hubert-base-ls960", "hubert", file="hubert_base_ls960.pt"),
    "hubert_large_ll60k": Upstream(
        "facebook/hubert-large-ll60k", "hubert", "large", True, True, "hubert_large_ll60k.pt"
    ),
    "wavlm_base": Upstream("microsoft/wavlm-base", "wavlm", file="wavlm_base.pt"),
    "wavlm_base_plus": Upstream("microsoft/wavlm-base-plus", "wavlm", file="wavlm_base_plus.pt"),
    "wavlm_large": Upstream("microsoft/wavlm-large", "wavlm", "large", True, file="wavlm_large.pt"),
    "unispeech_sat_base": Upstream("microsoft/unispeech-sat-base", "unispeech-sat"),
    "unispeech_sat_base_plus": Upstream("microsoft/unispeech-sat-base-plus", "unispeech-sat"),
    "unispeech_sat_large": Upstream("microsoft/unispeech-sat-large", "unispeech-sat", "large", True),
}
"""By s3prl's names."""

ALIASES = {"wav2vec2": "wav2vec2_base_960", "hubert": "hubert_base", "wavlm": "wavlm_base_plus"}
FROM_FILE = ("wav2vec2_local", "hubert_local", "wavlm_local", "wav2vec2_url", "hubert_url", "wavlm_url")
"""Names with a checkpoint file or its address in `path_or_url`."""
FROM_HUB = ("hf_wav2vec2_custom", "hf_hubert_custom", "hf_wavlm_custom")
"""Names with a hub name or a folder in `path_or_url`."""


def find_upstream(name: str) -> Upstream | None:
    """The entry of a name; None for a name that needs `path_or_url`."""
    if name in FROM_FILE or name in FROM_HUB:
        return None
    found = UPSTREAMS.get(ALIASES.get(name, name))
    if found is None:
        known = [*UPSTREAMS, *ALIASES, *FROM_FILE, *FROM_HUB]
        raise UserError(
            f"frontend_conf frontend_conf.upstream: there is no upstream '{name}'.{did_you_mean(name, known)} "
            f"Known: {', '.join(known)}"
        )
    return found


def upstream_of_file(path_or_url: str) -> Upstream | None:
    """The entry whose published checkpoint has this file name."""
    name = PurePosixPath(path_or_url.replace("\\", "/")).name
    return next((item for item in UPSTREAMS.values() if item.file and item.file == name), None)
