"""A small grammar of everyday Mandarin: sentences enough to keep sets apart, characters few enough to learn fast."""

from __future__ import annotations

import itertools
import random

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


def sentences(count: int, *, seed: int) -> list[str]:
    """`count` different sentences, words separated by spaces as in AISHELL's transcript, patterns in turn.

    Different means different characters: two segmentations of one sentence would be one sentence to a recogniser.
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


def _repeats_a_person(words: tuple[str, ...]) -> bool:
    people = [word for word in words if word in PEOPLE]
    return len(people) != len(set(people))
