#!/usr/bin/env python3
"""Measures acceptance lengths of the tiny dense target with every drafter it has: by suite at three
temperatures, and by the length of what was said before. Each figure depends on no machine, so
activations are not rounded and one thread does. Writes OUT/tiny-lengths.json, a run that `forerun
bench tables` takes.

    scripts/measure-lengths.py target/release/forerun out --per-suite 4 --longest 8
"""

import argparse
import json
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODELS = ROOT / "models/dense"
SUITES = "code,math,plan,tools,complete,prose,repeat"
TEMPERATURES = ["0", "0.7", "1"]
LENGTHS = [1, 2, 4, 8, 16, 31]  # thousands of tokens
# Drafters: flags, and the modes to ask of each with what their columns are called.
DRAFTERS = {
    "first": (["--draft", MODELS / "draft-Q8_0.gguf"], {"chain": "DFlash"}),
    "plain": (
        ["--draft", MODELS / "draft2-Q8_0.gguf", "--draft-selector", "false"],
        {"chain": "DFlash 2 without selector"},
    ),
    "second": (
        ["--draft", MODELS / "draft2-Q8_0.gguf"],
        {"chain": "DFlash 2", "tree": "DFlash 2 tree", "mtp": "MTP", "lookup": "lookup"},
    ),
}
# Characters of a token, about, by kind of text.
DENSITY = {"files": 2.9, "chats": 3.72, "logs": 4.13}


def parse_arguments():
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("program", type=Path, help="the forerun to measure with")
    parser.add_argument("out", type=Path, help="folder to write into")
    jobs_help = "measurements at a time, a core each (%(default)s)"
    parser.add_argument("--jobs", type=int, default=1, help=jobs_help)
    suite_help = "prompts of each suite (%(default)s)"
    parser.add_argument("--per-suite", type=int, default=20, help=suite_help)
    each_help = "texts of each kind and length (%(default)s)"
    parser.add_argument("--each", type=int, default=1, help=each_help)
    longest_help = "thousands of tokens of the longest text (%(default)s)"
    parser.add_argument("--longest", type=int, default=LENGTHS[-1], help=longest_help)
    return parser.parse_args()


def source_files(rng):
    """This repository's Python files, in any order."""
    files = sorted((ROOT / "training").glob("*.py")) + sorted((ROOT / "scripts").glob("*.py"))
    files += sorted((ROOT / "tests").glob("*/*.py"))
    while True:
        for file in rng.sample(files, len(files)):
            yield f"# {file.relative_to(ROOT)}\n{file.read_text(encoding='utf-8')}\n\n"


def generated(rng, make):
    while True:
        yield make(rng)


def text_of(kind, rng, tokens):
    """About so many tokens, to be continued: a file that breaks off, or a question that waits for
    its answer."""
    from chat_format import ASSISTANT, thinking_start
    from chats import chat
    from tool_chats import tool_chat

    pieces = {
        "files": lambda: source_files(rng),
        "chats": lambda: generated(rng, chat),
        "logs": lambda: generated(rng, tool_chat),
    }[kind]()
    text, wanted = "", int(tokens * DENSITY[kind])
    while len(text) < wanted:
        text += next(pieces)
    if kind == "files":
        return text[: text.rfind("\n", 0, wanted) + 1]
    last = text.rfind(ASSISTANT, 0, wanted) + len(ASSISTANT)
    return text[:last] + thinking_start(thinking=False)


def write_prompts(folder, lengths, each):
    """A file for each kind: a short text, which modes warm up with, then `each` of every length."""
    sys.path.insert(0, str(ROOT / "training"))
    files = {}
    for kind in DENSITY:
        seeds = [(length, f"{kind} {length} {i}") for length in lengths for i in range(each)]
        texts = [text_of(kind, random.Random(seed), 1000 * length) for length, seed in seeds]
        texts.insert(0, text_of(kind, random.Random(kind), 200))
        lines = [json.dumps({"prompt": text, "raw": True}) + "\n" for text in texts]
        files[kind] = folder / f"{kind}.jsonl"
        files[kind].write_text("".join(lines), encoding="utf-8")
    return files


