"""lm-evaluation-harness against a running `forerun serve` with the embedded pair, and its figures beside those of the
plain float32 ops (`examples/score.rs`). `scripts/test-evaluators` calls it.

    python3 tests/serve/evaluators.py URL f32|int8 target/debug/examples/score TARGET.gguf FOLDER
"""

import json
import math
import os
import pathlib
import subprocess
import sys
import urllib.request

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

from lm_eval import simple_evaluate  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

# What the log-likelihood of a request may be off, by what the server rounds; of rounded activations only that by token
# means something. Choices that are nearer to each other than twice that may change places.
WITHIN = {"f32": 1e-2, "int8": math.inf}
WITHIN_TOKEN = {"f32": 1e-3, "int8": 0.25}
NEAR = {"f32": 2e-2, "int8": 0.5}

SORTS = ["quicksort", "binary search", "insertion sort", "bubble sort"]
CHOICES = [
    *(
        {
            "question": f"Zoe has {a} stickers and gives {b} of them to Ines. The number of stickers left is",
            "choices": [f" {a - b}", f" {a + b}", f" {a - b + 1}", f" {a * b}"],
            "answer": 0,
        }
        for a, b in [(18, 8), (30, 12), (9, 4), (41, 17), (25, 5), (64, 32)]
    ),
    *(
        {
            "question": f"# Python\ndef {name.replace(' ', '_')}(items",
            "choices": ["):\n    return", ", target):\n    low", "]]]", " the wrench is on the desk."],
            "answer": 1 if "search" in name else 0,
        }
        for name in SORTS
    ),
    {"question": "for i in range(", "choices": ["len(items)):", "banana", "10):", "def"], "answer": 0},
    {"question": "Grüße, 世", "choices": ["界", " 👋", "é", "x"], "answer": 0},
]

TEXTS = [
    {"text": "def insertion_sort(items):\n    for i in range(1, len(items)):\n        key = items[i]\n"},
    {"text": "The robot moves the wrench from the desk to the table. Then it waits for the next task.\n" * 6},
    {"text": "".join(f"{i} times {j} is {i * j}.\n" for i in range(2, 9) for j in range(2, 9))},
    {"text": "Zoë counts: eins, zwei, drei. 世界 👋\n\n\tAnd then?   Nothing.\n"},
]

TASKS = {
    "own_choice": (
        CHOICES,
        {
            "output_type": "multiple_choice",
            "doc_to_text": "{{question}}",
            "doc_to_choice": "{{choices}}",
            "doc_to_target": "answer",
            "target_delimiter": "",
            "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
        },
    ),
    "own_texts": (
        TEXTS,
        {
            "output_type": "loglikelihood_rolling",
            "doc_to_text": "",
            "doc_to_target": "{{text}}",
            "metric_list": [{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}],
        },
    ),
}


