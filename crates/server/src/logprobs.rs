//! How likely tokens were, in the two forms that OpenAI's APIs have for it. Every token of an answer is told, thinking
//! included; the end token is not.

use engine::sampling::Likelihood;
use serde_json::{Map, Value, json};
use text::{Controls, Tokenizer};

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

/// The `logprobs` object of a completion's choice, and where the text is afterwards; `offset` counts characters before.
pub(crate) fn of_text(likelihoods: &[Likelihood], tokenizer: &Tokenizer, offset: &mut usize) -> Value {
    let names: Vec<String> = likelihoods.iter().map(|l| name(l.token, tokenizer)).collect();
    let logprobs: Vec<f32> = likelihoods.iter().map(|l| l.logprob).collect();
    let top: Vec<Map<String, Value>> = likelihoods
        .iter()
        .map(|l| l.top.iter().map(|(token, logprob)| (name(*token, tokenizer), json!(logprob))).collect())
        .collect();
    let mut offsets = Vec::with_capacity(names.len());
    for name in &names {
        offsets.push(*offset);
        *offset += name.chars().count();
    }
    json!({"tokens": names, "token_logprobs": logprobs, "top_logprobs": top, "text_offset": offsets})
}

fn name(token: u32, tokenizer: &Tokenizer) -> String {
    tokenizer.decode(&[token], Controls::Show)
}
