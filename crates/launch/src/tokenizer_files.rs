//! The text side of a GGUF as the files of a Hugging Face folder, for gateways that tokenise.

use crate::loading::{NO_PAIR, TextSide, text_of_gguf, vocabulary_of};
use crate::{about, embedded};
use anyhow::{Context, Result, bail};
use checkpoint::target::Ffn;
use checkpoint::{Source, Target};
use formats::gguf::Gguf;
use serde_json::{Value, json};
use std::path::Path;
use text::{ChatTemplate, Kind, Tokenizer};

/// Names and contents of what describes the tokenizer, the template and the model's shape; of the
/// embedded model where there is none.
pub fn tokenizer_files(model: Option<&Path>) -> Result<Vec<(&'static str, String)>> {
    let (gguf, shown) = match model {
        None => {
            let (bytes, _) = embedded::PAIR.context(NO_PAIR)?;
            (Box::new(Gguf::parse(bytes)?), "the embedded model".to_owned())
        }
        Some(path) => match Source::open(path).map_err(about(path))? {
            Source::Gguf { gguf, .. } => (gguf, path.display().to_string()),
            Source::Safetensors { .. } => {
                bail!("{}: this folder is what gateways read already", path.display())
            }
        },
    };
    let text = text_of_gguf(&gguf).with_context(|| shown.clone())?;
    let mut vocabulary = vocabulary_of(&gguf)?;
    let tokenizer_json = vocabulary.to_json()?;
    let tokens = std::mem::take(&mut vocabulary.tokens);
    let name = |id: Option<u32>| id.and_then(|id| tokens.get(id as usize)).cloned();
    let template = text.template.as_ref().ok().and_then(ChatTemplate::source);
    let target = Target::read(Source::Gguf { gguf, beside: None }).with_context(|| shown)?;
    let context = target.config.context_length;
    let settings = json!({
        "tokenizer_class": "Qwen2Tokenizer", "model_max_length": context,
        "add_prefix_space": false, "add_bos_token": vocabulary.add_bos,
        "bos_token": name(vocabulary.bos), "eos_token": name(vocabulary.eos),
        "pad_token": name(vocabulary.pad), "unk_token": null,
        "clean_up_tokenization_spaces": false, "split_special_tokens": false, "errors": "replace",
        "chat_template": template,
    });
    let mut files = vec![
        ("config.json", pretty(&shape(&target, &text))?),
        ("generation_config.json", pretty(&generation(&text))?),
        ("tokenizer.json", serde_json::to_string(&tokenizer_json)?),
        ("tokenizer_config.json", pretty(&settings)?),
    ];
    files.extend(template.map(|template| ("chat_template.jinja", template)));
    Ok(files)
}

fn pretty(value: &Value) -> Result<String> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

/// What a gateway looks at; no more of the shape is told, since nothing is loaded from it.
fn shape(target: &Target, text: &TextSide) -> Value {
    let config = &target.config;
    let (name, kind) = match config.ffn {
        Ffn::Dense { .. } => ("Qwen3_5ForCausalLM", "qwen3_5_text"),
        Ffn::Moe { .. } => ("Qwen3_5MoeForCausalLM", "qwen3_5_moe_text"),
    };
    json!({
        "architectures": [name], "model_type": kind, "vocab_size": config.vocab,
        "hidden_size": config.hidden, "num_hidden_layers": config.layers.len(),
        "num_attention_heads": config.attention.q_heads,
        "num_key_value_heads": config.attention.kv_heads, "head_dim": config.attention.head_dim,
        "max_position_embeddings": config.context_length,
        "bos_token_id": text.tokenizer.bos(), "eos_token_id": own_end(&text.tokenizer),
    })
}

fn generation(text: &TextSide) -> Value {
    let sampling = &text.sampling;
    json!({
        "eos_token_id": text.tokenizer.ends(), "do_sample": sampling.temperature > 0.0,
        "temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k,
        "min_p": sampling.min_p, "repetition_penalty": sampling.repetition_penalty,
    })
}

/// What ends a message: of all ends the one that is structure and no end of texts.
fn own_end(tokenizer: &Tokenizer) -> Option<u32> {
    let is_control = |id: &u32| tokenizer.kind(*id) == Kind::Control;
    let message = tokenizer.special("<|im_end|>").filter(|id| tokenizer.ends().contains(id));
    message.or_else(|| tokenizer.ends().iter().copied().find(is_control))
}
