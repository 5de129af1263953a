#!/usr/bin/env python3
"""Measures acceptance lengths of the tiny dense target with every drafter it has: by suite at three
temperatures, and by the length of what was said before. Writes OUT/tiny-lengths.json, a run that
`forerun bench tables` takes.

    scripts/measure-lengths.py target/release/forerun out --jobs 14 --contexts-on cuda
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
SUITES = "code,math,plan,tools,complete,prose,repeat,edits"
TEMPERATURES = ["0", "0.7", "1"]
LENGTHS = [1, 2, 4, 8, 16, 31]  # thousands of tokens
PROMPTS = 3  # of each kind and length
# Drafters: flags, and the modes to ask of each with what their columns are called.
DRAFTERS = {
    "first": (["--draft", MODELS / "draft-Q8_0.gguf"], {"chain": "DFlash", "tree": "DFlash tree"}),
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
    contexts_help = "device for the long texts, which are slow on a processor (%(default)s)"
    parser.add_argument("--contexts-on", default="cpu", choices=["cpu", "cuda"], help=contexts_help)
    suite_help = "prompts of each suite (%(default)s)"
    parser.add_argument("--per-suite", type=int, default=20, help=suite_help)
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


def write_prompts(folder, longest):
    """{(kind, length): file}"""
    sys.path.insert(0, str(ROOT / "training"))
    files = {}
    for kind in DENSITY:
        for length in (length for length in LENGTHS if length <= longest):
            file = folder / f"{kind}-{length}k.jsonl"
            seeds = [random.Random(f"{kind} {length} {i}") for i in range(PROMPTS)]
            texts = [text_of(kind, seed, 1000 * length) for seed in seeds]
            lines = [json.dumps({"prompt": text, "raw": True}) + "\n" for text in texts]
            file.write_text("".join(lines), encoding="utf-8")
            files[kind, length] = file
    return files


def bench(arguments, drafter, flags):
    """Cells of `forerun bench`, {(suite, mode): cell}, and what it says of the machine."""
    draft, modes = DRAFTERS[drafter]
    command = [arguments.program, "bench", "--json", "--model", MODELS / "target-Q4_K_M.gguf"]
    command += [*draft, "--modes", ",".join(modes), "--repeats", "1", "--seed", "1", *flags]
    command = [str(part) for part in command]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr[-500:]}")
    found = json.loads(done.stdout)
    return {(cell["suite"], cell["mode"]): cell for cell in found["cells"]}, found["machine"]


def table(first, names, cells_of):
    """Acceptance lengths, a row for each name; `cells_of(drafter, name)` has cells by mode."""
    columns, rows = [first], []
    for _, modes in DRAFTERS.values():
        columns += modes.values()
    for name in names:
        lengths = [
            round(cells_of(drafter, name)[mode]["accept_length"]["value"], 3)
            for drafter, (_, modes) in DRAFTERS.items()
            for mode in modes
        ]
        rows.append([name, *lengths])
    return {"columns": columns, "rows": rows}


def main():
    arguments = parse_arguments()
    arguments.out.mkdir(parents=True, exist_ok=True)
    files = write_prompts(arguments.out, arguments.longest)
    work = {}
    for (kind, length), file in reversed(files.items()):
        threads = [] if arguments.contexts_on == "cuda" else ["--threads", "1"]
        flags = ["--device", arguments.contexts_on, *threads, "--ctx", "32768", "--prompts", file]
        work |= {(drafter, kind, length): (drafter, flags) for drafter in DRAFTERS}
    for temperature in TEMPERATURES:
        flags = ["--device", "cpu", "--threads", "1", "--suite", SUITES]
        flags += ["--per-suite", str(arguments.per_suite)]
        for drafter in reversed(DRAFTERS):
            work[drafter, temperature] = drafter, [*flags, "--temp", temperature]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        # The longest first.
        jobs = {key: pool.submit(bench, arguments, *job) for key, job in reversed(work.items())}
        found = {key: job.result() for key, job in jobs.items()}
    machine = found["second", "0"][1]

    def cells(key, suite):
        return {mode: cell for (name, mode), cell in found[key][0].items() if name == suite}

    suites, tables = [*SUITES.split(","), "overall"], {}
    for temperature in TEMPERATURES:
        tables[f"temperature-{temperature}"] = table(
            "AL", suites, lambda drafter, suite, at=temperature: cells((drafter, at), suite)
        )
    for kind in DENSITY:
        lengths = {}
        for length in (length for length in LENGTHS if (kind, length) in files):
            prompts = cells(("second", kind, length), f"{kind}-{length}k")["chain"]["prompt_tokens"]
            lengths[f"{prompts:.0f} tokens"] = length
        tables[f"context-{kind}"] = table(
            kind,
            lengths,
            lambda drafter, name, kind=kind, lengths=lengths: cells(
                (drafter, kind, lengths[name]), f"{kind}-{lengths[name]}k"
            ),
        )
    asked = f"--jobs {arguments.jobs} --contexts-on {arguments.contexts_on}"
    where = f"long texts on {arguments.contexts_on}"
    of_each = f"{arguments.per_suite} prompts of each suite, {PROMPTS} of each length"
    run = {
        "machine": f"{machine['processor']}, {machine['level']}; {where}",
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
