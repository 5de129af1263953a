"""Conversations with workers behind an HTTP gateway."""

import random
import urllib.request

from cluster import check, post

CHAT = "/v1/chat/completions"


def talk(number, turns):
    """A conversation of that many questions so far, with answers of our own between them."""
    rules = " ".join(f"Rule {number}.{i}: answer in {i} words." for i in range(20))
    messages = [{"role": "system", "content": f"You are helper {number}. {rules}"}]
    for turn in range(turns):
        if turn:
            messages.append({"role": "assistant", "content": f"Answer {turn}."})
        messages.append({"role": "user", "content": f"Question {turn}: write Python quicksort"})
    return messages


def ask(messages, tokens, **more):
    return {"model": "qwen", "messages": messages, "max_tokens": tokens, "seed": 1, **more}


def hits(port):
    """Prompt tokens that a worker found in its cache."""
    page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30).read().decode()
    line = next(l for l in page.splitlines() if l.startswith("vllm:prefix_cache_hits_total"))
    return float(line.split()[-1])


def next_turns_stay(front, workers):
    right = 0
    for _ in range(20):
        salt = random.random()
        post(front, CHAT, ask(talk(salt, 1), 4))
        before = sum(hits(port) for port in workers)
        answer = post(front, CHAT, ask(talk(salt, 2), 4))
        found = sum(hits(port) for port in workers) - before
        right += found > 0.5 * answer["usage"]["prompt_tokens"]
    check(right == 20, f"next turns found their beginning: {right} of 20")
