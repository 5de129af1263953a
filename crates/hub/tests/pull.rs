//! `pull` against a stand-in for the Hub: what comes, what is asked, and what every failure of the
//! table leaves behind.

use hub::{Draft, HubName, Name, Pulled, Settings, Watcher, find, find_pair, pull};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use testing::hub::{At, COMMIT, Fault, Hub, Repository, git_sha1, sha256};

const PIECE: u64 = 1000;

/// A machine with a cache of its own, and a Hub that it asks.
struct Scene {
    hub: Hub,
    settings: Settings,
    folder: TempDir,
}

/// Bytes that are no two alike for long.
fn weights(length: usize, seed: u32) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..length).map(|_| next()).collect()
}

fn repository(name: &str, files: &[(&str, Vec<u8>)]) -> Repository {
    let files = files.iter().map(|(path, bytes)| ((*path).to_owned(), bytes.clone())).collect();
    Repository { name: name.to_owned(), files, gate: None }
}

impl Scene {
    fn new(repositories: Vec<Repository>) -> Self {
        let hub = Hub::start(repositories);
        let folder = TempDir::new().unwrap();
        let home = folder.path().to_str().unwrap().to_owned();
        let mut settings = Settings::from(|name| (name == "HOME").then(|| home.clone()));
        settings.endpoint.clone_from(&hub.endpoint);
        settings.patience = Duration::from_millis(1);
        settings.piece = PIECE;
        settings.connections = 3;
        settings.ollama.truncate(1);
        Self { hub, settings, folder }
    }

    /// A repository `o/m` with one large file in ten pieces.
    fn simple() -> Self {
        Self::new(vec![repository("o/m", &[("m-Q8_0.gguf", weights(9_500, 1))])])
    }

    fn pull(&self, word: &str) -> Result<Pulled, String> {
        self.pull_until(word, &AtomicBool::new(false))
    }

    fn pull_until(&self, word: &str, stop: &AtomicBool) -> Result<Pulled, String> {
        let name = match Name::parse(Path::new(word)).unwrap() {
            Name::Hub(name) | Name::Catalogue { hub: name, .. } => name,
            other => panic!("{word} is {other:?}"),
        };
        pull(&name, &self.settings, &Watcher::silent(), stop).map_err(|e| format!("{e:#}"))
    }

    fn find(&self, word: &str) -> Result<PathBuf, String> {
        find(Path::new(word), &self.settings).map(|f| f.path).map_err(|e| format!("{e:#}"))
    }

    /// Names of everything in the cache that looks like a whole file.
    fn visible(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut folders = vec![self.settings.cache.clone()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                let name = entry.file_name().into_string().unwrap();
                let is_ours = name.contains(".forerun-") || name.ends_with(".lock");
                match entry.path().is_dir() {
                    true => folders.push(entry.path()),
                    false if is_ours => {}
                    false => found.push(name),
                }
            }
        }
        found.sort();
        found
    }
}

fn gets(scene: &Scene, at: At) -> usize {
    scene.hub.requests().iter().filter(|r| r.at == at && r.method == "GET").count()
}

#[test]
fn a_file_comes_in_pieces_and_a_second_run_fetches_nothing() {
    let config = b"{}".to_vec();
    let bytes = weights(9_500, 1);
    let files = [("m-Q8_0.gguf", bytes.clone()), ("config.json", config.clone())];
    let scene = Scene::new(vec![repository("o/m", &files)]);
    let pulled = scene.pull("o/m").unwrap();
    assert_eq!((pulled.bytes, pulled.fetched), (9_502, 9_502));
    assert_eq!(std::fs::read(&pulled.path).unwrap(), bytes);

    // The layout that every program of Hugging Face reads.
    let root = scene.settings.cache.join("models--o--m");
    let snapshot = root.join("snapshots").join(COMMIT);
    assert_eq!(pulled.path, snapshot.join("m-Q8_0.gguf"));
    assert_eq!(std::fs::read_to_string(root.join("refs/main")).unwrap(), COMMIT);
    let link = std::fs::read_link(&pulled.path).unwrap();
    assert_eq!(link, Path::new("../../blobs").join(sha256(&bytes)));
    assert_eq!(std::fs::read(root.join("blobs").join(git_sha1(&config))).unwrap(), config);
    assert_eq!(scene.find("o/m").unwrap(), pulled.path);
    let left = std::fs::read_dir(root.join("blobs")).unwrap().count();
    assert_eq!(left, 2, "nothing but the two files");

    let requests = scene.hub.requests();
    let ranges: Vec<_> = requests.iter().filter(|r| r.at == At::Store).collect();
    assert_eq!(ranges.len(), 10);
    assert!(ranges.iter().any(|r| r.range.as_deref() == Some("bytes=9000-9499")));
    let located = requests.iter().filter(|r| r.method == "HEAD" && r.path.contains(".gguf"));
    assert_eq!(located.count(), 1, "where the file lies is asked once");

    let again = scene.pull("o/m").unwrap();
    assert_eq!((again.fetched, again.path), (0, pulled.path));
    let requests = scene.hub.requests();
    assert_eq!(requests.len(), 1, "{requests:?}");
    assert_eq!(requests[0].at, At::Listing);
}

