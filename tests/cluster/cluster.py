"""Processes of a section of docs/cluster.md, and questions to what they serve."""

import http.client
import json
import os
import pathlib
import shlex
import signal
import subprocess
import threading
import time
import urllib.request

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "cluster.md"


def commands(section):
    """The lines of the section's `sh` block."""
    text = PAGE.read_text().split(f"\n## {section}\n")[1].split("\n## ")[0]
    return text.split("```sh\n")[1].split("```")[0].strip().splitlines()


class Cluster:
    """The commands of a section, each a process; lines that end by themselves are waited for."""

    def __init__(self, section, logs):
        self.logs = pathlib.Path(logs)
        self.logs.mkdir(parents=True, exist_ok=True)
        self.env = dict(os.environ)
        self.lines = []
        self.running = {}
        for line in commands(section):
            if line.startswith("export "):
                self.env.update(word.split("=", 1) for word in shlex.split(line)[1:])
            elif line.startswith("forerun tokenizer"):
                subprocess.run(shlex.split(line), env=self.env, check=True, stdout=subprocess.DEVNULL)
            else:
                self.lines.append(line)

    def start(self, number):
        """Starts the process of a line, or starts it again."""
        with open(self.logs / f"{number}.log", "ab") as log:
            self.running[number] = subprocess.Popen(
                shlex.split(self.lines[number]), env=self.env, stdout=log, stderr=log
            )

    def serve(self, number, port):
        """Starts a worker and waits until it answers on its port, it and no stranger."""
        self.start(number)
        ready = f"http://127.0.0.1:{port}/ready"
        has_ended = lambda: self.running[number].poll() is not None
        wait_for(f"worker on port {port}", lambda: has_ended() or get(ready))
        if has_ended():
            raise SystemExit(f"`{self.lines[number]}` ended: see {self.logs}/{number}.log")

    def end(self, number, how=signal.SIGTERM):
        self.running[number].send_signal(how)

    def wait(self, number, seconds=120):
        return self.running[number].wait(seconds)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # In front first, so that nobody complains of who is gone.
        for how, patience in ((signal.SIGTERM, 15), (signal.SIGKILL, 5)):
            for process in reversed(self.running.values()):
                if process.poll() is None:
                    process.send_signal(how)
            until = time.time() + patience
            while time.time() < until and any(p.poll() is None for p in self.running.values()):
                time.sleep(0.1)


def get(url):
    with urllib.request.urlopen(url, timeout=30) as response:
        return json.load(response)


def wait_for(what, holds, seconds=240):
    """Until `holds()`, which may fail meanwhile. Machines may be busy: nothing here is about time."""
    until = time.time() + seconds
    while time.time() < until:
        try:
            if holds():
                return
        except (OSError, ValueError, KeyError, http.client.HTTPException):
            pass
        time.sleep(0.2)
    raise SystemExit(f"{what}: not within {seconds} s")


def post(port, path, body):
    """A whole answer; what went wrong is raised."""
    question = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(question, timeout=300) as response:
        return json.load(response)


