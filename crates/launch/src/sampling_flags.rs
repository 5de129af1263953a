//! Flags that say how tokens are drawn.

use anyhow::{Result, bail};
use engine::sampling::Sampling;
use std::hash::{BuildHasher, Hasher};

/// How tokens are drawn; the file's recommendation holds where nothing is given.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Sampling, as the model's file recommends unless given")]
pub struct SamplingFlags {
    /// Temperature; 0 is greedy
    #[arg(long, value_name = "T", value_parser = not_negative)]
    temp: Option<f32>,
    /// Only the so many most probable tokens; 0 for all
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,
    /// Only the most probable tokens that make up this much
    #[arg(long, value_name = "P", value_parser = fraction)]
    top_p: Option<f32>,
    /// Only tokens at least this probable relative to the best
    #[arg(long, value_name = "P", value_parser = fraction)]
    min_p: Option<f32>,
    /// Divides the logits of tokens seen; 1 for none
    #[arg(long, value_name = "X", value_parser = positive)]
    repetition_penalty: Option<f32>,
    /// Taken from the logits of tokens in the answer
    #[arg(long, value_name = "X", value_parser = finite, allow_hyphen_values = true)]
    presence_penalty: Option<f32>,
    /// Taken from them once for each time they occur
    #[arg(long, value_name = "X", value_parser = finite, allow_hyphen_values = true)]
    frequency_penalty: Option<f32>,
    /// Added to the logit of a token: `ID=BIAS`; may be given several times
    #[arg(long, value_name = "ID=BIAS", value_parser = bias, allow_hyphen_values = true)]
    logit_bias: Vec<(u32, f32)>,
    /// Key of the random numbers; random, and reported, unless given
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

impl SamplingFlags {
    /// The flags over the file's recommendation, for a vocabulary of that size.
    pub fn over(&self, file: &Sampling, vocab: usize) -> Result<Sampling> {
        if let Some((token, _)) = self.logit_bias.iter().find(|(token, _)| *token as usize >= vocab)
        {
            bail!(
                "`--logit-bias {token}=...`: the vocabulary has {vocab} tokens, from 0 to {}",
                vocab - 1
            );
        }
        Ok(Sampling {
            temperature: self.temp.unwrap_or(file.temperature),
            top_k: self.top_k.unwrap_or(file.top_k),
            top_p: self.top_p.unwrap_or(file.top_p),
            min_p: self.min_p.unwrap_or(file.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(file.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(file.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(file.frequency_penalty),
            logit_bias: self.logit_bias.clone(),
            seed: self.seed.unwrap_or_else(random_seed),
            choice: 0,
        })
    }
}

/// A seed from the randomness that the standard library keys its hash maps with; short enough to
/// type again.
fn random_seed() -> u64 {
    std::collections::hash_map::RandomState::new().build_hasher().finish() >> 32
}

fn number(text: &str, fits: impl Fn(f32) -> bool, wanted: &str) -> Result<f32, String> {
    text.parse::<f32>().ok().filter(|x| fits(*x)).ok_or_else(|| format!("{wanted} expected"))
}

fn finite(text: &str) -> Result<f32, String> {
    number(text, f32::is_finite, "a number")
}

fn not_negative(text: &str) -> Result<f32, String> {
    number(text, |x| x.is_finite() && x >= 0.0, "a number from 0 on")
}

fn positive(text: &str) -> Result<f32, String> {
    number(text, |x| x.is_finite() && x > 0.0, "a number above 0")
}

fn fraction(text: &str) -> Result<f32, String> {
    number(text, |x| (0.0..=1.0).contains(&x), "a number from 0 to 1")
}

fn bias(text: &str) -> Result<(u32, f32), String> {
    let wrong = || "TOKEN=BIAS expected, such as 1234=-100".to_owned();
    let (token, bias) = text.split_once('=').ok_or_else(wrong)?;
    let token = token.parse().map_err(|_| wrong())?;
    // `-inf` forbids a token.
    let bias =
        bias.parse::<f32>().ok().filter(|b| !b.is_nan() && *b < f32::INFINITY).ok_or_else(wrong)?;
    Ok((token, bias))
}
