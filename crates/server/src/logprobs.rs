//! How likely tokens were, in the forms that the APIs have for it: of an answer, where thinking is
//! included, and of a prompt. A message does not tell its end token; a completion does, as
//! evaluators count on one figure a token.

use crate::error::ApiError;
use crate::fields::Fields;
use crate::settings::MAX_LIKELIEST;
use engine::sampling::Likelihood;
use serde_json::{Map, Value, json};
use text::{Controls, Kind, Tokenizer};

/// Figures that may be told about the prompts of one request: they are all in memory before they
/// are sent.
const MAX_FIGURES: usize = 1 << 20;

/// A token, how likely it was (nobody can say that of the first), and whether its text is there if
/// it is a control token.
pub(crate) type Told<'l> = (u32, Option<&'l Likelihood>, Controls);

/// The tokens of an answer.
pub(crate) fn told(likelihoods: &[Likelihood]) -> impl Iterator<Item = Told<'_>> {
    likelihoods.iter().map(|likelihood| (likelihood.token, Some(likelihood), Controls::Hide))
}

/// The tokens of a prompt that begins with `first`.
pub(crate) fn told_prompt(first: u32, scores: &[Likelihood]) -> impl Iterator<Item = Told<'_>> {
    let scores = scores.iter().map(|score| (score.token, Some(score), Controls::Show));
    std::iter::once((first, None, Controls::Show)).chain(scores)
}

/// `prompt_logprobs`: likeliest tokens to tell beside each of the prompt's.
pub(crate) fn read_prompt_top(
    fields: &Fields<'_>,
    stream: bool,
) -> Result<Option<usize>, ApiError> {
    let top = fields.integer("prompt_logprobs", 0..=MAX_LIKELIEST)?;
    if top.is_some() && stream {
        return Err(fields.wrong("prompt_logprobs", "nothing with `stream`"));
    }
    Ok(top.map(|top| top as usize))
}

/// Refuses, in the name of `field`, to score more than can be told.
pub(crate) fn check_size(field: &str, tokens: usize, top: usize) -> Result<(), ApiError> {
    let figures = tokens.saturating_mul(top + 1);
    if figures <= MAX_FIGURES {
        return Ok(());
    }
    let asked = format!("{figures} figures ({} for each of {tokens} tokens)", top + 1);
    Err(ApiError::field(
        field,
        format!("`{field}` asks for {asked}, at most {MAX_FIGURES} are told"),
    ))
}

/// The `logprobs` object of a chat's choice.
pub(crate) fn of_chat(likelihoods: &[Likelihood], tokenizer: &Tokenizer) -> Value {
    let told = |token: u32, logprob: f32| json!({"token": name(token, tokenizer), "logprob": logprob, "bytes": tokenizer.bytes(token)});
    let content = likelihoods.iter().map(|likelihood| {
        let mut object = told(likelihood.token, likelihood.logprob);
        object["top_logprobs"] =
            likelihood.top.iter().map(|(token, logprob)| told(*token, *logprob)).collect();
        object
    });
    json!({"content": content.collect::<Vec<_>>(), "refusal": null})
}

/// The `logprobs` object of a completion's choice, whose text has `offset` characters before these
/// tokens; as many as the text has after them in the end.
pub(crate) fn of_text<'l>(
    told: impl Iterator<Item = Told<'l>>,
    top: usize,
    tokenizer: &Tokenizer,
    offset: &mut usize,
) -> Value {
    let (mut names, mut logprobs, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
    for (token, likelihood, controls) in told {
        names.push(name(token, tokenizer));
        logprobs.push(likelihood.map(|l| l.logprob));
        tops.push(likelihood.map(|l| likeliest(l, top, tokenizer)));
        let bytes = tokenizer.bytes(token);
        // A token may begin inside a character, which then is where it stands.
        let inside = bytes.first().is_some_and(|byte| is_inside(*byte));
        offsets.push(*offset - usize::from(inside && *offset > 0));
        if controls == Controls::Show || tokenizer.kind(token) != Kind::Control {
            *offset += bytes.iter().filter(|byte| !is_inside(**byte)).count();
        }
    }
    json!({"tokens": names, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets})
}

/// Whether a byte of UTF-8 goes on with a character.
fn is_inside(byte: u8) -> bool {
    byte & 0xc0 == 0x80
}

/// The likeliest tokens by name, and the token itself. Halves of characters may share a name, which
/// is the likelier's.
fn likeliest(likelihood: &Likelihood, top: usize, tokenizer: &Tokenizer) -> Map<String, Value> {
    let own = (likelihood.token, likelihood.logprob);
    let mut named = Map::new();
    for (token, logprob) in likelihood.top.iter().take(top).copied().chain([own]) {
        named.entry(name(token, tokenizer)).or_insert_with(|| json!(logprob));
    }
    named
}

/// The `prompt_logprobs` of a prompt, in vLLM's form: by id, the token itself first.
pub(crate) fn of_prompt(
    first: u32,
    scores: &[Likelihood],
    top: usize,
    tokenizer: &Tokenizer,
) -> Value {
    let entry = |token: u32, logprob: f32, rank: usize| {
        let told =
            json!({"logprob": logprob, "rank": rank, "decoded_token": name(token, tokenizer)});
        (token.to_string(), told)
    };
    let by_id = |l: &Likelihood| -> Map<String, Value> {
        let others = l.top.iter().take(top).zip(1..).filter(|((token, _), _)| *token != l.token);
        let others = others.map(|((token, logprob), rank)| entry(*token, *logprob, rank));
        std::iter::once(entry(l.token, l.logprob, l.rank)).chain(others).collect()
    };
    told_prompt(first, scores).map(|(_, likelihood, _)| json!(likelihood.map(by_id))).collect()
}

fn name(token: u32, tokenizer: &Tokenizer) -> String {
    tokenizer.decode(&[token], Controls::Show)
}
