"""A proxy on loopback between a client and a server: it keeps every exchange, and can make a tiny
model act like a large one.

An agent's task ends only if the model calls a tool and then says something. The embedded model
would do neither in an agent's long prompts, so the proxy asks for it in the words of the API: the
first request that offers the wanted tool gets a `tool_choice` of that tool, whose schema leaves
only the wanted arguments; others may not call a tool, and a schema leaves only the wanted answer.
What is kept is what the client sent.

With a `scrubber` requests become fixtures on their way (see `scrub.py`), so what is kept is what
was answered.

As `HTTPS_PROXY` it refuses every other address and says which one was asked for.
"""

import copy
import dataclasses
import http.client
import http.server
import json
import threading

KEPT_HEADERS = ("accept", "anthropic-beta", "anthropic-version", "openai-beta")


@dataclasses.dataclass
class Exchange:
    """What was asked and how it was answered."""

    method: str
    path: str
    headers: dict
    body: object
    status: int = 0
    answer: str = ""
    forced: bool = False
    outside: bool = False


@dataclasses.dataclass
class Steps:
    """What the model shall do: one call, or none, and then say `answer`."""

    tool: str | None = None
    arguments: dict = dataclasses.field(default_factory=dict)
    answer: str = "Done."
    called: bool = False

    def change(self, path, body):
        """Changes a request; says whether a call was asked for."""
        if path not in APIS or not isinstance(body, dict):
            return False
        tools = body.get("tools") or []
        asked = not self.called and any(name_of(tool) == self.tool for tool in tools)
        self.called |= asked
        if asked:
            body["tools"] = [
                narrow(tool, self.arguments) if name_of(tool) == self.tool else tool
                for tool in tools
            ]
        APIS[path](body, self.tool if asked else None, self.answer)
        return asked


def name_of(tool):
    return tool.get("name") or tool.get("function", {}).get("name")


def only(values):
    """The schema of an object that has these values and no others."""
    properties = {name: {"const": value} for name, value in values.items()}
    return {
        "type": "object",
        "properties": properties,
        "required": list(values),
        "additionalProperties": False,
    }


def narrow(tool, arguments):
    """The tool with a schema that leaves only these arguments."""
    if "function" in tool:
        return tool | {"function": tool["function"] | {"parameters": only(arguments)}}
    return tool | {"input_schema" if "input_schema" in tool else "parameters": only(arguments)}


def change_chat(body, tool, answer):
    body |= {"temperature": 0, "parallel_tool_calls": False, "reasoning_effort": "none"}
    if tool:
        body["tool_choice"] = {"type": "function", "function": {"name": tool}}
        return
    if body.get("tools"):
        body["tool_choice"] = "none"
    body["structured_outputs"] = {"choice": [answer]}


def change_responses(body, tool, answer):
    body |= {"temperature": 0, "parallel_tool_calls": False, "reasoning": {"effort": "none"}}
    if tool:
        body["tool_choice"] = {"type": "function", "name": tool}
        return
    if body.get("tools"):
        body["tool_choice"] = "none"
    body["text"] = {
        "format": {"type": "json_schema", "name": "answer", "schema": only({"says": answer})}
    }


def change_messages(body, tool, answer):
    body |= {"temperature": 0, "thinking": {"type": "disabled"}}
    if tool:
        body["tool_choice"] = {"type": "tool", "name": tool, "disable_parallel_tool_use": True}
        return
    if body.get("tools"):
        body["tool_choice"] = {"type": "none"}
    body["output_config"] = {"format": {"type": "json_schema", "schema": only({"says": answer})}}


APIS = {
    "/v1/chat/completions": change_chat,
    "/v1/responses": change_responses,
    "/v1/messages": change_messages,
}


class Proxy(http.server.ThreadingHTTPServer):
    """Listens on a port of its own and forwards to `server`, `host:port`; `exchanges` has what
    went through."""

    daemon_threads = True

    def __init__(self, server, steps, scrubber=None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.server, self.steps, self.scrubber, self.exchanges = server, steps, scrubber, []
        self.lock = threading.Lock()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    def handle_error(self, request, client_address):
        """A client that leaves before its answer ends is no error."""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_CONNECT(self):
        # Some clients take this way to every address; what comes next is meant for us.
        if f"http://{self.path}" == self.server.url:
            self.send_response_only(200)
            self.end_headers()
            self.close_connection = False
        else:
            self.refuse_outside()

    def forward(self):
        if self.path.startswith("http"):
            return self.refuse_outside()
        raw = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name: self.headers[name] for name in KEPT_HEADERS if name in self.headers}
        exchange = Exchange(self.command, self.path, headers, None)
        proxy = self.server
        with proxy.lock:
            proxy.exchanges.append(exchange)
            if raw:
                exchange.body = json.loads(raw)
                if proxy.scrubber:
                    exchange.body = proxy.scrubber.body(exchange.body)
                changed = copy.deepcopy(exchange.body)
                exchange.forced = proxy.steps.change(self.path.partition("?")[0], changed)
                raw = json.dumps(changed).encode()
        self.pass_on(raw, exchange)

    do_GET = do_POST = do_HEAD = do_DELETE = forward

    def pass_on(self, raw, exchange):
        hops = ("host", "content-length", "connection", "accept-encoding", "transfer-encoding")
        headers = {name: value for name, value in self.headers.items() if name.lower() not in hops}
        connection = http.client.HTTPConnection(self.server.server, timeout=600)
        connection.request(self.command, self.path, raw or None, headers)
        response = connection.getresponse()
        exchange.status = response.status
        self.send_response(response.status)
        for name, value in response.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(name, value)
        # An answer ends with its connection.
        self.send_header("connection", "close")
        self.close_connection = True
        self.end_headers()
        while piece := response.read1():
            exchange.answer += piece.decode("utf-8", "replace")
            self.wfile.write(piece)
            self.wfile.flush()
        connection.close()

    def refuse_outside(self):
        self.server.exchanges.append(Exchange(self.command, self.path, {}, None, outside=True))
        self.send_error(403)
        self.close_connection = True
