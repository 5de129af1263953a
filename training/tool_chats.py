"""Generated chats in which the assistant calls a tool and, half of the time, reads the result and answers."""

import json
from typing import NamedTuple

from chat_format import conversation

CITIES = ["Paris", "Tokyo", "Lima", "Oslo", "Cairo", "Berlin", "Toronto", "Madrid", "Nairobi", "Sydney", "Rome"]
CITIES += ["Seoul"]
CONDITIONS = ["sunny", "cloudy", "rain", "windy", "snow"]
FILES = ["README.md", "src/main.rs", "notes/todo.txt", "config.json", "data/users.csv", "docs/design.md"]
FILES += ["Cargo.toml", "tests/run.py"]
LINES = ["hello world", "version = 1", "TODO: write tests", "name,age", "fn main() {}"]
TOPICS = ["speculative decoding", "rust lifetimes", "linear attention", "cuda graphs", "b-tree indexes"]
TOPICS += ["vector databases", "json schema", "unicode normalization"]
UNITS = ["celsius", "fahrenheit"]


class Call(NamedTuple):
    question: str
    arguments: dict
    thinking: str
    result: str
    answer: str


def weather(rng):
    city, unit = rng.choice(CITIES), rng.choice(UNITS)
    degrees, condition = rng.randint(-5, 38), rng.choice(CONDITIONS)
    question = rng.choice(
        [
            f"What is the weather in {city}?",
            f"How warm is it in {city} right now?",
            f"Tell me the weather in {city} in {unit}.",
        ]
    )
    return Call(
        question,
        {"city": city} | ({"unit": unit} if unit in question else {}),
        f"The user asks about the weather in {city}. I call get_weather.",
        json.dumps({"city": city, "temperature": degrees, "condition": condition}),
        f"It is {degrees} degrees and {condition} in {city}.",
    )


def addition(rng):
    a, b = rng.randint(10, 999), rng.randint(10, 999)
    question = rng.choice([f"Add {a} and {b}.", f"What is {a} + {b}?", f"Compute the sum of {a} and {b}."])
    return Call(question, {"a": a, "b": b}, f"I call add with {a} and {b}.", str(a + b), f"{a} + {b} = {a + b}.")


def reading(rng):
    path = rng.choice(FILES)
    question = rng.choice([f"Open {path}.", f"Show me the contents of {path}.", f"Read the file {path}."])
    line = rng.choice(LINES)
    thinking = f"I need the contents of {path}. I call read_file."
    return Call(question, {"path": path}, thinking, line, f"The file {path} contains:\n\n{line}")


def searching(rng):
    topic = rng.choice(TOPICS)
    question = rng.choice([f"Find information about {topic}.", f"Search for {topic}.", f"Look up {topic}."])
    found = f"3 results about {topic}"
    return Call(question, {"query": topic}, f"I search for {topic}.", found, f"I found {found}.")


def timing(rng):
    seconds = rng.choice([5, 10, 15, 30, 45, 60, 90, 120, 300])
    question = rng.choice([f"Set a timer for {seconds} seconds.", f"Start a {seconds} second timer."])
    thinking = f"I start a timer of {seconds} seconds."
    return Call(question, {"seconds": seconds}, thinking, "ok", f"The timer is set for {seconds} seconds.")


def schema(name, description, properties, required):
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


STRING, INTEGER = {"type": "string"}, {"type": "integer"}
# name -> (what is told about the tool, what draws a call of it)
TOOLS = {
    "get_weather": (
        schema(
            "get_weather",
            "Current weather for a city.",
            {"city": STRING, "unit": {"type": "string", "enum": UNITS}},
            ["city"],
        ),
        weather,
    ),
    "add": (schema("add", "Add two integers.", {"a": INTEGER, "b": INTEGER}, ["a", "b"]), addition),
    "read_file": (schema("read_file", "Read a text file.", {"path": STRING}, ["path"]), reading),
    "search": (schema("search", "Search the web.", {"query": STRING}, ["query"]), searching),
    "set_timer": (schema("set_timer", "Start a timer.", {"seconds": INTEGER}, ["seconds"]), timing),
}


def tool_chat(rng):
    """A conversation with one to three tools offered and one of them called."""
    name = rng.choice(list(TOOLS))
    others = rng.sample([tool for tool in TOOLS if tool != name], rng.randint(0, 2))
    offered = [TOOLS[tool][0] for tool in rng.sample([name] + others, len(others) + 1)]
    call = TOOLS[name][1](rng)
    tool_calls = [{"name": name, "arguments": call.arguments}]
    messages = [
        {"role": "user", "content": call.question},
        {"role": "assistant", "content": "", "reasoning": call.thinking, "tool_calls": tool_calls},
    ]
    if rng.random() >= 0.5:
        thinking = "I have the result and can answer."
        messages.append({"role": "tool", "content": call.result})
        messages.append({"role": "assistant", "content": call.answer, "reasoning": thinking})
    return conversation(messages, offered)
