"""LangChain's `ChatOpenAI`, over Chat Completions and over Responses, and `ChatAnthropic`."""

from common import SORT, SUM, TOLD, Box, has_numbers, run, settle

settle()

from langchain_anthropic import ChatAnthropic  # noqa: E402
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage  # noqa: E402
from langchain_core.tools import tool  # noqa: E402
from langchain_openai import ChatOpenAI  # noqa: E402

QUESTION = SORT[0]["content"]


@tool
def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


def text(message):
    """A message's text, which may come in blocks."""
    if isinstance(message.content, str):
        return message.content
    return "".join(block.get("text", "") for block in message.content if block["type"] == "text")


def check_model(model, told=TOLD):
    whole = text(model.invoke(QUESTION))
    assert "def " in whole, whole
    assert "".join(text(chunk) for chunk in model.stream(QUESTION)) == whole
    forced = model.bind_tools([add], tool_choice="add")
    asked = forced.invoke(SUM)
    [call] = asked.tool_calls
    assert call["name"] == "add" and has_numbers(call["args"]), call
    result = ToolMessage(str(add.invoke(call["args"])), tool_call_id=call["id"])
    answer = text(model.bind_tools([add]).invoke([HumanMessage(SUM[0]["content"]), asked, result]))
    assert told in answer, answer


def check_openai(base):
    settings = {
        "model": "any",
        "base_url": base + "/v1",
        "temperature": 0,
        "max_tokens": 300,
        "max_retries": 0,
    }
    chat = ChatOpenAI(**settings)
    check_model(chat)
    for method in ("json_schema", "function_calling"):
        assert isinstance(chat.with_structured_output(Box, method=method).invoke(QUESTION), Box), (
            method
        )
    # Notes of the system between the turns, as agents of this package write them.
    turns = [
        SystemMessage("Be brief."),
        HumanMessage("Hello"),
        SystemMessage("Answer in code."),
        HumanMessage(QUESTION),
    ]
    assert chat.invoke(turns).content
    assert len(chat.batch([QUESTION] * 3)) == 3


def check_responses(base):
    settings = {
        "model": "any",
        "base_url": base + "/v1",
        "temperature": 0,
        "max_tokens": 300,
        "max_retries": 0,
    }
    responses = ChatOpenAI(use_responses_api=True, **settings)
    check_model(responses)
    assert isinstance(
        responses.with_structured_output(Box, method="json_schema").invoke(QUESTION), Box
    )


def check_anthropic(base):
    claude = ChatAnthropic(model="any", base_url=base, temperature=0, max_tokens=300, max_retries=0)
    # Without thoughts the model does not reckon well.
    check_model(claude, told="")
    for method in ("function_calling", "json_schema"):
        assert isinstance(
            claude.with_structured_output(Box, method=method).invoke(QUESTION), Box
        ), method


if __name__ == "__main__":
    run("langchain-openai", check_openai, check_responses)
    run("langchain-anthropic", check_anthropic)
