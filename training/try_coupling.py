#!/usr/bin/env python3
"""Would drafts gain if they were coupled with the draws? In float32 on the tiny pair: the target draws by
argmax(logit / T + g), g being Gumbel noise that depends on seed, position and token alone, and the drafter takes the
best of its own logit / T + w g with the same g. The text is the same whatever w is; w = 0 is a draft that knows nothing
of the draw. Prints acceptance lengths of chains, of trees with both kinds of children, and how often the first token
of MTP stands."""

import argparse
import heapq
import json
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import DynamicCache

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from chat_format import prompt as chat_prompt  # noqa: E402
from drafter import BLOCK, BlockView, block_tokens  # noqa: E402
from reference import ENDS, Reference  # noqa: E402

WEIGHTS = [0.0, 0.25, 0.5, 0.75, 1.0]
BOOSTS = [0.3, 0.5, 0.7]
RANKS, BUDGET = 8, 22


class Text:
    """A drawn text: what was drawn, the noise, and the drafters' logits at every anchor."""

    @torch.no_grad()
    def __init__(self, reference, ids, temperature, seed, count):
        target, noise = reference.target, torch.Generator().manual_seed(seed)
        cache, tokens, written = DynamicCache(config=target.config), torch.tensor([ids]), []
        uniform = torch.rand(count, target.config.vocab_size, generator=noise, dtype=torch.float64)
        self.gumbel = -torch.log(-torch.log(uniform.clamp(1e-300, 1 - 1e-16))).float()
        for i in range(count):
            hidden = target.model(tokens, past_key_values=cache, use_cache=True).last_hidden_state[:, -1:]
            logits = target.lm_head(hidden)[0, 0]
            written.append(int((logits / temperature + self.gumbel[i]).argmax()))
            tokens = torch.tensor([written[-1:]])
            if written[-1] in ENDS:
                break
        self.written, self.temperature = written, temperature
        rows = reference.forward(ids + written)
        anchors = torch.arange(len(ids), len(ids) + len(written) - 1)[None]
        if anchors.shape[1] == 0:
            return
        view = BlockView(anchors, len(ids) + len(written), reference.drafter.config.sliding_window)
        tips = block_tokens(torch.tensor([written[:-1]]))
        out = reference.drafter(target.model.embed_tokens(tips), rows.taps[None], view)
        out = out[0].view(anchors.shape[1], BLOCK, -1)[:, 1:]
        self.block = target.lm_head(out) / temperature  # [anchors, BLOCK - 1, vocabulary]
        following = (ids + written)[1:]
        mtp = reference.mtp_logits(rows.hidden[:-1], following)
        self.mtp = mtp[len(ids) - 1 : -1] / temperature  # [anchors, vocabulary]: the token after the tip

    def anchors(self):
        return range(len(self.written) - 1)

    def drafted(self, anchor, depth, weight):
        """The token a chain has at a depth, from 0."""
        return int((self.block[anchor, depth] + weight * self.gumbel[anchor + 1 + depth]).argmax())

    def matches(self, weight):
        """By anchor and depth whether a draft of that weight is what was drawn."""
        found = []
        for anchor in self.anchors():
            left = min(BLOCK - 1, len(self.written) - 1 - anchor)
            noise = self.gumbel[anchor + 1 : anchor + 1 + left]
            best = (self.block[anchor, :left] + weight * noise).argmax(-1)
            found.append((best == torch.tensor(self.written[anchor + 1 : anchor + 1 + left])).tolist())
        return found


def walk(text, stood):
    """Tokens and rounds where `stood(anchor)` of a draft stand."""
    anchor, rounds = 0, 0
    while anchor < len(text.written) - 1:
        anchor += stood(anchor) + 1
        rounds += 1
    return min(anchor, len(text.written) - 1), rounds


def leading(flags):
    return next((i for i, flag in enumerate(flags) if not flag), len(flags))


def tree_stood(text, anchor, boost, weight):
    """How much of a tree stands: the likeliest paths over ranked candidates, among them the coupled one."""
    left = min(BLOCK - 1, len(text.written) - 1 - anchor)
    logs = (text.block[anchor, :left] * text.temperature).log_softmax(-1)
    positions = []
    for depth in range(left):
        values, tokens = logs[depth].topk(RANKS)
        listed = dict(zip(tokens.tolist(), values.exp().tolist(), strict=True))
        if weight > 0:
            coupled = text.drafted(anchor, depth, weight)
            likely = float(logs[depth, coupled].exp())
            listed = {token: (1 - boost) * p for token, p in listed.items()}
            listed[coupled] = boost + (1 - boost) * likely
        positions.append(sorted(listed.items(), key=lambda item: -item[1])[:RANKS])
    # Only the path that was drawn matters: whether its nodes are among the likeliest.
    heap, taken, path = [(-positions[0][0][1], 0, 0, True)], 0, 0
    right = text.written[anchor + 1 :]
    while heap and taken < BUDGET:
        score, depth, rank, is_right = heapq.heappop(heap)
        taken += 1
        token, p = positions[depth][rank]
        stands = is_right and token == right[depth]
        path = max(path, depth + 1 if stands else 0)
        if rank + 1 < len(positions[depth]):
            heapq.heappush(heap, (score / p * positions[depth][rank + 1][1], depth, rank + 1, is_right))
        if depth + 1 < left:
            heapq.heappush(heap, (score * positions[depth + 1][0][1], depth + 1, 0, stands))
    return path


