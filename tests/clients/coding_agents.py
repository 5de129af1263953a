"""Coding agents against a running `forerun serve`, each with one task that takes a tool.

    python3 tests/clients/coding_agents.py URL FOLDER [--record FOLDER] [--full] [--keep] [NAME...]

FOLDER holds what `scripts/test-agents` installed. Each agent has a scratch home and a scratch
project, is told to stay at home, and talks to the server through `proxy.py`, which is also what it
finds where the way to the network would be.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse

import scrub
from proxy import Proxy, Steps

TASK = "Read the file hello.txt and tell me what it says."
HELLO = "Good morning from a small file.\n"
BRIEF = "You are a coding agent. Be brief."
PATIENCE = 420


@dataclasses.dataclass
class Place:
    """Where an agent lives while it is tested."""

    installed: pathlib.Path
    home: pathlib.Path
    project: pathlib.Path
    url: str
    # Whether the agent sends all its own instructions and tools, or few of them.
    full: bool

    def program(self, name):
        return str(self.installed / name)

    def write(self, path, content):
        """A file in the home."""
        path = self.home / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))


@dataclasses.dataclass
class Run:
    """A command, what it finds in its environment, and what the model shall do."""

    command: list
    environment: dict
    steps: Steps
    # What hello.txt has to say in the end.
    left: str = HELLO


def claude_code(place):
    environment = {
        "ANTHROPIC_BASE_URL": place.url,
        "ANTHROPIC_AUTH_TOKEN": "none",
        "ANTHROPIC_MODEL": "any",
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "65536",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_AUTOUPDATER": "1",
    }
    short = [] if place.full else ["--tools", "Read,Glob,TodoWrite", "--system-prompt", BRIEF]
    command = [
        place.program("node_modules/.bin/claude"),
        "-p",
        TASK,
        "--allowedTools",
        "Read",
        *short,
    ]
    return Run(command, environment, Steps("Read", {"file_path": str(place.project / "hello.txt")}))


def codex(place):
    # As the README says, and nothing sent home.
    place.write(
        ".codex/config.toml",
        f"""
        model = "any"
        model_provider = "forerun"
        model_context_window = 65536
        check_for_update_on_startup = false
        [analytics]
        enabled = false
        [feedback]
        enabled = false
        [model_providers.forerun]
        name = "Forerun"
        base_url = "{place.url}/v1"
        wire_api = "responses"
    """,
    )
    # Lists of plugins and apps would be fetched.
    features = ["plugins", "apps", "remote_plugin", "plugin_discovery_prefetch"]
    short = []
    if not place.full:
        place.write("brief.md", BRIEF)
        short = ["-c", f"model_instructions_file={place.home / 'brief.md'}"]
        features += ["multi_agent", "goals"]
    disabled = [word for feature in features for word in ("--disable", feature)]
    command = [
        place.program("node_modules/.bin/codex"),
        "exec",
        "--skip-git-repo-check",
        "--sandbox",
        "read-only",
        *disabled,
        *short,
        TASK,
    ]
    steps = Steps("exec_command", {"cmd": "cat hello.txt"})
    return Run(command, {"CODEX_HOME": str(place.home / ".codex")}, steps)


def opencode(place):
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": place.url + "/v1", "apiKey": "none"},
        "models": {"any": {"limit": {"context": 131072, "output": 4096}}},
    }
    settings = {
        "model": "forerun/any",
        "provider": {"forerun": provider},
        "enabled_providers": ["forerun"],
        "autoupdate": False,
        "share": "disabled",
    }
    if not place.full:
        few = {
            name: False for name in ("bash", "edit", "grep", "skill", "task", "webfetch", "write")
        }
        settings["agent"] = {"build": {"prompt": BRIEF, "tools": few}}
    folder = ".config/opencode"
    place.write(f"{folder}/opencode.json", settings)
    # A package for plugins that it would fetch otherwise: these say that it is there.
    place.write(f"{folder}/node_modules/none", "")
    place.write(
        f"{folder}/package-lock.json",
        {"packages": {"": {"dependencies": {"@opencode-ai/plugin": "*"}}}},
    )
    switches = ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS")
    environment = {f"OPENCODE_DISABLE_{switch}": "1" for switch in switches}
    command = [place.program("node_modules/.bin/opencode"), "run", TASK]
    return Run(command, environment, Steps("read", {"filePath": str(place.project / "hello.txt")}))


def qwen_code(place):
    place.write(
        ".qwen/settings.json",
        {
            "general": {"enableAutoUpdate": False, "disableAutoUpdate": True},
            "privacy": {"usageStatisticsEnabled": False},
            "telemetry": {"enabled": False},
            "memory": {"enableManagedAutoMemory": place.full},
        },
    )
    environment = {
        "OPENAI_API_KEY": "none",
        "OPENAI_BASE_URL": place.url + "/v1",
        "OPENAI_MODEL": "any",
    }
    # Its own `--bare` is shorter still, but forgets to stay at home.
    few = ["--core-tools", "read_file", "--exclude-tools", "agent,skill,tool_search"]
    short = [] if place.full else ["--system-prompt", BRIEF, *few]
    command = [place.program("node_modules/.bin/qwen"), "--auth-type", "openai", "-p", TASK, *short]
    steps = Steps("read_file", {"file_path": str(place.project / "hello.txt")})
    return Run(command, environment, steps)


def copilot(place):
    environment = {
        "COPILOT_PROVIDER_BASE_URL": place.url + "/v1",
        "COPILOT_MODEL": "any",
        "COPILOT_OFFLINE": "true",
        "COPILOT_AUTO_UPDATE": "false",
    }
    short = [] if place.full else ["--available-tools=view", "--disable-builtin-mcps"]
    command = [
        place.program("node_modules/.bin/copilot"),
        "-p",
        TASK,
        "--allow-all-tools",
        *short,
    ]
    return Run(command, environment, Steps("view", {"path": str(place.project / "hello.txt")}))


def continue_cli(place):
    settings = {
        "name": "local",
        "version": "1.0.0",
        "schema": "v1",
        "models": [
            {
                "name": "any",
                "provider": "openai",
                "model": "any",
                "apiBase": place.url + "/v1/",
                "apiKey": "none",
                "roles": ["chat"],
                "capabilities": ["tool_use"],
            }
        ],
    }
    # JSON is YAML.
    place.write("config.yaml", settings)
    command = [
        place.program("node_modules/.bin/cn"),
        "--config",
        str(place.home / "config.yaml"),
        "-p",
        TASK,
    ]
    steps = Steps("Read", {"filepath": str(place.project / "hello.txt")})
    return Run(command, {"CONTINUE_TELEMETRY_ENABLED": "0"}, steps)


def aider(place):
    # The price list that it would fetch otherwise.
    place.write(".aider/caches/model_prices_and_context_window.json", {"none": {}})
    environment = {
        "OPENAI_API_BASE": place.url + "/v1",
        "OPENAI_API_KEY": "none",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    flags = [
        "--no-git",
        "--yes-always",
        "--no-check-update",
        "--no-show-model-warnings",
        "--no-pretty",
        "--no-show-release-notes",
        "--analytics-disable",
        "--edit-format",
        "whole",
        "--map-tokens",
        "0",
    ]
    task = "Let hello.txt say good evening."
    command = [
        place.program("aider/bin/aider"),
        "--model",
        "openai/any",
        *flags,
        "--message",
        task,
        "hello.txt",
    ]
    # It knows no tools: a file is changed by an answer that has the file.
    left = "Good evening from a small file.\n"
    steps = Steps(answer=f"hello.txt\n```\n{left}```\n")
    return Run(command, environment, steps, left)


AGENTS = {
    "claude-code": claude_code,
    "codex": codex,
    "opencode": opencode,
    "qwen-code": qwen_code,
    "copilot": copilot,
    "continue": continue_cli,
    "aider": aider,
}


def version(command, environment):
    shown = subprocess.run(
        [command[0], "--version"],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    found = re.search(r"\d+\.\d+\.\d+", shown.stdout)
    return found[0] if found else "unknown"


def answers_of_tools(exchanges):
    """The requests that bring a tool's result."""
    marks = ('"role": "tool"', '"type": "tool_result"', '"type": "function_call_output"')
    return [each for each in exchanges if any(mark in json.dumps(each.body) for mark in marks)]


