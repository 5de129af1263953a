//! The draw of a token: against plain definitions of each option, keyed by (seed, choice, position)
//! and nothing else.

use engine::{
    Error,
    sampling::{History, Sampler, Sampling, greedy, uniform},
};

const VOCAB: usize = 50;

fn logits(seed: u64) -> Vec<f32> {
    (0..VOCAB).map(|i| (uniform(seed, 7, i) * 8.0 - 4.0) as f32).collect()
}

fn draw(sampling: &Sampling, history: &History, logits: &[f32], position: usize) -> u32 {
    Sampler::default().draw(sampling, history, logits, position).expect("finite logits")
}

/// How often each token is drawn at `n` positions.
fn shares(sampling: &Sampling, logits: &[f32], n: usize) -> Vec<f64> {
    let mut counts = vec![0.0; VOCAB];
    let (mut sampler, history) = (Sampler::default(), History::default());
    for position in 0..n {
        counts[sampler.draw(sampling, &history, logits, position).expect("finite logits")
            as usize] += 1.0 / n as f64;
    }
    counts
}

/// The distribution by its definition: temperature, then top-k, top-p, min-p, each on the whole
/// list.
fn expected(sampling: &Sampling, logits: &[f32]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..VOCAB).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
    let weight =
        |t: usize| ((logits[t] - logits[order[0]]) as f64 / sampling.temperature as f64).exp();
    let mut kept: Vec<usize> = order.clone();
    if sampling.top_k > 0 {
        kept.truncate(sampling.top_k);
    }
    let total: f64 = kept.iter().map(|t| weight(*t)).sum();
    let mut sum = 0.0;
    let needed = kept.iter().position(|t| {
        sum += weight(*t) / total;
        sum >= sampling.top_p as f64
    });
    kept.truncate(needed.map_or(kept.len(), |n| n + 1));
    kept.retain(|t| weight(*t) >= sampling.min_p as f64);
    let total: f64 = kept.iter().map(|t| weight(*t)).sum();
    (0..VOCAB).map(|t| if kept.contains(&t) { weight(t) / total } else { 0.0 }).collect()
}

#[test]
fn draws_follow_the_distribution_of_every_option() {
    let base = Sampling { temperature: 0.8, seed: 11, ..Sampling::default() };
    let all = [
        base.clone(),
        Sampling { temperature: 1.7, ..base.clone() },
        Sampling { top_k: 5, ..base.clone() },
        Sampling { top_p: 0.7, ..base.clone() },
        Sampling { min_p: 0.2, ..base.clone() },
        Sampling { top_k: 12, top_p: 0.9, min_p: 0.05, ..base },
    ];
    for (i, sampling) in all.iter().enumerate() {
        let logits = logits(i as u64);
        let n = 40_000;
        let (got, expected) = (shares(sampling, &logits, n), expected(sampling, &logits));
        for token in 0..VOCAB {
            // Five standard deviations of a share.
            let room = 5.0 * (expected[token] * (1.0 - expected[token]) / n as f64).sqrt();
            let difference = (got[token] - expected[token]).abs();
            assert!(
                difference <= room,
                "{sampling:?}: token {token} has {} of {}",
                got[token],
                expected[token]
            );
        }
    }
}

#[test]
fn a_draw_depends_on_its_key_alone() {
    let sampling = Sampling { temperature: 1.0, seed: 3, ..Sampling::default() };
    let (logits, history) = (logits(1), History::default());
    let first: Vec<u32> = (0..200).map(|p| draw(&sampling, &history, &logits, p)).collect();
    let mut sampler = Sampler::default();
    for position in (0..200).rev() {
        let again = sampler.draw(&sampling, &history, &logits, position).expect("finite logits");
        assert_eq!(again, first[position]);
    }
    for other in [Sampling { seed: 4, ..sampling.clone() }, Sampling { choice: 1, ..sampling }] {
        let changed = (0..200).filter(|p| draw(&other, &history, &logits, *p) != first[*p]).count();
        assert!(changed > 100, "{changed} of 200 differ");
    }
}

#[test]
fn near_equal_neighbours_do_not_swap() {
    let all = Sampling { temperature: 1.0, ..Sampling::default() };
    let even = vec![1.0f32; VOCAB];
    let uneven: Vec<f32> = (0..VOCAB).map(|i| 1.0 + 1e-6 * (i % 3) as f32).collect();
    let history = History::default();
    let changed = (0..1000)
        .filter(|p| draw(&all, &history, &even, *p) != draw(&all, &history, &uneven, *p))
        .count();
    assert!(changed <= 2, "{changed} of 1000 draws changed by a millionth");
}

#[test]
fn greedy_takes_the_lowest_of_equals() {
    assert_eq!(greedy(&[1.0, 3.0, 3.0, 2.0]).expect("finite"), 1);
    let sampling = Sampling { logit_bias: vec![(1, -1.0)], ..Sampling::default() };
    assert_eq!(draw(&sampling, &History::default(), &[1.0, 3.0, 3.0, 2.0], 0), 2);
}

#[test]
fn what_is_no_number_is_an_error_even_where_a_bias_forbids_it() {
    let forbidden = vec![(2, f32::NEG_INFINITY)];
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for temperature in [0.0, 1.0] {
            let sampling =
                Sampling { temperature, logit_bias: forbidden.clone(), ..Sampling::default() };
            let result =
                Sampler::default().draw(&sampling, &History::default(), &[0.0, 1.0, value], 9);
            assert!(
                matches!(result, Err(Error::NotFinite { index: 2, position: 9, .. })),
                "{value}"
            );
        }
    }
}

#[test]
fn bias_forbids_and_forces() {
    let logits = logits(5);
    let best = greedy(&logits).expect("finite");
    let history = History::default();
    for temperature in [0.0, 1.0] {
        let sampling = |token, bias| Sampling {
            temperature,
            logit_bias: vec![(token, bias)],
            ..Sampling::default()
        };
        for position in 0..100 {
            assert_ne!(draw(&sampling(best, f32::NEG_INFINITY), &history, &logits, position), best);
            assert_eq!(draw(&sampling(17, 100.0), &history, &logits, position), 17);
        }
        // A token beyond the vocabulary is no reason to fail.
        draw(&sampling(1_000_000, 1.0), &history, &logits, 0);
    }
}

#[test]
fn penalties_follow_the_path() {
    let logits = [2.0f32, 1.8, 1.0, -1.0];
    let mut history = History::new(&[3]);
    let presence = Sampling { presence_penalty: 0.5, ..Sampling::default() };
    let frequency = Sampling { frequency_penalty: 0.15, ..Sampling::default() };
    let repetition = Sampling { repetition_penalty: 1.2, ..Sampling::default() };
    let picks = |history: &History| {
        [&presence, &frequency, &repetition].map(|s| draw(s, history, &logits, 0))
    };
    assert_eq!(picks(&history), [0, 0, 0]);
    history.push(0);
    assert_eq!(picks(&history), [1, 0, 1]); // 1.5, 1.85 and 1.67 against 1.8
    history.push(0);
    assert_eq!(picks(&history), [1, 1, 1]); // 1.7 now
    history.pop(0);
    history.pop(0);
    assert_eq!(picks(&history), [0, 0, 0]);
    assert_eq!(history, History::new(&[3]));
    // Only repetition looks at the prompt, once for each token, and pushes negative logits further
    // down.
    let low = [-1.0f32, -1.1, -3.0, -1.05];
    let strong = Sampling { repetition_penalty: 1.2, ..Sampling::default() };
    assert_eq!(draw(&strong, &History::new(&[0, 0, 3]), &low, 0), 1);
}
