//! A conversation: by keyboard, stopped, branched, with settings, with signs of life.

use crate::browser::{Browser, DESKTOP, Look};
use crate::http::Server;
use crate::open;
use serde_json::{Value, json};

/// The messages that are kept of the conversation that is open, in order of time.
fn kept_messages(browser: &mut Browser) -> Value {
    browser.value(
        "(async () => {
            const store = await import('/page/store.js');
            const { nodes } = await store.loadConversation(location.hash.slice(1));
            return Object.values(nodes).sort((a, b) => a.time - b.time);
        })()",
    )
}

/// Sets a field of the settings of this conversation.
fn set(browser: &mut Browser, name: &str, value: &str) {
    browser.value(&format!(
        "{{ const field = document.getElementById('set-{name}');
            field.value = {};
            field.dispatchEvent(new Event('change', {{ bubbles: true }})); }} 0",
        json!(value)
    ));
}

#[test]
fn a_conversation_by_keyboard() {
    let server = Server::start(&["--spec", "chain"]);
    let Some(mut browser) = open(&server, "a_conversation_by_keyboard", DESKTOP) else { return };
    browser.wait_for("document.getElementById('model').textContent === 'embedded'");
    assert_eq!(browser.value("document.activeElement.id"), "prompt");
    set(&mut browser, "temperature", "0");
    browser.type_text("Write Python quicksort");
    browser.press("Enter");
    browser.wait_for_answer(0, "done");

    // The text is the one that any client gets, and what was thought is folded away.
    let body = json!({"messages": [{"role": "user", "content": "Write Python quicksort"}], "temperature": 0});
    let answer = server.chat(&body);
    let message = &answer["choices"][0]["message"];
    let kept = kept_messages(&mut browser);
    assert_eq!(kept[1]["text"], message["content"]);
    assert_eq!(kept[1]["thought"], message["reasoning_content"]);
    assert_eq!(browser.value("document.querySelector('details').open"), false);
    browser.click("summary");
    browser.wait_for("document.querySelector('details .prose').textContent !== ''");
    let code = browser.text(".answer pre");
    assert!(code.starts_with("def quicksort"), "{code}");

    // Words are tinted as the answer's own report says, and no spaces.
    let spec = &answer["forerun"]["spec"];
    assert!(spec["accepted"].as_u64().unwrap() > 20);
    assert!(browser.count(".answer .drafted") > 10);
    assert_eq!(
        browser.value(
            "[...document.querySelectorAll('.drafted')].some(e => /\\s/.test(e.textContent))"
        ),
        false
    );
    // The strip has the rounds of the report, but for what the end cut off the last one.
    let rounds = kept[1]["rounds"].as_array().unwrap();
    let lengths: Vec<u64> = rounds.iter().map(|round| round[1].as_u64().unwrap() + 1).collect();
    let told: Vec<u64> =
        spec["accept_lengths"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect();
    assert_eq!(lengths.len(), told.len());
    assert_eq!(lengths[..lengths.len() - 1], told[..told.len() - 1]);
    let drafted: u64 = rounds.iter().map(|round| round[0].as_u64().unwrap()).sum();
    assert_eq!(drafted, spec["drafted"].as_u64().unwrap());
    assert!(
        browser.value("document.querySelector('.strip .stood').getAttribute('d').length > 20")
            == true
    );
    let figures = browser.text(".figures");
    for part in ["tok/s", "a round", "tokens", "prompt", "first after"] {
        assert!(figures.contains(part), "{part}: {figures}");
    }
    let shown = "Number(/([0-9.]+) a round/.exec(document.querySelector('.figures').innerText)[1])";
    let shown = browser.value(shown).as_f64().unwrap();
    assert!((shown - spec["mean_accept_length"].as_f64().unwrap()).abs() < 0.01, "{shown}");

    // The next turn goes on from there, and a new conversation is empty.
    browser.say("Now bubble sort");
    browser.wait_for_answer(1, "done");
    assert_eq!(kept_messages(&mut browser).as_array().unwrap().len(), 4);
    assert_eq!(browser.value("stub.bodies[1].messages.length"), 3);
    browser.press("Control+Shift+O");
    browser.wait_for("document.querySelectorAll('.turn').length === 0");
    assert_eq!(browser.value("document.activeElement.id"), "prompt");
    assert_eq!(browser.count("#list li[data-id]"), 1);

    // Nothing came from elsewhere, and nothing was refused by the policy.
    let elsewhere = "performance.getEntriesByType('resource').filter(r => !r.name.startsWith(location.origin)).length";
    assert_eq!(browser.value(elsewhere), 0);
    assert_eq!(
        browser.value("getComputedStyle(document.getElementById('send')).borderRadius"),
        "50%"
    );
}

#[test]
fn an_answer_can_be_stopped() {
    let server = Server::start(&[]);
    let look = Look { dark: true, ..DESKTOP };
    let Some(mut browser) = open(&server, "an_answer_can_be_stopped", look) else { return };
    let ends =
        server.ask("/tokenize", &json!({"prompt": "<|im_end|><|endoftext|>"}))["tokens"].clone();
    // The page's own request, but for end tokens, which are forbidden.
    browser.value(&format!(
        "const send = window.fetch; window.fetch = (url, options = {{}}) => {{
            if (options.body) {{
                const body = JSON.parse(options.body);
                body.logit_bias = Object.fromEntries({ends}.map(id => [id, -100]));
                options.body = JSON.stringify(body);
            }}
            return send(url, options);
        }}; 0"
    ));
    for (key, turn) in [("Escape", 0), (" ", 1)] {
        browser.say("Write Python quicksort");
        browser.wait_for(&format!(
            "document.querySelectorAll('.answer')[{turn}]?.textContent.length > 150"
        ));
        assert_eq!(browser.value("document.getElementById('stop').hidden"), false);
        if key == " " {
            browser.value("document.getElementById('stop').focus()");
        }
        browser.press(key);
        browser.wait_for_answer(turn, "stopped");
        assert_eq!(browser.value("document.getElementById('stop').hidden"), true);
        assert_eq!(browser.value("document.activeElement.id"), "prompt");
    }
    // The server has let go: its slot is free.
    let idle = |page: &str| {
        let running = page.lines().find(|line| line.starts_with("vllm:num_requests_running"));
        running.is_some_and(|line| line.ends_with(" 0"))
    };
    let freed = (0..1200).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(50));
        idle(&server.get("/metrics", "").body)
    });
    assert!(freed);
}

