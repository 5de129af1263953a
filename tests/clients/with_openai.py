"""The official `openai` package: Chat Completions, Completions and Responses."""

import json

import openai
import pydantic

from common import ADD, GREEDY, SCHEMA, SORT, SUM, TOLD, refused, run


class Box(pydantic.BaseModel):
    """What answers under a schema are parsed to."""

    name: str = pydantic.Field(max_length=12)
    sizes: list[int] = pydantic.Field(max_length=3)
    open: bool


def check_chat(base):
    client = openai.OpenAI(base_url=base + "/v1", api_key="none", max_retries=0)
    assert client.models.list().data[0].id == "embedded"
    chat = client.chat.completions

    whole = chat.create(messages=SORT, logprobs=True, top_logprobs=2, **GREEDY)
    assert whole.choices[0].finish_reason == "stop"
    # Every token but the end.
    assert len(whole.choices[0].logprobs.content) == whole.usage.completion_tokens - 1
    chunks = list(
        chat.create(messages=SORT, stream=True, stream_options={"include_usage": True}, **GREEDY)
    )
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chat.create(messages=SORT, stop=["pivot"], **GREEDY).choices[0].message.content in text
    assert len(chat.create(messages=SORT, n=3, max_tokens=5, **GREEDY).choices) == 3

    tools = [{"type": "function", "function": ADD | {"parameters": SCHEMA}}]
    asked = chat.create(messages=SUM, tools=tools, **GREEDY).choices[0].message
    assert json.loads(asked.tool_calls[0].function.arguments) == {"a": 947, "b": 477}
    result = {"role": "tool", "tool_call_id": asked.tool_calls[0].id, "content": "1424"}
    told = chat.create(messages=[*SUM, asked, result], tools=tools, **GREEDY)
    assert told.choices[0].message.content == TOLD
    with chat.stream(messages=SUM, tools=tools, **GREEDY) as stream:
        streamed = stream.get_final_completion().choices[0].message
    assert streamed.tool_calls[0].function.arguments == asked.tool_calls[0].function.arguments

    completion = client.completions.create(
        prompt="def f(x):", n=2, max_tokens=5, logprobs=2, model="any"
    )
    assert len(completion.choices) == 2
    wrong = refused(
        openai.BadRequestError, lambda: chat.create(messages=SORT, model="any", temperature=-1)
    )
    assert wrong.param == "temperature"
    refused(openai.NotFoundError, lambda: client.embeddings.create(model="any", input="x"))
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    assert (
        "image_url"
        in refused(openai.BadRequestError, lambda: chat.create(messages=image, model="any")).message
    )

    # Shapes: the answer is the schema's whatever is drawn, and a call that is asked for is made.
    for seed in range(4):
        sampled = {"model": "any", "temperature": 1, "seed": seed, "max_tokens": 250}
        parsed = chat.parse(messages=SORT, response_format=Box, reasoning_effort="none", **sampled)
        assert isinstance(parsed.choices[0].message.parsed, Box)
        forced = chat.create(messages=SORT, tools=tools, tool_choice="required", **sampled).choices[
            0
        ]
        for call in forced.message.tool_calls:
            arguments = json.loads(call.function.arguments)
            assert all(isinstance(arguments[name], int) for name in "ab")
    anything = chat.create(
        messages=SORT, response_format={"type": "json_object"}, max_tokens=100, **GREEDY
    ).choices[0]
    assert anything.finish_reason == "length" or isinstance(
        json.loads(anything.message.content), dict
    )


def check_responses(base):
    responses = openai.OpenAI(base_url=base + "/v1", api_key="none", max_retries=0).responses
    whole = responses.create(input=SORT, **GREEDY)
    assert whole.status == "completed" and [item.type for item in whole.output] == [
        "reasoning",
        "message",
    ]
    with responses.stream(input=SORT, **GREEDY) as stream:
        text = "".join(
            event.delta for event in stream if event.type == "response.output_text.delta"
        )
        assert stream.get_final_response().output_text == text == whole.output_text
    cut = responses.create(input="Write Python quicksort", max_output_tokens=5, **GREEDY)
    assert cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens"

    tools = [{"type": "function", **ADD, "parameters": SCHEMA, "strict": True}]
    with responses.stream(input=SUM, tools=tools, **GREEDY) as stream:
        asked = stream.get_final_response()
    call = asked.output[-1]
    assert call.type == "function_call" and json.loads(call.arguments) == {"a": 947, "b": 477}
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "1424"}
    told = responses.create(
        input=[*SUM, *asked.output, result], tools=tools, instructions="Be brief.", **GREEDY
    )
    assert told.output_text == TOLD
    forced = responses.create(
        input=SORT, tools=tools, tool_choice={"type": "function", "name": "add"}, **GREEDY
    )
    assert isinstance(json.loads(forced.output[-1].arguments)["a"], int)
    parsed = responses.parse(
        input=SORT,
        text_format=Box,
        reasoning={"effort": "none"},
        model="any",
        temperature=1,
        max_output_tokens=250,
        extra_body={"seed": 3},
    )
    assert isinstance(parsed.output_parsed, Box)
    error = refused(
        openai.BadRequestError,
        lambda: responses.create(input=SORT, previous_response_id="r", **GREEDY),
    )
    assert error.param == "previous_response_id"


if __name__ == "__main__":
    run("openai", check_chat, check_responses)
