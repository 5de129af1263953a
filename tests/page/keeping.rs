//! Conversations are kept in the browser: over reloads, on a full store, into files and back.

use crate::browser::{Browser, DESKTOP};
use crate::http::Server;
use crate::open;
use serde_json::{Value, json};

/// Three conversations, the last one open.
fn fill(browser: &mut Browser) {
    for (question, answer) in [
        ("How do boats float?", "They push water aside: **buoyancy**."),
        ("Name a tree", "An oak."),
        ("Name a river", "The Danube, past ten countries."),
    ] {
        browser.press("Control+Shift+O");
        browser.wait_for("document.querySelectorAll('.turn').length === 0");
        browser.value(&format!("stub.say({}, {{ thought: 'Hm.' }})", json!(answer)));
        browser.say(question);
        browser.wait_for_answer(0, "done");
    }
    browser.wait_for("document.querySelectorAll('#list li[data-id]').length === 3");
}

fn titles(browser: &mut Browser) -> Value {
    browser.value("[...document.querySelectorAll('#list .title')].map(e => e.textContent)")
}

#[test]
fn a_conversation_survives_a_reload_even_half_written() {
    let server = Server::start(&[]);
    let test = "a_conversation_survives_a_reload_even_half_written";
    let Some(mut browser) = open(&server, test, DESKTOP) else { return };
    browser.value("stub.say('A whole answer.')");
    browser.say("first");
    browser.wait_for_answer(0, "done");
    browser.value("stub.say('This one is cut in the middle of a sentence', { hold: 6 })");
    browser.say("second");
    browser.wait_for("document.querySelectorAll('.answer')[1]?.textContent.includes('is cut')");
    browser.type_text("a draft");
    // It is kept within a second or so; the store says when.
    browser.wait_for(
        "(async () => {
            const store = await import('/page/store.js');
            const { nodes } = await store.loadConversation(location.hash.slice(1));
            return Object.values(nodes).some(node => node.text.includes('is cut'));
        })()",
    );
    browser.reload();
    assert_eq!(browser.count(".turn"), 4);
    assert!(browser.text(".answer").contains("A whole answer."));
    assert_eq!(browser.value("document.querySelectorAll('.answer')[1].dataset.state"), "cut");
    let cut = browser.text("article:last-child");
    assert!(cut.contains("is cut") && cut.contains("What came is kept"), "{cut}");
    assert_eq!(browser.value("document.getElementById('prompt').value"), "a draft");

    // It can be tried again, beside what there is.
    browser.value("stub.say('Whole now.')");
    browser.click("article:last-child .problem .retry");
    browser.wait_for_answer(1, "done");
    assert_eq!(browser.text("article:last-child .branches span"), "2/2");
}

#[test]
fn conversations_are_found_renamed_and_deleted() {
    let server = Server::start(&[]);
    let Some(mut browser) = open(&server, "conversations_are_found_renamed_and_deleted", DESKTOP)
    else {
        return;
    };
    fill(&mut browser);
    assert_eq!(titles(&mut browser), json!(["Name a river", "Name a tree", "How do boats float?"]));

    // Search looks into texts, and is a key away.
    browser.press("Control+k");
    browser.type_text("BUOY");
    browser.wait_for("document.querySelector('#list mark')?.textContent === 'buoy'");
    assert_eq!(titles(&mut browser), json!(["How do boats float?"]));
    browser.press("Enter");
    browser.wait_for("document.getElementById('title').textContent === 'How do boats float?'");
    browser.press("Control+k");
    browser.press("Escape");
    browser.wait_for("document.querySelectorAll('#list .title').length === 3");

    // Arrows walk through the list, F2 renames, Delete deletes.
    browser.press("ArrowDown");
    browser.press("ArrowDown");
    assert_eq!(browser.value("document.activeElement.textContent"), "Name a tree");
    browser.press("F2");
    browser.type_text("Trees");
    browser.press("Enter");
    browser.wait_for("document.activeElement.textContent === 'Trees'");
    assert_eq!(titles(&mut browser), json!(["Name a river", "Trees", "How do boats float?"]));
    browser.press("Delete");
    browser.wait_for("document.querySelectorAll('#list .title').length === 2");
    assert!(browser.text("#notes").contains("Deleted “Trees”"));
    browser.click("#notes button");
    browser.wait_for("document.querySelectorAll('#list .title').length === 3");
    browser.wait_for("document.getElementById('title').textContent === 'Trees'");
    browser.press("Control+k");
    browser.press("ArrowDown");
    browser.press("Delete");
    browser.wait_for("document.querySelectorAll('#list .title').length === 2");
    browser.reload();
    browser.wait_for("document.querySelectorAll('#list .title').length === 2");
    assert_eq!(titles(&mut browser), json!(["Trees", "How do boats float?"]));
}