#[test]
fn questions_are_edited_and_answers_tried_again() {
    let server = Server::start(&[]);
    let test = "questions_are_edited_and_answers_tried_again";
    let Some(mut browser) = open(&server, test, DESKTOP) else { return };
    browser.value("stub.say('first answer')");
    browser.say("first question");
    browser.wait_for_answer(0, "done");
    for (again, words) in [(2, "second answer"), (3, "third answer")] {
        browser.value(&format!("stub.say('{words}')"));
        browser.click(".answer .again");
        browser.wait_for_answer(0, "done");
        assert_eq!(browser.text(".answer .branches span"), format!("{again}/{again}"));
        assert_eq!(browser.text(".answer .prose:not(details *)"), words);
    }
    assert_eq!(browser.value("stub.bodies[2].messages"), browser.value("stub.bodies[0].messages"));
    browser.click(".answer [aria-label='Earlier branch']");
    browser.wait_for("document.querySelector('.answer .branches span').textContent === '2/3'");
    assert!(browser.text(".answer").contains("second answer"));

    // What follows hangs on the branch that was chosen.
    browser.value("stub.say('after the second')");
    browser.say("and then");
    browser.wait_for_answer(1, "done");
    assert_eq!(browser.value("stub.bodies[3].messages[1].content"), "second answer");
    browser.click(".answer [aria-label='Later branch']");
    browser.wait_for("document.querySelectorAll('.turn').length === 2");
    browser.click(".answer [aria-label='Earlier branch']");
    browser.wait_for("document.querySelectorAll('.turn').length === 4");

    // A question said otherwise is a branch of its own; what is typed survives a reload.
    browser.click(".mine .edit");
    browser.value("document.querySelector('.editor textarea').select()");
    browser.type_text("another question");
    browser.reload();
    browser.value("stub.say('another answer')");
    assert_eq!(
        browser.value("document.querySelector('.editor textarea').value"),
        "another question"
    );
    browser.value("document.querySelector('.editor textarea').focus()");
    browser.press("Enter");
    browser.wait_for("document.querySelector('.answer')?.textContent.includes('another answer')");
    browser.wait_for_answer(0, "done");
    assert_eq!(browser.count(".turn"), 2);
    assert_eq!(browser.text(".mine .branches span"), "2/2");
    browser.click(".mine [aria-label='Earlier branch']");
    browser.wait_for("document.querySelectorAll('.turn').length === 4");
    browser.reload();
    assert_eq!(
        (browser.count(".turn"), browser.text(".answer .branches span")),
        (4, "2/3".to_owned())
    );
}

