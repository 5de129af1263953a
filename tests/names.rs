//! Names in place of paths, through the program: `pull` from a stand-in for the Hub, then every
//! verb by the name, and a chat in the browser. The tiny pair lies there under a real model's name.

#[path = "page/browser.rs"]
#[allow(dead_code)]
mod browser;
#[path = "serve/http.rs"]
#[allow(dead_code)]
mod http;
#[allow(dead_code)]
#[path = "support/program.rs"]
mod program;

use http::Server;
use program::command;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Output;
use tempfile::TempDir;
use testing::Pair;
use testing::hub::{At, Fault, Hub, Repository};

const TARGET: &str = "unsloth/Qwen3.6-27B-GGUF";
const DRAFTER: &str = "z-lab/Qwen3.6-27B-DFlash";

/// A new user's machine: an empty home, and a Hub.
struct Machine {
    hub: Hub,
    home: TempDir,
}

impl Machine {
    fn new() -> Self {
        let Pair { target, drafter } = Pair::dense();
        let file = |name: &str, path: &Path| (name.to_owned(), std::fs::read(path).unwrap());
        let of = |name: &str, files| Repository { name: name.to_owned(), files, gate: None };
        let hub = Hub::start(vec![
            of(TARGET, vec![file("Qwen3.6-27B-UD-Q4_K_XL.gguf", &target)]),
            of(DRAFTER, vec![file("draft-Q8_0.gguf", &drafter)]),
        ]);
        Self { hub, home: TempDir::new().unwrap() }
    }

    /// What the environment says, and nothing of the machine that the test runs on.
    fn environment(&self) -> Vec<(&str, &str)> {
        let home = self.home.path().to_str().unwrap();
        let unset = ["HF_HOME", "HF_HUB_CACHE", "HF_TOKEN", "HF_HUB_OFFLINE", "XDG_CACHE_HOME"];
        let unset = unset.into_iter().map(|name| (name, ""));
        unset.chain([("HOME", home), ("HF_ENDPOINT", self.hub.endpoint.as_str())]).collect()
    }

    fn run(&self, args: &[&str]) -> Output {
        command(args).envs(self.environment()).output().expect("the program starts")
    }

    /// What a command prints that must work.
    fn stdout(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        String::from_utf8(output.stdout).expect("text")
    }