def faults(run, place, proxy, ended):
    """What is wrong with a run, in sentences."""
    if ended.returncode != 0:
        yield f"ended with status {ended.returncode}"
    asked = [each for each in proxy.exchanges if each.body]
    if not asked:
        yield "asked nothing"
    for each in proxy.exchanges:
        if each.outside:
            yield f"wanted to leave this machine: {each.method} {each.path}"
        elif each.status >= 400 or each.status == 0:
            yield f"{each.method} {each.path} was answered {each.status}: {each.answer[:300]}"
    if run.steps.tool:
        if not run.steps.called:
            offered = {
                tool.get("name") or tool.get("function", {}).get("name")
                for each in asked
                for tool in each.body.get("tools", [])
            }
            yield f"was never offered {run.steps.tool}, only {sorted(map(str, offered))}"
        elif not answers_of_tools(asked):
            yield f"never told what {run.steps.tool} gave"
    left = (place.project / "hello.txt").read_text()
    if left != run.left:
        yield f"left hello.txt as {left!r}"


def surroundings(place, run):
    """An environment with nothing of this machine's user in it, where the way out is the proxy."""
    outside = ("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy")
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(place.home),
        "TMPDIR": str(place.home.parent),
        "TERM": "dumb",
        "LANG": "C.UTF-8",
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
        **{name: place.url for name in outside},
        **run.environment,
    }