#[test]
fn nothing_else_is_asked_while_an_answer_is_written() {
    let server = Server::start(&[]);
    let name = "nothing_else_is_asked_while_an_answer_is_written";
    let Some(mut browser) = open(&server, name, DESKTOP) else { return };
    browser.value("stub.say('first')");
    browser.say("one");
    browser.wait_for_answer(0, "done");
    browser.value("stub.say('it does not end', { hold: 1 })");
    browser.say("two");
    browser.wait_for("document.querySelectorAll('.turn').length === 4");
    browser.click(".mine .edit");
    browser.value("document.querySelector('.editor textarea').select()");
    browser.type_text("another");
    browser.press("Enter");
    browser.wait_for("document.querySelector('#notes').textContent.includes('stop it first')");
    // What was typed is there still, and a menu's Escape is the menu's alone.
    assert_eq!(browser.value("document.querySelector('.editor textarea').value"), "another");
    browser.value("document.querySelector('.editor textarea').focus()");
    browser.press("Escape");
    assert_eq!((browser.count(".editor"), browser.count(".turn")), (0, 4));
    browser.press("Escape");
    browser.wait_for_answer(1, "stopped");
}

#[test]
fn settings_reach_the_request() {
    let server = Server::start(&[]);
    let Some(mut browser) = open(&server, "settings_reach_the_request", DESKTOP) else { return };
    let numbers = [
        ("temperature", 0.3),
        ("top_p", 0.9),
        ("top_k", 20.0),
        ("min_p", 0.05),
        ("repetition_penalty", 1.1),
        ("presence_penalty", 0.5),
        ("frequency_penalty", -0.5),
        ("max_tokens", 40.0),
        ("seed", 11.0),
    ];
    browser.click("#settings-open");
    for (name, value) in numbers {
        set(&mut browser, name, &value.to_string());
    }
    for (name, value) in
        [("system", "Be brief."), ("stop", "END\nFIN"), ("thinking", "on"), ("effort", "low")]
    {
        set(&mut browser, name, value);
    }
    // What cannot be is not taken.
    set(&mut browser, "top_p", "7");
    assert_eq!(
        browser.value("document.getElementById('set-top_p').getAttribute('aria-invalid')"),
        "true"
    );
    browser.click("#settings-close");
    // The server understands all of it.
    browser.say("Write Python quicksort");
    browser.wait_for_answer(0, "done");
    let body = browser.value("stub.bodies[0]");
    for (name, value) in numbers {
        assert_eq!(body[name].as_f64(), Some(value), "{name}");
    }
    assert_eq!(body["messages"][0], json!({"role": "system", "content": "Be brief."}));
    assert_eq!((&body["stop"], &body["reasoning_effort"]), (&json!(["END", "FIN"]), &json!("low")));
    assert_eq!(body["chat_template_kwargs"], json!({"enable_thinking": true}));
    assert_eq!(body["forerun"], json!({"origins": true, "progress": true}));

    // They are this conversation's; another has the defaults, and can be reset to the model's own.
    browser.value("stub.say('ok')");
    browser.press("Control+Shift+O");
    browser.click("#settings-open");
    browser.click("[name=level][value=defaults]");
    set(&mut browser, "temperature", "0.6");
    browser.click("[name=level][value=this]");
    assert_eq!(browser.value("document.getElementById('set-temperature').placeholder"), "0.6");
    set(&mut browser, "top_k", "3");
    browser.click("#reset");
    browser.click("#settings-close");
    browser.click("#thinking");
    browser.say("hi");
    browser.wait_for_answer(0, "done");
    let body = browser.value("stub.bodies[1]");
    assert_eq!((&body["temperature"], &body["top_k"]), (&json!(0.6), &Value::Null));
    assert_eq!(body["chat_template_kwargs"], json!({"enable_thinking": false}));
    assert_eq!(body["messages"], json!([{"role": "user", "content": "hi"}]));

    // A reload keeps them.
    browser.reload();
    assert_eq!(
        browser.value("document.getElementById('thinking').getAttribute('aria-pressed')"),
        "false"
    );
    browser.click("#list li:last-child a");
    browser.wait_for("document.getElementById('title').textContent === 'Write Python quicksort'");
    browser.click("#settings-open");
    assert_eq!(browser.value("document.getElementById('set-seed').value"), "11");
}

