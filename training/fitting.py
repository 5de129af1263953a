"""The loss of a DFlash 2 drafter over the target's own texts, and the acceptance lengths it reaches there."""

import torch
from torch.nn import functional as F

from drafter import BlockView, block_tokens
from stages import half


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
