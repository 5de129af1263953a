"""ChatML text of a conversation, as chat_template.jinja writes it."""

import json

TURN, END = "<|im_start|>", "<|im_end|>"
ASSISTANT = f"{TURN}assistant\n"
TOOLS_HEAD = "# Tools\n\nThese functions can be called:\n\n<tools>"
TOOLS_TAIL = (
    "\n</tools>\n\nTo call one, answer with a block of this form:\n\n"
    "<tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call>"
)


def thinking_start(thinking):
    """What the template puts before an answer: a thinking block, left open or closed at once."""
    return "<think>\n" if thinking else "<think>\n\n</think>\n\n"


def prompt(question, thinking):
    return f"{TURN}user\n{question}{END}\n{ASSISTANT}{thinking_start(thinking)}"


def conversation(messages, tools=()):
    """Messages are {role, content}; an assistant's may have `reasoning` and `tool_calls` [{name, arguments}]."""
    text = [system_turn(messages[0], tools)]
    last_user = max(i for i, message in enumerate(messages) if message["role"] == "user")
    for i, message in enumerate(messages):
        if message["role"] == "user":
            text.append(f"{TURN}user\n{message['content']}{END}\n")
        elif message["role"] == "assistant":
            # Thinking of earlier turns is left out.
            text.append(assistant_turn(message, with_thinking=i > last_user))
        elif message["role"] == "tool":
            text.append(tool_response(messages, i))
    return "".join(text)


def system_turn(first, tools):
    if not tools and first["role"] != "system":
        return ""
    system = first["content"] if first["role"] == "system" else ""
    if tools:
        schemas = "".join("\n" + json.dumps(tool, ensure_ascii=False) for tool in tools)
        system = TOOLS_HEAD + schemas + TOOLS_TAIL + ("\n\n" + system if system else "")
    return f"{TURN}system\n{system}{END}\n"


def assistant_turn(message, with_thinking):
    thinking = f"<think>\n{message.get('reasoning', '')}\n</think>\n\n" if with_thinking else ""
    content = message["content"]
    calls = "\n".join(tool_call(call) for call in message.get("tool_calls", []))
    gap = "\n\n" if content and calls else ""
    return f"{ASSISTANT}{thinking}{content}{gap}{calls}{END}\n"


def tool_call(call):
    def value(argument):
        return argument if isinstance(argument, str) else json.dumps(argument)

    parameters = "".join(
        f"<parameter={key}>\n{value(argument)}\n</parameter>\n" for key, argument in call["arguments"].items()
    )
    return f"<tool_call>\n<function={call['name']}>\n{parameters}</function>\n</tool_call>"


def tool_response(messages, i):
    """Responses that follow each other share one user turn."""
    first = messages[i - 1]["role"] != "tool"
    last = i + 1 == len(messages) or messages[i + 1]["role"] != "tool"
    response = f"\n<tool_response>\n{messages[i]['content']}\n</tool_response>"
    return (f"{TURN}user" if first else "") + response + (f"{END}\n" if last else "")
