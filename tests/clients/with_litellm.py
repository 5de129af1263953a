"""LiteLLM, which asks the server as OpenAI's, vLLM's and Anthropic's."""

import json

from common import ADD, SCHEMA, SORT, SUM, TOLD, Box, Lid, has_numbers, run, settle

settle()

import litellm  # noqa: E402

TOOLS = [{"type": "function", "function": ADD | {"parameters": SCHEMA}}]


def check_route(model, base, told=TOLD, shape=Box):
    def ask(messages, **more):
        return litellm.completion(
            model=model,
            api_base=base,
            api_key="none",
            messages=messages,
            temperature=0,
            max_tokens=300,
            num_retries=0,
            **more,
        )

    whole = ask(SORT).choices[0]
    assert whole.finish_reason == "stop"
    chunks = list(ask(SORT, stream=True))
    assert (
        "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.message.content
    )
    forced = {"type": "function", "function": {"name": "add"}}
    asked = ask(SUM, tools=TOOLS, tool_choice=forced).choices[0].message
    [call] = asked.tool_calls
    assert has_numbers(json.loads(call.function.arguments)), call
    result = {"role": "tool", "tool_call_id": call.id, "content": "1424"}
    answer = ask([*SUM, asked.model_dump(), result], tools=TOOLS).choices[0].message.content
    assert told in answer, answer
    shaped = ask(SORT, response_format=shape).choices[0].message
    assert shape.model_validate_json(shaped.content or shaped.tool_calls[0].function.arguments)


def check_chat(base):
    check_route("openai/any", base + "/v1")


def check_vllm(base):
    check_route("hosted_vllm/any", base + "/v1")


def check_anthropic(base):
    # This route asks for no thoughts, without which the model does not reckon well, and takes
    # the `#` out of references in a schema.
    check_route("anthropic/any", base, told="", shape=Lid)


def check_responses(base):
    settings = {
        "model": "openai/any",
        "api_base": base + "/v1",
        "api_key": "none",
        "temperature": 0,
    }
    whole = litellm.responses(input=SORT, **settings)
    assert whole.status == "completed"
    kinds = [event.type for event in litellm.responses(input=SORT, stream=True, **settings)]
    assert kinds[-1] == "response.completed", kinds[-1]


if __name__ == "__main__":
    run("litellm", check_chat, check_vllm, check_anthropic, check_responses)
