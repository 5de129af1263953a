//! A request of the engine protocol, said as one would at `/v1/completions`, where every field is
//! checked. What is not done is refused here by its name.

use crate::messages::{GenerateRequest, Prompt, Select, Structured};
use serde_json::{Map, Value, json};
use tonic::Status;

/// The body of a completion that asks for the same.
pub(crate) fn body(request: GenerateRequest) -> Result<Map<String, Value>, Status> {
    refuse_undone(&request)?;
    let prompt = match request.prompt {
        Some(Prompt::TokenIds(tokens)) => json!(tokens.ids),
        Some(Prompt::Text(text)) => json!(text),
        None => return Err(Status::invalid_argument("there is no prompt: send `token_ids`")),
    };
    let sampling = request.sampling.unwrap_or_default();
    let decoding = request.decoding.unwrap_or_default();
    let stopping = request.stopping.unwrap_or_default();
    let response = request.response.unwrap_or_default();
    let mut body = Body(Map::new());
    body.say("prompt", prompt);
    if !request.model.is_empty() {
        body.say("model", request.model.into());
    }
    body.say_if("temperature", request.temperature);
    body.say_if("top_p", sampling.top_p);
    body.say_if("top_k", sampling.top_k);
    body.say_if("min_p", sampling.min_p);
    body.say_if("seed", sampling.seed);
    body.say("n", sampling.num_sequences.max(1).into());
    body.say_unless_zero("presence_penalty", decoding.presence_penalty);
    body.say_unless_zero("frequency_penalty", decoding.frequency_penalty);
    body.say_unless_zero("repetition_penalty", decoding.repetition_penalty);
    let biases = decoding.logit_bias.iter().map(|(token, bias)| (token.to_string(), json!(bias)));
    body.say("logit_bias", Value::Object(biases.collect()));
    if !decoding.allowed_token_ids.is_empty() {
        body.say("allowed_token_ids", json!(decoding.allowed_token_ids));
    }
    if let Some((name, form)) = decoding.structured.map(form).transpose()?.flatten() {
        body.say("structured_outputs", json!({name: form}));
    }
    // Who says nothing gets what there is room for: a gateway's chats seldom say.
    let most = stopping.max_new_tokens;
    body.say("max_tokens", if most == 0 { json!(-1) } else { json!(most) });
    body.say("min_tokens", stopping.min_new_tokens.into());
    body.say("stop_token_ids", json!(stopping.stop_token_ids));
    body.say("stop", json!(stopping.stop_strings));
    body.say("include_stop_str_in_output", stopping.include_stop_strings.into());
    body.say("ignore_eos", stopping.ignore_eos.into());
    body.say("skip_special_tokens", response.skip_special_tokens.unwrap_or(true).into());
    if response.output_logprobs || response.output_candidates.is_some() {
        body.say("logprobs", likeliest(response.output_candidates.and_then(|c| c.select))?.into());
    }
    if request.truncate_prompt_tokens > 0 {
        body.say("truncate_prompt_tokens", request.truncate_prompt_tokens.into());
    }
    Ok(body.0)
}

struct Body(Map<String, Value>);

impl Body {
    fn say(&mut self, name: &str, value: Value) {
        self.0.insert(name.to_owned(), value);
    }

    fn say_if(&mut self, name: &str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.say(name, value.into());
        }
    }

    /// The protocol's way to say nothing.
    fn say_unless_zero(&mut self, name: &str, value: f32) {
        self.say_if(name, Some(value).filter(|value| *value != 0.0));
    }
}

/// What an answer has to be, and how that is called.
fn form(structured: Structured) -> Result<Option<(&'static str, Value)>, Status> {
    Ok(Some(match structured {
        Structured::Json(schema) => ("json", json!(schema)),
        Structured::Regex(regex) => ("regex", json!(regex)),
        Structured::Choice(choices) => ("choice", json!(choices.choices)),
        Structured::Grammar(grammar) => ("grammar", json!(grammar)),
        Structured::JsonObject(true) => ("json_object", json!(true)),
        Structured::JsonObject(false) => return Ok(None),
        Structured::StructuralTag(_) => return Err(undone("structural_tag")),
    }))
}

/// How many of the likeliest tokens to tell.
fn likeliest(select: Option<Select>) -> Result<u32, Status> {
    match select {
        None => Ok(0),
        Some(Select::TopN(count)) => Ok(count),
        Some(Select::TokenIds(_) | Select::All(_)) => Err(Status::invalid_argument(
            "`output_candidates` takes `top_n`, up to 20, and neither `all` nor `token_ids`",
        )),
    }
}

fn undone(name: &str) -> Status {
    Status::invalid_argument(format!("`{name}` is asked for and not done here"))
}

fn refuse_undone(request: &GenerateRequest) -> Result<(), Status> {
    let is_given = |bytes: &Option<Vec<u8>>| bytes.as_ref().is_some_and(|bytes| !bytes.is_empty());
    let kv = request.kv.clone().unwrap_or_default();
    let response = request.response.clone().unwrap_or_default();
    let asked = [
        ("media", !request.media.is_empty()),
        ("lora_name", !request.lora_name.is_empty()),
        ("kv_hints", is_given(&request.kv_hints)),
        ("engine_reasoning_gate", is_given(&request.engine_reasoning_gate)),
        ("kv.bypass_prefix_cache", kv.bypass_prefix_cache),
        // States are shared by all who ask; who wants to be apart must not be told that they are.
        ("kv.cache_salt", !kv.cache_salt.is_empty()),
        ("kv.kv_transfer_params", is_given(&kv.kv_transfer_params)),
        ("kv.ec_transfer_params", is_given(&kv.ec_transfer_params)),
        ("response.prompt_logprobs", response.prompt_logprobs),
        ("response.prompt_candidates", is_given(&response.prompt_candidates)),
        (
            "decoding.bad_words_token_ids",
            request.decoding.as_ref().is_some_and(|d| !d.bad_words_token_ids.is_empty()),
        ),
        (
            "stopping.thinking_token_budget",
            request
                .stopping
                .as_ref()
                .is_some_and(|s| s.thinking_token_budget.is_some_and(|budget| budget >= 0)),
        ),
    ];
    match asked.into_iter().find(|(_, asked)| *asked) {
        Some((name, _)) => Err(undone(name)),
        None => Ok(()),
    }
}
