"""Two workers behind vllm-router and sglang-router, as docs/cluster.md starts them. Argument: a
folder for logs."""

import random
import sys

from cluster import Cluster, check, get, many, running, stream, wait_for
from talks import CHAT, ask, next_turns_stay, talk

WORKERS = (8111, 8112)
# Lines of the page behind the workers, and where they listen.
ROUTERS = {"vllm-router": (2, 8110), "sglang-router": (3, 8120)}


def an_end_costs_nothing(cluster, front):
    """A worker that is told to end finishes what it has begun."""
    question = lambda _: ask(talk(random.random(), 1), 1000, temperature=1.0, ignore_eos=True)
    threads, failed = many(4, 4, lambda i: stream(front, CHAT, question(i)))
    busy = lambda: [running(port) for port in WORKERS]
    wait_for("all are written, on both", lambda: sum(busy()) == 4 and all(busy()), 20)
    cluster.end(0)
    check(cluster.wait(0) == 0, "a worker ended when it was told to")
    for thread in threads:
        thread.join()
    check(not failed, f"of 4 streams under way {len(failed)} were lost {failed[:1]}")
    cluster.start(0)
    wait_for("the worker", lambda: get(f"http://127.0.0.1:{WORKERS[0]}/ready"))


with Cluster("Behind vllm-router or sglang-router", sys.argv[1]) as cluster:
    for number in range(2):
        cluster.start(number)
    for port in WORKERS:
        wait_for(f"worker {port}", lambda: get(f"http://127.0.0.1:{port}/ready"))
    for name, (number, front) in ROUTERS.items():
        print(f"  {name}", flush=True)
        cluster.start(number)
        question = ask(talk(name, 1), 4)
        wait_for(name, lambda: stream(front, CHAT, question)["error"] is None)
        next_turns_stay(front, WORKERS)
        an_end_costs_nothing(cluster, front)
        cluster.end(number)
