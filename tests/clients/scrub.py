"""Turns what a client sent into a fixture: its structure as it was, without its texts and without
what tells of a machine, a person or a day.

Names, roles, types, schemas and numbers stay. Prose is another's work and long, so it becomes a
sentence that says how long it was; ids are numbered; other names that a client has for itself
become `none`.
"""

import json
import re

# What the tests themselves say to a client or have it read stays readable.
OURS = (
    "Read the file hello.txt and tell me what it says.",
    "Let hello.txt say good evening.",
    "Good morning from a small file.",
)
# Numbers of sessions, devices and calls.
ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{16,}")
# Parts of a schema that are not prose, however long.
STRUCTURE = ("pattern", "enum", "const", "default", "required", "format", "$ref", "$schema")
# Where clients tell who they are.
ABOUT_THEMSELVES = ("client_metadata", "metadata", "user", "safety_identifier", "prompt_cache_key")


class Scrubber:
    def __init__(self, scratch):
        self.scratch, self.ids = str(scratch), {}

    def id(self, found):
        return f"{self.ids.setdefault(found[0], len(self.ids) + 1):032x}"

    def text(self, key, text):
        text = text.replace(self.scratch, "/scratch")
        if key == "definition":
            return "start: /(.|\\n)+/"
        if key in STRUCTURE or text in OURS or len(text.split()) < 4 and len(text) < 200:
            return ID.sub(self.id, text)
        known = next((ours for ours in OURS if ours in text), None)
        return f"A text of {len(text)} characters" + (f" around this: {known}" if known else ".")

    def value(self, key, value):
        if isinstance(value, dict):
            # In a schema these are names of fields, whatever they are called.
            named = key in ("properties", "$defs", "definitions")
            return {name: self.value(None if named else name, each) for name, each in value.items()}
        if isinstance(value, list):
            return [self.value(key, each) for each in value]
        if not isinstance(value, str):
            return value
        # Arguments of a call are JSON in a string.
        if key == "arguments":
            try:
                return json.dumps(self.value(None, json.loads(value)))
            except ValueError:
                return value
        return self.text(key, value)

    def body(self, body):
        body = self.value(None, body)
        for name in ABOUT_THEMSELVES:
            if isinstance(body, dict) and name in body:
                body[name] = nobody(body[name])
        return body


def nobody(value):
    if isinstance(value, dict):
        return {name: nobody(each) for name, each in value.items()}
    return "none" if isinstance(value, str) else value


def write(path, client, forced, exchanges):
    """Writes a fixture; `forced` is the tool that the proxy asked for, if it did."""
    requests = [
        {
            "method": each.method,
            "path": each.path,
            "headers": each.headers,
            "forced": each.forced,
            "body": each.body,
        }
        for each in exchanges
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = {"client": client, "forced": forced, "requests": requests}
    path.write_text(json.dumps(whole, indent=1) + "\n")