    /// What is said of a command that cannot be done.
    fn refused(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {}", stderr(&output));
        stderr(&output)
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The three commands that README has for a new user, as words behind `forerun`.
fn commands_of_readme() -> [Vec<String>; 3] {
    let readme = std::fs::read_to_string("README.md").unwrap();
    let (_, rest) = readme.split_once("three commands lead to a chat in the browser:").unwrap();
    let block = rest.split("```").nth(1).expect("a block of commands");
    let command = |line: &str| -> Vec<String> {
        let command = line.split('#').next().unwrap_or_default();
        let words = command.strip_prefix("forerun ").expect("a verb").split_whitespace();
        words.map(str::to_owned).collect()
    };
    let commands: Vec<_> = block.trim().lines().map(command).collect();
    commands.try_into().expect("three")
}

/// Asks in a browser, where there is one.
fn chat_in_browser(server: &Server, name: &str) {
    let Some(program) = browser::chromium() else {
        eprintln!("skipped: the chat in the browser needs chromium, and there is none in PATH");
        return;
    };
    let url = format!("{}/", server.url());
    let mut page = browser::Browser::open(&program, &url, browser::DESKTOP);
    page.wait_for(&format!("document.getElementById('model').textContent === '{name}'"));
    page.say("Write Python quicksort");
    page.wait_for_answer(0, "done");
    let text = page.text(".answer");
    assert!(text.contains("quicksort"), "{text}");
}

#[test]
fn three_commands_lead_from_nothing_to_a_chat() {
    let machine = Machine::new();
    let name = "qwen3.6-27b";
    let [models, pull, serve] = commands_of_readme();
    fn words(command: &[String]) -> Vec<&str> {
        command.iter().map(String::as_str).collect()
    }
    // Before the first, every verb says what to do.
    let said = machine.refused(&["run", "--model", name, "Hi"]);
    let expected = "forerun: `qwen3.6-27b` is not on this machine: `forerun pull qwen3.6-27b` \
                    fetches it (17.6 GB)\n";
    assert_eq!(said, expected);

    let listed = machine.stdout(&words(&models));
    assert!(listed.contains("\nqwen3.6-27b  "), "{listed}");
    let pulled = machine.run(&words(&pull));
    assert!(pulled.status.success(), "{}", stderr(&pulled));
    let paths = String::from_utf8(pulled.stdout.clone()).unwrap();
    assert_eq!(paths.lines().count(), 2, "the model and its drafter: {paths}");
    assert_eq!(serve[0], "serve");
    // By itself `auto` may find that on a crowded machine drafting does not pay.
    let flags = [words(&serve[1..]), vec!["--spec", "chain"]].concat();
    let server = Server::start_among("0", &flags, &machine.environment());

    let page = server.get("/", "");
    assert!(page.status == 200 && page.body.contains("<html"), "the page to chat with");
    let chat = json!({
        "model": name,
        "messages": [{"role": "user", "content": "Write Python quicksort"}],
        "temperature": 0, "chat_template_kwargs": {"enable_thinking": false},
    });
    let answer = server.chat(&chat);
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap_or_default();
    assert!(text.contains("def quicksort(items):"), "{text}");
    assert_eq!(answer["model"], name);
    let length = answer["forerun"]["spec"]["mean_accept_length"].as_f64();
    assert!(length > Some(2.0), "the drafter came with it: {answer}");
    chat_in_browser(&server, name);

    // A second pull brings nothing, and says so.
    machine.hub.requests();
    let again = machine.run(&words(&pull));
    assert_eq!(again.stdout, pulled.stdout);
    assert!(stderr(&again).contains("all of it was here"), "{}", stderr(&again));
    let asked = machine.hub.requests();
    assert!(asked.iter().all(|request| request.at == At::Listing), "{asked:?}");
}

#[test]
fn names_stand_for_paths_in_every_verb() {
    let machine = Machine::new();
    machine.stdout(&["pull", "qwen3.6-27b"]);
    let asked = machine.hub.requests().len();
    assert!(asked > 0);
    let hub_name = format!("{TARGET}:ud-q4_k_xl");
    let question = ["Write Python quicksort", "--temp", "0", "--no-think", "--json"];
    let answer = |flags: &[&str]| -> Value {
        let text = machine.stdout(&[&["run"], &question[..], flags].concat());
        serde_json::from_str(&text).expect("JSON")
    };
    let by_catalogue = answer(&["--model", "qwen3.6-27b"]);
    let by_hub = answer(&["--model", &hub_name, "--draft", DRAFTER]);
    let embedded = answer(&[]);
    assert_eq!(by_catalogue["ids"], embedded["ids"]);
    assert_eq!(by_hub["ids"], embedded["ids"]);
    assert_eq!(by_hub["model"], hub_name);
    // Alone it has its MTP block to draft with, and no DFlash.
    let alone = answer(&["--model", "qwen3.6-27b", "--draft", "none", "--spec", "off"]);
    assert_eq!((&alone["ids"], &alone["spec"]["drafted"]), (&embedded["ids"], &json!(0)));

    let told = machine.run(&["run", "Hi", "--model", "qwen3.6-27b", "--max-tokens", "2"]);
    let sentence = format!("drafter: {DRAFTER}, which belongs to the model");
    assert!(stderr(&told).contains(&sentence), "{}", stderr(&told));

    let described = machine.stdout(&["inspect", DRAFTER, "--target", "qwen3.6-27b"]);
    assert!(described.starts_with(&format!("{DRAFTER}: DFlash drafter, ")), "{described}");
    let out = machine.home.path().join("out.gguf");
    let out = out.to_str().unwrap();
    let convert = ["convert", DRAFTER, "--target", "qwen3.6-27b", "--type", "q8_0", "--out", out];
    machine.stdout(&convert);
    let listed: Value = serde_json::from_str(&machine.stdout(&["models", "--json"])).unwrap();
    let models = listed["models"].as_array().unwrap();
    let here = models.iter().find(|model| model["name"] == "qwen3.6-27b").unwrap();
    assert_eq!(here["builds"][0]["here"], true);
    assert_eq!(here["builds"][1]["here"], false);
    let welcome = machine.stdout(&[]);
    assert!(welcome.contains("forerun chat --model qwen3.6-27b"), "{welcome}");
    assert!(machine.hub.requests().is_empty(), "no verb but `pull` asks the network");
}

#[test]
fn a_pull_that_fails_leaves_a_sentence_and_no_model() {
    let machine = Machine::new();
    machine.hub.fail_always(At::Store, Fault::Flip);
    let said = machine.refused(&["pull", "qwen3.6-27b"]);
    assert!(said.contains("does not have the checksum"), "{said}");
    machine.refused(&["run", "--model", "qwen3.6-27b", "Hi"]);
    machine.hub.recover();
    machine.stdout(&["pull", "--no-draft", "qwen3.6-27b"]);
    let told = machine.run(&["run", "Hi", "--model", "qwen3.6-27b", "--max-tokens", "2"]);
    let sentence = format!(
        "note: no drafter is used: the drafter of `qwen3.6-27b` is not on this machine: `forerun \
         pull {DRAFTER}` fetches it"
    );
    assert!(stderr(&told).contains(&sentence), "{}", stderr(&told));
}

/// What a user may give by mistake, and the sentence that helps.
#[test]
fn words_that_mean_no_model() {
    let machine = Machine::new();
    let endpoint = &machine.hub.endpoint;
    let pull_hint = |name: &str| {
        format!(
            "there is no file or folder `{name}`, and the Hub's model of that name is not on this \
             machine: `forerun pull {name}` fetches it from {endpoint}"
        )
    };
    let cases: Vec<(&str, String)> = vec![
        (
            "qwen3.6-27",
            "`qwen3.6-27` is no file and no model of the catalogue: the nearest is \
            `qwen3.6-27b`, `forerun models` lists all"
                .into(),
        ),
        (
            "llama3",
            "`llama3` is no file and no model of the catalogue: `forerun models` lists all".into(),
        ),
        ("hf.co/o/m:Q4_K_M", "`forerun pull o/m:Q4_K_M` fetches it".into()),
        ("qwen3.6-27b", "`forerun pull qwen3.6-27b` fetches it (17.6 GB)".into()),
        ("qwen3.6-27b:Q8_0", "`forerun pull qwen3.6-27b:Q8_0` fetches it (28.6 GB)".into()),
        ("Qwen/Qwen3.6-27B", pull_hint("Qwen/Qwen3.6-27B")),
        ("o/m:Q4_K_M@main", pull_hint("o/m:Q4_K_M@main")),
        ("hf:o/m/f.gguf", pull_hint("hf:o/m/f.gguf")),
        ("hf:o", "`o` is no name of a repository: `owner/name`, `owner/name:QUANT`".into()),
        ("hf:../../etc/passwd", "`../../etc/passwd` is no name of a repository".into()),
        ("https://huggingface.co/o/m/discussions/3/x", "is no page of a model".into()),
        ("https://example.com/m.gguf", "is an address: download it first".into()),
        ("https://huggingface.co/o/m/blob/main/m.gguf", "`forerun pull hf:o/m/m.gguf@main`".into()),
        (
            "ollama:qwen3.6",
            "Ollama has no `qwen3.6:latest` on this machine: `ollama pull \
            qwen3.6:latest` fetches it"
                .into(),
        ),
        ("ollama:../x", "`ollama:../x` is no name of Ollama's".into()),
        ("absent.gguf", "absent.gguf: No such file or directory".into()),
        ("./absent", "./absent: No such file or directory".into()),
    ];
    for (word, sentence) in &cases {
        for args in [&["run", "Hi", "--model", word][..], &["run", "Hi", "--draft", word]] {
            let said = machine.refused(args);
            assert!(said.contains(sentence.as_str()), "{args:?}: {said}");
            assert_eq!(said.lines().count(), 1, "one sentence: {said}");
        }
    }
    let auto = ["run", "Hi", "--model", "models/dense/target-Q4_K_M.gguf", "--draft", "auto"];
    let said = machine.refused(&auto);
    assert!(said.contains("give `--draft FILE`, or `--draft none`"), "{said}");
    let unknown = machine.refused(&["pull", "quicksort"]);
    assert!(unknown.contains("neither a model that `forerun models` lists nor"), "{unknown}");
    let nearest = machine.refused(&["pull", "qwen3.6-27"]);
    assert!(nearest.contains("the nearest is `qwen3.6-27b`"), "{nearest}");
    let there = machine.refused(&["pull", "models/dense/target-Q4_K_M.gguf"]);
    assert!(there.contains("is a file on this machine"), "{there}");
    let ollama = machine.refused(&["pull", "ollama:qwen3.6"]);
    assert!(ollama.contains("`ollama pull qwen3.6`"), "{ollama}");
}

#[test]
fn shells_and_man_are_told_of_every_verb() {
    let machine = Machine::new();
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = machine.stdout(&["completions", shell]);
        assert!(script.contains("pull") && script.contains("draft"), "{shell}");
    }
    let folder = machine.home.path().join("man");
    machine.stdout(&["man", folder.to_str().unwrap()]);
    for page in ["forerun.1", "forerun-run.1", "forerun-serve.1", "forerun-pull.1"] {
        let text = std::fs::read_to_string(folder.join(page)).unwrap();
        assert!(text.contains(".TH"), "{page}");
    }
    assert!(machine.stdout(&["man"]).contains(".TH forerun 1"));
}

#[test]
fn forerun_alone_shows_what_to_do_next() {
    let machine = Machine::new();
    let said = machine.stdout(&[]);
    for line in ["forerun run \"Write Python quicksort\"", "forerun pull qwen3", "forerun doctor"] {
        assert!(said.contains(line), "{line}: {said}");
    }
}