#[test]
fn conversations_go_into_files_and_come_back() {
    let server = Server::start(&[]);
    let Some(mut browser) = open(&server, "conversations_go_into_files_and_come_back", DESKTOP)
    else {
        return;
    };
    fill(&mut browser);
    let choose = |browser: &mut Browser, button: &str, entry: &str| {
        browser.click(button);
        let find = format!(
            "[...document.querySelectorAll('.menu button')].find(e => e.textContent === '{entry}')"
        );
        browser.wait_for(&format!("{find} !== undefined"));
        browser.value(&format!("{find}.click()"));
    };
    choose(&mut browser, "#list .more", "Export as markdown");
    let markdown = browser.downloaded("Name-a-river.md");
    assert!(
        markdown.starts_with("# Name a river\n\n## You\n\nName a river\n\n## Forerun\n\n"),
        "{markdown}"
    );
    assert!(markdown.ends_with("The Danube, past ten countries.\n"), "{markdown}");
    choose(&mut browser, "#list .more", "Export as JSON");
    let one: Value = serde_json::from_str(&browser.downloaded("Name-a-river.json")).unwrap();
    assert_eq!(one["conversations"].as_array().unwrap().len(), 1);
    let day = browser.value("new Date().toISOString().slice(0, 10)");
    let name = format!("forerun-conversations-{}", day.as_str().unwrap());
    choose(&mut browser, "#all", "Export all as markdown");
    assert_eq!(browser.downloaded(&format!("{name}.md")).matches("\n## You\n").count(), 3);
    choose(&mut browser, "#all", "Export all as JSON");
    let all = browser.downloaded(&format!("{name}.json"));

    // Delete everything, then take it in again.
    for left in [2, 1, 0] {
        browser.press("Control+k");
        browser.press("ArrowDown");
        browser.press("Delete");
        browser.wait_for(&format!("document.querySelectorAll('#list .title').length === {left}"));
    }
    browser.choose_file("file", &all);
    browser.wait_for("document.querySelectorAll('#list .title').length === 3");
    assert_eq!(titles(&mut browser), json!(["Name a river", "Name a tree", "How do boats float?"]));
    browser.click("#list li:last-child a");
    browser.wait_for("document.querySelector('.answer strong')?.textContent === 'buoyancy'");
    // Once more: what is here stays, the file's comes beside it.
    browser.choose_file("file", &one.to_string());
    browser.wait_for("document.querySelectorAll('#list .title').length === 4");

    // Files that are none say so and change nothing.
    let node = "0".repeat(24);
    for (file, said) in [
        ("{".to_owned(), "not JSON"),
        ("{}".to_owned(), "no conversations of Forerun"),
        (
            json!({"format": "forerun conversations", "conversations": [{"nodes": {}}]})
                .to_string(),
            "is broken",
        ),
        (
            json!({"format": "forerun conversations", "conversations": [
                {"nodes": {&node: {"role": "user", "text": "x", "parent": &node}}}]})
            .to_string(),
            "is broken",
        ),
    ] {
        browser.choose_file("file", &file);
        browser
            .wait_for(&format!("document.getElementById('notes').textContent.includes('{said}')"));
    }
    assert_eq!(browser.count("#list .title"), 4);
}

#[test]
fn a_full_store_loses_nothing() {
    let server = Server::start(&[]);
    let Some(mut browser) = open(&server, "a_full_store_loses_nothing", DESKTOP) else { return };
    browser.value("stub.say('An oak.')");
    browser.say("Name a tree");
    browser.wait_for_answer(0, "done");
    // A browser whose disk is full refuses so.
    browser.value(
        "window.put = IDBObjectStore.prototype.put;
         IDBObjectStore.prototype.put = () => { throw new DOMException('', 'QuotaExceededError'); }; 0",
    );
    browser.press("Control+Shift+O");
    browser.value("stub.say('The Danube.')");
    browser.say("Name a river");
    browser.wait_for_answer(0, "done");
    browser.wait_for("document.getElementById('notice').textContent.includes('only in this tab')");
    // It can be left and come back to as long as the tab is there, and be carried away.
    browser.click("#list li:last-child a");
    browser.wait_for("document.getElementById('title').textContent === 'Name a tree'");
    browser.click("#list li[data-id] a");
    browser.wait_for("document.getElementById('title').textContent === 'Name a river'");
    assert!(browser.text(".answer").contains("The Danube."));
    // When there is room again it is kept.
    browser.value("IDBObjectStore.prototype.put = put; 0");
    browser.click("#notice button");
    browser.wait_for("document.getElementById('notice').hidden");
    browser.reload();
    browser.wait_for("document.querySelectorAll('#list .title').length === 2");
    assert!(browser.text(".answer").contains("The Danube."));
}
