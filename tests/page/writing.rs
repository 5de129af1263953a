//! What a model writes: markdown as it should look, and nothing of it that could act.

use crate::browser::{Browser, DESKTOP};
use crate::http::Server;
use crate::open;
use serde_json::json;

/// Shows an answer with this text.
fn answer(browser: &mut Browser, text: &str) {
    browser.press("Control+Shift+O");
    browser.wait_for("document.querySelectorAll('.turn').length === 0");
    browser.value(&format!("stub.say({})", json!(text)));
    browser.say("go on");
    browser.wait_for_answer(0, "done");
}

const MARKDOWN: &str = r#"# Title

A *word*, **another**, `code`, ~~none~~ and [a link](https://example.org/a?b=c), bare https://example.net too, mail to
[us](mailto:us@example.org). Prices are $5 and $10; math is $a_1 * b_2 * c$ or \(x_1 * y_2\).

$$
\sum_{i=1}^n i_1 * i_2
$$

| Name | Count |
|:--|--:|
| a | 1 |
| b &amp; c | 22 |

1. one
   - nested

     ```rust
     fn main() {
         println!("<b>&amp;</b>");
     }
     ```
2. two

> quoted
> > twice

````markdown
```python
inner
```
````

---

![a picture](https://example.org/a.png)
"#;

#[test]
fn markdown_is_drawn() {
    let server = Server::start(&[]);
    let Some(mut browser) = open(&server, "markdown_is_drawn", DESKTOP) else { return };
    answer(&mut browser, MARKDOWN);
    for (selector, text) in [
        ("h1", "Title"),
        ("em", "word"),
        ("strong", "another"),
        ("p > code", "code"),
        ("s", "none"),
        ("th:nth-child(2)", "Count"),
        ("tbody tr:nth-child(2) td", "b & c"),
        ("td.right", "1"),
        ("ol > li > ul > li > p", "nested"),
        ("blockquote blockquote p", "twice"),
        ("li .code figcaption span", "rust"),
        ("li .code code", "fn main() {\n    println!(\"<b>&amp;</b>\");\n}"),
        ("li .code .c-keyword", "fn"),
        ("> .code figcaption span", "markdown"),
        ("> .code code", "```python\ninner\n```"),
        ("p.math", "$$\n\\sum_{i=1}^n i_1 * i_2\n$$"),
    ] {
        assert_eq!(browser.text(&format!(".answer .prose {selector}")), text, "{selector}");
    }
    let math = "[...document.querySelectorAll('.answer span.math')].map(e => e.textContent)";
    assert_eq!(browser.value(math), json!(["$a_1 * b_2 * c$", "\\(x_1 * y_2\\)"]));
    let links = "[...document.querySelectorAll('.answer a')].map(a => [a.getAttribute('href'), a.rel, a.target])";
    let link = |href: &str| json!([href, "noopener noreferrer nofollow", "_blank"]);
    assert_eq!(
        browser.value(links),
        json!([
            link("https://example.org/a?b=c"),
            link("https://example.net/"),
            link("mailto:us@example.org"),
            link("https://example.org/a.png")
        ])
    );
    assert_eq!(browser.count(".answer img"), 0);

    let drawn = browser.value("document.querySelector('.answer .prose:not(details *)').innerHTML");

    // The code and the answer go to the clipboard as they were written.
    browser.click("li .code .copy");
    browser.wait_for("document.getElementById('status').textContent === 'Copied.'");
    assert_eq!(
        browser.value("navigator.clipboard.readText()"),
        "fn main() {\n    println!(\"<b>&amp;</b>\");\n}"
    );
    browser.click(".answer [aria-label='Copy the answer']");
    browser.wait_for(&format!(
        "navigator.clipboard.readText().then(text => text === {})",
        json!(MARKDOWN)
    ));

    // Drawn piece by piece while it came, it looks as it does when it is drawn at once.
    browser.reload();
    assert_eq!(
        browser.value("document.querySelector('.answer .prose:not(details *)').innerHTML"),
        drawn
    );
}

#[test]
fn what_a_model_writes_cannot_act() {
    let server = Server::start(&[]);
    let Some(mut browser) = open(&server, "what_a_model_writes_cannot_act", DESKTOP) else {
        return;
    };
    let hostile = [
        "<img src=x onerror=\"window.hurt = 1\">",
        "<script>window.hurt = 1</script>",
        "<svg onload=\"window.hurt = 1\"><animate onbegin=\"window.hurt = 1\"></svg>",
        "[a](javascript:window.hurt=1) [b](JaVaScRiPt:window.hurt=1) [c](&#106;avascript:window.hurt=1)",
        "[d](data:text/html,<script>window.hurt=1</script>) [e](vbscript:x) [f](file:///etc/passwd)",
        "[g](\u{1}javascript:window.hurt=1) <javascript:window.hurt=1> [h](/v1/models) [i](//elsewhere.example)",
        "![x](javascript:window.hurt=1) ![\" onerror=window.hurt=1](x)",
        "<iframe src=\"javascript:window.hurt=1\"></iframe><a href=\"javascript:window.hurt=1\">x</a>",
        "```html\" onclick=\"window.hurt=1\n<script>window.hurt=1</script>\n```",
        "<style>body { display: none }</style><form action=//elsewhere.example><input></form>",
        "| <img src=x onerror=window.hurt=1> |\n|---|\n| <script>window.hurt=1</script> |",
        "$<img src=x onerror=window.hurt=1>$",
    ];
    answer(&mut browser, &hostile.join("\n\n"));
    // The same as a question, as a title and as thoughts.
    browser.value(&format!("stub.say('ok', {{ thought: {} }})", json!(hostile.join("\n\n"))));
    browser.say(hostile[0]);
    browser.wait_for_answer(1, "done");
    browser.click("article:last-child summary");
    browser.press("Control+Shift+O");
    browser.value("stub.say('ok')");
    browser.say(hostile[0]);
    browser.wait_for_answer(0, "done");
    assert_eq!(browser.text("#title"), hostile[0]);
    browser.click("#list li[data-id]:nth-child(3) a");
    browser.wait_for("document.querySelectorAll('.turn').length === 4");
    // Give what would act the time to do so.
    browser.value("new Promise(resolve => setTimeout(resolve, 300))");
    assert_eq!(browser.value("window.hurt ?? null"), json!(null));
    let strange = ".turn :is(img, script, iframe, style, input, object, embed, link, meta, svg:not(.icon, .strip))";
    assert_eq!(browser.count(strange), 0);
    let handlers = "[...document.querySelectorAll('.turn *')].flatMap(e => e.getAttributeNames())\
        .filter(name => name.startsWith('on') || name === 'style')";
    assert_eq!(browser.value(handlers), json!([]));
    let schemes = "[...document.querySelectorAll('.turn a')].map(a => a.protocol)\
        .filter(scheme => !['http:', 'https:', 'mailto:'].includes(scheme))";
    assert_eq!(browser.value(schemes), json!([]));
    assert_eq!(browser.count(".turn a"), 0);
    // All of it is there to read.
    let shown = browser.text(".answer .prose:not(details *)");
    assert!(
        shown.contains("<img src=x onerror=") && shown.contains("<script>window.hurt = 1</script>"),
        "{shown}"
    );
}

#[test]
fn long_and_awkward_answers_stay_smooth() {
    let server = Server::start(&[]);
    let Some(mut browser) = open(&server, "long_and_awkward_answers_stay_smooth", DESKTOP) else {
        return;
    };
    // 60 KB in many blocks: what has settled is not touched again.
    let paragraph =
        "Words of a paragraph with `code`, **weight** and [a link](https://example.org).\n\n";
    let code = "```python\nfor i in range(10):\n    print(i)\n```\n\n";
    let text = format!("{}{}", "The first block.\n\n", format!("{paragraph}{code}").repeat(450));
    browser.value(
        "window.removed = 0;
         new MutationObserver(all => all.forEach(({ removedNodes, target }) => {
             if (target.matches?.('.prose')) removed += removedNodes.length;
         })).observe(document.getElementById('turns'), { childList: true, subtree: true }); 0",
    );
    answer(&mut browser, &text);
    assert_eq!(browser.count(".answer .prose > p, .answer .prose > figure"), 901);
    let (drawn, removed) = (901, browser.value("removed").as_u64().unwrap());
    // A drawing takes away at most the blocks that came with the last one and two that had not
    // settled.
    assert!(removed < 4 * drawn, "{removed}");

    // Texts that are a trap for some parsers.
    for (text, least) in [
        (">".repeat(5_000), 0),
        ("[".repeat(30_000), 30_000),
        ("_a_".repeat(10_000), 10_000),
        ("- ".repeat(2_000), 0),
        (format!("```\n{}", "x = 1\n".repeat(8_000)), 47_000),
    ] {
        answer(&mut browser, &text);
        let shown = browser.text(".answer .prose:not(details *)").len();
        assert!(shown >= least, "{shown} of {}", &text[..10]);
    }
}
