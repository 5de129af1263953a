//! Headless Chromium, driven through its debugging pipe: messages are JSON, each followed by a zero byte.

use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Something on the page must have happened by then.
const PATIENCE: Duration = Duration::from_secs(60);

/// A browser with one page; ends with the test.
pub(crate) struct Browser {
    child: Child,
    commands: File,
    answers: BufReader<File>,
    session: String,
    count: u64,
    _folder: tempfile::TempDir,
}

/// Where the browser is, if it is anywhere.
pub(crate) fn chromium() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let names = ["chromium", "chromium-browser", "google-chrome"];
    std::env::split_paths(&path)
        .flat_map(|folder| names.map(|name| folder.join(name)))
        .find(|file| file.is_file())
}

impl Browser {
    pub(crate) fn open(program: &PathBuf, url: &str, dark: bool) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let [to, from] = ["to", "from"].map(|name| folder.path().join(name));
        assert!(Command::new("mkfifo").args([&to, &from]).status().expect("mkfifo").success());
        let flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-dev-shm-usage \
            --disable-background-networking --disable-component-update --disable-sync --remote-debugging-pipe \
            --window-size=1000,760";
        let scheme = if dark {
            "--blink-settings=preferredColorScheme=0"
        } else {
            "--blink-settings=preferredColorScheme=1"
        };
        let script = format!("exec \"$0\" {flags} {scheme} --user-data-dir=\"$1\" 3<\"$2\" 4>\"$3\"");
        let mut command = Command::new("sh");
        command.arg("-c").arg(script).arg(program).arg(folder.path().join("data")).args([&to, &from]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the browser starts");
        let commands = OpenOptions::new().write(true).open(&to).expect("a pipe");
        let answers = BufReader::new(File::open(&from).expect("a pipe"));
        let session = String::new();
        let mut browser = Self { child, commands, answers, session, count: 0, _folder: folder };
        let target = browser.send("Target.createTarget", json!({"url": "about:blank"}))["targetId"].clone();
        let attach = json!({"targetId": target, "flatten": true});
        browser.session = browser.send("Target.attachToTarget", attach)["sessionId"]
            .as_str()
            .expect("a session")
            .to_owned();
        browser.send("Page.enable", json!({}));
        browser.send("Page.navigate", json!({"url": url}));
        browser.wait_for("document.readyState === 'complete' && typeof ask === 'function'");
        browser
    }

    /// Sends a command and waits for its result.
    pub(crate) fn send(&mut self, method: &str, params: Value) -> Value {
        self.count += 1;
        let mut message = json!({"id": self.count, "method": method, "params": params});
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        self.commands.write_all(format!("{message}\0").as_bytes()).expect("the browser reads");
        loop {
            let mut bytes = Vec::new();
            self.answers.read_until(0, &mut bytes).expect("the browser writes");
            assert_eq!(bytes.pop(), Some(0), "the browser has ended");
            let answer: Value = serde_json::from_slice(&bytes).expect("JSON");
            if answer["id"] == self.count {
                assert!(answer.get("error").is_none(), "{method}: {answer}");
                return answer["result"].clone();
            }
        }
    }

    /// The value of an expression on the page.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let result = self.send("Runtime.evaluate", params);
        assert!(result.get("exceptionDetails").is_none(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    pub(crate) fn wait_for(&mut self, expression: &str) {
        let start = Instant::now();
        while self.value(expression) != json!(true) {
            assert!(start.elapsed() < PATIENCE, "{expression} did not come true");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Types a text where the cursor is.
    pub(crate) fn type_text(&mut self, text: &str) {
        self.send("Input.insertText", json!({"text": text}));
    }

    pub(crate) fn press(&mut self, key: &str) {
        let code = match key {
            "Enter" => 13,
            "Escape" => 27,
            "Tab" => 9,
            " " => 32,
            other => panic!("{other} has no code here"),
        };
        let text = if key == "Enter" {
            "\r"
        } else if key == " " {
            " "
        } else {
            ""
        };
        let event = json!({"key": key, "code": key, "windowsVirtualKeyCode": code, "text": text});
        for kind in ["keyDown", "keyUp"] {
            let mut event = event.clone();
            event["type"] = json!(kind);
            self.send("Input.dispatchKeyEvent", event);
        }
    }

    /// A picture of the page as PNG, in base64.
    pub(crate) fn picture(&mut self) -> String {
        self.send("Page.captureScreenshot", json!({"format": "png"}))["data"]
            .as_str()
            .expect("a picture")
            .to_owned()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
