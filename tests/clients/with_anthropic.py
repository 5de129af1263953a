"""The official `anthropic` package: Messages."""

import anthropic

from common import ADD, SCHEMA, SORT, SUM, TOLD, Box, refused, run

# Newer versions of the package have no argument for the temperature.
CLAUDE = {"model": "any", "max_tokens": 300, "extra_body": {"temperature": 0}}


def check_messages(base):
    messages = anthropic.Anthropic(base_url=base, api_key="none", max_retries=0).messages
    whole = messages.create(messages=SORT, **CLAUDE)
    assert [block.type for block in whole.content] == ["text"] and whole.stop_reason == "end_turn"
    with messages.stream(messages=SORT, **CLAUDE) as stream:
        assert "".join(stream.text_stream) == whole.content[0].text
    counted = messages.count_tokens(model="any", messages=SORT).input_tokens
    assert counted == whole.usage.input_tokens + whole.usage.cache_read_input_tokens

    thinking = {"type": "enabled", "budget_tokens": 1024}
    tools = [ADD | {"input_schema": SCHEMA}]
    with messages.stream(messages=SUM, tools=tools, thinking=thinking, **CLAUDE) as stream:
        asked = stream.get_final_message()
    assert [block.type for block in asked.content] == ["thinking", "tool_use"]
    assert asked.content[1].input == {"a": 947, "b": 477} and asked.stop_reason == "tool_use"
    result = {"type": "tool_result", "tool_use_id": asked.content[1].id, "content": "1424"}
    turns = [
        *SUM,
        {"role": "assistant", "content": asked.content},
        {"role": "user", "content": [result]},
    ]
    told = messages.create(messages=turns, tools=tools, thinking=thinking, **CLAUDE)
    assert told.content[-1].text == TOLD
    stopped = messages.create(messages=SORT, stop_sequences=["pivot"], **CLAUDE)
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "pivot")
    forced = messages.create(messages=SORT, tools=tools, tool_choice={"type": "any"}, **CLAUDE)
    assert forced.content[-1].type == "tool_use" and isinstance(forced.content[-1].input["a"], int)
    named = messages.create(
        messages=SORT, tools=tools, tool_choice={"type": "tool", "name": "add"}, **CLAUDE
    )
    assert named.content[-1].name == "add"
    # Nothing is written: the prompt is read for who asks next.
    warmed = messages.create(messages=SORT, model="any", max_tokens=0)
    assert (warmed.content, warmed.stop_reason, warmed.usage.output_tokens) == ([], "max_tokens", 0)
    error = refused(
        anthropic.BadRequestError,
        lambda: messages.create(messages=SORT, model="any", max_tokens=-2),
    )
    assert error.body["error"]["type"] == "invalid_request_error"


def check_shapes(base):
    """Structured output, as the API itself has it and as the package parses it."""
    messages = anthropic.Anthropic(base_url=base, api_key="none", max_retries=0).messages
    shape = {
        "type": "json_schema",
        "schema": Box.model_json_schema() | {"additionalProperties": False},
    }
    shaped = messages.create(messages=SORT, output_config={"format": shape}, **CLAUDE)
    assert Box.model_validate_json(shaped.content[-1].text)
    assert isinstance(messages.parse(messages=SORT, output_format=Box, **CLAUDE).parsed_output, Box)


def check_tool_runner(base):
    """The package's own loop, which asks for a conversation that the server keeps and has to be
    told in its words that there is none."""
    calls = []

    @anthropic.beta_tool
    def add(a: int, b: int) -> str:
        """Add two integers."""
        calls.append((a, b))
        return str(a + b)

    messages = anthropic.Anthropic(base_url=base, api_key="none", max_retries=0).beta.messages
    thinking = {"type": "enabled", "budget_tokens": 1024}
    runner = messages.tool_runner(messages=SUM, tools=[add], thinking=thinking, **CLAUDE)
    assert runner.until_done().content[-1].text == TOLD and calls == [(947, 477)]


def check_models(base):
    """What the package has types for is there in its types."""
    client = anthropic.Anthropic(base_url=base, api_key="none", max_retries=0)
    [model] = client.models.list().data
    assert model.max_input_tokens > 0 and model.capabilities.thinking.supported
    assert model.capabilities.thinking.types.disabled.supported
    assert not model.capabilities.server_tools.web_search.supported


if __name__ == "__main__":
    run("anthropic", check_messages, check_shapes, check_tool_runner, check_models)
