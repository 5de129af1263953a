//! What goes wrong is said with what to do, and nothing that was typed is lost.

use crate::browser::DESKTOP;
use crate::http::Server;
use crate::open;
use serde_json::json;

#[test]
fn a_server_that_is_gone_and_comes_back() {
    let server = Server::start(&[]);
    let Some(mut browser) = open(&server, "a_server_that_is_gone_and_comes_back", DESKTOP) else {
        return;
    };
    let port = server.address.rsplit(':').next().unwrap().to_owned();
    drop(server);
    browser.say("Write Python quicksort");
    browser.wait_for_answer(0, "failed");
    assert!(browser.text(".problem").contains("The server does not answer"));
    // The next message can be typed meanwhile, and all of it survives a reload... of a page the
    // browser still has.
    browser.type_text("the next one");
    assert!(browser.text(".mine").contains("Write Python quicksort"));
    let _server = Server::start_on(&port, &[]);
    browser.wait_for("document.getElementById('notice').textContent.includes('answers again')");
    browser.click("#notice button");
    browser.wait_for_answer(0, "done");
    assert_eq!(browser.count(".answer"), 1);
    assert!(browser.text(".answer").contains("quicksort"));
    assert_eq!(browser.value("document.getElementById('prompt').value"), "the next one");
    browser.reload();
    assert_eq!(browser.value("document.getElementById('prompt').value"), "the next one");
    assert_eq!(browser.count(".turn"), 2);
}

#[test]
fn a_key_can_be_given() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    std::fs::write(&path, "sesame\n").unwrap();
    let server = Server::start(&["--api-key-file", path.to_str().unwrap()]);
    let Some(mut browser) = open(&server, "a_key_can_be_given", DESKTOP) else { return };
    browser.wait_for("document.getElementById('key') !== null");
    browser.say("Write Python quicksort");
    browser.wait_for_answer(0, "failed");
    assert!(browser.text(".problem").contains("key"));
    browser.value("document.getElementById('key').focus()");
    browser.type_text("open");
    browser.press("Enter");
    browser.wait_for(
        "document.getElementById('notice').textContent.includes('does not know this key')",
    );
    browser.wait_for_answer(0, "failed");
    browser.value("document.getElementById('key').select()");
    browser.type_text("sesame");
    browser.press("Enter");
    // What was refused for want of a key is asked again.
    browser.wait_for_answer(0, "done");
    browser.wait_for("document.getElementById('model').textContent === 'embedded'");
    assert_eq!(browser.value("document.getElementById('notice').hidden"), true);
}

#[test]
fn problems_say_what_to_do() {
    let server = Server::start(&["--ctx", "256"]);
    let Some(mut browser) = open(&server, "problems_say_what_to_do", DESKTOP) else { return };
    // More than the model can read, as the server says it.
    browser.say(&"word ".repeat(400));
    browser.wait_for_answer(0, "failed");
    let problem = browser.text(".problem");
    assert!(problem.contains("no longer fits") && problem.contains("256"), "{problem}");
    assert!(problem.contains("New conversation"), "{problem}");

    // A value that the server refuses.
    browser.press("Control+Shift+O");
    browser.value("stub.fail(400, { message: '`top_p` is 7', code: null })");
    browser.say("hi");
    browser.wait_for_answer(0, "failed");
    assert!(browser.text(".problem").contains("`top_p` is 7"));

    // A busy server is asked again after as long as it says, and the answer that comes takes the
    // failure's place.
    browser.value(
        "stub.fail(429, { message: 'full' }, { 'retry-after': '1' });
         { const busy = stub.next; let times = 0;
           stub.next = (options) => { if (++times === 2) stub.say('at last'); return times < 2 ? busy(options) : stub.next(options); }; } 0",
    );
    browser.click(".problem .retry");
    browser
        .wait_for("document.getElementById('notice').textContent.includes('Trying again in 1 s')");
    browser.wait_for_answer(0, "done");
    assert!(browser.text(".answer").contains("at last"));
    assert_eq!(browser.count(".answer .branches"), 0);

    // A connection that breaks leaves what came.
    browser.value(
        "stub.next = () => Promise.resolve(new Response(
            'data: {\"choices\": [{\"index\": 0, \"delta\": {\"content\": \"half an\"}}]}\\n\\n')); 0",
    );
    browser.say("more");
    browser.wait_for_answer(1, "failed");
    assert!(browser.text("article:last-child .prose:not(details *)").contains("half an"));
    assert!(browser.text("article:last-child .problem").contains("What came is kept"));
}

#[test]
fn files_are_asked_for_again_only_when_they_change() {
    let server = Server::start(&[]);
    let page = server.get("/", "");
    assert!(page.head.contains(
        "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self';"
    ));
    assert!(!page.head.contains("unsafe"), "{}", page.head);
    let tag = page.head.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap();
    let again = server.get("/", &format!("if-none-match: {tag}\r\n"));
    assert_eq!((again.status, again.body.as_str()), (304, ""));
    let script = server.get("/page/page.js", "");
    assert!(script.head.contains("content-type: text/javascript"), "{}", script.head);
    assert_eq!(server.get("/page/other.js", "").status, 404);
    let licence = server.get("/page/vendor/highlight.LICENSE", "");
    assert!(licence.body.contains("BSD 3-Clause"));
    // A page of HTML is no place to ask for with another method.
    assert_eq!(server.post("/", &json!({})).status, 405);
}
