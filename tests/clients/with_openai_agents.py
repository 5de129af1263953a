"""openai-agents: an agent's loop with a tool, over Responses and over Chat Completions."""

import asyncio

from common import SORT, SUM, Box, run, settle

settle()

from agents import (  # noqa: E402
    Agent,
    AsyncOpenAI,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
)

QUESTION = SORT[0]["content"]


async def check_model(model):
    calls = []

    @function_tool
    def add(a: int, b: int) -> int:
        """Add two integers."""
        calls.append((a, b))
        return a + b

    settings = ModelSettings(temperature=0, max_tokens=300)
    plain = Agent(name="plain", model=model, model_settings=settings)
    whole = (await Runner.run(plain, QUESTION)).final_output
    assert "def " in whole, whole
    streamed = Runner.run_streamed(plain, QUESTION)
    kinds = {event.type async for event in streamed.stream_events()}
    assert "raw_response_event" in kinds and streamed.final_output == whole

    # The package asks for the tool once and leaves the next turn to the model.
    forced = ModelSettings(temperature=0, max_tokens=300, tool_choice="required")
    adder = Agent(name="adder", model=model, tools=[add], model_settings=forced)
    told = (await Runner.run(adder, SUM[0]["content"], max_turns=4)).final_output
    assert calls == [(947, 477)] and "1424" in told, (calls, told)

    shaped = Agent(name="shaped", model=model, output_type=Box, model_settings=settings)
    assert isinstance((await Runner.run(shaped, QUESTION)).final_output, Box)
    # Its instructions come before the conversation, which has a note of the system of its own.
    brief = Agent(name="brief", instructions="Be brief.", model=model, model_settings=settings)
    turns = [{"role": "developer", "content": "Answer in code."}, *SORT]
    assert (await Runner.run(brief, turns)).final_output


def check(kind):
    def with_server(base):
        client = AsyncOpenAI(base_url=base + "/v1", api_key="none", max_retries=0)
        asyncio.run(check_model(kind("any", client)))

    return with_server


if __name__ == "__main__":
    run("openai-agents", check(OpenAIResponsesModel), check(OpenAIChatCompletionsModel))
