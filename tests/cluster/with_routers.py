"""Two workers behind vllm-router and sglang-router, as docs/cluster.md starts them. Argument: a
folder for logs."""

import random
import sys

from cluster import Cluster, Stream, check, running, stream, streams_until, wait_for
from talks import CHAT, ask, next_turns_stay, talk

WORKERS = (8111, 8112)
# Lines of the page behind the workers, and where they listen.
ROUTERS = {"vllm-router": (2, 8110), "sglang-router": (3, 8120)}


def an_end_costs_nothing(cluster, front):
    """A worker that is told to end finishes what it has begun."""
    question = lambda: ask(talk(random.random(), 1), 600, temperature=1.0, ignore_eos=True)
    begin = lambda: Stream(front, CHAT, question())
    streams = streams_until(lambda: running(WORKERS[0]), begin)
    cluster.end(0)
    check(cluster.wait(0) == 0, "a worker ended when it was told to")
    for one in streams:
        one.join()
    lost = [one.said["error"] for one in streams if one.said["finish"] != "length"]
    check(not lost, f"of {len(streams)} streams {len(lost)} were lost {lost[:1]}")
    cluster.serve(0, WORKERS[0])


with Cluster("Behind vllm-router or sglang-router", sys.argv[1]) as cluster:
    for number, port in enumerate(WORKERS):
        cluster.serve(number, port)
    for name, (number, front) in ROUTERS.items():
        print(f"  {name}", flush=True)
        cluster.start(number)
        question = ask(talk(name, 1), 4)
        wait_for(name, lambda: stream(front, CHAT, question)["error"] is None)
        next_turns_stay(front, WORKERS)
        an_end_costs_nothing(cluster, front)
        cluster.end(number)
