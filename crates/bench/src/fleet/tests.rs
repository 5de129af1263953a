//! Laws that any fleet follows.

use super::Random;
use super::curves::{Curves, Depth};
use super::replay::{Figures, Fleet, replay};
use super::router::Policy;
use super::trace::{Mix, Trace};

/// A worker that reads 10,000 tokens a second and writes 100 for each of up to four answers.
fn curves() -> Curves {
    let rates = vec![(1.0, 100.0), (2.0, 200.0), (4.0, 400.0)];
    let prompts = vec![(1.0, vec![0.0001]), (1000.0, vec![0.1])];
    Curves::new(prompts, rates, 4.0, Depth::default(), 0.0).unwrap()
}

fn fleet(workers: usize) -> Fleet {
    let (slots, kept, start_s, seed) = (8, 1_000_000, 10.0, 1);
    Fleet {
        workers,
        slots,
        chunk: None,
        kept,
        deaths_per_s: 0.0,
        restart: false,
        start_s,
        has_answers: true,
        seed,
    }
}

fn answers(trace: &Trace) -> (usize, f64) {
    let turns = || trace.talks.iter().flat_map(|talk| &talk.turns);
    (turns().count(), turns().map(|turn| turn.answer as f64).sum())
}

fn firsts(figures: &Figures) -> f64 {
    figures.firsts.iter().sum::<f64>() / figures.firsts.len() as f64
}

#[test]
fn a_lone_conversation_takes_what_its_tokens_take() {
    let mut trace = Trace::make(Mix::Chats, 0.001, 1.0, 1.0, 0.0, 3);
    trace.talks.truncate(1);
    let talk = &trace.talks[0];
    let figures = replay(&trace, &curves(), &fleet(1), Policy::RoundRobin);
    let (count, tokens) = answers(&trace);
    assert_eq!((figures.firsts.len(), figures.answer_tokens), (count, tokens));
    // Every token of the conversation but the last answer is read or written once; a turn of the
    // wheel writes up to 4 tokens, so an answer takes up to 3 too many.
    let read = talk.prompt(0) + talk.turns[1..].iter().map(|turn| turn.question).sum::<usize>();
    let expected = read as f64 / 10_000.0 + tokens / 100.0;
    let took = figures.span - talk.begins;
    let slack = 0.05 * count as f64;
    assert!((expected - slack..=expected + slack).contains(&took), "{took} for {expected}");
}

#[test]
fn routers_differ_as_they_should() {
    let trace = Trace::make(Mix::Agents, 0.3, 120.0, 1.0, 1.0, 7);
    let of = |policy| replay(&trace, &curves(), &fleet(8), policy);
    let [turns, affinity, kv] = [Policy::RoundRobin, Policy::Affinity, Policy::Kv].map(of);
    let (count, tokens) = answers(&trace);
    for figures in [&turns, &affinity, &kv] {
        assert_eq!((figures.firsts.len(), figures.answer_tokens), (count, tokens));
        assert_eq!(figures.lost, 0);
    }
    assert!(affinity.cached_tokens > 1.1 * turns.cached_tokens);
    assert!(kv.cached_tokens > 1.1 * turns.cached_tokens);
    assert!(firsts(&affinity) < firsts(&turns) && firsts(&kv) < firsts(&turns));
}

#[test]
fn more_workers_are_no_slower_and_the_same_seed_is_the_same_run() {
    let trace = Trace::make(Mix::Mixed, 0.5, 120.0, 1.0, 1.0, 9);
    let few = replay(&trace, &curves(), &fleet(2), Policy::Kv);
    let many = replay(&trace, &curves(), &fleet(16), Policy::Kv);
    assert!(firsts(&many) < firsts(&few) && many.span <= few.span);
    let again = replay(&trace, &curves(), &fleet(2), Policy::Kv);
    assert_eq!((again.span, again.firsts), (few.span, few.firsts));
}

#[test]
fn deaths_cost_streams_where_nothing_migrates_and_restarts_cost_none() {
    let trace = Trace::make(Mix::Chats, 1.0, 300.0, 1.0, 1.0, 11);
    let (count, _) = answers(&trace);
    let dying = Fleet { deaths_per_s: 1.0 / 60.0, ..fleet(6) };
    let lost = replay(&trace, &curves(), &dying, Policy::Affinity);
    assert!(lost.lost > 0 && lost.firsts.len() + lost.lost == count, "{}", lost.lost);
    let kept = replay(&trace, &curves(), &dying, Policy::Kv);
    assert_eq!((kept.lost, kept.firsts.len()), (0, count));
    let restarting = Fleet { restart: true, ..fleet(6) };
    let restarted = replay(&trace, &curves(), &restarting, Policy::Affinity);
    assert_eq!((restarted.lost, restarted.firsts.len()), (0, count));
    let plain = replay(&trace, &curves(), &fleet(6), Policy::Affinity);
    assert!(restarted.cached_tokens < plain.cached_tokens);
}

#[test]
fn curves_are_read_from_a_named_run() {
    let path = std::env::temp_dir().join(format!("forerun-fleet-{}.json", std::process::id()));
    let run = r#"{"tables": {"rounds": {"columns": ["", "ms", "tok/s"], "rows": [
        ["prompt of 64", [26.5, 26.4, 26.6], 2415], ["prompt of 512", [71.5, 71.3, 72.1], 7158],
        ["prompt of 1536", [225.1, 225.0, 225.3], 6824], ["plain decode", 6.1, 163], ["chain-16 round", 8.9, 576],
        ["plain decode, 8 texts", 9.3, 860], ["MTP-3 round, 8 texts", 12.0, 2100]]}}}"#;
    std::fs::write(&path, run).unwrap();
    let curves = Curves::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let prompt_s =
        |before: f64, tokens: f64| curves.prompt_s(before * tokens, tokens, &mut Random(1));
    assert!((prompt_s(0.0, 512.0) - 0.0715).abs() < 1e-9);
    assert!((prompt_s(0.0, 960.0) - 0.1387).abs() < 1e-9);
    // 64 + 448 tokens take 26.5 + 45 ms, 1024 more 153.6: 0.05 ms more for each, 1472 further on.
    let longer = prompt_s(1472.0, 64.0) - prompt_s(0.0, 64.0);
    assert!((longer - 2.0 * 64.0 * (0.15e-3 - 0.045 / 448.0)).abs() < 1e-9, "{longer}");
    assert_eq!((curves.rate(1), curves.rate(8), curves.rate(9)), (576.0, 2100.0, 2100.0));
    assert!((curves.round_tokens() - 576.0 * 0.0089).abs() < 1e-9);
}
