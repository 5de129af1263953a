#!/usr/bin/env python3
"""Renders crates/text/tests/template/cases.json through every template in crates/text/tests/fixtures with jinja2, set
up as transformers does (utils/chat_template_utils.py), into expected.json, and every line of expressions.txt beside it
into expressions.json. Needs: pip install jinja2"""

import json
from pathlib import Path

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

tests = Path(__file__).resolve().parent.parent / "crates" / "text" / "tests"


class Refusal(jinja2.exceptions.TemplateError):
    pass


def raise_exception(message):
    raise Refusal(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class Generation(jinja2.ext.Extension):
    """`{% generation %}`: what the assistant says, which training looks for; to the text it adds nothing."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("said"), [], [], body).set_lineno(line)

    def said(self, caller):
        return caller()


extensions = [Generation, jinja2.ext.loopcontrols]
environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
environment.filters["tojson"] = tojson
environment.globals["raise_exception"] = raise_exception


def render(template, case):
    variables = {"messages": case["messages"], "tools": case.get("tools"), "documents": None}
    variables["add_generation_prompt"] = case.get("add_generation_prompt", True)
    if "enable_thinking" in case:
        variables["enable_thinking"] = case["enable_thinking"]
    try:
        return {"text": template.render(**variables, **case.get("extra", {}))}
    except Refusal as error:
        return {"refused": str(error)}


cases = json.loads((tests / "template" / "cases.json").read_text())
expected = {}
for path in sorted((tests / "fixtures").glob("*.jinja")):
    template = environment.from_string(path.read_text())
    expected[path.name] = {case["name"]: render(template, case) for case in cases}
text = json.dumps(expected, ensure_ascii=False, indent=1)
(tests / "template" / "expected.json").write_text(text + "\n")


def evaluate(line):
    try:
        return environment.from_string(line).render()
    except Exception:
        return None


lines = (tests / "template" / "expressions.txt").read_text().splitlines()
text = json.dumps([[line, evaluate(line)] for line in lines], ensure_ascii=False, indent=1)
(tests / "template" / "expressions.json").write_text(text + "\n")