#[test]
fn reading_a_prompt_shows_how_far_it_is() {
    let server = Server::start(&["--prefix-cache", "0"]);
    // The server tells, in its own words and in llama.cpp's.
    let text = "one two three four five six seven eight nine ten ".repeat(40);
    let body = |more: Value| {
        let mut body = json!({"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}],
            "stream": true, "max_tokens": 1, "stream_options": {"include_usage": true}});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    for more in [json!({"forerun": {"progress": true}}), json!({"return_progress": true})] {
        let chunks = server.stream("/v1/chat/completions", &body(more));
        let prompt = &chunks.last().unwrap()["usage"]["prompt_tokens"];
        let told: Vec<&Value> =
            chunks.iter().map(|c| &c["forerun"]["progress"]).filter(|p| !p.is_null()).collect();
        assert!(told.len() >= 2, "{told:?}");
        assert_eq!(told[0]["read"], 0);
        assert!(
            told.windows(2).all(|two| two[0]["read"].as_u64() < two[1]["read"].as_u64()),
            "{told:?}"
        );
        assert!(told.iter().all(|p| p["of"] == *prompt && p["read"].as_u64() < prompt.as_u64()));
        let same = chunks.iter().find(|c| !c["prompt_progress"].is_null()).unwrap();
        assert_eq!(same["prompt_progress"]["total"], *prompt);
    }
    let untold = server.stream("/v1/chat/completions", &body(json!({})));
    assert!(
        untold.iter().all(|c| c["forerun"]["progress"].is_null() && c["prompt_progress"].is_null())
    );

    let Some(mut browser) = open(&server, "reading_a_prompt_shows_how_far_it_is", DESKTOP) else {
        return;
    };
    browser.value("stub.say('', { progress: { read: 2048, of: 8100, cached: 512 }, hold: 0 })");
    browser.say("a long text");
    browser.wait_for("document.querySelector('.reading span')?.textContent.includes('2,048')");
    assert_eq!(
        browser.text(".reading span"),
        "Reading the prompt: 2,048 of 8,100 tokens, 512 of them known already"
    );
    assert_eq!(browser.value("document.querySelector('progress').value"), 2048);
    browser.press("Escape");
    browser.wait_for_answer(0, "stopped");
    assert_eq!(browser.value("document.querySelector('.reading').hidden"), true);
}

#[test]
fn a_model_is_chosen() {
    let [dense, moe] = ["models/dense", "tests/fixtures/moe"]
        .map(|folder| format!("{}/{folder}/target-Q4_K_M.gguf", env!("CARGO_MANIFEST_DIR")));
    let names = ["--served-model-name", "dense", "--served-model-name", "moe"];
    let models = ["--model", dense.as_str(), "--model", moe.as_str()];
    let server = Server::start(&[models, names].concat());
    let Some(mut browser) = open(&server, "a_model_is_chosen", DESKTOP) else { return };
    browser.wait_for("document.getElementById('models').value === 'dense'");
    assert_eq!(browser.value("document.getElementById('model').hidden"), true);
    browser.value(
        "{ const models = document.getElementById('models');
           models.value = 'moe'; models.dispatchEvent(new Event('change')); } 0",
    );
    set(&mut browser, "temperature", "0");
    browser.type_text("Write Python quicksort");
    browser.press("Enter");
    browser.wait_for_answer(0, "done");
    let body = json!({"model": "moe", "temperature": 0,
        "messages": [{"role": "user", "content": "Write Python quicksort"}]});
    let message = &server.chat(&body)["choices"][0]["message"];
    assert_eq!(kept_messages(&mut browser)[1]["text"], message["content"]);
    // The next page remembers it.
    browser.reload();
    browser.wait_for("document.getElementById('models')?.value === 'moe'");
}