def prompts(tokenizer, suites, names, first, count):
    for name in names:
        lines = (suites / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()[first : first + count]
        for line in lines:
            item = json.loads(line)
            text = item["prompt"] if item.get("raw") else chat_prompt(item["prompt"], item.get("thinking", False))
            yield name, tokenizer.encode(text, add_special_tokens=False).ids


def lengths(texts, stood):
    tokens, rounds = map(sum, zip(*(walk(text, lambda a, text=text: stood(text, a)) for text in texts), strict=True))
    return tokens / max(rounds, 1)


def learned_weights(texts):
    """By depth the weight whose drafts are right most often where all before were."""
    found = {weight: [text.matches(weight) for text in texts] for weight in WEIGHTS}
    chosen = []
    for depth in range(BLOCK - 1):

        def share(weight, depth=depth):
            flags = [
                flags[depth]
                for i, matched in enumerate(found[weight])
                for anchor, flags in enumerate(matched)
                if depth < len(flags) and all(found[w][i][anchor][d] for d, w in enumerate(chosen))
            ]
            return sum(flags) / max(len(flags), 1)

        chosen.append(max(WEIGHTS, key=share))
    return chosen


def chain(texts, by_depth):
    """Acceptance length of chains whose weights are these."""
    found = {id(text): {w: text.matches(w) for w in set(by_depth)} for text in texts}

    def stood(text, anchor):
        matched = found[id(text)]
        left = len(matched[by_depth[0]][anchor])
        return leading([matched[w][anchor][d] for d, w in enumerate(by_depth[:left])])

    return lengths(texts, stood)


def first_of_mtp(texts, weight):
    """How often the first token of the next-token block stands."""
    right = [
        int((text.mtp[a] + weight * text.gumbel[a + 1]).argmax()) == text.written[a + 1]
        for text in texts
        for a in text.anchors()
    ]
    return sum(right) / len(right)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pair", type=Path, default=HERE.parent / "models" / "dense")
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, nargs="*", default=[0.7, 1.0])
    parser.add_argument("--prompts", type=int, default=4, help="of each suite, to tune on and to report on")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_file(str(arguments.tokenizer))
    pair = arguments.pair
    reference = Reference("dense", pair / "target-Q4_K_M.gguf", pair / "draft-Q8_0.gguf")
    suites, names = HERE.parent / "suites", ["code", "math", "plan", "complete", "prose"]
    for temperature in arguments.temperature:
        sets = []
        for first in (0, 16):
            drawn = {}
            for i, (name, ids) in enumerate(prompts(tokenizer, suites, names, first, arguments.prompts)):
                text = Text(reference, ids, temperature, 1000 * first + i, arguments.tokens)
                if len(text.written) > 2:
                    drawn.setdefault(name, []).append(text)
            sets.append(drawn)
        tuning, held_back = sets
        everything = [text for texts in tuning.values() for text in texts]
        weights = learned_weights(everything)
        best = max(
            ((boost, weight) for boost in BOOSTS for weight in WEIGHTS[1:]),
            key=lambda c: lengths(everything, lambda text, a: tree_stood(text, a, *c)),
        )
        print(f"T {temperature}: weights by depth {weights}, tree's boost and weight {best}")
        held_back["overall"] = [text for texts in held_back.values() for text in texts]
        for name, texts in held_back.items():
            chains = [chain(texts, [w] * (BLOCK - 1)) for w in WEIGHTS] + [chain(texts, weights)]
            trees = [lengths(texts, lambda text, a, c=c: tree_stood(text, a, *c)) for c in ((0.0, 0.0), best)]
            mtp = [first_of_mtp(texts, w) for w in WEIGHTS]
            listed = [" ".join(f"{x:.2f}" for x in figures) for figures in (chains, trees, mtp)]
            print(f"{name}: chain {listed[0]}; tree {listed[1]}; first of MTP {listed[2]}", flush=True)


if __name__ == "__main__":
    main()
