//! What the Responses API keeps and gives back: stored responses, conversations that go on,
//! thinking as summaries and sealed.

#[path = "serve/http.rs"]
#[allow(dead_code)]
mod http;

use http::{Response, Server, read};
use serde_json::{Value, json};

const QUESTION: &str = "Write Python quicksort";

fn ask(more: Value) -> Value {
    let mut body = json!({"model": "any", "input": QUESTION, "temperature": 0, "max_output_tokens": 60,
        "chat_template_kwargs": {"enable_thinking": true}});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn delete(server: &Server, path: &str) -> Response {
    read(server.send(&format!("DELETE {path} HTTP/1.0\r\n\r\n")))
}

/// Events have names here, and nothing follows the last.
fn events(server: &Server, body: &Value) -> Vec<Value> {
    let response = server.post("/v1/responses", body);
    assert_eq!(response.status, 200, "{response:?}");
    let data = response.body.lines().filter_map(|line| line.strip_prefix("data: "));
    data.map(|data| serde_json::from_str(data).unwrap()).collect()
}

#[test]
fn a_conversation_goes_on_from_a_response_that_is_kept() {
    let server = Server::start(&["--store-responses", "1"]);
    let first = server.ask("/v1/responses", &ask(json!({"metadata": {"a": "b"}})));
    let id = first["id"].as_str().unwrap();
    assert_eq!(first["store"], true);
    let path = format!("/v1/responses/{id}");
    assert_eq!(server.get(&path, "").json(), first);

    let second =
        ask(json!({"input": "Shorter.", "previous_response_id": id, "instructions": "be brief"}));
    let streamed = events(&server, &with(second.clone(), json!({"stream": true})));
    let last = &streamed.last().unwrap()["response"];
    assert_eq!(last["previous_response_id"], id);
    // The same as if the client had sent all of it.
    let mut whole = vec![json!({"role": "user", "content": QUESTION})];
    whole.extend(first["output"].as_array().unwrap().clone());
    whole.push(json!({"role": "user", "content": "Shorter."}));
    let sent = server.ask(
        "/v1/responses",
        &ask(json!({"input": whole, "instructions": "be brief", "store": false})),
    );
    assert_eq!(sent["store"], false);
    assert_eq!(last["usage"]["input_tokens"], sent["usage"]["input_tokens"]);
    assert_eq!(text(last), text(&sent));
    assert!(!text(last).is_empty());
    assert_eq!(
        server.get(&format!("/v1/responses/{}", sent["id"].as_str().unwrap()), "").status,
        404
    );
    let counted = server.ask("/v1/responses/input_tokens", &second);
    assert_eq!(
        counted,
        json!({"object": "response.input_tokens", "input_tokens": sent["usage"]["input_tokens"]})
    );

    // References to items, as some clients send them in place of what they know to be kept.
    let mut referred = vec![json!({"role": "user", "content": QUESTION})];
    let output = first["output"].as_array().unwrap();
    referred.extend(output.iter().map(|item| json!({"type": "item_reference", "id": item["id"]})));
    referred.push(json!({"role": "user", "content": "Shorter."}));
    let referred =
        server.ask("/v1/responses", &ask(json!({"input": referred, "instructions": "be brief"})));
    assert_eq!(text(&referred), text(&sent));

    let items = format!("/v1/responses/{}/input_items", last["id"].as_str().unwrap());
    let listed = server.get(&format!("{items}?order=asc"), "").json();
    let data = listed["data"].as_array().unwrap();
    assert_eq!(data.len(), output.len() + 2);
    assert_eq!(data[0]["content"], json!([{"type": "input_text", "text": QUESTION}]));
    assert_eq!(data[1]["id"], output[0]["id"]);
    let page = server.get(&format!("{items}?limit=1"), "").json();
    assert_eq!((&page["has_more"], &page["data"][0]), (&json!(true), data.last().unwrap()));
    let next =
        server.get(&format!("{items}?after={}", page["last_id"].as_str().unwrap()), "").json();
    assert_eq!(
        (next["data"].as_array().unwrap().len(), &next["has_more"]),
        (data.len() - 1, &json!(false))
    );
    assert_eq!(server.get(&format!("{items}?limit=0"), "").json()["error"]["param"], "limit");

    let wrong = server.post(
        "/v1/responses",
        &ask(json!({"input": [{"role": "user"}], "previous_response_id": id})),
    );
    assert_eq!(wrong.json()["error"]["param"], "input[0].content");
    assert_eq!(
        delete(&server, &path).json(),
        json!({"id": id, "object": "response", "deleted": true})
    );
    assert_eq!((server.get(&path, "").status, delete(&server, &path).status), (404, 404));
    let gone = server.post("/v1/responses", &second);
    assert_eq!(
        (gone.status, &gone.json()["error"]["param"]),
        (400, &json!("previous_response_id"))
    );
    let other = server.post("/v1/responses", &ask(json!({"conversation": "conv_1"})));
    assert_eq!((other.status, &other.json()["error"]["param"]), (400, &json!("conversation")));
}

#[test]
fn nothing_is_kept_unless_it_is_said() {
    let server = Server::start(&[]);
    let answer = server.ask("/v1/responses", &ask(json!({"store": true})));
    assert_eq!(answer["store"], false);
    let id = answer["id"].as_str().unwrap();
    let refused = server.post("/v1/responses", &ask(json!({"previous_response_id": id})));
    let error = refused.json()["error"].take();
    assert_eq!((refused.status, &error["param"]), (400, &json!("previous_response_id")));
    assert!(error["message"].as_str().unwrap().contains("--store-responses"), "{error}");
    let fetched = server.get(&format!("/v1/responses/{id}"), "");
    assert!(fetched.status == 404 && fetched.body.contains("--store-responses"), "{fetched:?}");
}

#[test]
fn thinking_stands_in_the_summary_where_one_is_asked_for() {
    let server = Server::start(&[]);
    let thought =
        server.ask("/v1/responses", &ask(json!({})))["output"][0]["content"][0]["text"].take();
    assert!(!thought.as_str().expect("the embedded model thinks").is_empty());
    let asked = ask(json!({"reasoning": {"summary": "auto"}, "stream": true,
        "include": ["reasoning.encrypted_content"]}));
    let events = events(&server, &asked);
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    let place = |kind: &str| {
        kinds.iter().position(|other| *other == kind).unwrap_or_else(|| panic!("{kinds:?}"))
    };
    let order = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.done",
        "response.reasoning_summary_part.done",
        "response.output_item.done",
        "response.content_part.added",
    ];
    assert!(order.map(place).is_sorted(), "{kinds:?}");
    assert!(!kinds.contains(&"response.reasoning_text.delta"));
    let deltas =
        events.iter().filter(|event| event["type"] == "response.reasoning_summary_text.delta");
    let told: String = deltas.map(|event| event["delta"].as_str().unwrap()).collect();
    assert_eq!(json!(told), thought);
    let done = &events[place("response.reasoning_summary_text.done")];
    assert_eq!((&done["text"], &done["summary_index"]), (&thought, &json!(0)));

    let item = &events.last().unwrap()["response"]["output"][0];
    assert_eq!(item["summary"], json!([{"type": "summary_text", "text": thought}]));
    // However the thinking is sent back, the model reads it: in a turn that is not over, as after a
    // call.
    let call = json!({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"});
    let output = json!({"type": "function_call_output", "call_id": "c", "output": "1"});
    let tokens = |item: Value| {
        let input = json!([{"role": "user", "content": QUESTION}, item, call, output]);
        server.ask("/v1/responses/input_tokens", &ask(json!({"input": input})))["input_tokens"]
            .as_u64()
    };
    let sealed =
        json!({"type": "reasoning", "summary": [], "encrypted_content": item["encrypted_content"]});
    let plain = json!({"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": thought}]});
    let summary = json!({"type": "reasoning", "summary": item["summary"]});
    let none = json!({"type": "reasoning", "summary": [], "encrypted_content": "somebody else's"});
    assert_eq!(tokens(sealed), tokens(plain.clone()));
    assert_eq!(tokens(summary), tokens(plain.clone()));
    assert!(tokens(plain) > tokens(none));
    let wrong = server.post("/v1/responses", &ask(json!({"reasoning": {"summary": "long"}})));
    assert_eq!(wrong.json()["error"]["param"], "reasoning.summary");
}

fn with(mut body: Value, more: Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// What an answer says.
fn text(response: &Value) -> String {
    let items =
        response["output"].as_array().unwrap().iter().filter(|item| item["type"] == "message");
    items.filter_map(|item| item["content"][0]["text"].as_str()).collect()
}
