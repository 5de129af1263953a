"""What the scripts of Python packages share: questions whose answers the embedded model knows, a
tool, a shape, and how a script is run.

    python3 tests/clients/with_openai.py http://127.0.0.1:8000
"""

import importlib.metadata
import os
import sys
import time
from typing import Literal

import pydantic

SORT = [{"role": "user", "content": "Write Python quicksort"}]
SUM = [{"role": "user", "content": "Compute the sum of 947 and 477."}]
TOLD = "947 + 477 = 1424."
INTEGER = {"type": "integer"}
SCHEMA = {"type": "object", "properties": {"a": INTEGER, "b": INTEGER}, "required": ["a", "b"]}
ADD = {"name": "add", "description": "Add two integers."}
GREEDY = {"model": "any", "temperature": 0}


class Lid(pydantic.BaseModel):
    colour: Literal["red", "green", "blue"]
    open: bool


class Box(pydantic.BaseModel):
    """What answers under a schema are parsed to. It bounds itself without lengths and ranges,
    which some packages take out of a schema."""

    kind: Literal["small", "large"]
    lid: Lid


def refused(kind, call):
    """The error that a call ends in."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was expected")


def has_numbers(arguments):
    """Whether a call fits `SCHEMA`."""
    return all(isinstance(arguments[name], int) for name in "ab")


def settle():
    """Nothing is reported to anybody, and no other server is asked."""
    os.environ |= {
        "OPENAI_API_KEY": "none",
        "ANTHROPIC_API_KEY": "none",
        "LANGSMITH_TRACING": "false",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_TELEMETRY": "False",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
    }


def run(package, *checks):
    """Runs checks against the server that the command line names."""
    start = time.monotonic()
    for check in checks:
        check(sys.argv[1])
    took = time.monotonic() - start
    print(
        f"{package} {importlib.metadata.version(package)} is content after {took:.0f} s", flush=True
    )
