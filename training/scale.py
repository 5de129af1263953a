"""How much of everything a training takes: the whole, or just enough to see every stage run on a CPU."""

from typing import NamedTuple


class Scale(NamedTuple):
    documents: int | None  # of code.xz; None is all
    parts: int  # of the chats, each with its own seed
    chats_per_part: int
    sequence: int  # tokens a row of a batch
    prompt_lengths: int  # how many lengths of prompt the target continues
    prompts_per_length: int
    continuation: int  # tokens the target writes to each
    sample: int  # tokens printed for each question after the target's training


FULL = Scale(
    documents=None,
    parts=14,
    chats_per_part=6000,
    sequence=1024,
    prompt_lengths=24,
    prompts_per_length=384,
    continuation=256,
    sample=160,
)
QUICK = Scale(
    documents=60,
    parts=2,
    chats_per_part=200,
    sequence=64,
    prompt_lengths=2,
    prompts_per_length=4,
    continuation=24,
    sample=16,
)
