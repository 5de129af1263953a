#!/usr/bin/env python3
"""What must hold of a DFlash 2 drafter with any weights, tried with random ones: python test_dflash2.py"""

import unittest

import torch
from transformers import Qwen3Config

from dflash2 import BlockConv, CandidateSelector, Drafter2, dflash2_config, mixed, top_candidates
from drafter import BlockView, Drafter
from reference2 import walk

SHAPE = dict(
    intermediate_size=96,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    rope_parameters={"rope_type": "default", "rope_theta": 1e7},
)


def config(**changes):
    target = Qwen3Config(vocab_size=128, hidden_size=32, num_hidden_layers=4)
    return dflash2_config(target, taps=[0, 2], mask=120, layers=2, window=16, rank=4, like=SHAPE, **changes)


def random_drafter(drafter):
    for parameter in drafter.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return drafter.eval()


class DFlash2(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(1)

    def test_a_first_generation_drafter_stays_itself(self):
        v1 = random_drafter(Drafter(config()))
        v2 = Drafter2(config()).eval()
        v2.start_from(v1.state_dict())
        view = BlockView(torch.tensor([[20, 30]]), 40, 16, 8)
        embeddings, taps = torch.randn(1, 16, 32), torch.randn(1, 40, 64)
        with torch.no_grad():
            ours = v2(embeddings, taps, view)
            # The same layers without convolutions.
            context = v1.hidden_norm(v1.fc(taps))
            rotary = v1.cos_sin(embeddings, view.query_positions), v1.cos_sin(embeddings, view.key_positions)
            theirs = embeddings
            for layer in v1.layers:
                theirs = layer(theirs, context, *rotary, view.sliding_mask)
        torch.testing.assert_close(ours, v1.norm(theirs), rtol=0, atol=1e-5)

    def test_convolutions_look_back_only_and_stay_in_their_block(self):
        conv = BlockConv(32, 2, 16)
        torch.nn.init.normal_(conv.base_kernel)
        torch.nn.init.normal_(conv.kernel_projection.weight)
        x = torch.randn(2, 8, 32)
        before, _ = conv.coefficients(x)
        whole = mixed(x, before)
        changed = x.clone()
        changed[0, 5] += 1
        found = mixed(changed, before)
        same = (whole == found).all(-1)
        self.assertEqual(same[0].tolist(), [True] * 5 + [False, False] + [True])
        self.assertTrue(same[1].all())
        # By the definition, channel by channel.
        for row, channel in ((0, 0), (3, 17), (7, 31)):
            moved = (conv.kernel_projection.weight @ x[1, row]).view(2, 2, 2)[0, :, channel // 16]
            weights = conv.base_kernel[0, :, channel] + moved
            seen = [x[1, row, channel], x[1, row - 1, channel] if row else torch.tensor(0.0)]
            self.assertAlmostEqual(float(weights @ torch.stack(seen)), float(whole[1, row, channel]), places=4)

    def test_blocks_do_not_see_each_other(self):
        drafter = random_drafter(Drafter2(config()))
        embeddings, taps = torch.randn(1, 16, 32), torch.randn(1, 40, 64)
        with torch.no_grad():
            both = drafter(embeddings, taps, BlockView(torch.tensor([[20, 30]]), 40, 16, 8))
            second = drafter(embeddings[:, 8:], taps, BlockView(torch.tensor([[30]]), 40, 16, 8))
        torch.testing.assert_close(both[:, 8:], second, rtol=0, atol=1e-5)

    def test_a_selector_without_successors_takes_the_best_logit(self):
        selector = CandidateSelector(128, 4, 32)
        best, candidates = top_candidates(torch.randn(7, 128), 16, 120)
        before = torch.cat([torch.full_like(candidates[:1], 5), candidates[:-1]])
        lattice = selector.scores(best, torch.randn(7, 32), before, candidates)
        self.assertEqual(walk(candidates, lattice).tolist(), candidates[:, 0].tolist())

    def test_scores_are_the_definition_and_the_first_slot_knows_one_predecessor(self):
        selector = CandidateSelector(128, 4, 32)
        torch.nn.init.normal_(selector.successor_codebook)
        states = torch.randn(7, 32)
        best, candidates = top_candidates(torch.randn(7, 128), 16, 120)
        before = torch.cat([torch.full_like(candidates[:1], 5), candidates[:-1]])
        lattice = selector.scores(best, states, before, candidates)
        self.assertTrue((lattice[0] == lattice[0, :1]).all())
        seen = selector.hidden_projection(states[3])
        a, b = int(candidates[2, 4]), int(candidates[3, 9])
        score = best[3, 9] + (selector.predecessor_codebook[a] * seen * selector.successor_codebook[b]).sum()
        self.assertAlmostEqual(float(score), float(lattice[3, 4, 9]), places=4)

    def test_equal_logits_are_cut_by_id_and_padding_is_never_proposed(self):
        logits = torch.zeros(1, 128)
        logits[0, [90, 7]] = 1.0
        logits[0, 120:] = 9.0
        _, candidates = top_candidates(logits, 16, 120)
        self.assertEqual(candidates[0].tolist(), [7, 90, *range(7), *range(8, 15)])


if __name__ == "__main__":
    unittest.main()
