"""Generated chats to train on: code, arithmetic with thinking, JSON plans for a robot, tool calls, several turns.
Everything is drawn from the `random.Random` that is passed in, so a seed gives the same text again."""

import ast
import json
from typing import NamedTuple

from algorithms import ALGORITHMS
from chat_format import conversation
from tool_chats import tool_chat

NAMES = ["Mia", "Omar", "Lena", "Ravi", "Ines", "Tom", "Yuki", "Sara", "Leo", "Nora", "Ivan", "Zoe"]
ITEMS = ["apples", "books", "marbles", "stickers", "coins", "pencils", "cookies", "cards", "eggs", "bottles"]
ITEMS += ["tickets", "shells"]
OBJECTS = ["cup", "red block", "blue block", "bottle", "book", "plate", "key", "ball", "tray", "wrench"]
PLACES = ["table", "shelf", "drawer", "sink", "kitchen counter", "box", "desk", "charging dock", "doorway", "bench"]
SYSTEMS = ["You are a helpful assistant.", "Answer briefly.", "You are a careful robot planner."]


class Exchange(NamedTuple):
    question: str
    thinking: str
    answer: str


# Problems take three numbers, two names and a plural; each gives (question, steps, result).
def given(a, b, c, name, other, items):
    question = (
        f"{name} has {a} {items}. {other} gives {name} {b} more {items}. How many {items} does {name} have now?"
    )
    steps = [f"{name} starts with {a} {items}.", f"{other} adds {b}, so {a} + {b} = {a + b}."]
    return question, steps, a + b


def given_away(a, b, c, name, other, items):
    had = a + b
    question = f"{name} has {had} {items} and gives {b} of them to {other}. How many {items} are left?"
    steps = [f"{name} starts with {had} {items}.", f"Giving away {b} leaves {had} - {b} = {a}."]
    return question, steps, a


def packed(a, b, c, name, other, items):
    question = f"{name} packs {c} {items} in each box and fills {b} boxes. How many {items} are packed?"
    steps = [f"Each box holds {c} {items}.", f"There are {b} boxes, so {c} * {b} = {c * b}."]
    return question, steps, c * b


def shared(a, b, c, name, other, items):
    total = b * c
    question = f"{name} shares {total} {items} equally among {c} friends. How many {items} does each friend get?"
    steps = [f"There are {total} {items} for {c} friends.", f"Each gets {total} / {c} = {b}."]
    return question, steps, b


def bought(a, b, c, name, other, items):
    question = (
        f"{name} buys {c} bags with {b} {items} each and already has {a} {items}. "
        f"How many {items} are there in total?"
    )
    steps = [
        f"The bags hold {c} * {b} = {c * b} {items}.",
        f"Adding the {a} already there gives {c * b} + {a} = {c * b + a}.",
    ]
    return question, steps, c * b + a


def split(a, b, c, name, other, items):
    total = c * b + a
    question = (
        f"{name} had {total} {items}, gave {a} to {other}, and split the rest equally into {c} boxes. "
        f"How many {items} are in each box?"
    )
    steps = [
        f"After giving away {a}, {total} - {a} = {total - a} {items} remain.",
        f"Split into {c} boxes, that is {total - a} / {c} = {b} each.",
    ]
    return question, steps, b


PROBLEMS = [given, given_away, packed, shared, bought, split]


def arithmetic(rng):
    name, other = rng.sample(NAMES, 2)
    items = rng.choice(ITEMS)
    problem = PROBLEMS[rng.randrange(6)]
    a, b, c = rng.randint(2, 60), rng.randint(2, 40), rng.randint(2, 12)
    question, steps, result = problem(a, b, c, name, other, items)
    thinking = "\n".join(f"Step {i}: {step}" for i, step in enumerate(steps, 1)) + f"\nThe answer is {result}."
    return Exchange(question, thinking, " ".join(steps) + f"\n\n**Answer: {result}**")


def pick(thing):
    return [("detect", {"object": thing}), ("grasp", {"object": thing})]


def bring(thing, place):
    return [("navigate", {"target": place}), ("place", {"object": thing, "target": place})]


