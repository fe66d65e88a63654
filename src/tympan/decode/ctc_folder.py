"""A CTC model in a folder of the Hugging Face hub: Wav2Vec2ForCTC, HubertForCTC, WavLMForCTC and their relatives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tympan.errors import UserError
from tympan.text.vocabulary import BLANK, SOS_EOS

if TYPE_CHECKING:
    from torch import Tensor

TOKENIZER = "Wav2Vec2CTCTokenizer"
UNLIKELY = -30.0
"""Logit of a token that Tympan needs and the model does not have. It changes no other probability in float32."""


@dataclass(frozen=True)
class CtcFolder:
    """The tokens keep their order. The pad token, which CTC uses as the blank, is renamed to `<blank>`."""

    path: Path
    architecture: Mapping[str, Any] = field(repr=False)
    """The content of config.json, and `do_normalize` of the processor."""

    @cached_property
    def values(self) -> dict[str, Any]:
        """The options of the model and its tokens."""
        if self.architecture.get("add_adapter"):
            raise UserError(f"{self.path / 'config.json'}: add_adapter true is not supported")
        tokens = [*self._tokens, *self._added]
        return {
            "input_size": 1,
            "frontend": None,
            "normalize": None,
            # This encoder has the layers of all families; `architecture` says which one.
            "encoder": "wav2vec2",
            "encoder_conf": {
                "w2v_url": str(self.path.absolute()),
                "output_size": 0,
                "architecture": dict(self.architecture),
            },
            "decoder": None,
            "ctc_conf": {"dropout_rate": float(self.architecture.get("final_dropout", 0.0))},
            "model_conf": {"ctc_weight": 1.0, "sym_space": self._space},
            "token_type": "char",
            "token_list": tokens,
            "preprocessor_conf": {"space_symbol": self._space, "unk_symbol": self._symbol("unk_token")},
            "non_linguistic_symbols": [token for token in tokens if len(token) > 1],
        }

    @property
    def settings(self) -> dict[str, Any]:
        """The options of decoding: the most probable path, as in transformers."""
        return {"search": "ctc_greedy"}

    def weights(self) -> dict[str, Tensor]:
        """The weights in Tympan's names."""
        import torch

        from tympan.models.pretrained.fairseq import own_names
        from tympan.models.pretrained.folder import read_weight_files

        found = read_weight_files(self.path)
        if "lm_head.weight" not in found:
            raise UserError(f"{self.path}: its weights have no output layer (lm_head), so it is not a CTC model")
        weight, bias = found["lm_head.weight"].float(), found["lm_head.bias"].float()
        number = len(self._added)
        base = {f"encoder.encoders.model.{name}": tensor.float() for name, tensor in own_names(found).items()}
        return {
            **base,
            "encoder.num_updates": torch.tensor([0]),
            "ctc.ctc_lo.weight": torch.cat([weight, weight.new_zeros(number, weight.size(1))]),
            "ctc.ctc_lo.bias": torch.cat([bias, bias.new_full((number,), UNLIKELY)]),
        }

    @cached_property
    def _tokenizer(self) -> dict[str, Any]:
        """The content of tokenizer_config.json, over transformers' defaults."""
        from tympan.models.pretrained.folder import read_json

        defaults = {"pad_token": "<pad>", "unk_token": "<unk>", "eos_token": "</s>", "word_delimiter_token": "|"}
        given: dict[str, Any] = {}
        for name in ("special_tokens_map.json", "tokenizer_config.json"):
            if (self.path / name).is_file():
                given |= {key: item for key, item in read_json(self.path / name).items() if item is not None}
        kind = str(given.get("tokenizer_class", TOKENIZER)).removesuffix("Fast")
        if kind != TOKENIZER:
            raise UserError(f"{self.path}: the tokenizer {kind} is not supported; supported is {TOKENIZER}")
        return {**defaults, **given}

    def _symbol(self, name: str) -> str:
        """A special token. Older files write it as a mapping with its content."""
        value = self._tokenizer[name]
        return str(value.get("content") if isinstance(value, Mapping) else value)

    @property
    def _space(self) -> str:
        return self._symbol("word_delimiter_token")

    @cached_property
    def _tokens(self) -> list[str]:
        """The tokens of the model by their number, with Tympan's names of the special ones."""
        vocabulary = self._vocabulary()
        size = int(self.architecture.get("vocab_size", len(vocabulary)))
        by_number = {int(number): token for token, number in vocabulary.items()}
        missing = next((number for number in range(size) if number not in by_number), None)
        if missing is not None:
            raise UserError(
                f"{self.path / 'vocab.json'}: no token has the number {missing}, but the model predicts {size} "
                "tokens; use the files of one model"
            )
        names = {self._symbol("pad_token"): BLANK, self._symbol("eos_token"): SOS_EOS}
        tokens = [names.get(by_number[number], by_number[number]) for number in range(size)]
        if BLANK not in tokens:
            raise UserError(f"{self.path / 'vocab.json'}: does not contain {self._symbol('pad_token')}, CTC's blank")
        is_lower = bool(self._tokenizer.get("do_lower_case")) and len({token.lower() for token in tokens}) == size
        return [token.lower() if len(token) == 1 else token for token in tokens] if is_lower else tokens

    @property
    def _added(self) -> list[str]:
        """Tokens that every token list of Tympan has, and this model has not."""
        return [token for token in (self._symbol("unk_token"), SOS_EOS) if token not in self._tokens]

    def _vocabulary(self) -> dict[str, Any]:
        from tympan.models.pretrained.folder import read_json

        path = self.path / "vocab.json"
        if not path.is_file():
            raise UserError(f"{self.path}: there is no vocab.json, the tokens of this model; fetch it, too")
        found = read_json(path)
        languages = {name: item for name, item in found.items() if isinstance(item, Mapping)}
        if languages:
            chosen = self._tokenizer.get("target_lang")
            if chosen not in languages:
                raise UserError(
                    f"{path}: has one list of tokens per language ({', '.join(sorted(languages)[:10])}); write the "
                    f"language of the weights as target_lang into tokenizer_config.json (found {chosen!r})"
                )
            found = dict(languages[chosen])
        added = self.path / "added_tokens.json"
        return {**found, **(read_json(added) if added.is_file() else {})}
