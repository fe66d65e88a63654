"""The demo corpus: a small AISHELL-like corpus, synthesized on the user's machine and packed like AISHELL."""

from __future__ import annotations

import gzip
import io
import itertools
import random
import shutil
import tarfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from tympan.data.seeds import rng_for
from tympan.recipe.aishell import TRANSCRIPT
from tympan.recipe.espeak import Synthesizer, Voice
from tympan.recipe.fingerprint import digest_of
from tympan.recipe.options import RecipeOptions
from tympan.runtime.atomic import atomic_write
from tympan.runtime.executor import process_pool

# A small grammar of everyday Mandarin: enough sentences for sets without overlap, few enough characters to learn fast.
TIMES = ("今天", "明天", "昨天", "早上", "中午", "晚上")
PEOPLE = ("我", "他", "爸爸", "妈妈", "老师", "同学", "朋友")
PLACES = ("北京", "上海", "学校", "公园", "医院", "商店", "房间")
DEEDS = ("喝 茶", "吃 饭", "看 书", "买 水果", "打 电话", "听 音乐", "写 信", "唱歌", "跑步", "工作", "睡觉")
ROOMS = ("客厅", "厨房", "房间")
THINGS = ("灯", "门", "窗户", "空调", "电视")
SWITCHES = ("打 开", "关 上")
NUMBERS = ("三", "五", "八")
GOODS = ("本 书", "个 苹果", "杯 牛奶", "杯 茶")
PATTERNS = (
    (TIMES, PEOPLE, ("去",), PLACES, DEEDS),
    (PEOPLE, TIMES, ("在",), PLACES, DEEDS),
    (PEOPLE, ("和",), PEOPLE, ("一起",), DEEDS),
    (PEOPLE, ("喜欢", "不 喜欢", "想", "不 想"), ("在",), PLACES, DEEDS),
    (("请", "我 要"), ("把",), ROOMS, ("的",), THINGS, SWITCHES),
    (TIMES, PEOPLE, ("要 买", "有"), NUMBERS, GOODS),
)

RATE_HZ = 16_000
NOISE_LEVEL = 6.0  # in int16 steps: a quiet room, because espeak-ng's pauses are digital silence


@dataclass(frozen=True)
class Speaker:
    """A speaker of one set, with a voice and sentences (words separated by spaces)."""

    id: str
    set: str
    voice: Voice
    sentences: tuple[str, ...]

    def utterance(self, number: int) -> str:
        return f"BAC009{self.id}W{number:04d}"


@dataclass(frozen=True)
class Size:
    """Number of speakers per set, and of sentences per speaker."""

    train: int = 20
    dev: int = 4
    test: int = 4
    sentences: int = 30

    def speakers(self) -> Iterator[tuple[str, int]]:
        for name, count in (("train", self.train), ("dev", self.dev), ("test", self.test)):
            for number in range(count):
                yield name, number


VARIANTS = {
    "train": ("m1", "f1", "m2", "f2", "m3", "f3", "m4", "m6", "m8"),
    "dev": ("m7", "f5"),
    "test": ("m5", "f4"),
}
"""espeak-ng's voice variants. Dev and test speakers do not occur in training, as in AISHELL."""


def sentences(count: int, *, seed: int) -> list[str]:
    """`count` different sentences, words separated by spaces as in AISHELL's transcript, patterns in turn.

    Sentences differ in their characters: two segmentations of one sentence are the same sentence for a recognizer.
    """
    order = random.Random(seed)
    pools = []
    for pattern in PATTERNS:
        pool = [" ".join(words) for words in itertools.product(*pattern) if not _repeats_a_person(words)]
        order.shuffle(pool)
        pools.append(pool)
    chosen: dict[str, str] = {}
    turn = itertools.cycle(pools)
    while len(chosen) < count:
        if not any(pools):
            raise ValueError(f"the grammar has {len(chosen)} sentences, {count} were asked for")
        pool = next(turn)
        if pool:
            sentence = pool.pop()
            chosen.setdefault(sentence.replace(" ", ""), sentence)
    return list(chosen.values())


def plan(size: Size, *, seed: int) -> list[Speaker]:
    """Assign sentences to speakers. Sets share neither sentences nor speakers."""
    order = rng_for(seed, 0, "speakers", "demo")
    people = list(size.speakers())
    pool = iter(sentences(len(people) * size.sentences, seed=seed))
    planned = []
    for position, (name, number) in enumerate(people):
        variants = VARIANTS[name]
        voice = Voice(
            name=f"cmn+{variants[number % len(variants)]}",
            rate=int(order.integers(150, 196)),
            pitch=int(order.integers(35, 66)),
        )
        said = tuple(next(pool) for _ in range(size.sentences))
        planned.append(Speaker(f"S{position + 2:04d}", name, voice, said))
    return planned


