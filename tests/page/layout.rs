//! How the page lies in its window, desktop and phone, light and dark: nothing overlaps, nothing is
//! cut. With `FORERUN_PICTURES=docs/page` the four pictures are taken anew.

use crate::browser::{Browser, DESKTOP, Look, PHONE};
use crate::http::Server;
use crate::open;
use serde_json::json;

fn assert_laid_out(browser: &mut Browser, what: &str) {
    let wrong = browser.value(include_str!("layout.js"));
    assert_eq!(wrong, json!([]), "{what}");
}

/// Keeps a picture in the folder that `FORERUN_PICTURES` names.
fn keep_picture(browser: &mut Browser, name: &str) {
    if let Some(folder) = std::env::var_os("FORERUN_PICTURES") {
        let file = std::path::Path::new(&folder).join(format!("{name}.png"));
        std::fs::write(file, bytes_of(&browser.picture())).expect("a picture");
    }
}

/// The bytes of base64.
fn bytes_of(text: &str) -> Vec<u8> {
    let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digit = |c: u8| digits.iter().position(|d| *d == c).map(|d| d as u32);
    let values: Vec<u32> = text.bytes().filter_map(digit).collect();
    values
        .chunks(4)
        .flat_map(|four| {
            let sum = four.iter().fold(0, |sum, v| (sum << 6) | v) << (6 * (4 - four.len()));
            [(sum >> 16) as u8, (sum >> 8) as u8, sum as u8].into_iter().take(four.len() - 1)
        })
        .collect()
}

/// Asks the stub and waits for the answer to be whole.
fn ask(browser: &mut Browser, question: &str, answer: &str, index: usize) {
    let thought =
        "They ask for code. A short version is the clearest; the worst case belongs beside it.";
    browser.value(&format!("stub.say({}, {{ thought: {} }})", json!(answer), json!(thought)));
    browser.say(question);
    browser.wait_for_answer(index, "done");
}

fn every_state(look: Look, name: &str) {
    let server = Server::start(&[]);
    let Some(mut browser) = open(&server, name, look) else { return };
    let narrow = look.width < 600;
    browser.wait_for("document.getElementById('model').textContent === 'embedded'");
    assert_laid_out(&mut browser, "welcome");
    for question in
        ["A name for a sailing boat", "How does a B-tree stay balanced under many deletions?"]
    {
        ask(&mut browser, question, "It depends.", 0);
        browser.press("Control+Shift+O");
        browser.wait_for("document.querySelectorAll('.turn').length === 0");
    }
    ask(
        &mut browser,
        "Write Python quicksort, and say when it is slow",
        include_str!("sample.md"),
        0,
    );
    assert_laid_out(&mut browser, "an answer");
    ask(
        &mut browser,
        &"A question of many words and averylongwordwithoutanyspacesinit ".repeat(9),
        "Short.",
        1,
    );
    browser.click(".answer .again");
    browser.wait_for("document.querySelectorAll('.answer')[0].querySelector('.branches') !== null");
    browser.wait_for_answer(0, "done");
    assert_laid_out(&mut browser, "branches");
    browser.click(".answer [aria-label='Earlier branch']");
    browser.click("summary");
    browser.click(".mine .edit");
    assert_laid_out(&mut browser, "editing, with thoughts open");
    browser.press("Escape");
    browser.click("summary");

    // A long draft, a problem and a notice at once.
    browser.value("stub.fail(400, { message: 'averylongwordwithoutanyspacesinit '.repeat(9) })");
    browser.say("fails");
    browser.wait_for("document.querySelector('article:last-child')?.dataset.state === 'failed'");
    browser.type_text(&"many words ".repeat(200));
    assert_laid_out(&mut browser, "a problem and a long draft");
    browser.value("document.getElementById('prompt').select()");
    browser.press("Delete");

    // The list, as a drawer on a phone, with a search; then the settings.
    if narrow {
        browser.click("#side-open");
        browser
            .value("Promise.all(document.getAnimations().map(one => one.finished)).then(() => 0)");
        assert_laid_out(&mut browser, "the drawer");
        browser.click("#side-close");
        browser
            .value("Promise.all(document.getAnimations().map(one => one.finished)).then(() => 0)");
    }
    browser.click("#settings-open");
    assert_laid_out(&mut browser, "settings");
    browser.click("#settings-close");

    browser.press("Control+Shift+O");
    browser.wait_for("document.querySelectorAll('.turn').length === 0");
    // The picture: as much as fits, with its figures.
    let (fits, _) = include_str!("sample.md").split_once("Two things").expect("a sample");
    browser.value(&format!("stub.say({})", json!(fits)));
    browser.say("Write Python quicksort, and say when it is slow");
    browser.wait_for_answer(0, "done");
    browser.value("document.getElementById('talk').scrollTop = 0");
    browser.value(
        "new Promise(resolve => requestAnimationFrame(() => requestAnimationFrame(resolve)))",
    );
    keep_picture(&mut browser, name);
}

#[test]
fn desktop_light() {
    every_state(DESKTOP, "desktop-light");
}

#[test]
fn desktop_dark() {
    every_state(Look { dark: true, ..DESKTOP }, "desktop-dark");
}

#[test]
fn phone_light() {
    every_state(PHONE, "phone-light");
}

#[test]
fn phone_dark() {
    every_state(Look { dark: true, ..PHONE }, "phone-dark");
}

#[test]
fn colours_can_be_switched() {
    let server = Server::start(&[]);
    let Some(mut browser) = open(&server, "colours_can_be_switched", DESKTOP) else { return };
    let paper = "getComputedStyle(document.body).backgroundColor";
    let light = browser.value(paper);
    // As the system is, light, dark.
    browser.click("#theme");
    assert_eq!(browser.value(paper), light);
    browser.click("#theme");
    let dark = browser.value(paper);
    assert_ne!(dark, light);
    browser.reload();
    assert_eq!(browser.value(paper), dark);
}