def robot_plan(rng):
    kind = rng.randrange(4)
    thing = rng.choice(OBJECTS)
    place, other_place = rng.sample(PLACES, 2)
    go = ("navigate", {"target": place})
    if kind == 0:
        task = f"move the {thing} from the {place} to the {other_place}"
        actions = [go, *pick(thing), *bring(thing, other_place)]
    elif kind == 1:
        task = f"check whether the {thing} is on the {place}"
        actions = [go, ("detect", {"object": thing}), ("report", {"object": thing})]
    elif kind == 2:
        other = rng.choice([x for x in OBJECTS if x != thing])
        task = f"put the {thing} and the {other} on the {place}"
        actions = [action for x in (thing, other) for action in pick(x) + bring(x, place)]
    else:
        seconds = rng.randint(2, 60)
        task = f"go from the {place} to the {other_place} and wait {seconds} seconds"
        actions = [("navigate", {"target": other_place}), ("wait", {"seconds": seconds})]
    steps = [{"step": i, "action": action, **details} for i, (action, details) in enumerate(actions, 1)]
    thinking = f"The task has {len(steps)} steps. I list them in order and answer with JSON only."
    answer = "```json\n" + json.dumps({"task": task, "steps": steps}, indent=2) + "\n```"
    return Exchange(f"Robot task: {task}. Answer with a JSON plan.", thinking, answer)


def algorithm(rng):
    key = rng.choice(list(ALGORITHMS))
    does, source = ALGORITHMS[key]
    name = key.replace("_", " ")
    question = rng.choice(
        [
            f"Write Python {name}",
            f"Write a Python function that {does}.",
            f"Implement {name} in Python.",
            f"Write {name} in Python.",
            f"Python code for {name}, please.",
            f"Show me {name} in Python.",
        ]
    )
    thinking = f"The user wants {name} in Python. I write a short function that {does}."
    return Exchange(question, thinking, f"This code {does}:\n\n```python\n{source}\n```")


def turns(rng, exchange):
    """The two messages of an exchange; six of ten answers have thinking."""
    reasoning = exchange.thinking if rng.random() < 0.6 else ""
    return [
        {"role": "user", "content": exchange.question},
        {"role": "assistant", "content": exchange.answer, "reasoning": reasoning},
    ]


def several_turns(rng):
    messages = []
    for _ in range(rng.randint(2, 3)):
        messages += turns(rng, rng.choice([arithmetic, robot_plan, algorithm])(rng))
    if rng.random() < 0.3:
        messages.insert(0, {"role": "system", "content": rng.choice(SYSTEMS)})
    return conversation(messages)


def chat(rng):
    """One conversation as text."""
    kind = rng.random()
    if kind < 0.30:
        return conversation(turns(rng, arithmetic(rng)))
    if kind < 0.45:
        return conversation(turns(rng, robot_plan(rng)))
    if kind < 0.65:
        return tool_chat(rng)
    if kind < 0.85:
        return conversation(turns(rng, algorithm(rng)))
    return several_turns(rng)


class Function(NamedTuple):
    name: str
    arguments: list
    purpose: str
    source: str


def documented_functions(module):
    """Public functions with a docstring in a module's source, longer than 80 and shorter than 1400 characters."""
    try:
        tree = ast.parse(module)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    lines = module.splitlines()
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
            continue
        doc = ast.get_docstring(node)
        source = unindented(lines[node.lineno - 1 : node.end_lineno], node.col_offset)
        if doc and 80 < len(source) < 1400:
            arguments = [a.arg for a in node.args.args if a.arg not in ("self", "cls")]
            purpose = doc.strip().split("\n\n")[0].replace("\n", " ")[:200]
            yield Function(node.name, arguments, purpose, source)


def unindented(lines, columns):
    return "\n".join(line[columns:] if line[:columns].strip() == "" else line for line in lines)


def code_chat(rng, function):
    """A conversation that asks for a function of the corpus."""
    question = rng.choice(
        [
            f"Write a Python function `{function.name}({', '.join(function.arguments)})`. {function.purpose}",
            f"Implement `{function.name}` in Python: {function.purpose}",
            f"Python: {function.purpose}",
        ]
    )
    reasoning = f"I write the function {function.name}." if rng.random() < 0.5 else ""
    answer = f"```python\n{function.source}\n```"
    return conversation(
        [
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer, "reasoning": reasoning},
        ]
    )
