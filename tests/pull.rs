//! `forerun pull` as a process: killed at any moment, out of room, and beside another one. What the
//! Hub may do to it is in `crates/hub/tests/pull.rs`.
#![cfg(unix)]

#[allow(dead_code)]
#[path = "support/program.rs"]
mod program;

use program::command;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;
use testing::hub::{At, Fault, Hub, Repository, sha256};

const NAME: &str = "o/m";
const FILE: &str = "m-Q8_0.gguf";

/// Bytes that are no two alike for long.
fn weights() -> Vec<u8> {
    (0..3_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// A Hub with one model, and a home that has nothing.
struct Scene {
    hub: Hub,
    home: TempDir,
}

impl Scene {
    fn new() -> Self {
        let files = vec![(FILE.to_owned(), weights())];
        let hub = Hub::start(vec![Repository { name: NAME.to_owned(), files, gate: None }]);
        Self { hub, home: TempDir::new().unwrap() }
    }

    fn among<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        for name in ["HF_HOME", "HF_HUB_CACHE", "HF_TOKEN", "HF_HUB_OFFLINE", "XDG_CACHE_HOME"] {
            command.env_remove(name);
        }
        command.env("HOME", self.home.path()).env("HF_ENDPOINT", &self.hub.endpoint)
    }

    /// Pulls; the file, or what was said.
    fn pull(&self) -> Result<PathBuf, String> {
        let output = self.among(&mut command(&["pull", NAME])).output().unwrap();
        match output.status.success() {
            true => Ok(String::from_utf8(output.stdout).unwrap().trim().into()),
            false => Err(String::from_utf8(output.stderr).unwrap()),
        }
    }

    /// Everything under a final name, which must be whole.
    fn check_whole(&self) -> usize {
        let (mut found, mut folders) = (0, vec![self.home.path().to_owned()]);
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap().flatten() {
                let (path, name) = (entry.path(), entry.file_name().into_string().unwrap());
                if path.is_dir() {
                    folders.push(path);
                } else if name == FILE || name == sha256(&weights()) {
                    assert!(
                        std::fs::read(&path).unwrap() == weights(),
                        "{} is half",
                        path.display()
                    );
                    found += 1;
                }
            }
        }
        found
    }
}

#[test]
fn a_pull_that_is_killed_leaves_no_half_file_and_goes_on() {
    let scene = Scene::new();
    let mut kills = 0;
    // From before the first request to long after the last byte: sixteen parts, 10 ms apart.
    for delay in [2, 15, 30, 45, 60, 80, 100, 125, 150, 180, 210, 250] {
        scene.hub.fail_always(At::Store, Fault::Slow(10));
        let mut pull = command(&["pull", NAME]);
        let pull = scene.among(&mut pull).stdout(Stdio::null()).stderr(Stdio::null());
        let mut process = pull.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(delay));
        process.kill().unwrap();
        kills += usize::from(!process.wait().unwrap().success());
        scene.check_whole();
        scene.hub.recover();
    }
    assert!(kills > 3, "most were killed in the middle");
    let path = scene.pull().unwrap();
    assert!(std::fs::read(path).unwrap() == weights());
    assert_eq!(scene.check_whole(), 2, "the file, and the link to it");
    scene.hub.requests();
    scene.pull().unwrap();
    let asked = scene.hub.requests();
    assert!(
        asked.iter().all(|request| request.at == At::Listing),
        "nothing comes twice: {asked:?}"
    );
}

#[test]
fn ctrl_c_ends_a_pull_with_what_has_come_kept() {
    let scene = Scene::new();
    scene.hub.fail_always(At::Store, Fault::Slow(200));
    let mut process =
        scene.among(&mut command(&["pull", NAME])).stderr(Stdio::piped()).spawn().unwrap();
    while !scene.hub.requests().iter().any(|request| request.at == At::Store) {
        assert!(process.try_wait().unwrap().is_none(), "it ended before a byte was asked for");
        std::thread::sleep(Duration::from_millis(5));
    }
    let pid = process.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let mut said = String::new();
    std::io::Read::read_to_string(&mut process.stderr.take().unwrap(), &mut said).unwrap();
    assert_eq!(process.wait().unwrap().code(), Some(1), "{said}");
    assert!(said.contains("stopped; what has come is kept"), "{said}");
    assert_eq!(scene.check_whole(), 0);
    scene.hub.recover();
    scene.pull().unwrap();
    assert_eq!(scene.check_whole(), 2);
}

/// A limit on the size of files stands for a disk that fills up while a file comes.
#[test]
fn a_disk_that_fills_up_ends_a_pull_with_a_sentence() {
    let scene = Scene::new();
    let program = env!("CARGO_BIN_EXE_forerun");
    let script = format!("trap '' XFSZ; ulimit -f 100; exec {program} pull {NAME}");
    let output = scene.among(Command::new("sh").args(["-c", &script])).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.starts_with(&format!("forerun: `{FILE}` of `{NAME}`: ")), "{said}");
    assert!(said.contains("File too large"), "{said}");
    assert_eq!(scene.check_whole(), 0);
    scene.pull().unwrap();
    assert_eq!(scene.check_whole(), 2);
}

#[test]
fn two_processes_fetch_a_file_once() {
    let scene = Scene::new();
    scene.hub.fail_always(At::Store, Fault::Slow(20));
    let start = || {
        let mut command = command(&["pull", NAME]);
        scene.among(&mut command).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
    };
    let both = [start(), start()].map(|process| process.wait_with_output().unwrap());
    assert!(both.iter().all(|output| output.status.success()));
    assert_eq!(both[0].stdout, both[1].stdout);
    let path = String::from_utf8(both[0].stdout.clone()).unwrap();
    assert!(std::fs::read(Path::new(path.trim())).unwrap() == weights());
    let stored = scene.hub.requests().iter().filter(|request| request.at == At::Store).count();
    assert_eq!(stored, 1, "one piece, once");
}

/// What Hugging Face's own program and this one fetch is the other's too, one after the other and
/// at once. `FORERUN_HF` names the program (`scripts/test-files` installs it).
#[test]
fn the_cache_is_shared_with_hugging_faces_own_program() {
    let Some(program) = std::env::var_os("FORERUN_HF") else {
        println!("skipped: FORERUN_HF names no program");
        return;
    };
    let fetched = |scene: &Scene| {
        let requests = scene.hub.requests();
        let bytes = |r: &&testing::hub::Request| r.at == At::Store && r.method == "GET";
        requests.iter().filter(bytes).count()
    };
    let start = |scene: &Scene| {
        let mut command = Command::new(&program);
        let command = scene.among(command.args(["download", NAME, FILE, "--quiet"]));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let finish = |process: std::process::Child| {
        let output = process.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())
    };
    let scene = Scene::new();
    let theirs = finish(start(&scene));
    assert_eq!(fetched(&scene), 1);
    assert_eq!((scene.pull().unwrap(), fetched(&scene)), (theirs, 0), "theirs is ours");

    let scene = Scene::new();
    let ours = scene.pull().unwrap();
    assert!(fetched(&scene) > 0);
    assert_eq!((finish(start(&scene)), fetched(&scene)), (ours, 0), "ours is theirs");

    let scene = Scene::new();
    scene.hub.fail_always(At::Store, Fault::Slow(100));
    let process = start(&scene);
    while fetched(&scene) == 0 {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(scene.pull().unwrap(), finish(process), "who comes second waits for the first");
    assert_eq!((fetched(&scene), scene.check_whole()), (0, 2));
}
