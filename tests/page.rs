//! The page at `/` in headless Chromium. Where there is no Chromium the tests say so and pass.

#[path = "page/browser.rs"]
mod browser;
#[path = "page/failing.rs"]
mod failing;
#[path = "serve/http.rs"]
#[allow(dead_code)]
mod http;
#[path = "page/keeping.rs"]
mod keeping;
#[path = "page/layout.rs"]
mod layout;
#[path = "page/talking.rs"]
mod talking;
#[path = "page/writing.rs"]
mod writing;

use browser::{Browser, Look, chromium};
use http::Server;

/// A browser at a server's page; nothing where there is no browser.
fn open(server: &Server, test: &str, look: Look) -> Option<Browser> {
    let Some(program) = chromium() else {
        // Straight to the terminal: a skipped test should be seen.
        use std::io::Write;
        let _ = writeln!(
            std::io::stderr(),
            "skipped: {test} needs chromium, and there is none in PATH"
        );
        return None;
    };
    Some(Browser::open(&program, &format!("{}/", server.url()), look))
}
