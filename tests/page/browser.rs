//! Headless Chromium, driven through its debugging pipe: messages are JSON, each followed by a zero
//! byte.

use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Something on the page must have happened by then.
const PATIENCE: Duration = Duration::from_secs(180);

/// A window and the colours that its system prefers.
#[derive(Clone, Copy)]
pub(crate) struct Look {
    pub(crate) width: u32,
    pub(crate) height: u32,
    pub(crate) dark: bool,
}

pub(crate) const DESKTOP: Look = Look { width: 1280, height: 800, dark: false };
pub(crate) const PHONE: Look = Look { width: 390, height: 844, dark: false };

/// A browser with one page; ends with the test.
pub(crate) struct Browser {
    child: Child,
    commands: File,
    answers: BufReader<File>,
    session: String,
    count: u64,
    folder: tempfile::TempDir,
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
    pub(crate) fn open(program: &PathBuf, url: &str, look: Look) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let [to, from] = ["to", "from"].map(|name| folder.path().join(name));
        assert!(Command::new("mkfifo").args([&to, &from]).status().expect("mkfifo").success());
        let flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-dev-shm-usage \
            --disable-background-networking --disable-component-update --disable-sync --remote-debugging-pipe";
        let scheme = if look.dark {
            "--blink-settings=preferredColorScheme=0"
        } else {
            "--blink-settings=preferredColorScheme=1"
        };
        let script =
            format!("exec \"$0\" {flags} {scheme} --user-data-dir=\"$1\" 3<\"$2\" 4>\"$3\"");
        let mut command = Command::new("sh");
        command
            .arg("-c")
            .arg(script)
            .arg(program)
            .arg(folder.path().join("data"))
            .args([&to, &from]);
        let child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the browser starts");
        let commands = OpenOptions::new().write(true).open(&to).expect("a pipe");
        let answers = BufReader::new(File::open(&from).expect("a pipe"));
        let session = String::new();
        let mut browser = Self { child, commands, answers, session, count: 0, folder };
        let target =
            browser.send("Target.createTarget", json!({"url": "about:blank"}))["targetId"].clone();
        let attach = json!({"targetId": target, "flatten": true});
        browser.session = browser.send("Target.attachToTarget", attach)["sessionId"]
            .as_str()
            .expect("a session")
            .to_owned();
        browser.send("Page.enable", json!({}));
        let Look { width, height, .. } = look;
        let mobile = width < 600;
        let metrics =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile});
        browser.send("Emulation.setDeviceMetricsOverride", metrics);
        browser.send("Emulation.setTouchEmulationEnabled", json!({"enabled": mobile}));
        let stub = include_str!("stub.js");
        browser.send("Page.addScriptToEvaluateOnNewDocument", json!({"source": stub}));
        let permissions = json!(["clipboardReadWrite", "clipboardSanitizedWrite"]);
        browser.send("Browser.grantPermissions", json!({"permissions": permissions}));
        let downloads = json!({"behavior": "allow", "downloadPath": browser.downloads()});
        browser.send("Browser.setDownloadBehavior", downloads);
        browser.send("Page.navigate", json!({"url": url}));
        browser.wait_until_ready();
        browser
    }

    /// Waits until the page has begun. While it is loaded there is nothing to ask.
    fn wait_until_ready(&mut self) {
        let params = json!({"expression": "document.body?.dataset.ready === 'yes'"});
        let start = Instant::now();
        loop {
            match self.try_send("Runtime.evaluate", params.clone()) {
                Ok(result) if result["result"]["value"] == true => return,
                _ => assert!(start.elapsed() < PATIENCE, "the page did not begin"),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Loads the page again.
    pub(crate) fn reload(&mut self) {
        self.value("delete document.body.dataset.ready");
        self.send("Page.reload", json!({}));
        self.wait_until_ready();
    }

    /// Where files go that the page hands out.
    fn downloads(&self) -> PathBuf {
        self.folder.path().join("downloads")
    }

    /// The text of a file that the page has handed out under this name.
    pub(crate) fn downloaded(&self, name: &str) -> String {
        let file = self.downloads().join(name);
        let start = Instant::now();
        loop {
            match std::fs::read_to_string(&file) {
                Ok(text) if !text.is_empty() => return text,
                _ => assert!(start.elapsed() < PATIENCE, "{name} was not handed out"),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Chooses a file with this text in the page's field for files.
    pub(crate) fn choose_file(&mut self, id: &str, text: &str) {
        let file = self.folder.path().join("chosen.json");
        std::fs::write(&file, text).expect("a file");
        let params = json!({"expression": format!("document.getElementById('{id}')")});
        let object = self.send("Runtime.evaluate", params)["result"]["objectId"].clone();
        self.send("DOM.setFileInputFiles", json!({"files": [file], "objectId": object}));
    }

    /// Sends a command and waits for its result.
    pub(crate) fn send(&mut self, method: &str, params: Value) -> Value {
        self.try_send(method, params).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    fn try_send(&mut self, method: &str, params: Value) -> Result<Value, Value> {
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
                let error = answer.get("error").cloned();
                return error.map_or_else(|| Ok(answer["result"].clone()), Err);
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

    /// Presses a key, with others held: `Control+k`.
    pub(crate) fn press(&mut self, keys: &str) {
        let (held, key) = keys.rsplit_once('+').unwrap_or(("", keys));
        let modifiers = held.split('+').map(|key| match key {
            "" => 0,
            "Control" => 2,
            "Shift" => 8,
            other => panic!("{other} cannot be held"),
        });
        let (code, text) = match key {
            "Enter" => (13, "\r"),
            "Escape" => (27, ""),
            "Tab" => (9, ""),
            " " => (32, " "),
            "ArrowDown" => (40, ""),
            "ArrowUp" => (38, ""),
            "Delete" => (46, ""),
            "F2" => (113, ""),
            "k" => (75, ""),
            "O" => (79, ""),
            other => panic!("{other} has no code here"),
        };
        let modifiers: u32 = modifiers.sum();
        let event = json!({"key": key, "code": key, "windowsVirtualKeyCode": code, "text": text,
            "modifiers": modifiers});
        for kind in ["keyDown", "keyUp"] {
            let mut event = event.clone();
            event["type"] = json!(kind);
            self.send("Input.dispatchKeyEvent", event);
        }
    }

    /// Clicks the first element of a selector.
    pub(crate) fn click(&mut self, selector: &str) {
        self.wait_for(&format!("document.querySelector({}) !== null", json!(selector)));
        self.value(&format!("document.querySelector({}).click()", json!(selector)));
    }

    /// Types a message and sends it.
    pub(crate) fn say(&mut self, text: &str) {
        self.value("document.getElementById('prompt').focus()");
        self.type_text(text);
        self.press("Enter");
    }

    /// Waits until an answer of those that are shown has come to this state.
    pub(crate) fn wait_for_answer(&mut self, index: usize, state: &str) {
        self.wait_for(&format!(
            "document.querySelectorAll('.answer')[{index}]?.dataset.state === '{state}'"
        ));
    }

    /// The text of the first element of a selector.
    pub(crate) fn text(&mut self, selector: &str) -> String {
        let text = self
            .value(&format!("document.querySelector({})?.textContent ?? null", json!(selector)));
        text.as_str().unwrap_or_else(|| panic!("there is no {selector}")).to_owned()
    }

    /// How many elements a selector has.
    pub(crate) fn count(&mut self, selector: &str) -> u64 {
        let count = self.value(&format!("document.querySelectorAll({}).length", json!(selector)));
        count.as_u64().expect("a number")
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
