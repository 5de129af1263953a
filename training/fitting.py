"""Fitting a DFlash 2 drafter to the target's own texts, and the acceptance lengths it reaches there."""

import json
import time

import torch
from torch.nn import functional as F
from transformers import Qwen3Config

import gguf_state
from dflash2 import Drafter2, dflash2_config
from drafter import BlockView, block_tokens
from export import export_drafter
from features import is_warm
from reference import read_state
from stages import half, learning_rate

KEEP_EVERY = 30  # seconds between checkpoints
HELD_BACK = 20  # every so many rows of a group are kept for measuring
MEASURED_BLOCKS = 16  # of each of these rows


class Blocks:
    """A drafter's rows for blocks at random anchors of some texts, beside what the target has to say there."""

    def __init__(self, target, drafter, states, per_row, block_rows, tokens, device):
        rows, length = states.tokens.shape
        settings = drafter.config.dflash_config
        span = (states.last - states.first).clamp(min=1)[:, None]
        anchors = states.first[:, None] + (torch.rand(rows, per_row, device=device) * span).long()
        anchors = anchors.clamp(max=length - 2)
        view = BlockView(anchors, length, drafter.config.sliding_window, block_rows)
        shape = rows, per_row, block_rows
        places = view.query_positions.view(shape)
        # Slots beyond the text's end do not count.
        self.counts = places[:, :, 1:] <= states.last[:, None, None]
        places = places.clamp(max=length - 1)
        self.given = states.tokens.gather(1, places.flatten(1)).view(shape)  # anchor and the tokens that follow
        opened = block_tokens(states.tokens.gather(1, anchors), block_rows, settings["mask_token_id"])
        with half(device):
            with torch.no_grad():
                # Row k foretells the token at anchor + k, which the target's row before it judges.
                at = torch.arange(rows, device=device)[:, None, None], places[:, :, :-1]
                self.judge = target.lm_head(states.hidden[at]).float()[..., :tokens]
                embeddings = target.model.embed_tokens(opened)
            out = drafter(embeddings, states.taps, view).view(*shape, -1)[:, :, 1:]
            self.logits = target.lm_head(out).float()[..., :tokens]
        self.out = out.float()
        self.values, self.candidates = self.logits.topk(settings["selector_top_k"], -1)

    def loss(self, selector):
        """Cross entropy of all rows, plus that of the selector over its candidates given the true token before. Both
        are half with the text and whole with the target's distribution; early slots weigh more."""
        slots = self.logits.shape[2]
        weight = torch.exp(-torch.arange(slots, device=self.logits.device) / (7 / 16 * (slots + 1)))
        weight = self.counts * weight / (self.counts * weight).sum().clamp(min=1e-6)
        judged = F.softmax(self.judge, -1)
        labels = self.given[:, :, 1:, None]
        likely = F.log_softmax(self.logits, -1)
        rows = -0.5 * likely.gather(-1, labels)[..., 0] - (judged * likely).sum(-1)
        scores = selector.scores(self.values, self.out, self.given[:, :, :-1, None], self.candidates)[..., 0, :]
        chosen = F.log_softmax(scores, -1)
        # Where the true token is not among the candidates there is nothing to learn from it.
        wanted = 0.5 * (self.candidates == labels) + judged.gather(-1, self.candidates)
        return ((rows - (wanted * chosen).sum(-1)) * weight).sum()

    @torch.no_grad()
    def walk(self, selector):
        """The tokens the selector chooses, each after its own choice before. [rows, blocks, slots]"""
        before, walked = self.given[:, :, 0], []
        for slot in range(self.logits.shape[2]):
            values, out, candidates = (x[:, :, slot] for x in (self.values, self.out, self.candidates))
            scores = selector.scores(values, out, before[..., None], candidates)[..., 0, :]
            before = candidates.gather(-1, scores.argmax(-1, keepdim=True))[..., 0]
            walked.append(before)
        return torch.stack(walked, -1)

    def stood(self, drafted):
        """Drafted tokens and the target's own, of each block. [rows, blocks]"""
        agree = (drafted == self.given[:, :, 1:]) & self.counts
        return agree.int().cumprod(-1).sum(-1).float() + 1

    def acceptance(self, selector):
        """Without the selector and with it."""
        return self.stood(self.candidates[..., 0]), self.stood(self.walk(selector))


def make_drafter(arguments, target, tokens):
    """As --from has it, or with the target's widths. Ids from `tokens` on are padding rows."""
    like, settings = None, {}
    if arguments.start:
        like = json.loads((arguments.start / "config.json").read_text(encoding="utf-8"))
        settings = like["dflash_config"]
    described = target.config.get_text_config()
    layers = described.num_hidden_layers
    spread = sorted({round(1 + i * (layers - 4) / 4) for i in range(5)})
    taps = arguments.taps or settings.get("target_layer_ids", spread)
    mask = next(id for id in (arguments.mask, settings.get("mask_token_id"), tokens) if id is not None)
    if mask >= described.vocab_size:
        raise SystemExit(f"The embedding has no row {mask} for the mask: name a token that texts do not use by --mask.")
    sizes = arguments.layers, arguments.block, arguments.window, arguments.rank
    drafter = Drafter2(dflash2_config(described, taps, mask, *sizes, like=like))
    if like:
        weights = arguments.start_weights or arguments.start
        drafter.start_from(read_state(weights, gguf_state.draft_state, Qwen3Config(**like)))
    return drafter