def make_archives(out: Path, size: Size | None = None, *, seed: int = 0, nj: int = 1) -> list[Path]:
    """Write `data_aishell.tgz` and `resource_aishell.tgz` to `out`: the same bytes for the same size and seed."""
    from tqdm import tqdm

    speakers = plan(size or Size(), seed=seed)
    with ThreadPoolExecutor(nj) as threads:
        packing = threads.map(lambda speaker: _in_fresh_process(_pack_speaker, speaker, seed), speakers)
        packed = list(tqdm(packing, "speakers", total=len(speakers)))
    transcript = "".join(
        f"{speaker.utterance(number)} {said}\n"
        for speaker in speakers
        for number, said in enumerate(speaker.sentences, 1)
    )
    files = [(str(TRANSCRIPT), transcript.encode("utf-8"))]
    files += [
        (f"data_aishell/wav/{speaker.id}.tar.gz", content) for speaker, content in zip(speakers, packed, strict=True)
    ]
    lexicon = _lexicon(speakers).encode("utf-8")
    archives = [out / "data_aishell.tgz", out / "resource_aishell.tgz"]
    for archive, members in zip(archives, (files, [("resource_aishell/lexicon.txt", lexicon)]), strict=True):
        with atomic_write(archive, "wb") as stream:
            stream.write(_tar(members))
    return archives


ARCHIVES = Path("archives")
CONF = Path(__file__).parent / "conf"


def prepare_demo(*, seed: int, nj: int) -> None:
    """Write `archives/` with the corpus, and `conf/`, to the current directory. Existing files are kept."""
    for source in [*CONF.glob("demo/*.yaml"), *CONF.glob("*.conf"), CONF / "specaug.yaml"]:
        target = Path("conf", source.name)
        if not target.exists():
            with atomic_write(target, "wb") as stream:
                stream.write(source.read_bytes())
    mark = ARCHIVES / "plan"
    wanted = digest_of([asdict(speaker) for speaker in plan(Size(), seed=seed)])
    if not (mark.is_file() and mark.read_text() == wanted):
        print("synthesizing a small AISHELL-like corpus with espeak-ng", flush=True)
        shutil.rmtree("downloads", ignore_errors=True)  # from another seed: stage -1 would take it for this corpus
        make_archives(ARCHIVES, seed=seed, nj=nj)
        with atomic_write(mark) as stream:
            stream.write(wanted)


def recipe_options(*, nj: int, ngpu: int) -> RecipeOptions:
    """The AISHELL recipe from stage -1, with the demo's small configurations."""
    return RecipeOptions(
        corpus="aishell",
        stage="-1",
        data_url=ARCHIVES.resolve().as_uri(),
        nj=nj,
        ngpu=ngpu,
        tag="demo",
        n_average=2,
    )


def _repeats_a_person(words: tuple[str, ...]) -> bool:
    people = [word for word in words if word in PEOPLE]
    return len(people) != len(set(people))


def _in_fresh_process(function: Callable[..., bytes], *arguments: object) -> bytes:
    """Run in a new process: only there is the library's output reproducible (see Synthesizer)."""
    with process_pool(1) as process:
        return process.submit(function, *arguments).result()


def _pack_speaker(speaker: Speaker, seed: int) -> bytes:
    synthesizer = Synthesizer(seed)
    files = []
    for number, said in enumerate(speaker.sentences, 1):
        utterance = speaker.utterance(number)
        spoken = synthesizer.say(said.replace(" ", ""), speaker.voice)
        files.append((f"{speaker.set}/{speaker.id}/{utterance}.wav", _wav(spoken, synthesizer.rate, utterance, seed)))
    return _tar(files)


def _wav(spoken: np.ndarray, rate: int, utterance: str, seed: int) -> bytes:
    import soundfile
    import soxr

    samples = soxr.resample(spoken.astype(np.float32), rate, RATE_HZ)
    samples = samples * 0.5 + rng_for(seed, 0, utterance, "room").normal(0.0, NOISE_LEVEL, len(samples))
    content = io.BytesIO()
    soundfile.write(content, np.clip(np.rint(samples), -32768, 32767).astype(np.int16), RATE_HZ, format="WAV")
    return content.getvalue()


def _lexicon(speakers: Iterable[Speaker]) -> str:
    synthesizer = Synthesizer()
    words = sorted({word for speaker in speakers for said in speaker.sentences for word in said.split()})
    synthesizer.say(words[0], Voice("cmn", 175, 50))  # selects the language
    return "".join(f"{word} {synthesizer.phonemes(word)}\n" for word in words)


def _tar(files: Iterable[tuple[str, bytes]]) -> bytes:
    """Write a gzipped tar whose bytes depend only on its files (no dates, no owners)."""
    content = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=content, compresslevel=3, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w") as tar,
    ):
        for name, data in files:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            member.mode = 0o644
            tar.addfile(member, io.BytesIO(data))
    return content.getvalue()
