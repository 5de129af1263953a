"""Two workers under Dynamo, as docs/cluster.md starts them. Argument: a folder for logs."""

import random
import shutil
import signal
import sys
import time

from cluster import Cluster, Load, check, get, post, running, stream, wait_for

FRONT, WORKERS = 8200, (8201, 8202)
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
# Lines of the page: engines, their sidecars, the frontend.
ENGINES, SIDECARS, FRONTEND = (0, 1), (2, 3), 4


def instances():
    listed = get(f"http://127.0.0.1:{FRONT}/health")["instances"]
    return sorted({i["instance_id"] for i in listed if i["endpoint"] == "generate"})


def chat(messages, pin=None):
    nvext = {"extra_fields": ["worker_id"]}
    if pin is not None:
        nvext["backend_instance_id"] = pin
    answer = post(FRONT, CHAT, {"model": "qwen", "messages": messages, "max_tokens": 8,
                                "temperature": 0, "seed": 1, "nvext": nvext})
    text = answer["choices"][0]["message"].get("content") or ""
    return text, answer["nvext"]["worker_id"]["decode_worker_id"]


def next_turns_stay():
    begun = []
    for number in range(20):
        worker = instances()[number % 2]
        rules = " ".join(f"Rule {random.random()}" for _ in range(40))
        talk = [{"role": "system", "content": f"{random.random()} {rules}"},
                {"role": "user", "content": "hello"}]
        text, first = chat(talk, worker)
        if first != worker:
            check(False, f"a first turn was sent to {worker} and went to {first}")
        talk += [{"role": "assistant", "content": text},
                 {"role": "user", "content": "write Python quicksort"}]
        begun.append((talk, worker))
    # The router hears what is kept where by events, which take a moment.
    time.sleep(10)
    right = sum(chat(talk)[1] == worker for talk, worker in begun)
    check(right == 20, f"next turns went to the worker that has the prefix: {right} of 20")


def text(number, tokens):
    return {"model": "qwen", "prompt": f"# {number}\ndef quicksort(items):\n", "seed": number,
            "max_tokens": tokens, "temperature": 1.0, "ignore_eos": True}


def talk(number, tokens):
    return {"model": "qwen", "seed": number, "max_tokens": tokens, "temperature": 1.0,
            "messages": [{"role": "user", "content": f"{number}: write Python quicksort"}],
            "ignore_eos": True}


def a_death_changes_nothing(cluster):
    for path, question in ((TEXT, text), (CHAT, talk)):
        # Where an answer is over before its worker can be killed a longer one is asked for.
        tried = (killed_meanwhile(cluster, path, question(5, 600 << i)) for i in range(4))
        check(any(tried), f"a worker was killed in the middle of {path}")


def killed_meanwhile(cluster, path, question):
    """Kills the worker that answers; whether there was one."""
    whole = stream(FRONT, path, question)
    check(whole["finish"] == "length", f"{path} is answered: {whole['error']}")
    dead, before = [], instances()

    def kill(chunks):
        if chunks == 3:
            dead.extend([i for i in (0, 1) if running(WORKERS[i])][:1])
            for worker in dead:
                cluster.end(SIDECARS[worker], signal.SIGKILL)
                cluster.end(ENGINES[worker], signal.SIGKILL)

    survived = stream(FRONT, path, question, kill)
    check(survived["error"] is None and survived["text"] == whole["text"],
          f"{len(whole['text'])} characters of sampled text are the same: {survived['error']}")
    for worker in dead:
        start_worker(cluster, worker, before)
    return bool(dead)


def start_worker(cluster, worker, before):
    """Starts one of those that were listed before."""
    cluster.serve(ENGINES[worker], WORKERS[worker])
    cluster.start(SIDECARS[worker])
    # Who died is on the list for a while yet.
    wait_for("both are listed", lambda: len(instances()) == 2 and instances() != before)


def rolling_restarts(cluster):
    load = Load(lambda i: stream(FRONT, TEXT, text(i, 24)))
    for worker in (0, 1):
        time.sleep(1.5)
        before = instances()
        cluster.end(SIDECARS[worker])
        cluster.wait(SIDECARS[worker])
        cluster.end(ENGINES[worker])
        check(cluster.wait(ENGINES[worker]) == 0, f"worker {worker} ended when it was told to")
        start_worker(cluster, worker, before)
    load.end("rolling restarts")


shutil.rmtree("/tmp/forerun-dynamo", ignore_errors=True)
with Cluster("Under Dynamo", sys.argv[1]) as cluster:
    for number, port in zip(ENGINES, WORKERS):
        cluster.serve(number, port)
    for number in (*SIDECARS, FRONTEND):
        cluster.start(number)
    wait_for("both workers are listed", lambda: len(instances()) == 2)
    wait_for("the model is known", lambda: get(f"http://127.0.0.1:{FRONT}/v1/models")["data"])
    next_turns_stay()
    a_death_changes_nothing(cluster)
    rolling_restarts(cluster)