def optimizer_of(drafter, peak):
    """The matrices that a first-generation drafter has decay; norms, convolutions and the selector do not."""
    matrices = [p for name, p in drafter.named_parameters() if name.endswith("proj.weight") or "fc." in name]
    known = {id(p) for p in matrices}
    others = [p for p in drafter.parameters() if id(p) not in known]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.95), fused=torch.cuda.is_available())


class Fit:
    """Optimisation that can be stopped and taken up again."""

    def __init__(self, arguments, target, drafter, store, tokens, device):
        self.arguments, self.target, self.drafter, self.store = arguments, target, drafter, store
        self.tokens, self.device = tokens, device
        self.optimizer = optimizer_of(drafter, arguments.peak)
        self.spent, self.step = 0.0, 0
        self.file = arguments.out / "checkpoint.pt"
        if self.file.exists():
            kept = torch.load(self.file, map_location=device)
            drafter.load_state_dict(kept["drafter"])
            self.optimizer.load_state_dict(kept["optimizer"])
            self.spent, self.step = kept["spent"], kept["step"]
            print(f"going on at step {self.step}, {self.spent:.0f} s spent", flush=True)
        self.sizes = torch.tensor([float(len(group.tokens)) for group in store.groups])

    def keep(self):
        state = {"drafter": self.drafter.state_dict(), "optimizer": self.optimizer.state_dict()}
        # Stopped in the middle of writing, the one before is still there.
        partial = self.file.with_suffix(".partial")
        torch.save(state | {"spent": self.spent, "step": self.step}, partial)
        partial.replace(self.file)
        export_drafter(self.arguments.out / "draft", self.drafter, "DFlash2DraftModel")

    def blocks(self, states, block_rows, per_row):
        return Blocks(self.target, self.drafter, states, per_row, block_rows, self.tokens, self.device)

    def random_states(self):
        """Rows of one group, which comes up by its share of all rows."""
        at = int(torch.multinomial(self.sizes, 1))
        count = len(self.store.groups[at].tokens)
        rows = torch.randint(0, count, (self.arguments.rows,), device=self.device)
        # Held back rows give their place to a neighbour.
        neighbours = torch.where(rows + 1 < count, rows + 1, (rows - 1).clamp(min=0))
        rows = torch.where(rows % HELD_BACK == 0, neighbours, rows)
        return self.store.draw(at, rows)

    def run(self):
        # Every third step takes blocks twice as long, so that the drafter also serves such.
        lengths = [self.arguments.block, self.arguments.block, 2 * self.arguments.block]
        limit, kept, last = self.arguments.minutes * 60, time.time(), time.time()
        while self.spent < limit:
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate(self.spent / limit, self.arguments.peak)
            block_rows = lengths[self.step % len(lengths)]
            per_row = self.arguments.blocks * lengths[0] // block_rows
            blocks = self.blocks(self.random_states(), block_rows, per_row)
            loss = blocks.loss(self.drafter.candidate_selector)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.drafter.parameters(), 1.0)
            self.optimizer.step()
            self.step += 1
            if self.step % 500 == 0 or self.step < 4:
                print(f"{self.step} loss {loss.item():.3f} {self.spent:.0f} s", flush=True)
            if time.time() - kept > KEEP_EVERY:
                kept = time.time()
                self.measure()
                self.keep()
            now = time.time()
            self.spent, last = self.spent + now - last, now
        self.measure()
        self.keep()

    def measure(self):
        """Acceptance lengths on greedy texts that were held back, block by block at random places: without the
        selector and with it, for blocks of both lengths."""
        seen = {}
        with torch.no_grad():
            for at, group in enumerate(self.store.groups):
                if len(group.tokens) < HELD_BACK:
                    continue
                rows = [row for row in range(0, len(group.tokens), HELD_BACK) if not is_warm(row)]
                for block_rows in (self.arguments.block, 2 * self.arguments.block):
                    states = self.store.draw(at, torch.tensor(rows, device=self.device))
                    found = self.blocks(states, block_rows, MEASURED_BLOCKS).acceptance(self.drafter.candidate_selector)
                    plain, chosen = (x.mean(1).tolist() for x in found)
                    for place, row in enumerate(rows):
                        pair = plain[place], chosen[place]
                        seen.setdefault((block_rows, group.kinds[row]), []).append(pair)
        for (block_rows, kind), pairs in sorted(seen.items()):
            plain, chosen = (sum(part) / len(pairs) for part in zip(*pairs, strict=True))
            print(f"AL {block_rows} {kind}: {plain:.3f}, with selector {chosen:.3f}, {len(pairs)} texts", flush=True)
