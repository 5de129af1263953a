//! Whether what is drawn has the right distribution, by 100,000 texts for each option: joint
//! frequencies of three tokens against their probabilities by the options' definitions, with and
//! without drafts. A draw depends on the tokens before it, by the target and by the penalties.

use engine::draft::{Draft, Node};
use engine::judge::{Drawing, RowSeen, judge};
use engine::sampling::{History, Sampler, Sampling, philox};
use std::borrow::Cow;
use std::sync::LazyLock;

const VOCAB: usize = 8;
const TOKENS: usize = 3;
const TEXTS: u64 = 100_000;
/// What every text goes on from.
const PROMPT: [u32; 2] = [5, 2];

/// The target: logits that depend on the last token.
static LOGITS: LazyLock<Vec<Vec<f32>>> = LazyLock::new(|| {
    let number = |last: u32, token: u32| philox([last, token, 0, 0], [7, 7])[0];
    let logit = |last, token| number(last, token) as f32 / u32::MAX as f32 * 6.0 - 3.0;
    let row = |last| (0..VOCAB as u32).map(|token| logit(last, token)).collect();
    (0..VOCAB as u32).map(row).collect()
});

fn logits(last: u32) -> &'static [f32] {
    &LOGITS[last as usize]
}

/// Every option by itself, and some together.
fn options() -> Vec<(&'static str, Sampling)> {
    let base = Sampling { temperature: 0.9, ..Sampling::default() };
    let with = |change: &dyn Fn(&mut Sampling)| {
        let mut sampling = base.clone();
        change(&mut sampling);
        sampling
    };
    vec![
        ("temperature 1", with(&|s| s.temperature = 1.0)),
        ("temperature 0.7", with(&|s| s.temperature = 0.7)),
        ("temperature 1.7", with(&|s| s.temperature = 1.7)),
        ("top-k", with(&|s| s.top_k = 3)),
        ("top-p", with(&|s| s.top_p = 0.8)),
        ("min-p", with(&|s| s.min_p = 0.15)),
        ("repetition penalty", with(&|s| s.repetition_penalty = 1.4)),
        ("presence penalty", with(&|s| s.presence_penalty = 0.8)),
        ("frequency penalty", with(&|s| s.frequency_penalty = 0.6)),
        ("logit bias", with(&|s| s.logit_bias = vec![(1, 1.5), (6, f32::NEG_INFINITY)])),
        ("choice", with(&|s| s.choice = 3)),
        (
            "all of them",
            Sampling {
                top_k: 6,
                top_p: 0.95,
                min_p: 0.03,
                repetition_penalty: 1.2,
                presence_penalty: 0.3,
                frequency_penalty: 0.2,
                logit_bias: vec![(0, -0.5)],
                ..base.clone()
            },
        ),
    ]
}

/// Probabilities of the next token by the definitions: repetition counts prompt and answer,
/// presence and frequency the answer; bias; then top-k, top-p and min-p of what is left.
fn probabilities(s: &Sampling, answer: &[u32]) -> Vec<f64> {
    let last = *answer.last().unwrap_or(&PROMPT[1]);
    let mut scores: Vec<f64> = logits(last).iter().map(|x| f64::from(*x)).collect();
    for (token, score) in scores.iter_mut().enumerate() {
        let token = token as u32;
        let count = answer.iter().filter(|t| **t == token).count();
        if count > 0 || PROMPT.contains(&token) {
            let penalty = f64::from(s.repetition_penalty);
            *score = if *score > 0.0 { *score / penalty } else { *score * penalty };
        }
        if count > 0 {
            *score -= f64::from(s.presence_penalty);
        }
        *score -= f64::from(s.frequency_penalty) * count as f64;
        let biases = s.logit_bias.iter().filter(|(t, _)| *t == token);
        *score += biases.map(|(_, bias)| f64::from(*bias)).sum::<f64>();
    }
    let mut order: Vec<usize> = (0..VOCAB).filter(|t| scores[*t].is_finite()).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    if s.top_k > 0 {
        order.truncate(s.top_k);
    }
    let weight = |t: usize| (scores[t] / f64::from(s.temperature)).exp();
    let all: f64 = order.iter().map(|t| weight(*t)).sum();
    let best = weight(order[0]);
    let mut before = 0.0;
    order.retain(|t| {
        let kept = before < f64::from(s.top_p) * all && weight(*t) >= f64::from(s.min_p) * best;
        before += weight(*t);
        kept
    });
    let all: f64 = order.iter().map(|t| weight(*t)).sum();
    (0..VOCAB).map(|t| if order.contains(&t) { weight(t) / all } else { 0.0 }).collect()
}