#[test]
fn a_token_goes_to_the_hub_and_nowhere_else() {
    let mut scene = Scene::simple();
    scene.settings.token = Some("hf_secret".to_owned());
    scene.pull("o/m").unwrap();
    for request in scene.hub.requests() {
        let expected = (request.at != At::Store).then_some("Bearer hf_secret");
        assert_eq!(request.authorization.as_deref(), expected, "{request:?}");
    }
}

#[test]
fn failures_that_pass_are_sat_out() {
    let cases: Vec<(&str, Vec<(At, Fault)>)> = vec![
        ("too many requests", vec![(At::Listing, Fault::Status(429, Some(0)))]),
        ("the Hub fails", vec![(At::Listing, Fault::Status(503, None)); 3]),
        ("asking where it lies fails", vec![(At::File, Fault::Status(502, None))]),
        ("too many at the store", vec![(At::Store, Fault::Status(429, Some(0))); 4]),
        ("the store fails", vec![(At::Store, Fault::Status(500, None)); 4]),
        ("an address has expired", vec![(At::Store, Fault::Status(403, None)); 2]),
        ("connections break", vec![(At::Store, Fault::Cut(400)); 9]),
        ("connections break at once", vec![(At::Store, Fault::Cut(0)); 4]),
        ("the listing breaks off", vec![(At::Listing, Fault::Cut(20))]),
        ("no ranges", vec![(At::Store, Fault::Whole); 12]),
    ];
    for (what, faults) in cases {
        let scene = Scene::simple();
        for (at, fault) in faults {
            scene.hub.fail(at, fault);
        }
        let pulled = scene.pull("o/m").unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(std::fs::read(pulled.path).unwrap(), weights(9_500, 1), "{what}");
    }
}

#[test]
fn a_server_that_says_when_to_come_again_is_believed() {
    let scene = Scene::simple();
    scene.hub.fail(At::Listing, Fault::Status(429, Some(1)));
    let start = Instant::now();
    scene.pull("o/m").unwrap();
    assert!(start.elapsed() >= Duration::from_secs(1), "not before the second it asked for");
}

#[test]
fn failures_that_last_leave_nothing_that_looks_whole() {
    let cases = [
        ("500", At::Store, Fault::Status(500, None), "given up after 6 tries in a row"),
        ("cut", At::Store, Fault::Cut(0), "given up after 6 tries in a row"),
        ("403", At::Store, Fault::Status(403, None), "given up after 6 tries in a row"),
        ("flip", At::Store, Fault::Flip, "does not have the checksum"),
        ("pointer", At::Store, Fault::Pointer, "a Git LFS pointer in place of the file"),
        ("418", At::Listing, Fault::Status(418, None), "418"),
    ];
    for (what, at, fault, sentence) in cases {
        let scene = Scene::simple();
        scene.hub.fail_always(at, fault);
        let said = scene.pull("o/m").unwrap_err();
        assert!(said.contains(sentence), "{what}: {said}");
        assert_eq!(scene.visible(), Vec::<String>::new(), "{what}");
        let missing = scene.find("o/m").unwrap_err();
        assert!(missing.contains("`forerun pull o/m`"), "{what}: {missing}");
        // And the next one, when all is well again, is as if nothing had been.
        scene.hub.recover();
        let pulled = scene.pull("o/m").unwrap();
        assert_eq!(std::fs::read(pulled.path).unwrap(), weights(9_500, 1), "{what}");
    }
}

