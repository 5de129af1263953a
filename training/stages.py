"""The stages of a training, each as long as it is given minutes: target, MTP block, drafter."""

import math
import random
import time

import torch
from torch import nn
from torch.nn import functional as F

from batches import DRAFT_MIX, TARGET_MIX
from drafter import BLOCK, BlockView, block_tokens
from target import causal_mask, mtp_rotary

# Decay of the loss along a block: gamma 7 for blocks of 16, as in the DFlash paper (arXiv 2602.06036).
SLOT_DECAY = 7.0
BLOCKS_PER_ROW = 24
MTP_DEPTH = 2


def learning_rate(done, peak, warmup=0.03):
    """Linear warm-up, then a cosine down to a twentieth; `done` is the share of the stage that is over."""
    return peak * min(1, done / warmup) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(1, done))))


def half(device):
    """On a GPU only: processors are slower with it."""
    return torch.autocast(device, torch.bfloat16, enabled=device == "cuda")


def run_stage(name, module, peak, minutes, step_loss):
    """Optimises `module` until the time is over; `step_loss(step)` gives a loss and a measure to print beside it."""
    optimizer = torch.optim.AdamW(
        module.parameters(), lr=peak, betas=(0.9, 0.95), weight_decay=0.05, fused=torch.cuda.is_available()
    )
    start, step, measures = time.time(), 0, []
    while (done := (time.time() - start) / (minutes * 60)) < 1:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(done, peak)
        loss, measure = step_loss(step)
        measures = [*measures[-49:], measure]
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        step += 1
        if step % 100 == 0 or step < 4:
            mean = [round(x, 3) for x in torch.stack(measures).mean(0).flatten().tolist()]
            print(f"{name} {step} loss {loss.item():.3f} {mean} {time.time() - start:.0f}s", flush=True)


def train_target(target, batches, rows, minutes, device):
    """The measure is the share of next tokens that are the most likely ones."""

    def step_loss(_):
        tokens = batches.draw(rows, TARGET_MIX)
        with half(device):
            hidden = target.model(tokens, use_cache=False).last_hidden_state
            logits = target.lm_head(hidden[:, :-1]).float()
        following = tokens[:, 1:]
        return F.cross_entropy(logits.flatten(0, 1), following.flatten()), hits(logits, following)

    target.train()
    run_stage("target", target, 3e-3, minutes, step_loss)
    target.eval().requires_grad_(False)


def hits(logits, labels):
    return (logits.argmax(-1) == labels).float().mean().detach()


def train_mtp(target, mtp, batches, rows, minutes, device):
    """Two chained predictions, the second at half weight. The measure is the share of hits of each."""
    length = batches.sequence - MTP_DEPTH - 1
    # As wide as queries are under `half`.
    mask = causal_mask(length, device).to(torch.bfloat16 if device == "cuda" else torch.float32)
    positions = torch.arange(1, length + 1, device=device)[None]

    def step_loss(_):
        tokens = batches.draw(rows, TARGET_MIX)
        with torch.no_grad(), half(device):
            hidden = target.model(tokens, use_cache=False).last_hidden_state[:, :length]
        loss, measures = 0, []
        with half(device):
            for depth in range(MTP_DEPTH):
                rotary = mtp_rotary(target, hidden, positions.expand(len(tokens), -1) + depth)
                embeddings = target.model.embed_tokens(tokens[:, depth + 1 : depth + 1 + length])
                hidden = mtp(embeddings, hidden, rotary, mask)
                logits = target.lm_head(hidden).float()
                labels = tokens[:, depth + 2 : depth + 2 + length]
                loss = loss + F.cross_entropy(logits.flatten(0, 1), labels.flatten()) * 0.5**depth
                measures.append(hits(logits, labels))
        return loss, torch.stack(measures)

    run_stage("mtp", mtp, 2e-3, minutes, step_loss)


def train_drafter(target, drafter, batches, rows, minutes, peak, device, own_texts=()):
    """On the corpus, and with `own_texts` in turn on what the target wrote itself. The measure is the acceptance
    length with the text given (teacher forcing)."""

    def step_loss(step):
        if own_texts and step % 2:
            prompt_length, texts = random.choice(own_texts)
            tokens = texts[torch.randint(0, len(texts), (2 * rows,), device=device)]
            return draft_loss(target, drafter, tokens, prompt_length, device)
        return draft_loss(target, drafter, batches.draw(rows, DRAFT_MIX), 0, device)

    run_stage("draft", drafter, peak, minutes, step_loss)


def draft_loss(target, drafter, tokens, first, device):
    """Of blocks at random anchors from position `first` on. tokens [rows, T]"""
    rows, length = tokens.shape
    with torch.no_grad(), half(device):
        out = target.model(tokens, use_cache=False, output_hidden_states=True)
        taps = drafter.tapped(out.hidden_states)
        target_logits = target.lm_head(out.last_hidden_state).float()  # [rows, T, vocabulary]
    anchors = torch.randint(max(8, first), length - BLOCK, (rows, BLOCKS_PER_ROW), device=device)
    view = BlockView(anchors, length, drafter.config.sliding_window)
    with half(device):
        embeddings = target.model.embed_tokens(block_tokens(tokens.gather(1, anchors)))
        logits = target.lm_head(drafter(embeddings, taps, view)).float()
    # Row k of a block foretells the token at anchor + k, which the target's row at anchor + k - 1 judges.
    # [rows, blocks, BLOCK - 1, vocabulary]
    positions = view.query_positions.view(rows, BLOCKS_PER_ROW, BLOCK)
    logits = logits.view(rows, BLOCKS_PER_ROW, BLOCK, -1)[:, :, 1:]
    labels = tokens.gather(1, view.query_positions).view_as(positions)[:, :, 1:]
    judge = target_logits[torch.arange(rows, device=device)[:, None, None], positions[:, :, :-1]]
    return weighted_loss(logits, labels, judge), acceptance_length(logits, judge)


def weighted_loss(logits, labels, judge):
    """Half the cross entropy with the text, plus that with the target's distribution; early slots weigh more."""
    slots = logits.shape[2]
    weight = torch.exp(-torch.arange(slots, device=logits.device) / SLOT_DECAY)
    with_text = F.cross_entropy(logits.flatten(0, 2), labels.flatten(), reduction="none").view_as(labels)
    with_target = -(F.softmax(judge, -1) * F.log_softmax(logits, -1)).sum(-1)
    return ((0.5 * with_text + with_target) * (weight / weight.sum())).sum(-1).mean()


def acceptance_length(logits, judge):
    agree = (logits.argmax(-1) == judge.argmax(-1)).int()
    return agree.cumprod(-1).sum(-1).float().mean() + 1
