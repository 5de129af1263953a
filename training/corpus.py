"""The texts to train on: documents of code.xz, chats about their functions, and generated chats."""

import lzma
import random
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from chats import chat, code_chat, documented_functions


class Corpus(NamedTuple):
    documents: list
    code_chats: list
    chats: list


def read_documents(path):
    with lzma.open(path) as file:
        return file.read().decode().split("\0")


def generated_chats(seed, count):
    rng = random.Random(seed)
    return [chat(rng) for _ in range(count)]


def chats_about(seed, documents):
    rng = random.Random(seed)
    return [code_chat(rng, function) for text in documents for function in documented_functions(text)]


def build_corpus(path, scale):
    """The number of parts decides the seeds, and with them the text; how many processes make them does not."""
    documents = read_documents(path)[: scale.documents]
    parts = range(scale.parts)
    with ProcessPoolExecutor() as pool:
        counts = [scale.chats_per_part for _ in parts]
        generated = pool.map(generated_chats, [100 + part for part in parts], counts)
        about = pool.map(chats_about, parts, [documents[part :: scale.parts] for part in parts])
        return Corpus(documents, sum(about, []), sum(generated, []))
