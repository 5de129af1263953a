//! What other servers call a setting that is known here, under the name that it has here. A setting
//! that is said under both names has the value under ours.

use crate::error::ApiError;
use crate::fields::Fields;
use serde_json::{Map, Value, json};
use std::borrow::Cow;

/// The body of a chat in our words: `enable_thinking` as Qwen's own servers take it, `thinking` as
/// DeepSeek's, `reasoning` as OpenRouter does.
pub(crate) fn settle(body: &Map<String, Value>) -> Result<Cow<'_, Map<String, Value>>, ApiError> {
    let fields = Fields::of(body);
    let mut thinking = fields.bool("enable_thinking")?;
    if let Some(asked) = fields.object("thinking")? {
        thinking = thinking.or(match asked.string("type")? {
            Some("enabled" | "adaptive" | "auto") => Some(true),
            Some("disabled") => Some(false),
            None => None,
            Some(_) => {
                return Err(asked.unlisted("type", "`enabled`, `adaptive`, `auto` or `disabled`"));
            }
        });
    }
    let mut effort = None;
    if let Some(reasoning) = fields.object("reasoning")? {
        thinking = thinking.or(reasoning.bool("enabled")?);
        effort = reasoning.string("effort")?.filter(|_| fields.get("reasoning_effort").is_none());
    }
    if thinking.is_none() && effort.is_none() {
        return Ok(Cow::Borrowed(body));
    }
    let mut body = body.clone();
    if let Some(effort) = effort {
        body.insert("reasoning_effort".to_owned(), json!(effort));
    }
    if let Some(thinking) = thinking {
        let variables = body.entry("chat_template_kwargs").or_insert(Value::Null);
        if variables.is_null() {
            *variables = json!({});
        }
        // Variables that are no object are refused where they are read.
        if let Some(variables) = variables.as_object_mut() {
            variables.entry("enable_thinking").or_insert(json!(thinking));
        }
    }
    Ok(Cow::Owned(body))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(body: Value) -> Result<Value, String> {
        let body = settle(body.as_object().unwrap()).map_err(ApiError::named)?;
        Ok(json!([body.get("reasoning_effort"), body.get("chat_template_kwargs")]))
    }

    #[test]
    fn settings_come_under_our_names() {
        let off = json!([null, {"enable_thinking": false}]);
        assert_eq!(settled(json!({"enable_thinking": false})).unwrap(), off);
        assert_eq!(settled(json!({"thinking": {"type": "disabled"}})).unwrap(), off);
        assert_eq!(settled(json!({"reasoning": {"enabled": false}})).unwrap(), off);
        assert_eq!(settled(json!({"reasoning": {"effort": "low"}})).unwrap(), json!(["low", null]));
        let both = json!({"reasoning": {"effort": "low"}, "reasoning_effort": "high", "enable_thinking": true,
            "chat_template_kwargs": {"enable_thinking": false}});
        assert_eq!(settled(both).unwrap(), json!(["high", {"enable_thinking": false}]));
        assert_eq!(settled(json!({"model": "x"})).unwrap(), json!([null, null]));
    }

    #[test]
    fn errors_name_what_was_said() {
        for (body, field) in [
            (json!({"enable_thinking": 1}), "enable_thinking"),
            (json!({"thinking": true}), "thinking"),
            (json!({"thinking": {"type": "much"}}), "thinking.type"),
            (json!({"reasoning": "high"}), "reasoning"),
            (json!({"reasoning": {"effort": 3}}), "reasoning.effort"),
            (json!({"reasoning": {"enabled": "yes"}}), "reasoning.enabled"),
        ] {
            assert_eq!(settled(body.clone()), Err(field.to_owned()), "{body}");
        }
    }
}