#[test]
fn what_came_before_a_failure_does_not_come_again() {
    let mut scene = Scene::simple();
    scene.settings.connections = 1;
    for _ in 0..4 {
        scene.hub.fail(At::Store, Fault::Late(0));
    }
    scene.hub.fail_always(At::Store, Fault::Status(500, None));
    scene.pull("o/m").unwrap_err();
    scene.hub.recover();
    scene.hub.requests();
    let pulled = scene.pull("o/m").unwrap();
    assert_eq!(pulled.fetched, 9_500 - 4 * PIECE, "four pieces were kept");
    assert_eq!(gets(&scene, At::Store), 6);
    assert_eq!(std::fs::read(pulled.path).unwrap(), weights(9_500, 1));
}

#[test]
fn pieces_that_went_bad_on_the_disk_are_fetched_anew() {
    let mut scene = Scene::simple();
    scene.settings.connections = 1;
    for _ in 0..4 {
        scene.hub.fail(At::Store, Fault::Late(0));
    }
    scene.hub.fail_always(At::Store, Fault::Status(500, None));
    scene.pull("o/m").unwrap_err();
    scene.hub.recover();
    let blobs = scene.settings.cache.join("models--o--m/blobs");
    let mut files = std::fs::read_dir(blobs).unwrap().flatten().map(|entry| entry.path());
    let partial = files.find(|path| path.to_str().unwrap().ends_with("-partial")).unwrap();
    let mut bytes = std::fs::read(&partial).unwrap();
    bytes[17] ^= 1;
    std::fs::write(&partial, bytes).unwrap();
    let pulled = scene.pull("o/m").unwrap();
    assert_eq!(std::fs::read(pulled.path).unwrap(), weights(9_500, 1));
}