/// Of every text of three tokens.
fn joint(sampling: &Sampling) -> Vec<f64> {
    let of = |cell: usize| {
        let text = [cell / VOCAB / VOCAB, cell / VOCAB % VOCAB, cell % VOCAB].map(|t| t as u32);
        let token = |i: usize| probabilities(sampling, &text[..i])[text[i] as usize];
        // Nothing follows what cannot be.
        (0..TOKENS).try_fold(1.0, |p, i| Some(p * token(i)).filter(|p| *p > 0.0)).unwrap_or(0.0)
    };
    (0..VOCAB.pow(TOKENS as u32)).map(of).collect()
}

/// Token by token.
fn plain(sampling: &Sampling) -> Vec<u32> {
    let (mut history, mut sampler) = (History::new(&PROMPT), Sampler::default());
    let mut text = Vec::new();
    while text.len() < TOKENS {
        let row = logits(*text.last().unwrap_or(&PROMPT[1]));
        let at = PROMPT.len() + text.len();
        let token = sampler.draw(sampling, &history, row, at).expect("logits are numbers");
        history.push(token);
        text.push(token);
    }
    text
}

/// By rounds whose drafts are the target's likeliest tokens, two at each node, or any. What was
/// drafted is favoured by `lean`, which must be 0 for the right distribution.
fn drafted(sampling: &Sampling, random: bool, lean: f32) -> Vec<u32> {
    let (mut history, mut sampler) = (History::new(&PROMPT), Sampler::default());
    let mut text: Vec<u32> = Vec::new();
    while text.len() < TOKENS {
        let tip = *text.last().unwrap_or(&PROMPT[1]);
        let draft = draft(tip, (sampling.seed, text.len()), random);
        let row = |row: usize| {
            let parent = row.checked_sub(1);
            let last = parent.map_or(tip, |node| draft.nodes[node].token);
            let mut row = Cow::Borrowed(logits(last));
            let children = draft.nodes.iter().filter(|n| n.parent.map(|p| p as usize) == parent);
            if lean != 0.0 {
                children.for_each(|node| row.to_mut()[node.token as usize] += lean);
            }
            Ok(RowSeen::Logits(row))
        };
        let (sampler, history) = (&mut sampler, &mut history);
        let mut drawing = Drawing { sampling, history, sampler, constraint: None, relaxed: None };
        // The newest token stands right before the first that is drawn.
        let position = PROMPT.len() + text.len() - 1;
        let verdict = judge(&draft, position, row, &mut drawing).expect("logits are numbers");
        text.extend(verdict.tokens);
    }
    text.truncate(TOKENS);
    text
}

/// A tree of two children at every node, two deep.
fn draft(tip: u32, (seed, place): (u64, usize), random: bool) -> Draft {
    let children = |parent: Option<u32>, token: u32, depth: u32| {
        let mut order: Vec<u32> = (0..VOCAB as u32).collect();
        let row = logits(token);
        let key = |t: u32| philox([t, depth, place as u32, 1], [seed as u32, token])[0];
        match random {
            true => order.sort_by_key(|t| key(*t)),
            false => order.sort_by(|a, b| row[*b as usize].total_cmp(&row[*a as usize])),
        }
        [0, 1].map(|i| Node { token: order[i], parent, depth, probability: 0.4 })
    };
    let mut nodes = children(None, tip, 1).to_vec();
    for parent in 0..2u32 {
        nodes.extend(children(Some(parent), nodes[parent as usize].token, 2));
    }
    Draft { nodes }
}

