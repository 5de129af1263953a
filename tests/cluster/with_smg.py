"""Two workers behind smg, as docs/cluster.md starts them. Argument: a folder for logs."""

import random
import signal
import sys
import time

from cluster import Cluster, Load, Stream, check, get, running, stream, stream_on_each, wait_for
from talks import CHAT, ask, next_turns_stay, talk

FRONT, WORKERS = 8100, (8101, 8102)


def rolling_restarts(cluster):
    question = lambda i: ask(talk(i, 1), 24, temperature=0.9, ignore_eos=True)
    load = Load(lambda i: stream(FRONT, CHAT, question(i)))
    for worker in (0, 1):
        time.sleep(1.5)
        cluster.end(worker)
        check(cluster.wait(worker) == 0, f"worker {worker} ended when it was told to")
        cluster.serve(worker, WORKERS[worker])
        # smg asks for health now and then; the next one goes when this one is back.
        wait_for("smg sees both", lambda: healthy() == 2)
    load.end("rolling restarts")


def healthy():
    workers = get(f"http://127.0.0.1:{FRONT}/workers")["workers"]
    return sum(bool(worker["is_healthy"]) for worker in workers)


def a_death_costs_its_own_streams(cluster):
    # More than will be written while it is looked at.
    question = lambda: ask(talk(random.random(), 1), 30000, temperature=0.9, ignore_eos=True)
    streams = stream_on_each(WORKERS, lambda: Stream(FRONT, CHAT, question()))
    doomed = running(WORKERS[0])
    cluster.end(0, signal.SIGKILL)
    after = [stream(FRONT, CHAT, ask(talk(i, 1), 8)) for i in range(20)]
    bad = [said["error"] for said in after if said["error"] or not said["finish"]]
    check(not bad, f"of 20 requests after a death {len(bad)} failed {bad[:1]}")
    ended = lambda: [one for one in streams if one.has_ended()]
    wait_for("streams of the dead worker end", lambda: len(ended()) >= doomed)
    others = [(one, one.chunks) for one in streams if not one.has_ended()]
    wait_for("others go on", lambda: all(one.chunks > before + 20 for one, before in others))
    check(len(ended()) == doomed, f"of {len(streams)} streams {len(ended())} ended, as many as the "
          f"dead worker had ({doomed})")
    for one, _ in others:
        one.hang_up()


with Cluster("Behind smg", sys.argv[1]) as cluster:
    for number, port in enumerate(WORKERS):
        cluster.serve(number, port)
    cluster.start(2)
    wait_for("smg", lambda: healthy() == 2)
    check(get(f"http://127.0.0.1:{WORKERS[0]}/version")["version"], "workers have a version")
    next_turns_stay(FRONT, WORKERS)
    rolling_restarts(cluster)
    a_death_costs_its_own_streams(cluster)
