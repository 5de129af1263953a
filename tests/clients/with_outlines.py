"""outlines, over OpenAI's API and over vLLM's fields for shapes."""

import json
import re
from typing import Literal

import openai
import outlines

from common import SORT, Box, run

QUESTION = SORT[0]["content"]


def check_openai(base):
    model = outlines.from_openai(
        openai.OpenAI(base_url=base + "/v1", api_key="none", max_retries=0), "any"
    )
    assert "def " in model(QUESTION, max_tokens=300, temperature=0)
    assert Box.model_validate_json(model(QUESTION, Box, max_tokens=300, temperature=0))


def check_vllm(base):
    model = outlines.from_vllm(
        openai.OpenAI(base_url=base + "/v1", api_key="none", max_retries=0), "any"
    )
    whole = model(QUESTION, max_tokens=300, temperature=0)
    assert "".join(model.stream(QUESTION, max_tokens=300, temperature=0)) == whole
    settings = {"max_tokens": 300, "temperature": 0}
    assert Box.model_validate_json(model(QUESTION, Box, **settings))
    assert model(QUESTION, Literal["yes", "no"], **settings) in ("yes", "no")
    assert re.fullmatch("[0-9]{3}", model(QUESTION, outlines.regex("[0-9]{3}"), **settings))
    assert isinstance(json.loads(model(QUESTION, int, **settings)), int)


if __name__ == "__main__":
    run("outlines", check_openai, check_vllm)
