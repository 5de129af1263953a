#!/usr/bin/env python3
"""Lists the request fields that OpenAI's and Anthropic's own packages publish, Anthropic's betas included, which its own
clients send: names and types, nothing else.

Run where the newest `openai` and `anthropic` are installed; writes tests/fixtures/api-fields.json. What servers like
vLLM, SGLang and llama.cpp add of their own has no package to ask: it is kept by hand under `peers` in that file, and
stays as it is.

A path is as deep as three names. `tools[function].strict` is a field of the elements of `tools` whose `type` (or
`role`) is `function`, `tool_choice{tool}.name` one of an object of that type; `[]` and `{}` where there is only one kind.
"""

import importlib.metadata
import json
import pathlib
import types
import typing

import typing_extensions as extensions
from anthropic.types.beta import message_count_tokens_params, message_create_params
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

# How many names a path has at most. Counting tokens takes what messages take.
DEPTH = {"count_tokens": 1}
APIS = {
    "chat": chat_create_params.CompletionCreateParamsBase,
    "completions": completion_create_params.CompletionCreateParamsBase,
    "responses": response_create_params.ResponseCreateParamsBase,
    "messages": message_create_params.MessageCreateParamsBase,
    "count_tokens": message_count_tokens_params.MessageCountTokensParams,
}


def bare(kind):
    """The type without what says whether a field must be there."""
    while typing.get_origin(kind) in (extensions.Required, extensions.NotRequired, typing.Annotated):
        kind = typing.get_args(kind)[0]
    return kind


def members(kind):
    """The types that a value may have."""
    kind = bare(kind)
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return [one for part in typing.get_args(kind) for one in members(part)]
    return [kind]


def is_list(kind):
    return isinstance(typing.get_origin(kind), type) and issubclass(typing.get_origin(kind), typing.Iterable) \
        and typing.get_origin(kind) is not dict


def word(kind):
    """A short name of a type."""
    if typing.get_origin(kind) is typing.Literal:
        values = [str(value) for value in typing.get_args(kind)]
        return "|".join(values) if len(values) < 10 else "string"
    if extensions.is_typeddict(kind) or typing.get_origin(kind) is dict or kind in (dict, object):
        return "object"
    if is_list(kind):
        words = {word(one) for one in members(typing.get_args(kind)[0])}
        return "array of " + " or ".join(sorted(words))
    return {type(None): "null", str: "string", int: "integer", float: "number", bool: "boolean"}.get(kind, "any")


def kinds_of(kind):
    """What `type` or `role` says in an object of this type."""
    hints = extensions.get_type_hints(kind, include_extras=True)
    for name in ("type", "role"):
        for one in members(hints[name]) if name in hints else []:
            if typing.get_origin(one) is typing.Literal:
                return list(typing.get_args(one))
    return []


def walk(kind, path, depth, found):
    for name, hint in extensions.get_type_hints(kind, include_extras=True).items():
        here = f"{path}.{name}" if path else name
        words = found.setdefault(here, set())
        for member in members(hint):
            words.add(word(member))
            inner = members(typing.get_args(member)[0]) if is_list(member) else [member]
            marks = "[]" if is_list(member) else "{}"
            for one in inner:
                # Of every tool the same.
                if path and name == "cache_control":
                    continue
                if extensions.is_typeddict(one) and depth > 1:
                    for label in kinds_of(one) or [""]:
                        walk(one, f"{here}{marks[0]}{label}{marks[1]}", depth - 1, found)


def main():
    out = pathlib.Path(__file__).parent.parent / "tests/fixtures/api-fields.json"
    kept = json.loads(out.read_text()) if out.exists() else {}
    listed = {"versions": {name: importlib.metadata.version(name) for name in ("openai", "anthropic")}}
    for api, params in APIS.items():
        found = {}
        walk(params, "", DEPTH.get(api, 3), found)
        if api not in ("count_tokens",):
            found.setdefault("stream", {"boolean"})
        listed[api] = {path: " or ".join(sorted(found[path])) for path in sorted(found)}
    listed["peers"] = kept.get("peers", {})
    out.write_text(json.dumps(listed, indent=0, separators=(",", ":"), ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
