"""Stage 2: the dictionary, and what training reads of every set: lengths (ESPnet2) and data.json (ESPnet1)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tympan.data.kaldi_dir import read_table
from tympan.data.shapes import write_shapes
from tympan.errors import UserError
from tympan.recipe.corpus import DATA, Corpus
from tympan.recipe.options import RecipeOptions
from tympan.recipe.stage import Step
from tympan.runtime.atomic import atomic_write
from tympan.text.lexicon import read_lexicon
from tympan.text.sentencepiece import piece_tokens, train_sentencepiece
from tympan.text.tokenizer import Tokenizer, build_tokenizer
from tympan.text.vocabulary import (
    UNK,
    Vocabulary,
    read_token_list,
    vocabulary_from_counts,
    write_token_list,
    write_units,
)


def lang_dir(options: RecipeOptions) -> Path:
    return DATA / ("lang_1char" if options.token_type == "char" else f"lang_{token_name(options)}")


def token_name(options: RecipeOptions) -> str:
    return f"bpe{options.nbpe}" if options.token_type == "bpe" else options.token_type


def token_list(options: RecipeOptions) -> Path:
    return lang_dir(options) / "tokens.txt"


def bpe_model(options: RecipeOptions) -> Path | None:
    return lang_dir(options) / "bpe.model" if options.token_type == "bpe" else None


def lexicon_files(options: RecipeOptions) -> list[Path]:
    """The lexicon, where tokens are its phones."""
    return [Path(options.lexicon)] if options.token_type == "phn" else []


def tokenizer_for(options: RecipeOptions) -> Tokenizer:
    lexicon = next(iter(lexicon_files(options)), None)
    if lexicon is not None and not lexicon.is_file():
        raise UserError(f"--lexicon: there is no file {lexicon}, and tokens of type phn are the phones of a lexicon.")
    return build_tokenizer(
        options.token_type, bpemodel=bpe_model(options), g2p_type=None if lexicon is None else str(lexicon)
    )


def token_steps(options: RecipeOptions, corpus: Corpus) -> list[Step]:
    """The dictionary of the training set, then one step a set."""
    train = options.train_set(corpus.train)
    text = DATA / train / "text"
    units = lang_dir(options) / f"{train}_units.txt"
    model = bpe_model(options)
    makes = [units, token_list(options)] + ([model] if model else [])
    settings = {"token_type": options.token_type, "nbpe": options.nbpe if model else None}
    needs = [text, *lexicon_files(options)]
    steps = [Step("dictionary", partial(_write_dictionary, options, text, units), needs, makes, settings)]
    if options.feats_type != "raw":
        for name in (train, *corpus.decoded()):
            steps.append(_lengths_step(options, name))
    return steps


def shape_files(options: RecipeOptions, name: str) -> list[Path]:
    """Of speech, then of text: the order of `fold_length`."""
    directory = options.dump_dir(name)
    return [directory / "speech_shape", directory / f"text_shape.{options.token_type}"]


def _write_dictionary(options: RecipeOptions, text: Path, units: Path) -> None:
    sentences = list(read_table(text).values())
    if options.token_type == "bpe":
        plain = lang_dir(options) / "train.txt"
        with atomic_write(plain) as stream:
            stream.writelines(f"{sentence}\n" for sentence in sentences)
        model = train_sentencepiece([plain], lang_dir(options) / "bpe", vocab_size=options.nbpe)
        tokens = piece_tokens(model)
    else:
        tokenizer = tokenizer_for(options)
        counts = Counter(token for sentence in sentences for token in tokenizer.text2tokens(sentence))
        unknown = counts.pop(UNK, 0)
        if unknown and not counts:
            raise UserError(
                f"{options.lexicon} has none of the words of {text} (such as '{sentences[0].split()[0]}'): "
                "is it of another language, or written in other case?"
            )
        if not counts:
            raise UserError(f"{text}: it holds no text, so there is no dictionary to make.")
        tokens = vocabulary_from_counts(counts, order="sorted")
    write_token_list(tokens, token_list(options))
    write_units(Vocabulary(tokens), units)
    print(f"    {token_list(options)}: {len(tokens)} tokens")
    if options.token_type == "phn":
        _tell_missing(options, sentences)


def _tell_missing(options: RecipeOptions, sentences: Sequence[str]) -> None:
    """Words, or characters, that the lexicon can't say."""
    lexicon = read_lexicon(options.lexicon)
    missing = Counter(word for line in sentences for word, phones in lexicon.text2words(line) if phones == (UNK,))
    if missing:
        shown = ", ".join(word for word, _ in missing.most_common(10))
        print(f"    {options.lexicon}: {len(missing)} are not in it, so <unk> {missing.total()} times: {shown}")


def _lengths_step(options: RecipeOptions, name: str) -> Step:
    directory = options.dump_dir(name)
    needs = [directory / "utt2num_frames", directory / "feats.scp", DATA / name / "text", token_list(options)]
    needs += lexicon_files(options)
    makes = [*shape_files(options, name), directory / "data.json"]
    return Step(f"lengths {name}", partial(_write_lengths, options, name), needs, makes, {"token": token_name(options)})


def _write_lengths(options: RecipeOptions, name: str) -> None:
    directory = options.dump_dir(name)
    texts, places = read_table(DATA / name / "text"), read_table(directory / "feats.scp")
    frames = {utterance: int(count) for utterance, count in read_table(directory / "utt2num_frames").items()}
    speakers = read_table(DATA / name / "utt2spk")
    dim = _dimension(places)
    vocabulary, tokenizer = read_token_list(token_list(options)), tokenizer_for(options)
    tokens = {utterance: tokenizer.text2tokens(texts[utterance]) for utterance in frames}
    speech_shape, text_shape = shape_files(options, name)
    write_shapes(speech_shape, {utterance: (count, dim) for utterance, count in frames.items()})
    write_shapes(text_shape, {utterance: (len(tokens[utterance]), len(vocabulary)) for utterance in frames})
    unknown = sum(token not in vocabulary for sentence in tokens.values() for token in sentence)
    total = sum(map(len, tokens.values()))
    print(f"    {name}: {len(frames)} utterances, {total} tokens, {100 * unknown / max(total, 1):.2f} % unknown")
    entries = {
        utterance: {
            "input": [{"name": "input1", "feat": places[utterance], "shape": [count, dim]}],
            "output": [
                {
                    "name": "target1",
                    "shape": [len(tokens[utterance]), len(vocabulary)],
                    "text": texts[utterance],
                    "token": " ".join(tokens[utterance]),
                    "tokenid": " ".join(map(str, vocabulary.tokens2ids(tokens[utterance]))),
                }
            ],
            "utt2spk": speakers.get(utterance, utterance),
        }
        for utterance, count in frames.items()
    }
    with atomic_write(directory / "data.json") as stream:
        json.dump({"utts": entries}, stream, ensure_ascii=False, indent=1)


def _dimension(places: dict[str, str]) -> int:
    from tympan.data.ark import read_matrix

    return int(read_matrix(next(iter(places.values()))).shape[1])