def stream(port, path, body, hook=None):
    """Text, how it ended and what else was said; `hook(chunks)` is called after each that has text."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    said = {"text": "", "finish": None, "error": None, "chunks": 0}
    try:
        body = json.dumps({**body, "stream": True})
        connection.request("POST", path, body, {"content-type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            said["error"] = f"{response.status}: {response.read()[:300]}"
            return said
        for line in response:
            if not line.startswith(b"data: {"):
                if line.startswith((b"event: error", b": error")):
                    said["error"] = line.decode()
                continue
            chunk, before = json.loads(line[6:]), len(said["text"])
            if "error" in chunk:
                said["error"] = chunk["error"]
            for choice in chunk.get("choices") or []:
                delta = choice.get("delta") or {}
                said["text"] += choice.get("text") or delta.get("content") or ""
                said["text"] += delta.get("reasoning_content") or ""
                said["finish"] = choice.get("finish_reason") or said["finish"]
            said["chunks"] += len(said["text"]) > before
            if hook and len(said["text"]) > before:
                hook(said["chunks"])
    except HungUp:
        pass
    except (OSError, http.client.HTTPException, ValueError) as error:
        said["error"] = said["error"] or repr(error)
    finally:
        connection.close()
    return said


def running(port):
    """Answers under way on a worker; none where it is gone."""
    try:
        return get(f"http://127.0.0.1:{port}/v1/loads")["loads"][0]["num_running_reqs"]
    except (OSError, http.client.HTTPException):
        return 0


class Stream(threading.Thread):
    """A question whose answer comes in the background, until it ends or is hung up on."""

    def __init__(self, front, path, question):
        super().__init__(daemon=True)
        self.front, self.path, self.question = front, path, question
        self.chunks, self.said, self.has_enough = 0, None, False
        self.start()

    def run(self):
        self.said = stream(self.front, self.path, self.question, self.count)

    def count(self, chunks):
        self.chunks = chunks
        if self.has_enough:
            raise HungUp

    def has_ended(self):
        return self.said is not None

    def hang_up(self):
        self.has_enough = True
        self.join()


class HungUp(Exception):
    """Nobody waits for the rest of a stream."""


def streams_until(is_enough, begin, most=20):
    """Begins streams, each when the one before is written, until `is_enough()`. Which worker a
    gateway takes for one is up to the gateway."""
    begun = []
    while not is_enough() and len(begun) < most:
        begun.append(begin())
        wait_for("a stream begins", lambda: begun[-1].chunks > 0 or begun[-1].has_ended())
    check(is_enough(), f"{len(begun)} streams are under way")
    return begun


def stream_on_each(ports, begin, most=200):
    """A stream on each worker. Which of them a gateway takes is up to the gateway, and it may take
    one of them many times: what it sends where another is being written is hung up on, so that
    nobody has to wait for a slot."""
    kept = []
    for _ in range(most):
        busy = [running(port) for port in ports]
        if all(busy):
            return kept
        one = begin()
        wait_for("a stream begins", lambda: one.chunks > 0 or one.has_ended())
        if any(now and not before for now, before in zip(map(running, ports), busy)):
            kept.append(one)
        else:
            one.hang_up()
            wait_for("it has left", lambda: sum(map(running, ports)) <= len(kept))
    raise SystemExit(f"of {most} streams none was sent to one of the workers")


class Load:
    """Ten questions in turns, four at a time, until 200 were asked and what is tried meanwhile is
    over. Draws depend on the seed alone, so each question has one answer."""

    def __init__(self, ask):
        self.ask, self.lock, self.is_over = ask, threading.Lock(), False
        self.asked, self.failed, self.texts = 0, [], {}
        self.threads = [threading.Thread(target=self.work, daemon=True) for _ in range(4)]
        for thread in self.threads:
            thread.start()

    def work(self):
        while True:
            with self.lock:
                if self.is_over and self.asked >= 200:
                    return
                number = self.asked % 10
                self.asked += 1
            said = self.ask(number)
            with self.lock:
                if said["error"] or said["finish"] not in ("stop", "length"):
                    self.failed.append((number, said["error"] or "no end"))
                else:
                    self.texts.setdefault(number, set()).add(said["text"])
            time.sleep(0.1)

    def end(self, during):
        self.is_over = True
        for thread in self.threads:
            thread.join()
        lost, firsts = len(self.failed), self.failed[:2]
        check(lost == 0, f"{self.asked} requests during {during}, {lost} lost {firsts}")
        differ = [number for number, texts in self.texts.items() if len(texts) > 1]
        check(not differ, f"the same question has the same answer: {differ} have several")


def check(holds, what):
    print(("  ok: " if holds else "  FAILED: ") + what, flush=True)
    if not holds:
        raise SystemExit(1)
