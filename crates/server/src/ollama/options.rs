//! `options` of a request: each is done, left at what it does not change, or refused by name.

use crate::error::ApiError;
use crate::fields::Fields;
use crate::settings::Limits;
use serde_json::{Map, Value, json};

/// Options with the names that a chat request has for them.
pub(super) const DONE: [(&str, &str); 10] = [
    ("num_predict", "max_tokens"),
    ("temperature", "temperature"),
    ("top_k", "top_k"),
    ("top_p", "top_p"),
    ("min_p", "min_p"),
    ("seed", "seed"),
    ("stop", "stop"),
    ("repeat_penalty", "repetition_penalty"),
    ("presence_penalty", "presence_penalty"),
    ("frequency_penalty", "frequency_penalty"),
];

/// How a model is loaded and computed, and settings of what is off: no answer depends on them.
const HARMLESS: [&str; 14] = [
    "num_keep",
    "num_batch",
    "num_gpu",
    "main_gpu",
    "num_thread",
    "numa",
    "low_vram",
    "f16_kv",
    "logits_all",
    "vocab_only",
    "use_mmap",
    "use_mlock",
    "mirostat_tau",
    "mirostat_eta",
];

/// Ways of drawing that are not done here, with the value that leaves them off.
const OFF: [(&str, f64); 3] = [("mirostat", 0.0), ("tfs_z", 1.0), ("typical_p", 1.0)];

/// Writes `options` into a chat request. Names those that are not done and change nothing but how
/// much fits.
pub(super) fn translate(
    options: &Fields<'_>,
    limits: &Limits,
    body: &mut Map<String, Value>,
) -> Result<Vec<String>, ApiError> {
    let mut ignored = Vec::new();
    for (name, value) in options.entries().filter(|(_, value)| !value.is_null()) {
        let done = DONE.iter().find(|(option, _)| option == name);
        let off = OFF.iter().find(|(option, _)| option == name);
        match (name.as_str(), done, off) {
            // Nothing, -1 and -2 mean: as long as there is room.
            ("num_predict", ..) if value.as_f64().is_some_and(|tokens| tokens <= 0.0) => {}
            // -1 means: any.
            ("seed", ..) if value.as_f64() == Some(-1.0) => {}
            (_, Some((_, name)), _) => {
                body.insert((*name).into(), value.clone());
            }
            (_, _, Some((_, off))) if value.as_f64() != Some(*off) => {
                return Err(options.wrong(name, &format!("{off} (it is not done)")));
            }
            (_, _, Some(_)) => {}
            ("num_ctx", ..) => {
                let tokens = options.integer(name, 0..=i64::MAX)?.unwrap_or(0);
                if usize::try_from(tokens).is_ok_and(|tokens| tokens > limits.context) {
                    ignored.push(options.path(name));
                }
            }
            ("repeat_last_n" | "penalize_newline", ..) => {}
            (name, ..) if HARMLESS.contains(&name) => {}
            _ => ignored.push(options.path(name)),
        }
    }
    limit_penalties(options, limits, body)?;
    Ok(ignored)
}

/// Penalties here look at the whole text and at every token of it: other windows are refused where
/// it matters.
fn limit_penalties(
    options: &Fields<'_>,
    limits: &Limits,
    body: &mut Map<String, Value>,
) -> Result<(), ApiError> {
    let file = &limits.sampling;
    let penalties = [
        ("repetition_penalty", file.repetition_penalty, 1.0),
        ("presence_penalty", file.presence_penalty, 0.0),
        ("frequency_penalty", file.frequency_penalty, 0.0),
    ];
    let in_force = penalties.iter().any(|(name, file, none)| {
        body.get(*name).and_then(Value::as_f64).unwrap_or(f64::from(*file)) != *none
    });
    match options.integer("repeat_last_n", -1..=i64::MAX)? {
        Some(0) => {
            body.extend(penalties.iter().map(|(name, _, none)| ((*name).to_owned(), json!(none))))
        }
        Some(window) if in_force && window > 0 && (window as u64) < limits.context as u64 => {
            return Err(
                options.wrong("repeat_last_n", "-1 for the whole text, or 0 for no penalty,")
            );
        }
        _ => {}
    }
    if in_force && options.bool("penalize_newline")? == Some(false) {
        return Err(options.wrong("penalize_newline", "true (every token counts for a penalty)"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::sampling::Sampling;

    fn translated(options: Value) -> Result<(Value, Vec<String>), String> {
        let limits = Limits {
            sampling: Sampling::default(),
            vocab: 100,
            context: 1000,
            capacity: 8,
            ends: Vec::new(),
            shares: None,
        };
        let body = json!({"options": options});
        let fields = Fields::of(body.as_object().unwrap()).object("options").unwrap().unwrap();
        let mut body = Map::new();
        let ignored = translate(&fields, &limits, &mut body).map_err(ApiError::named)?;
        Ok((Value::Object(body), ignored))
    }

    #[test]
    fn options_take_a_chat_s_names() {
        let (body, ignored) = translated(json!({
            "num_predict": 5, "temperature": 0.5, "top_k": 3, "seed": 7, "stop": ["x"], "repeat_penalty": 1.1,
            "repeat_last_n": -1, "num_ctx": 1000, "num_thread": 8, "mirostat": 0, "mirostat_tau": 5.0,
            "typical_p": 1.0, "tfs_z": 1, "penalize_newline": true, "min_p": null,
        }))
        .unwrap();
        let expected = json!({"max_tokens": 5, "temperature": 0.5, "top_k": 3, "seed": 7, "stop": ["x"],
            "repetition_penalty": 1.1});
        assert_eq!((body, ignored), (expected, Vec::new()));
    }

    #[test]
    fn no_limit_and_no_seed_are_left_out() {
        for options in [json!({"num_predict": -1}), json!({"num_predict": -2, "seed": -1})] {
            assert_eq!(translated(options), Ok((json!({}), Vec::new())));
        }
        let (body, _) = translated(json!({"repeat_last_n": 0, "repeat_penalty": 2})).unwrap();
        assert_eq!(
            (&body["repetition_penalty"], &body["presence_penalty"]),
            (&json!(1.0), &json!(0.0))
        );
    }

    #[test]
    fn what_is_not_done_is_named() {
        for (options, field) in [
            (json!({"mirostat": 2}), "options.mirostat"),
            (json!({"typical_p": 0.5}), "options.typical_p"),
            (json!({"tfs_z": 0.9}), "options.tfs_z"),
            (json!({"repeat_last_n": 64, "repeat_penalty": 1.1}), "options.repeat_last_n"),
            (json!({"penalize_newline": false, "presence_penalty": 1}), "options.penalize_newline"),
            (json!({"num_ctx": "much"}), "options.num_ctx"),
        ] {
            assert_eq!(translated(options.clone()), Err(field.to_owned()), "{options}");
        }
        let (_, ignored) =
            translated(json!({"num_ctx": 1001, "magic": 1, "repeat_last_n": 64})).unwrap();
        assert_eq!(ignored, ["options.num_ctx", "options.magic"]);
    }
}