#[test]
fn a_user_who_stops_it_goes_on_later() {
    let scene = Scene::simple();
    scene.hub.fail_always(At::Store, Fault::Late(1000));
    let stop = AtomicBool::new(false);
    let said = std::thread::scope(|scope| {
        scope.spawn(|| {
            while gets(&scene, At::Store) == 0 {
                std::thread::sleep(Duration::from_millis(5));
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        scene.pull_until("o/m", &stop).unwrap_err()
    });
    assert!(said.contains("stopped; what has come is kept"), "{said}");
    assert_eq!(scene.visible(), Vec::<String>::new());
    scene.hub.recover();
    assert_eq!(std::fs::read(scene.pull("o/m").unwrap().path).unwrap(), weights(9_500, 1));
}

#[test]
fn two_at_once_fetch_a_file_once() {
    let scene = Scene::simple();
    scene.hub.fail_always(At::Store, Fault::Late(5));
    let fetched: Vec<u64> = std::thread::scope(|scope| {
        let both = [0, 1].map(|_| scope.spawn(|| scene.pull("o/m").unwrap().fetched));
        both.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(fetched.iter().sum::<u64>(), 9_500, "{fetched:?}");
    assert_eq!(gets(&scene, At::Store), 10);
}

#[test]
fn what_is_not_to_be_had_is_said_with_what_would_help() {
    let mut gated = repository("o/gated", &[("m.gguf", weights(10, 1))]);
    gated.gate = Some("hf_good".to_owned());
    let mut scene = Scene::new(vec![gated, repository("o/m", &[("m-Q8_0.gguf", weights(9, 1))])]);
    let endpoint = scene.settings.endpoint.clone();
    let terms = format!("`o/gated` is gated: accept its terms at {endpoint}/o/gated first; ");
    let nobody = "no token was sent: set `HF_TOKEN`, or run `hf auth login`";
    assert_eq!(scene.pull("o/gated").unwrap_err(), format!("{terms}{nobody}"));
    let absent = format!("{endpoint} has no `o/absent`, or it is private: check the spelling; ");
    assert_eq!(scene.pull("o/absent").unwrap_err(), format!("{absent}{nobody}"));
    let said = scene.pull("o/m@v9").unwrap_err();
    assert!(said.starts_with("`o/m` has no such revision"), "{said}");
    let said = scene.pull("o/m:Q2_K").unwrap_err();
    assert!(said.starts_with("`o/m` has no file `Q2_K`; there are Q8_0 (9 bytes)"), "{said}");
    let said = scene.pull("hf:o/m/x.gguf").unwrap_err();
    assert_eq!(said, "`o/m` has no file `x.gguf`");

    scene.settings.token = Some("hf_bad".to_owned());
    let said = scene.pull("o/gated").unwrap_err();
    assert_eq!(said, format!("{terms}the token that was sent has no access"));
    scene.settings.token = Some("hf_good".to_owned());
    scene.pull("o/gated").unwrap();
}

#[test]
fn without_a_network_what_is_here_is_taken() {
    let mut scene = Scene::simple();
    scene.settings.offline = true;
    let said = scene.pull("o/m").unwrap_err();
    assert!(said.ends_with("`HF_HUB_OFFLINE` says that nothing is fetched"), "{said}");
    assert!(scene.hub.requests().is_empty());
    scene.settings.offline = false;
    let path = scene.pull("o/m").unwrap().path;
    scene.settings.offline = true;
    scene.hub.requests();
    assert_eq!(scene.pull("o/m").unwrap().path, path);
    assert!(scene.hub.requests().is_empty());
    // Nobody listens on port 9 of this machine.
    scene.settings.offline = false;
    scene.settings.endpoint = "http://127.0.0.1:9".to_owned();
    assert_eq!(scene.pull("o/m").unwrap().path, path);
    let said = scene.pull("o/other").unwrap_err();
    assert!(said.contains("http://127.0.0.1:9"), "{said}");
}

#[test]
fn parts_and_folders_come_whole() {
    let index = r#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}"#;
    let scene = Scene::new(vec![
        repository(
            "o/split",
            &[
                ("Q8_0/m-Q8_0-00001-of-00002.gguf", weights(1_500, 1)),
                ("Q8_0/m-Q8_0-00002-of-00002.gguf", weights(2_500, 2)),
                ("m-Q4_K_M.gguf", weights(900, 3)),
            ],
        ),
        repository(
            "o/folder",
            &[
                ("config.json", b"{}".to_vec()),
                ("model.safetensors.index.json", index.as_bytes().to_vec()),
                ("model-1.safetensors", weights(1_200, 4)),
                ("model-2.safetensors", weights(1_300, 5)),
                ("pytorch_model.bin", weights(5_000, 6)),
            ],
        ),
    ]);
    let pulled = scene.pull("o/split:Q8_0").unwrap();
    assert_eq!(pulled.fetched, 4_000);
    assert!(pulled.path.ends_with("Q8_0/m-Q8_0-00001-of-00002.gguf"));
    let link = std::fs::read_link(&pulled.path).unwrap();
    assert!(link.starts_with("../../../blobs"), "{}", link.display());
    assert_eq!(scene.find("o/split:q8_0").unwrap(), pulled.path);
    assert!(scene.find("o/split:Q4_K_M").is_err(), "that one is not here");
    std::fs::remove_file(pulled.path.with_file_name("m-Q8_0-00002-of-00002.gguf")).unwrap();
    let said = scene.find("o/split:Q8_0").unwrap_err();
    assert!(said.contains("1 of 2 parts are here"), "{said}");

    let pulled = scene.pull("o/folder").unwrap();
    assert_eq!(pulled.bytes, 2 + index.len() as u64 + 2_500, "no pickles");
    assert_eq!(scene.find("o/folder").unwrap(), pulled.path);
    std::fs::remove_file(pulled.path.join("model-2.safetensors")).unwrap();
    let said = scene.find("o/folder").unwrap_err();
    assert!(said.contains("1 of 2 files of weights are here"), "{said}");
}

#[test]
fn a_new_commit_does_not_hide_what_is_the_same_in_it() {
    let files = [("m-Q8_0.gguf", weights(900, 1)), ("m-Q4_0.gguf", weights(800, 2))];
    let scene = Scene::new(vec![repository("o/m", &files)]);
    let old = scene.pull("o/m:Q8_0").unwrap().path;
    // As if that had been at another commit.
    let (root, earlier) = (scene.settings.cache.join("models--o--m"), "f".repeat(40));
    let snapshots = root.join("snapshots");
    std::fs::rename(snapshots.join(COMMIT), snapshots.join(&earlier)).unwrap();
    std::fs::write(root.join("refs/main"), &earlier).unwrap();
    scene.pull("o/m:Q4_0").unwrap();
    assert_eq!(scene.find("o/m:Q8_0").unwrap(), old);
    assert_eq!(std::fs::read(old).unwrap(), weights(900, 1));
}

#[test]
fn a_first_pull_that_was_interrupted_is_no_model() {
    let files = [("model-1.safetensors", weights(900, 1)), ("model-2.safetensors", weights(9, 2))];
    let scene = Scene::new(vec![repository("o/m", &files)]);
    scene.hub.fail(At::Store, Fault::Late(0));
    scene.hub.fail_always(At::Store, Fault::Status(500, None));
    scene.pull("o/m").unwrap_err();
    assert!(scene.visible().contains(&"model-1.safetensors".to_owned()), "{:?}", scene.visible());
    let pinned = format!("o/m@{COMMIT}");
    for word in ["o/m", &pinned] {
        let said = scene.find(word).unwrap_err();
        let expected = format!("its pull was interrupted, `forerun pull {word}` goes on");
        assert!(said.contains(&expected), "{said}");
    }
    scene.hub.recover();
    let path = scene.pull(&pinned).unwrap().path;
    assert_eq!([scene.find("o/m").unwrap(), scene.find(&pinned).unwrap()], [path.clone(), path]);
}

#[test]
fn a_model_of_the_catalogue_finds_its_drafter() {
    let target = "unsloth/Qwen3.6-27B-GGUF";
    let drafter = "z-lab/Qwen3.6-27B-DFlash";
    let scene = Scene::new(vec![
        repository(target, &[("Qwen3.6-27B-UD-Q4_K_XL.gguf", weights(100, 1))]),
        repository(
            drafter,
            &[("config.json", b"{}".to_vec()), ("model.safetensors", weights(9, 2))],
        ),
    ]);
    let pair = |draft: Option<&str>| {
        find_pair(Some(Path::new("qwen3.6-27b")), draft.map(Path::new), &scene.settings)
            .map_err(|error| format!("{error:#}"))
    };
    let said = pair(None).unwrap_err();
    assert_eq!(
        said,
        "`qwen3.6-27b` is not on this machine: `forerun pull qwen3.6-27b` fetches it (17.6 GB)"
    );
    scene.pull("qwen3.6-27b").unwrap();
    let without = pair(None).unwrap().1;
    assert!(matches!(without, Draft::Absent { .. }), "it runs without, and says so: {without:?}");
    let said = pair(Some("auto")).unwrap_err();
    assert!(said.contains("`forerun pull z-lab/Qwen3.6-27B-DFlash` fetches it"), "{said}");
    scene.pull(drafter).unwrap();
    for draft in [None, Some("auto")] {
        let (found, draft) = pair(draft).unwrap();
        assert_eq!(found.unwrap().name.as_deref(), Some("qwen3.6-27b"));
        assert!(matches!(draft, Draft::Belonging { name, .. } if name == drafter), "{draft:?}");
    }
    assert_eq!(pair(Some("none")).unwrap().1, Draft::Nothing);
    // By the Hub's name a drafter has to be asked for.
    let word = format!("{target}:UD-Q4_K_XL");
    let pair = |draft| find_pair(Some(Path::new(&word)), draft, &scene.settings).unwrap().1;
    assert_eq!(pair(None), Draft::Own);
    assert!(matches!(pair(Some(Path::new("auto"))), Draft::Belonging { .. }));
}

#[test]
fn models_of_ollama_and_lm_studio_are_found() {
    let scene = Scene::simple();
    let home = scene.folder.path();
    let put = |path: PathBuf, text: &str| {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    let models = home.join(".ollama/models");
    let digest = "ab".repeat(32);
    let manifest = format!(
        r#"{{"layers": [{{"mediaType": "application/vnd.ollama.image.template", "digest": "x"}},
            {{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:{digest}"}}]}}"#
    );
    let library = models.join("manifests/registry.ollama.ai/library");
    put(library.join("qwen3.6/latest"), &manifest);
    put(library.join("bad/latest"), r#"{"layers": []}"#);
    let said = scene.find("ollama:qwen3.6").unwrap_err();
    assert!(said.contains("its weights are not there"), "{said}");
    let blob = models.join("blobs").join(format!("sha256-{digest}"));
    put(blob.clone(), "GGUF");
    assert_eq!(scene.find("ollama:qwen3.6").unwrap(), blob);
    assert!(scene.find("ollama:bad").unwrap_err().ends_with("the manifest names no weights"));
    assert_eq!(
        scene.find("ollama:qwen9:27b").unwrap_err(),
        "Ollama has no `qwen9:27b` on this machine: `ollama pull qwen9:27b` fetches it; there are \
         ollama:bad:latest, ollama:qwen3.6:latest"
    );

    let file = home.join(".lmstudio/models/o/studio/m-Q4_K_M.gguf");
    put(file.clone(), "GGUF");
    assert_eq!(scene.find("o/studio").unwrap(), file);
    assert_eq!(scene.find("o/studio:q4_k_m").unwrap(), file);
    assert!(scene.find("o/studio@main").is_err(), "LM Studio keeps no revisions");
    assert_eq!(HubName::of("o/studio").to_string(), "o/studio");
}
