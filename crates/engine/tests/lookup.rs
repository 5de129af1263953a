//! Lookup: texts that repeat are written in fewer rounds, whatever became of their sequence before;
//! what others wrote helps where that is allowed, and changes no token.

mod support;

use compute::{Activations, KvType};
use engine::sampling::Sampling;
use engine::{Engine, Sequence, Spec};
use support::{ENDS, pair};

const LOOKUP: Spec = Spec::Lookup { budget: 15 };
const TOKENS: usize = 60;

/// Tokens and acceptance lengths of a text that goes on from a sequence.
fn write(engine: &mut Engine, sequence: Sequence, prompt: &[u32]) -> (Vec<u32>, Vec<usize>) {
    let unread = &prompt[sequence.committed()..];
    let greedy = Sampling::default();
    let mut text =
        engine.begin(sequence, unread, prompt, greedy, ENDS.to_vec(), |_| ()).expect("it begins");
    let (mut tokens, mut lengths) = (vec![text.tip()], Vec::new());
    while tokens.len() < TOKENS && !ENDS.contains(&tokens[tokens.len() - 1]) {
        let round = engine.step(&mut text, TOKENS - tokens.len()).expect("a round");
        lengths.push(round.accept_length());
        tokens.extend(round.emitted);
    }
    (tokens, lengths)
}

/// A prompt with what the target makes of it, twice: it will say the same again.
fn refrain(engine: &mut Engine, prompt: &[u32]) -> Vec<u32> {
    engine.set_spec(Spec::Off);
    let sequence = engine.sequence();
    let (answer, _) = write(engine, sequence, prompt);
    engine.set_spec(LOOKUP);
    [prompt, &answer, prompt, &answer, prompt].concat()
}

#[test]
fn what_repeats_takes_fewer_rounds_and_is_the_same() {
    let pair = pair("dense");
    let mut engine = pair.engine(KvType::F16, Activations::Int8, LOOKUP);
    let (mut rounds, mut written) = (0, 0);
    for prompt in pair.prompts("math", 2) {
        let prompt = refrain(&mut engine, &prompt);
        engine.set_spec(Spec::Off);
        let sequence = engine.sequence();
        let (plain, _) = write(&mut engine, sequence, &prompt);
        engine.set_spec(LOOKUP);
        let sequence = engine.sequence();
        let (tokens, lengths) = write(&mut engine, sequence, &prompt);
        assert_eq!(tokens, plain);
        rounds += lengths.len();
        written += lengths.iter().sum::<usize>();
    }
    assert!(written as f64 > 2.0 * rounds as f64, "{written} tokens in {rounds} rounds");
}

/// Snapshots and what was stowed have no index: it is made of their tokens.
#[test]
fn a_sequence_is_looked_up_in_wherever_it_was() {
    let pair = pair("dense");
    let mut engine = pair.engine(KvType::F16, Activations::Int8, LOOKUP);
    let prompt = refrain(&mut engine, &pair.prompts("math", 1)[0]);
    let mut sequence = engine.sequence();
    for chunk in prompt[..prompt.len() - 5].chunks(100) {
        engine.read(&mut sequence, chunk).expect("it is read");
    }
    let stowed = engine.stow(&sequence).expect("it is stowed");
    let fetched = engine.fetch(&stowed).expect("it is fetched");
    let (snapshot, empty) = (sequence.clone(), engine.sequence());
    let expected = write(&mut engine, sequence, &prompt);
    assert!(expected.1.iter().any(|length| *length > 4), "{:?}", expected.1);
    for same in [snapshot, fetched, empty] {
        assert_eq!(write(&mut engine, same, &prompt), expected);
    }
}

#[test]
fn what_others_wrote_is_looked_up_only_where_that_is_allowed() {
    let pair = pair("dense");
    let mut engine = pair.engine(KvType::F16, Activations::Int8, LOOKUP);
    let prompt = &pair.prompts("code", 1)[0];
    let again = |engine: &mut Engine| {
        let sequence = engine.sequence();
        let (tokens, lengths) = write(engine, sequence, prompt);
        engine.remember(&tokens);
        (tokens, lengths.len())
    };
    let first = again(&mut engine);
    assert_eq!(again(&mut engine), first, "nothing is remembered unless it is said");
    engine.set_memory(1 << 16);
    assert_eq!(again(&mut engine), first);
    let (tokens, rounds) = again(&mut engine);
    assert_eq!(tokens, first.0);
    assert!(2 * rounds < first.1, "{rounds} rounds after {}", first.1);
    // What came since drives it out.
    for i in 0..20 {
        engine.remember(&(0..400).map(|t| 500 + (i * 400 + t) % 3000).collect::<Vec<u32>>());
    }
    assert_eq!(again(&mut engine).1, first.1);
}