class Reference:
    """Scores by the plain float32 ops, of tokens that the server makes."""

    def __init__(self, url, command):
        self.url = url
        self.known = {}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"})
        with urllib.request.urlopen(request) as response:
            return json.load(response)

    def tokens(self, text):
        return self.ask("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]

    def score(self, context, continuation):
        """(log-likelihood, whether greedy, tokens) of tokens behind others."""
        text = json.dumps(context + continuation)
        if text not in self.known:
            self.process.stdin.write(text + "\n")
            self.process.stdin.flush()
            self.known[text] = json.loads(self.process.stdout.readline())
        scores = self.known[text][len(context) - 1 :]
        return sum(score for score, _ in scores), all(best for _, best in scores), len(scores)


def write_tasks(folder):
    for name, (rows, settings) in TASKS.items():
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        task = {"task": name, "dataset_path": "json", "test_split": "test"}
        task |= {"dataset_kwargs": {"data_files": {"test": str(data)}}} | settings
        # JSON is YAML.
        (folder / f"{name}.yaml").write_text(json.dumps(task))


def write_tokenizer(folder):
    """The tokenizer as Hugging Face's library reads it."""
    folder.mkdir(exist_ok=True)
    fixtures = pathlib.Path("crates/text/tests/fixtures/tokenizer.json")
    (folder / "tokenizer.json").write_bytes(fixtures.read_bytes())
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def evaluate(url, folder, **settings):
    settings = {"model": "embedded", "base_url": url + "/v1/completions", "max_length": 2048} | settings
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    return simple_evaluate(
        model="local-completions",
        model_args=settings,
        tasks=list(TASKS),
        task_manager=manager,
        log_samples=True,
        batch_size=settings.pop("batch", 1),
        bootstrap_iters=0,
    )


def responses(result):
    """What was scored, by task, document and choice."""
    for task in TASKS:
        for sample in sorted(result["samples"][task], key=lambda sample: sample["doc_id"]):
            # A response of multiple choice is (log-likelihood, greedy), one of a whole text the first of them.
            told = [response[0] for response in sample["resps"]]
            yield task, sample, [r if isinstance(r, (list, tuple)) else (r, None) for r in told]


def compare(result, reference, activations, as_text):
    """The figures of a run beside the reference's; the worst that a request and a token were off."""
    worst_request = worst_token = 0.0
    requests = 0
    for task, sample, told in responses(result):
        expected = []
        if task == "own_choice":
            # Behind the question's tokens lm-eval puts those of the whole from their number on. A text that it sends is
            # cut into tokens by the server, and then it counts as many off.
            question = sample["doc"]["question"]
            context = reference.tokens(question)
            for choice in sample["doc"]["choices"]:
                whole = reference.tokens(question + choice)
                first = whole[: len(context)] if as_text else context
                expected.append(reference.score(first, whole[len(context) :]))
        else:
            first = reference.tokens(reference.ask("/tokenizer_info")["eos_token"])
            expected.append(reference.score(first, reference.tokens(sample["doc"]["text"])))
        for (got, greedy), (score, best, tokens) in zip(told, expected, strict=True):
            off = abs(float(got) - score)
            worst_request, worst_token = max(worst_request, off), max(worst_token, off / tokens)
            assert off <= WITHIN[activations] and off / tokens <= WITHIN_TOKEN[activations], (sample, got, score)
            if greedy is not None and activations == "f32":
                assert (str(greedy) == "True") == best, (sample, greedy, best)
            requests += 1
        # Rank for rank.
        order = lambda scores: sorted(range(len(scores)), key=lambda i: -scores[i])  # noqa: E731
        got, own = [float(score) for score, _ in told], [score for score, _, _ in expected]
        for one, other in zip(order(got), order(own), strict=True):
            assert one == other or abs(own[one] - own[other]) <= NEAR[activations], (sample, got, own)
    return requests, worst_request, worst_token


def main():
    url, activations, score, target, folder = sys.argv[1:]
    folder = pathlib.Path(folder)
    write_tasks(folder)
    write_tokenizer(folder / "tokenizer")
    reference = Reference(url, [score, target])
    ways = {
        "remote tokenizer, tokens": {"tokenizer_backend": "remote"},
        "remote tokenizer, found by itself, batches of 16": {"batch": 16},
        "Hugging Face's tokenizer, tokens": {"tokenizer_backend": "huggingface", "tokenizer": str(folder / "tokenizer")},
        "Hugging Face's tokenizer, text": {
            "tokenizer_backend": "huggingface",
            "tokenizer": str(folder / "tokenizer"),
            "tokenized_requests": False,
            "batch": 4,
        },
    }
    for way, settings in ways.items():
        result = evaluate(url, folder, **settings)
        as_text = not settings.get("tokenized_requests", True)
        requests, worst_request, worst_token = compare(result, reference, activations, as_text)
        figures = {task: {name: value for name, value in result["results"][task].items() if "," in name} for task in TASKS}
        print(f"{activations}, {way}: {requests} requests, at most {worst_request:.2e} off, {worst_token:.2e} a token")
        print(f"  {figures}")


main()