def finish(run, place, environment):
    """Runs the command to its end; one that takes too long is ended with all that it started."""
    process = subprocess.Popen(
        run.command,
        cwd=place.project,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        said, complained = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said, complained = process.communicate()
    return subprocess.CompletedProcess(run.command, process.returncode, said, complained)


def try_agent(name, options):
    """Runs an agent's task; says whether all went well."""
    scratch = pathlib.Path(tempfile.mkdtemp(prefix=f"forerun-{name}-"))
    home, project = scratch / "home", scratch / "project"
    home.mkdir()
    project.mkdir()
    (project / "hello.txt").write_text(HELLO)
    server = urllib.parse.urlsplit(options.url).netloc
    scrubber = scrub.Scrubber(scratch) if options.record else None
    with Proxy(server, Steps(), scrubber) as proxy:
        place = Place(options.folder.resolve(), home, project, proxy.url, options.full)
        run = AGENTS[name](place)
        if not os.path.exists(run.command[0]):
            print(f"skipped: {name} is not installed")
            return True
        proxy.steps = run.steps
        environment = surroundings(place, run)
        start = time.monotonic()
        ended = finish(run, place, environment)
        took = time.monotonic() - start
        found = list(faults(run, place, proxy, ended))
        title = f"{name} {version(run.command, environment)}"
        if options.record and not found:
            scrub.write(options.record / f"{name}.json", title, run.steps.tool, proxy.exchanges)
        print(
            f"{title}: {len(proxy.exchanges)} requests, {took:.0f} s,",
            "; ".join(found) or "content",
            flush=True,
        )
    if found:
        print(f"{ended.stdout[-2000:]}\n{ended.stderr[-2000:]}", file=sys.stderr)
    if options.keep:
        (scratch / "exchanges.json").write_text(
            json.dumps([dataclasses.asdict(each) for each in proxy.exchanges], indent=1)
        )
        (scratch / "stdout").write_text(str(ended.stdout))
        print(f"kept: {scratch}")
    else:
        shutil.rmtree(scratch, ignore_errors=True)
    return not found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--record", type=pathlib.Path)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("names", nargs="*", metavar="NAME")
    options = parser.parse_intermixed_args()
    outcomes = [try_agent(name, options) for name in options.names or AGENTS]
    sys.exit(0 if all(outcomes) else 1)


if __name__ == "__main__":
    main()
