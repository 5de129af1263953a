"""Two workers behind smg, as docs/cluster.md starts them. Argument: a folder for logs."""

import random
import signal
import sys
import time

from cluster import Cluster, check, get, many, post, running, stream, wait_for

FRONT, WORKERS = 8100, (8101, 8102)
CHAT = "/v1/chat/completions"


def talk(number, turns):
    """A conversation of that many questions so far, with answers of our own between them."""
    rules = " ".join(f"Rule {number}.{i}: answer in {i} words." for i in range(20))
    messages = [{"role": "system", "content": f"You are helper {number}. {rules}"}]
    for turn in range(turns):
        if turn:
            messages.append({"role": "assistant", "content": f"Answer {turn}."})
        messages.append({"role": "user", "content": f"Question {turn}: write Python quicksort"})
    return messages


def ask(messages, tokens, **more):
    return {"model": "qwen", "messages": messages, "max_tokens": tokens, "seed": 1, **more}


def hits(port):
    """Prompt tokens that a worker found in its cache."""
    import urllib.request

    page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read().decode()
    line = next(l for l in page.splitlines() if l.startswith("vllm:prefix_cache_hits_total"))
    return float(line.split()[-1])


def next_turns_stay():
    right = 0
    for number in range(20):
        salt = random.random()
        post(FRONT, CHAT, ask(talk(salt, 1), 4))
        before = [hits(port) for port in WORKERS]
        answer = post(FRONT, CHAT, ask(talk(salt, 2), 4))
        found = sum(hits(port) for port in WORKERS) - sum(before)
        right += found > 0.5 * answer["usage"]["prompt_tokens"]
    check(right == 20, f"next turns found their beginning: {right} of 20")


def rolling_restarts(cluster):
    question = lambda i: ask(talk(i, 1), 24, temperature=0.9, ignore_eos=True)
    threads, failed = many(200, 4, lambda i: stream(FRONT, CHAT, question(i)))
    for worker in (0, 1):
        time.sleep(1.5)
        cluster.end(worker)
        check(cluster.wait(worker) == 0, f"worker {worker} ended when it was told to")
        cluster.start(worker)
        wait_for(f"worker {worker}", lambda: get(f"http://127.0.0.1:{WORKERS[worker]}/ready"))
        # smg asks for health now and then; the next one goes when this one is back.
        wait_for("smg sees both", lambda: healthy() == 2)
    for thread in threads:
        thread.join()
    check(not failed, f"200 requests under rolling restarts, {len(failed)} lost {failed[:2]}")


def healthy():
    workers = get(f"http://127.0.0.1:{FRONT}/workers")["workers"]
    return sum(bool(worker["is_healthy"]) for worker in workers)


def a_death_costs_its_own_streams(cluster):
    streams = {}

    def begin(number):
        question = ask(talk(random.random(), 1), 600, temperature=0.9, ignore_eos=True)
        streams[number] = stream(FRONT, CHAT, question)
        return streams[number]

    threads, failed = many(4, 4, begin)
    busy = lambda: [running(port) for port in WORKERS]
    wait_for("all are written, on both", lambda: sum(busy()) == 4 and all(busy()), 20)
    lost = running(WORKERS[0])
    cluster.end(0, signal.SIGKILL)
    after = [stream(FRONT, CHAT, ask(talk(i, 1), 8)) for i in range(20)]
    bad = [said["error"] for said in after if said["error"] or not said["finish"]]
    for thread in threads:
        thread.join()
    check(0 < len(failed) <= lost < 4, f"of 4 streams {len(failed)} were on the worker that died")
    check(not bad, f"of 20 requests after it {len(bad)} failed {bad[:1]}")


with Cluster("Behind smg", sys.argv[1]) as cluster:
    for number in range(3):
        cluster.start(number)
    for port in WORKERS:
        wait_for(f"worker {port}", lambda: get(f"http://127.0.0.1:{port}/ready"))
    wait_for("smg", lambda: healthy() == 2)
    check(get(f"http://127.0.0.1:{WORKERS[0]}/version")["version"], "workers have a version")
    next_turns_stay()
    rolling_restarts(cluster)
    a_death_costs_its_own_streams(cluster)
