//! How likely the tokens of texts are by the plain float32 ops of a target, to compare an
//! evaluator's figures with:
//!
//!     echo '[918, 565, 1360, 1194]' | cargo run --example score -- models/dense/target-Q4_K_M.gguf
//!
//! A line of standard input is a list of tokens. Its answer is a line with a pair for each token
//! after the first: the natural logarithm of its probability, and whether no other token was
//! likelier.

use compute::{KvType, reference::Reference};
use engine::sampling::Likelihood;
use engine::{Engine, Spec, WeightSource};
use std::error::Error;
use std::io::{BufRead, Write};
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("score TARGET.gguf")?;
    let target = checkpoint::Target::open(Path::new(&path))?;
    let weights = (&target.config, &target.weights as &dyn WeightSource);
    let mut engine =
        Engine::load(Box::new(Reference::default()), weights, None, KvType::F16, Spec::Off)?;
    for line in std::io::stdin().lock().lines() {
        let tokens: Vec<u32> = serde_json::from_str(&line?)?;
        let told: Vec<(f32, bool)> = score(&mut engine, &tokens)?
            .iter()
            .map(|score| (score.logprob, score.rank == 1))
            .collect();
        println!("{}", serde_json::to_string(&told)?);
        std::io::stdout().flush()?;
    }
    Ok(())
}

fn score(engine: &mut Engine, tokens: &[u32]) -> Result<Vec<Likelihood>, engine::Error> {
    let mut sequence = engine.sequence();
    let mut scores = Vec::new();
    let rows = engine.scored_rows();
    for from in (0..tokens.len().saturating_sub(1)).step_by(rows) {
        let to = (from + rows).min(tokens.len() - 1);
        scores.extend(engine.read_scored(
            &mut sequence,
            &tokens[from..to],
            &tokens[from + 1..=to],
            0,
        )?);
    }
    Ok(scores)
}
