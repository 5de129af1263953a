"""Several models behind one server, chosen by name with the official packages of three APIs.

usage: with_several.py URL, where `dense` and `moe` are served
"""

import sys

import anthropic
import ollama
import openai

URL = sys.argv[1]
QUESTION = [{"role": "user", "content": "Write Python quicksort"}]

speaks_openai = openai.OpenAI(base_url=URL + "/v1", api_key="none")
speaks_anthropic = anthropic.Anthropic(base_url=URL, api_key="none")
speaks_ollama = ollama.Client(host=URL)


def by_openai(model):
    answer = speaks_openai.chat.completions.create(
        model=model, messages=QUESTION, temperature=0, max_tokens=600, extra_body={"enable_thinking": False})
    assert answer.model == model, answer.model
    return answer.choices[0].message.content


def by_anthropic(model):
    answer = speaks_anthropic.messages.create(
        model=model, messages=QUESTION, max_tokens=600, thinking={"type": "disabled"},
        extra_body={"temperature": 0})
    assert answer.model == model, answer.model
    return "".join(block.text for block in answer.content if block.type == "text")


def by_ollama(model):
    stream = speaks_ollama.chat(model=model, messages=QUESTION, think=False, stream=True,
                                options={"temperature": 0, "num_predict": 600})
    return "".join(part.message.content for part in stream)


assert [model.id for model in speaks_openai.models.list()] == ["dense", "moe"]
assert [model.model for model in speaks_ollama.list().models] == ["dense", "moe"]
texts = {}
for name in ["dense", "moe", "dense"]:
    told = {by(name) for by in (by_openai, by_anthropic, by_ollama)}
    assert len(told) == 1, told
    assert texts.setdefault(name, told) == told
    assert [model.model for model in speaks_ollama.ps().models] == [name]

KNOWN = "there are `dense` and `moe`"
for error, ask in [(openai.NotFoundError, by_openai), (anthropic.NotFoundError, by_anthropic),
                   (ollama.ResponseError, by_ollama)]:
    try:
        ask("other")
        raise AssertionError("a model that is not there has answered")
    except error as refused:
        assert KNOWN in str(refused), refused
print("openai, anthropic and ollama: each chose among two models")
