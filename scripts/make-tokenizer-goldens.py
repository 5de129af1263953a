#!/usr/bin/env python3
"""Encodes crates/text/tests/tokenizer/{cases.json,sample.md} with Hugging Face's tokenizers into expected.json: for each
text the ids with added tokens parsed and with added tokens as plain text, runs of an id as [id, count].
Needs: pip install tokenizers"""

import itertools
import json
from pathlib import Path

from tokenizers import Tokenizer

tests = Path(__file__).resolve().parent.parent / "crates" / "text" / "tests"
source = json.loads((tests / "fixtures" / "tokenizer.json").read_text())
parse = Tokenizer.from_str(json.dumps(source))
literal = Tokenizer.from_str(json.dumps({**source, "added_tokens": []}))


def runs(tokenizer, text):
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    groups = [(id, len(list(group))) for id, group in itertools.groupby(ids)]
    return [id if count == 1 else [id, count] for id, count in groups]


cases = json.loads((tests / "tokenizer" / "cases.json").read_text())
texts = [case if isinstance(case, str) else case["repeat"] * case["times"] + case["then"] for case in cases]
texts.append((tests / "tokenizer" / "sample.md").read_text())
lines = [json.dumps([runs(parse, text), runs(literal, text)]) for text in texts]
(tests / "tokenizer" / "expected.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")