def bench(arguments, drafter, flags):
    """What `forerun bench` found."""
    draft, modes = DRAFTERS[drafter]
    command = [arguments.program, "bench", "--json", "--model", MODELS / "target-Q4_K_M.gguf"]
    command += ["--device", "cpu", "--threads", "1", "--activations", "f32", *draft]
    command += ["--modes", ",".join(modes), "--repeats", "1", "--seed", "1", *flags]
    command = [str(part) for part in command]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr[-500:]}")
    return json.loads(done.stdout)


def table(first, names, length_of):
    """Acceptance lengths, a row for each name; `length_of(drafter, mode, name)`."""
    columns, rows = [first], []
    for _, modes in DRAFTERS.values():
        columns += modes.values()
    for name in names:
        lengths = [
            round(length_of(drafter, mode, name), 3)
            for drafter, (_, modes) in DRAFTERS.items()
            for mode in modes
        ]
        rows.append([name, *lengths])
    return {"columns": columns, "rows": rows}


def by_suite(found, temperature):
    """The table of a temperature."""

    def length_of(drafter, mode, suite):
        cells = found[drafter, temperature]["cells"]
        same = (cell for cell in cells if (cell["suite"], cell["mode"]) == (suite, mode))
        return next(same)["accept_length"]["value"]

    return table("AL", [*SUITES.split(","), "overall"], length_of)


def by_context(found, kind, each):
    """The table of a kind of text."""
    prompts = {}
    for sample in found["second", kind]["samples"]:
        if sample["prompt"] > 0:
            prompts.setdefault((sample["prompt"] - 1) // each, []).append(sample["prompt_tokens"])
    names = {f"{round(sum(n) / len(n))} tokens": at for at, n in sorted(prompts.items())}

    def length_of(drafter, mode, name):
        rounds = []
        for sample in found[drafter, kind]["samples"]:
            is_of = sample["prompt"] > 0 and (sample["prompt"] - 1) // each == names[name]
            if is_of and sample["mode"] == mode:
                rounds += sample["accept_lengths"]
        return sum(rounds) / max(len(rounds), 1)

    return table(kind, names, length_of)


def main():
    arguments = parse_arguments()
    arguments.out.mkdir(parents=True, exist_ok=True)
    lengths = [length for length in LENGTHS if length <= arguments.longest]
    files = write_prompts(arguments.out, lengths, arguments.each)
    # The longest first.
    work = {}
    for drafter in reversed(DRAFTERS):
        for kind, file in files.items():
            of_kind = str(1 + arguments.each * len(lengths))
            flags = ["--ctx", "32768", "--prompts", file, "--per-suite", of_kind]
            work[drafter, kind] = [*flags, "--temp", "0"]
        for temperature in TEMPERATURES:
            flags = ["--suite", SUITES, "--per-suite", str(arguments.per_suite)]
            work[drafter, temperature] = [*flags, "--temp", temperature]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        jobs = {key: pool.submit(bench, arguments, key[0], flags) for key, flags in work.items()}
        found = {key: job.result() for key, job in jobs.items()}
    machine = found["second", "0"]["machine"]
    tables = {f"temperature-{t}": by_suite(found, t) for t in TEMPERATURES}
    tables |= {f"context-{kind}": by_context(found, kind, arguments.each) for kind in files}
    asked = f"--per-suite {arguments.per_suite} --each {arguments.each} --longest {lengths[-1]}"
    of_each = f"{arguments.per_suite} prompts of each suite, {arguments.each} of each length"
    run = {
        "machine": f"{machine['processor']}, {machine['level']}",
        "build": f"{machine['version']} {machine['profile']}, program {machine['program']}",
        "date": machine["time"],
        "command": f"scripts/measure-lengths.py target/release/forerun OUT {asked}",
        "shapes": f"the tiny dense target, f16 cache, {of_each}, up to 96 tokens",
        "tables": tables,
    }
    text = json.dumps(run, indent=1) + "\n"
    (arguments.out / "tiny-lengths.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
