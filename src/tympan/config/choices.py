"""The names that a user may choose, with ESPnet2's spelling, and the classes that they stand for."""

from __future__ import annotations

from tympan.config.range import Range
from tympan.config.registry import Registry
from tympan.config.torch_ranges import OPTIMIZER_RANGES, SCHEDULER_RANGES

_NO_ENCODER = "use 'conformer' or 'e_branchformer'"
_NO_DECODER = "use 'transformer', 'rnn' or 'transducer', or null for CTC only"

FRONTENDS = Registry(
    "frontend",
    {
        "default": "tympan.features.frontend:DefaultFrontend",
        "sliding_window": "tympan.features.windows:SlidingWindow",
        "s3prl": "tympan.models.pretrained.s3prl:S3prlFrontend",
        "huggingface": "tympan.models.pretrained.huggingface:HuggingFaceFrontend",
        "fused": "tympan.models.pretrained.fused:FusedFrontends",
        "whisper": "tympan.models.pretrained.whisper_encoder:WhisperFrontend",
        "wav2vec_cnn": "tympan.models.pretrained.cnn:Wav2VecCnnFrontend",
        "espnet_ssl": "tympan.models.pretrained.espnet_ssl:EspnetSslFrontend",
    },
)
SPECAUGS = Registry("specaug", {"specaug": "tympan.features.specaug:SpecAug"})
NORMALIZERS = Registry(
    "normalize",
    {"global_mvn": "tympan.features.mvn:GlobalMvn", "utterance_mvn": "tympan.features.mvn:UtteranceMvn"},
    supplied=["input_size"],
)
PREENCODERS = Registry(
    "preencoder",
    {
        "linear": "tympan.models.preencoder:LinearProjection",
        "sinc": "tympan.models.sinc:LightweightSincConvs",
    },
)
ENCODERS = Registry(
    "encoder",
    {
        "conformer": "tympan.models.encoder.conformer:ConformerEncoder",
        "transformer": "tympan.models.encoder.transformer:TransformerEncoder",
        "e_branchformer": "tympan.models.encoder.e_branchformer:EBranchformerEncoder",
        "branchformer": "tympan.models.encoder.branchformer:BranchformerEncoder",
        "longformer": "tympan.models.encoder.longformer:LongformerEncoder",
        "transformer_multispkr": "tympan.models.encoder.multi_speaker:MultiSpeakerTransformerEncoder",
        "multiconv_conformer": "tympan.models.encoder.multiconv_conformer:MultiConvConformerEncoder",
        "contextual_block_conformer": "tympan.models.encoder.contextual_block:ContextualBlockConformerEncoder",
        "contextual_block_transformer": "tympan.models.encoder.contextual_block:ContextualBlockTransformerEncoder",
        "rnn": "tympan.models.encoder.rnn:RnnEncoder",
        "vgg_rnn": "tympan.models.encoder.vgg_rnn:VggRnnEncoder",
        "lightweight_conv": "tympan.models.encoder.convolution:LightweightConvEncoder",
        "lightweight_conv2d": "tympan.models.encoder.convolution:LightweightConv2dEncoder",
        "dynamic_conv": "tympan.models.encoder.convolution:DynamicConvEncoder",
        "dynamic_conv2d": "tympan.models.encoder.convolution:DynamicConv2dEncoder",
        "whisper": "tympan.models.pretrained.whisper_encoder:WhisperEncoder",
        "wav2vec2": "tympan.models.pretrained.audio_encoders:Wav2Vec2Encoder",
        "hubert": "tympan.models.pretrained.audio_encoders:HubertEncoder",
        "torchaudiohubert": "tympan.models.pretrained.audio_encoders:TorchAudioHubertEncoder",
        "beats": "tympan.models.pretrained.beats:BeatsEncoder",
    },
    supplied=["input_size"],
    not_yet=dict.fromkeys(
        (
            "hubert_pretrain",
            "avhubert",
        ),
        _NO_ENCODER,
    ),
)
AUDIO_ENCODERS = ("whisper", "wav2vec2", "hubert", "torchaudiohubert", "beats")
"""Encoders that take audio, without a frontend and without normalization."""
POSTENCODERS = Registry(
    "postencoder",
    {
        "length_adaptor": "tympan.models.postencoder:LengthAdaptor",
        "hugging_face_transformers": "tympan.models.pretrained.text_encoder:HuggingFacePostencoder",
    },
    supplied=["input_size"],
)
DECODERS = Registry(
    "decoder",
    {
        "transformer": "tympan.models.decoder.transformer:TransformerDecoder",
        "rnn": "tympan.models.decoder.rnn:RnnDecoder",
        "lightweight_conv": "tympan.models.decoder.convolution:LightweightConvDecoder",
        "lightweight_conv2d": "tympan.models.decoder.convolution:LightweightConv2dDecoder",
        "dynamic_conv": "tympan.models.decoder.convolution:DynamicConvDecoder",
        "dynamic_conv2d": "tympan.models.decoder.convolution:DynamicConv2dDecoder",
        "mlm": "tympan.models.decoder.mlm:MlmDecoder",
        "transducer": "tympan.models.decoder.prediction:RnnPrediction",
        "stateless": "tympan.models.decoder.prediction:StatelessPrediction",
        "whisper": "tympan.models.pretrained.whisper_decoder:WhisperDecoder",
        "hugging_face_transformers": "tympan.models.pretrained.seq2seq:HuggingFaceDecoder",
        "linear_decoder": "tympan.models.decoder.linear:LinearDecoder",
        "s4": "tympan.models.decoder.s4:S4Decoder",
    },
    supplied=["vocab_size", "encoder_output_size"],
    not_yet={"transformer_md": _NO_DECODER},
)
PRETRAINED_DECODERS = ("whisper", "hugging_face_transformers")
"""Decoders that somebody else trained."""
TRANSDUCER_DECODERS = ("transducer", "stateless")
"""Those that are prediction networks: they make the model a transducer."""
JOINT_NETWORKS = Registry(
    "joint_net",
    {"joint": "tympan.models.joint_network:JointNetwork"},
    supplied=["vocab_size", "encoder_size", "decoder_size"],
)
CTCS = Registry("ctc", {"ctc": "tympan.models.ctc:Ctc"}, supplied=["odim", "vocab_size", "encoder_output_size"])
_SHARE = Range(0, 1)
_TOKEN_ID = Range(-1_000_000, 1_000_000)
_MODEL_RANGES = {
    **dict.fromkeys(("ctc_weight", "interctc_weight", "ctc_sample_rate"), _SHARE),
    "lsm_weight": Range(0, below=1),
    **dict.fromkeys(("asr_weight", "mt_weight", "mtlalpha", "st_mtlalpha"), _SHARE),
    **dict.fromkeys(("ignore_id", "tgt_ignore_id"), _TOKEN_ID),
    "lang_token_id": Range(-1, 1_000_000),
    "transducer_multi_blank_durations": Range(1, 1_000),
    "transducer_multi_blank_sigma": _SHARE,
}
ASR_MODELS = Registry(
    "model",
    {
        "espnet": "tympan.models.hybrid:HybridModel",
        "transducer": "tympan.models.transducer:TransducerModel",
        "maskctc": "tympan.models.mask_ctc:MaskCtcModel",
        "pit_espnet": "tympan.models.multi_speaker:MultiSpeakerModel",
    },
    supplied=[
        "vocab_size",
        "token_list",
        "frontend",
        "specaug",
        "normalize",
        "preencoder",
        "encoder",
        "postencoder",
        "decoder",
        "ctc",
        "joint_network",
        "prompt",
    ],
    ranges=_MODEL_RANGES,
)
ST_MODELS = Registry(
    "model",
    {"espnet": "tympan.models.st:StModel"},
    supplied=[
        "token_list",
        "src_token_list",
        "frontend",
        "specaug",
        "normalize",
        "preencoder",
        "encoder",
        "hier_encoder",
        "extra_mt_encoder",
        "decoder",
        "extra_asr_decoder",
        "extra_mt_decoder",
        "ctc",
        "st_ctc",
    ],
    ranges=_MODEL_RANGES,
)
PREPROCESSORS = Registry(
    "preprocessor",
    {
        "default": "tympan.config.preprocessor:PreprocessorConf",
        "multi": "tympan.config.preprocessor:MultiPreprocessorConf",
    },
)
ST_PREPROCESSORS = Registry("preprocessor", {"default": "tympan.config.st:StPreprocessorConf"})
LMS = Registry(
    "lm",
    {
        "seq_rnn": "tympan.models.lm.seq_rnn:SequentialRnnLm",
        "transformer": "tympan.models.lm.transformer:TransformerLm",
    },
    supplied=["vocab_size"],
    not_yet={"transformer_opt": "use 'transformer'"},
)
LM_MODELS = Registry(
    "model",
    {"lm": "tympan.models.lm.model:LanguageModel"},
    supplied=["lm", "vocab_size"],
    not_yet={"lm_multitask": "use 'lm'"},
)
OPTIMIZERS = Registry(
    "optim",
    {
        "adam": "torch.optim.adam:Adam",
        "adamw": "torch.optim.adamw:AdamW",
        "sgd": "torch.optim.sgd:SGD",
        "adadelta": "torch.optim.adadelta:Adadelta",
        "adagrad": "torch.optim.adagrad:Adagrad",
        "adamax": "torch.optim.adamax:Adamax",
        "asgd": "torch.optim.asgd:ASGD",
        "lbfgs": "torch.optim.lbfgs:LBFGS",
        "rmsprop": "torch.optim.rmsprop:RMSprop",
        "rprop": "torch.optim.rprop:Rprop",
        "radam": "torch.optim.radam:RAdam",
        "nadam": "torch.optim.nadam:NAdam",
    },
    supplied=["params"],
    ranges=OPTIMIZER_RANGES,
    # ESPnet2's default learning rate for SGD differs from torch's.
    defaults={"sgd": {"lr": 0.1}},
    not_yet={
        **{
            name: f"install torch_optimizer and use 'torch_optimizer:{class_name}'"
            for name, class_name in {
                "accagd": "AccSGD",
                "adabound": "AdaBound",
                "adamod": "AdaMod",
                "diffgrad": "DiffGrad",
                "lamb": "Lamb",
                "novograd": "NovoGrad",
                "pid": "PID",
                "qhadam": "QHAdam",
                "qhm": "QHM",
                "sgdw": "SGDW",
                "yogi": "Yogi",
            }.items()
        },
        "fusedadam": "use 'adam' with --optim_conf fused=true",
        "fusedsgd": "use 'sgd' with --optim_conf fused=true",
        "fusedlamb": "use 'adamw' with --optim_conf fused=true",
        "fusednovograd": "use 'adamw' with --optim_conf fused=true",
    },
)
SCHEDULERS = Registry(
    "scheduler",
    {
        "reducelronplateau": "torch.optim.lr_scheduler:ReduceLROnPlateau",
        "steplr": "torch.optim.lr_scheduler:StepLR",
        "multisteplr": "torch.optim.lr_scheduler:MultiStepLR",
        "exponentiallr": "torch.optim.lr_scheduler:ExponentialLR",
        "cosineannealinglr": "torch.optim.lr_scheduler:CosineAnnealingLR",
        "noamlr": "tympan.training.schedulers:NoamLR",
        "warmuplr": "tympan.training.schedulers:WarmupLR",
        "piecewiselinearwarmuplr": "tympan.training.schedulers:PiecewiseLinearWarmupLR",
        "warmupsteplr": "tympan.training.schedulers:WarmupStepLR",
        "warmupreducelronplateau": "tympan.training.schedulers:WarmupReduceLROnPlateau",
        "cycliclr": "torch.optim.lr_scheduler:CyclicLR",
        "onecyclelr": "torch.optim.lr_scheduler:OneCycleLR",
        "cosineannealingwarmrestarts": "torch.optim.lr_scheduler:CosineAnnealingWarmRestarts",
        "cosineannealingwarmuprestarts": "tympan.training.schedulers:CosineAnnealingWarmupRestarts",
        "tristagelr": "tympan.training.schedulers:TristageLR",
        "exponentialdecaywarmup": "tympan.training.schedulers:ExponentialDecayWarmup",
        "constantlr": "torch.optim.lr_scheduler:ConstantLR",
        "linearlr": "torch.optim.lr_scheduler:LinearLR",
        "polynomiallr": "torch.optim.lr_scheduler:PolynomialLR",
        "deepspeedwarmuplr": "tympan.training.deepspeed_schedulers:DeepSpeedWarmupLR",
        "deepspeedwarmupcosinelr": "tympan.training.deepspeed_schedulers:DeepSpeedWarmupCosineLR",
    },
    supplied=["optimizer", "scale_fn"],
    ranges=SCHEDULER_RANGES,
    not_yet={
        "lambdalr": "it needs a Python function, which YAML can't hold; write a scheduler class and use "
        "'package.module:Class'"
    },
)
ADAPTERS = Registry(
    "adapter",
    {"lora": "tympan.models.adapter:Lora", "houlsby": "tympan.models.houlsby:Houlsby"},
)
EFFECTS = Registry(
    "effect",
    {
        "speed_perturb": "tympan.data.waveform_effects:SpeedPerturb",
        "volume": "tympan.data.waveform_effects:Volume",
        "white_noise": "tympan.data.waveform_effects:WhiteNoise",
        "clipping": "tympan.data.waveform_effects:Clipping",
        "preemphasis": "tympan.data.waveform_effects:Preemphasis",
        "deemphasis": "tympan.data.filter_effects:Deemphasis",
        "polarity_inverse": "tympan.data.waveform_effects:PolarityInverse",
        "reverse": "tympan.data.waveform_effects:Reverse",
        "contrast": "tympan.data.waveform_effects:Contrast",
        "lowpass": "tympan.data.filter_effects:Lowpass",
        "highpass": "tympan.data.filter_effects:Highpass",
        "bandpass": "tympan.data.filter_effects:Bandpass",
        "bandreject": "tympan.data.filter_effects:Bandreject",
        "equalization": "tympan.data.filter_effects:Equalization",
        "bandwidth_limitation": "tympan.data.waveform_effects:BandwidthLimitation",
        "pitch_shift": "tympan.data.spectral_effects:PitchShift",
        "time_stretch": "tympan.data.spectral_effects:TimeStretch",
        "corrupt_phase": "tympan.data.spectral_effects:CorruptPhase",
    },
    not_yet={"codecs": "ESPnet2 raises an error for it too"},
)