/// How far counts lie from what is expected of them, in standard deviations: chi-square over the
/// cells of five and more, the rest being one cell, by Wilson and Hilferty's approximation.
fn deviation(counts: &[u64], expected: &[f64]) -> f64 {
    let (mut chi, mut cells, mut rest) = (0.0, 0, (0.0, 0.0));
    for (count, probability) in counts.iter().zip(expected) {
        let (count, mean) = (*count as f64, probability * TEXTS as f64);
        assert!(count == 0.0 || mean > 0.0, "drawn {count} times, and it cannot be");
        if mean >= 5.0 {
            chi += (count - mean).powi(2) / mean;
            cells += 1;
        } else {
            rest = (rest.0 + count, rest.1 + mean);
        }
    }
    if rest.1 >= 5.0 {
        chi += (rest.0 - rest.1).powi(2) / rest.1;
        cells += 1;
    }
    let freedom = f64::from(cells - 1);
    let spread = 2.0 / (9.0 * freedom);
    ((chi / freedom).cbrt() - (1.0 - spread)) / spread.sqrt()
}

fn cell(text: &[u32]) -> usize {
    text.iter().fold(0, |cell, token| cell * VOCAB + *token as usize)
}

#[test]
fn every_option_draws_what_it_says_with_and_without_drafts() {
    for (name, option) in options() {
        let expected = joint(&option);
        assert!((expected.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{name}");
        let mut counts = [(); 3].map(|()| vec![0u64; expected.len()]);
        for seed in 0..TEXTS {
            let sampling = Sampling { seed, ..option.clone() };
            let texts =
                [plain(&sampling), drafted(&sampling, false, 0.0), drafted(&sampling, true, 0.0)];
            counts.iter_mut().zip(texts).for_each(|(counts, text)| counts[cell(&text)] += 1);
        }
        for (way, counts) in ["plain", "drafted", "drafted at random"].iter().zip(&counts) {
            let found = deviation(counts, &expected);
            println!("{name}, {way}: {found:.2}");
            assert!(found.abs() < 4.5, "{name}, {way}: {found:.1} standard deviations");
        }
    }
}

/// The test sees what is only a little wrong.
#[test]
fn a_wrong_distribution_is_found() {
    let right = Sampling { temperature: 0.9, ..Sampling::default() };
    let mut counts = vec![0u64; VOCAB.pow(TOKENS as u32)];
    for seed in 0..TEXTS {
        counts[cell(&plain(&Sampling { seed, ..right.clone() }))] += 1;
    }
    for wrong in [
        Sampling { temperature: 0.94, ..right.clone() },
        Sampling { presence_penalty: 0.15, ..right.clone() },
        Sampling { logit_bias: vec![(3, 0.15)], ..right.clone() },
    ] {
        let found = deviation(&counts, &joint(&wrong));
        assert!(found > 6.0, "{wrong:?} passes for the right one: {found:.1}");
    }
    assert!(deviation(&counts, &joint(&right)).abs() < 4.5);
}

/// And judging that is a little kinder to the likeliest tokens where they were drafted.
#[test]
fn judging_that_leans_to_drafts_is_found() {
    let right = Sampling { temperature: 0.9, ..Sampling::default() };
    let mut counts = vec![0u64; VOCAB.pow(TOKENS as u32)];
    for seed in 0..TEXTS {
        counts[cell(&drafted(&Sampling { seed, ..right.clone() }, false, 0.15))] += 1;
    }
    let found = deviation(&counts, &joint(&right));
    assert!(found > 6.0, "it passes for the right one: {found:.1}");
}
