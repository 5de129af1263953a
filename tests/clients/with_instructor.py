"""instructor: answers as pydantic models, by each of the ways it knows."""

import instructor
import openai

from common import GREEDY, SORT, Box, run


def check_modes(base):
    client = openai.OpenAI(base_url=base + "/v1", api_key="none", max_retries=0)
    for mode in ("TOOLS", "JSON_SCHEMA", "RESPONSES_TOOLS"):
        shaped = instructor.from_openai(client, mode=getattr(instructor.Mode, mode))
        ask = shaped.chat.completions
        assert isinstance(
            ask.create(messages=SORT, response_model=Box, max_retries=0, max_tokens=300, **GREEDY),
            Box,
        ), mode
        if mode == "JSON_SCHEMA":
            *_, last = ask.create_partial(
                messages=SORT, response_model=Box, max_retries=0, max_tokens=300, **GREEDY
            )
            assert Box.model_validate(last.model_dump()), mode


if __name__ == "__main__":
    run("instructor", check_modes)
