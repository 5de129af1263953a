#!/usr/bin/env python3
"""Trains the tiny tokenizer, a byte-level BPE with Qwen3.5's split pattern and token names, on code and chats."""

import argparse
import random
from pathlib import Path

from chats import chat
from corpus import read_documents
from vocabulary import BPE_TOKENS, PLAIN_TOKENS, SPECIAL_TOKENS, SPLIT_PATTERN

CODE_CHARACTERS = 9_000_000
CHATS = 16_000


def training_texts(documents, rng):
    characters = 0
    for document in documents:
        yield document
        characters += len(document)
        if characters > CODE_CHARACTERS:
            break
    for _ in range(CHATS):
        yield chat(rng)


def train(texts):
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(byte_fallback=False))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=BPE_TOKENS, initial_alphabet=alphabet, special_tokens=[], show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(name, special=False, normalized=False) for name in PLAIN_TOKENS])
    return tokenizer


def check(tokenizer, text):
    """Named tokens follow the learned ones, and a text comes back unchanged."""
    for place, name in enumerate(SPECIAL_TOKENS + PLAIN_TOKENS):
        assert tokenizer.token_to_id(name) == BPE_TOKENS + place, f"{name} is {tokenizer.token_to_id(name)}"
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--code", type=Path, default=Path("code.xz"), help="from collect_code.py (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("tokenizer.json"), help="file to write (%(default)s)")
    arguments = parser.parse_args()
    rng = random.Random(3)
    documents = read_documents(arguments.code)
    rng.shuffle(documents)
    tokenizer = train(training_texts(documents, rng))
    check(tokenizer, chat(rng))
    tokenizer.save(str(arguments.out))
    per_token = len(documents[0]) / len(tokenizer.encode(documents[0]).ids)
    print(f"{tokenizer.get_vocab_size()} tokens, {per_token:.2f} characters of code to a token")


if __name__ == "__main__":
    main()
