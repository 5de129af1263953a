//! The page at `/` in headless Chromium, by keyboard alone. Where there is no Chromium the tests say so and pass.

#[path = "page/browser.rs"]
mod browser;
#[path = "serve/http.rs"]
#[allow(dead_code)]
mod http;

use browser::{Browser, chromium};
use http::Server;
use serde_json::json;

/// A browser at a server's page; nothing where there is no browser.
fn open(server: &Server, test: &str, dark: bool) -> Option<Browser> {
    let Some(program) = chromium() else {
        // Straight to the terminal: a skipped test should be seen.
        use std::io::Write;
        let _ = writeln!(std::io::stderr(), "skipped: {test} needs chromium, and there is none in PATH");
        return None;
    };
    Some(Browser::open(&program, &format!("{}/", server.url()), dark))
}

/// Keeps a picture in the folder that `FORERUN_PICTURES` names, for those who want to look.
fn keep_picture(browser: &mut Browser, name: &str) {
    if let Some(folder) = std::env::var_os("FORERUN_PICTURES") {
        let file = std::path::Path::new(&folder).join(format!("{name}.base64"));
        std::fs::write(file, browser.picture()).expect("a picture");
    }
}

#[test]
fn a_conversation_by_keyboard() {
    let server = Server::start(&["--spec", "chain"]);
    let Some(mut browser) = open(&server, "a_conversation_by_keyboard", false) else { return };
    browser.wait_for("document.getElementById('model').textContent === 'embedded'");
    keep_picture(&mut browser, "welcome");
    assert_eq!(browser.value("document.activeElement.id"), "prompt");
    browser.value("at('temperature').value = '0'");
    browser.type_text("Write Python quicksort");
    browser.press("Enter");
    browser.wait_for("document.querySelector('.answer')?.dataset.done === 'stop'");

    // The text is the one that any client gets, and what was thought is folded away.
    let body = json!({"messages": [{"role": "user", "content": "Write Python quicksort"}], "temperature": 0});
    let answer = server.chat(&body);
    let message = &answer["choices"][0]["message"];
    assert_eq!(browser.value("messages[1].content"), message["content"]);
    assert_eq!(browser.value("messages[1].reasoning_content"), message["reasoning_content"]);
    assert_eq!(browser.value("document.querySelector('details').open"), false);
    assert_eq!(
        browser.value("document.querySelector('details > div').textContent"),
        message["reasoning_content"]
    );
    let code = browser.value("document.querySelector('.answer pre').textContent");
    assert!(code.as_str().unwrap().starts_with("def quicksort"), "{code}");

    // Tokens are tinted as the answer's own report says.
    let spec = &answer["forerun"]["spec"];
    let accepted = spec["accepted"].as_f64().unwrap();
    assert!(accepted > 20.0);
    assert!(browser.value("document.querySelectorAll('.answer .drafted').length").as_u64().unwrap() > 0);
    let tinted = browser.value("[...document.querySelectorAll('.answer .drafted')].map(e => e.textContent.length).reduce((a, b) => a + b, 0)");
    assert!(tinted.as_f64().unwrap() > accepted, "{tinted}");
    let shown: f64 = browser.value("Number(at('acceptance').textContent)").as_f64().unwrap();
    assert!((shown - spec["mean_accept_length"].as_f64().unwrap()).abs() < 0.01, "{shown}");
    assert!(browser.value("Number(at('rate').textContent.replaceAll(',', ''))").as_f64().unwrap() > 0.0);
    keep_picture(&mut browser, "answer");

    // The next turn goes on from there, and a new conversation forgets.
    browser.type_text("Now bubble sort");
    browser.press("Enter");
    browser.wait_for("document.querySelectorAll('.answer')[1]?.dataset.done === 'stop'");
    assert_eq!(browser.value("messages.length"), 4);
    browser.value("at('fresh').focus()");
    browser.press("Enter");
    assert_eq!(browser.value("[messages.length, document.querySelectorAll('.turn').length]"), json!([0, 0]));

    // Nothing came from elsewhere, and nothing was refused by the policy.
    let elsewhere =
        "performance.getEntriesByType('resource').filter(r => !r.name.startsWith(location.origin)).length";
    assert_eq!(browser.value(elsewhere), 0);
    assert_eq!(browser.value("getComputedStyle(at('send')).borderRadius !== '0px'"), true);
}

#[test]
fn an_answer_can_be_stopped() {
    let server = Server::start(&[]);
    let Some(mut browser) = open(&server, "an_answer_can_be_stopped", true) else { return };
    let ends = server.ask("/tokenize", &json!({"prompt": "<|im_end|><|endoftext|>"}))["tokens"].clone();
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
        browser.type_text("Write Python quicksort");
        browser.press("Enter");
        browser.wait_for(&format!("document.querySelectorAll('.answer')[{turn}]?.textContent.length > 150"));
        assert_eq!(browser.value("at('stop').hidden"), false);
        if key == " " {
            keep_picture(&mut browser, "dark");
            browser.value("at('stop').focus()");
        }
        browser.press(key);
        browser.wait_for(&format!("document.querySelectorAll('.answer')[{turn}].dataset.done === 'stopped'"));
        assert_eq!(browser.value("at('stop').hidden"), true);
        assert_eq!(browser.value("document.activeElement.id"), "prompt");
    }
    // The server has let go: its slot is free.
    let idle =
        |page: &str| page.lines().any(|line| line == "vllm:num_requests_running{model_name=\"embedded\"} 0");
    let freed = (0..200).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(50));
        idle(&server.get("/metrics", "").body)
    });
    assert!(freed);
}

#[test]
fn a_key_can_be_given() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    std::fs::write(&path, "sesame\n").unwrap();
    let server = Server::start(&["--api-key-file", path.to_str().unwrap()]);
    let Some(mut browser) = open(&server, "a_key_can_be_given", false) else { return };
    browser.wait_for("!at('keyed').hidden");
    browser.value("at('key').focus()");
    browser.type_text("sesame");
    browser.press("Tab");
    browser.wait_for("at('model').textContent === 'embedded'");
}
