//! Conversations of all three APIs under a template as strict as Qwen3.5's: one system message, at
//! the beginning, and a question of the user's.

use crate::reader::Reader;
use serde_json::{Value, json};
use text::{ChatTemplate, Controls, Tokenizer};

const STRICT: &str = include_str!("../../../tests/fixtures/strict-template.jinja");

fn reader() -> Reader {
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../text/tests/fixtures/tokenizer.json");
    Reader::new(Tokenizer::from_json(fixture).unwrap(), ChatTemplate::new(STRICT).unwrap())
}

/// A call of `f` whose arguments were cut before the first.
const CALL: &str = "<tool_call>\n<function=f>\n</function>\n</tool_call>";

type Read = fn(&Reader, &[u8]) -> Result<Vec<u32>, crate::error::ApiError>;

/// The prompt, written short: turns between bars, the last of them open.
fn shown(reader: &Reader, read: Read, body: &Value) -> String {
    match read(reader, body.to_string().as_bytes()) {
        Ok(tokens) => {
            let text = reader.0.tokenizer.decode(&tokens, Controls::Show);
            text.replace("<|im_start|>", "").replace("<|im_end|>\n", "|")
        }
        Err(error) => format!("! {error}"),
    }
}

#[test]
fn a_strict_template_takes_every_conversation() {
    let reader = reader();
    let (system, user) = (
        |text: &str| json!({"role": "system", "content": text}),
        json!({"role": "user", "content": "u"}),
    );
    let (answer, open) = (json!({"role": "assistant", "content": "a"}), "assistant\n<think>\n");
    let note = |text: &str| format!("<system_note>\n{text}\n</system_note>");
    let call = json!({"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{\"a"}}]});
    let result = json!({"role": "tool", "tool_call_id": "c", "content": "7"});
    for (messages, prompt) in [
        (json!([user]), format!("user\nu|{open}")),
        (
            json!([system("x"), {"role": "developer", "content": "y"}, user]),
            format!("system\nx\n\ny|user\nu|{open}"),
        ),
        (json!([user, system("x")]), format!("user\nu\n\n{}|{open}", note("x"))),
        (
            json!([user, answer, system("x"), user]),
            format!("user\nu|assistant\na|user\n{}|user\nu|{open}", note("x")),
        ),
        (json!([system("x")]), format!("user\nx|{open}")),
        (
            json!([system("x"), answer]),
            format!("system\nx|user\n|assistant\n<think>\n\n</think>\n\na|{open}"),
        ),
        (
            json!([result, user]),
            format!("user\n|user\n<tool_response>\n7\n</tool_response>|user\nu|{open}"),
        ),
        (
            json!([user, call, result, system("x")]),
            format!(
                "user\nu|assistant\n<think>\n\n</think>\n\n{CALL}|user\n<tool_response>\n7\n\n{}\n</tool_response>|{open}",
                note("x")
            ),
        ),
        (json!([user, user]), format!("user\nu|user\nu|{open}")),
        (json!([user, answer]), format!("user\nu|assistant\n<think>\n\n</think>\n\na|{open}")),
    ] {
        assert_eq!(
            shown(&reader, Reader::chat, &json!({"messages": messages})),
            prompt,
            "{messages}"
        );
    }
    let responses = json!({"instructions": "i", "input": [
        {"role": "developer", "content": "d"}, {"role": "developer", "content": "e"}, user]});
    let expected = format!("system\ni\n\nd\n\ne|user\nu|{open}");
    assert_eq!(shown(&reader, Reader::responses, &responses), expected);
    let claude = json!({"max_tokens": 9, "system": [{"type": "text", "text": "s"}], "messages": [user, system("x")],
        "thinking": {"type": "enabled", "budget_tokens": 2000}});
    let expected = format!("system\ns|user\nu\n\n{}|{open}", note("x"));
    assert_eq!(shown(&reader, Reader::messages, &claude), expected);
}

