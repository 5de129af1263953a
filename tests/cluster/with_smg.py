"""Two workers behind smg, as docs/cluster.md starts them. Argument: a folder for logs."""

import random
import signal
import sys
import time

from cluster import Cluster, Load, check, get, many, running, stream, wait_for
from talks import CHAT, ask, next_turns_stay, talk

FRONT, WORKERS = 8100, (8101, 8102)


def rolling_restarts(cluster):
    question = lambda i: ask(talk(i, 1), 24, temperature=0.9, ignore_eos=True)
    load = Load(lambda i: stream(FRONT, CHAT, question(i)))
    for worker in (0, 1):
        time.sleep(1.5)
        cluster.end(worker)
        check(cluster.wait(worker) == 0, f"worker {worker} ended when it was told to")
        cluster.start(worker)
        wait_for(f"worker {worker}", lambda: get(f"http://127.0.0.1:{WORKERS[worker]}/ready"))
        # smg asks for health now and then; the next one goes when this one is back.
        wait_for("smg sees both", lambda: healthy() == 2)
    load.end("rolling restarts")


def healthy():
    workers = get(f"http://127.0.0.1:{FRONT}/workers")["workers"]
    return sum(bool(worker["is_healthy"]) for worker in workers)


def a_death_costs_its_own_streams(cluster):
    streams = {}

    def begin(number):
        question = ask(talk(random.random(), 1), 3000, temperature=0.9, ignore_eos=True)
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
    next_turns_stay(FRONT, WORKERS)
    rolling_restarts(cluster)
    a_death_costs_its_own_streams(cluster)