#[test]
fn an_answer_is_continued_where_it_breaks_off() {
    let reader = reader();
    let user = json!({"role": "user", "content": "u"});
    let body = |last: Value, more: Value| {
        let mut body = json!({"messages": [user, last]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let on = json!({"continue_final_message": true, "add_generation_prompt": false});
    let begun = |text: &str| json!({"role": "assistant", "content": text});
    let thinks = json!({"role": "assistant", "content": "", "reasoning_content": "hm "});
    let calls =
        json!({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": ""}}]});
    let mark = "<|im_end|>";
    for (body, prompt) in [
        (
            body(begun("The "), on.clone()),
            "user\nu|assistant\n<think>\n\n</think>\n\nThe ".to_owned(),
        ),
        (body(thinks, on.clone()), "user\nu|assistant\n<think>\nhm ".to_owned()),
        // What looks like the end of a turn in a message is none.
        (
            body(begun(mark), on.clone()),
            format!("user\nu|assistant\n<think>\n\n</think>\n\n{mark}"),
        ),
        (
            body(begun("x"), json!({"add_generation_prompt": false})),
            "user\nu|assistant\n<think>\n\n</think>\n\nx|".into(),
        ),
        (
            body(
                begun("x"),
                json!({"continue_final_message": true, "add_generation_prompt": true}),
            ),
            "! `add_generation_prompt` is true, false with `continue_final_message` was expected"
                .into(),
        ),
        (
            body(calls, on.clone()),
            "! `continue_final_message` is true, but the last message is not an answer in words"
                .into(),
        ),
        (
            json!({"messages": [user], "continue_final_message": true}),
            "! `continue_final_message` is true, but the last message is not an answer in words"
                .into(),
        ),
    ] {
        assert_eq!(shown(&reader, Reader::chat, &body), prompt, "{body}");
    }
    let prefill = json!({"max_tokens": 9, "messages": [user, begun("The ")]});
    assert_eq!(
        shown(&reader, Reader::messages, &prefill),
        "user\nu|assistant\n<think>\n\n</think>\n\nThe "
    );
    let held = body(
        begun("{"),
        json!({"continue_final_message": true, "response_format": {"type": "json_object"}}),
    );
    assert!(
        shown(&reader, Reader::chat, &held).starts_with("! an answer that goes on in the middle")
    );
}

#[test]
fn how_hard_to_think_reaches_the_template() {
    let reader = reader();
    let messages = json!([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]);
    for (effort, shown_effort) in [
        ("low", "s\n\nReasoning effort: low"),
        ("max", "s\n\nReasoning effort: xhigh"),
        ("none", "s"),
    ] {
        let asked = [
            (Reader::chat as Read, json!({"messages": messages, "reasoning_effort": effort})),
            (Reader::responses, json!({"input": messages, "reasoning": {"effort": effort}})),
        ];
        for (read, body) in asked {
            let prompt = shown(&reader, read, &body);
            assert!(prompt.starts_with(&format!("system\n{shown_effort}|")), "{body}: {prompt}");
            assert_eq!(prompt.ends_with("</think>\n\n"), effort == "none", "{body}: {prompt}");
        }
    }
    let body = json!({"max_tokens": 1, "output_config": {"effort": "max"}, "messages": messages});
    assert!(
        shown(&reader, Reader::messages, &body)
            .starts_with("system\ns\n\nReasoning effort: xhigh|")
    );
    let body = json!({"messages": messages, "reasoning_effort": "huge"});
    assert!(
        shown(&reader, Reader::chat, &body).starts_with("! `reasoning_effort` is `huge`, `none`")
    );
}

#[test]
fn what_is_not_done_is_told() {
    let reader = reader();
    let body = json!({"input": "x", "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}},
        {"type": "web_search"}, {"type": "custom", "name": "p", "format": {"type": "grammar", "syntax": "lark", "definition": "start: \"x\""}}]});
    let chat = crate::responses::read(body.as_object().unwrap(), &reader.0).unwrap().chat;
    assert_eq!(
        chat.ignored,
        ["tools[1]: web_search", "tools[2].format: told to the model, not enforced"]
    );
    let body = json!({"max_tokens": 1, "thinking": {"type": "enabled", "budget_tokens": 2000}, "messages": [{"role": "user", "content": "x"}]});
    let chat = crate::anthropic::read(body.as_object().unwrap(), &reader.0).unwrap();
    assert_eq!(chat.ignored, ["thinking.budget_tokens: thinking ends where the model ends it"]);
}
