//! The server's door for who does not come by HTTP: what routers hear of states on disk, and answers
//! that go on as they would on `/v1/completions`.

mod support;

use serde_json::{Map, Value, json};
use server::{Beside, Change, DiskShare, Door, Options, Tier};
use std::path::Path;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::oneshot;

/// Serves with states in a folder, if there is one, until `work` is done.
async fn with_worker<F: Future<Output = ()>>(
    folder: Option<&Path>,
    work: impl FnOnce(Door, UnboundedReceiver<Change>) -> F,
) {
    let (sender, changes) = unbounded_channel();
    let (give, given) = oneshot::channel();
    let serve = |door: Door| {
        let _ = give.send(door.clone());
        let until = async move { door.closed().await };
        Box::pin(until) as std::pin::Pin<Box<dyn Future<Output = ()> + Send>>
    };
    let beside = Beside { serve: Box::new(serve), listener: Some(sender) };
    let disk_cache = folder.map(|folder| DiskShare { folder: folder.to_owned(), bytes: 1 << 30 });
    let options = Options { slots: 1, disk_cache, beside: Some(beside), ..Options::default() };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(server::serve(listener, vec![support::tiny()], options, async {
        let _ = stopped.await;
    }));
    work(given.await.unwrap(), changes).await;
    stop.send(()).unwrap();
    serving.await.unwrap().unwrap();
}

/// The next state that comes to the disk or goes from it.
async fn on_disk(changes: &mut UnboundedReceiver<Change>) -> (Box<[u32]>, bool) {
    let next = async {
        loop {
            match changes.recv().await.expect("the worker runs") {
                Change::Moved { tokens, from: None, to: Some(Tier::Disk) } => {
                    return (tokens, true);
                }
                Change::Moved { tokens, from: Some(Tier::Disk), .. } => return (tokens, false),
                _ => {}
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), next).await.expect("states are written")
}

#[tokio::test(flavor = "multi_thread")]
async fn states_on_disk_are_told_by_who_wrote_them_and_by_who_comes_next() {
    let folder = std::env::temp_dir().join(format!("forerun-shelf-{}", std::process::id()));
    // A process of that number may have failed here before.
    let _ = std::fs::remove_dir_all(&folder);
    let said = "Sort these numbers, and say why it is done in that order. ".repeat(12);
    let prompt = format!("<|im_start|>user\n{said}<|im_end|>\n<|im_start|>assistant\n");
    let body = json!({"prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": true});
    let body = body.as_object().unwrap().clone();
    let mut written = None;
    with_worker(Some(&folder), async |door, mut changes| {
        let mut told = door.complete(body.clone()).await.unwrap();
        while told.next().await.is_some() {}
        let (tokens, is_there) = on_disk(&mut changes).await;
        let known = tokens.len().min(told.prompt.len());
        assert!(is_there && known >= 64 && tokens[..known] == told.prompt[..known]);
        written = Some(tokens);
    })
    .await;
    with_worker(Some(&folder), async |_, mut changes| {
        assert_eq!(changes.recv().await, Some(Change::Cleared), "a worker begins with nothing");
        let mut found = on_disk(&mut changes).await;
        while Some(&found.0) != written.as_ref() {
            assert!(found.1);
            found = on_disk(&mut changes).await;
        }
        assert!(found.1, "nobody has asked yet");
        std::fs::remove_dir_all(folder.join("states")).unwrap();
        // What is gone is told behind all that came.
        while on_disk(&mut changes).await.1 {}
    })
    .await;
    std::fs::remove_dir_all(&folder).unwrap();
}

/// The tokens of an answer.
async fn tokens(door: &Door, body: Map<String, Value>) -> (Vec<u32>, Vec<u32>) {
    let mut told = door.complete(body).await.unwrap();
    let mut tokens = Vec::new();
    while let Some(piece) = told.next().await {
        tokens.extend(piece.unwrap().tokens);
    }
    (told.prompt, tokens)
}

#[tokio::test(flavor = "multi_thread")]
async fn who_says_what_was_written_has_its_penalties_and_grammar_go_on() {
    with_worker(None, async |door, _| {
        for more in [
            json!({"frequency_penalty": 1.5, "repetition_penalty": 1.3, "ignore_eos": true}),
            json!({"structured_outputs": {"regex": "([a-z]+, )+[0-9]+ [A-Z ]{9,}"}}),
        ] {
            let mut body = more.as_object().unwrap().clone();
            body.insert("prompt".to_owned(), json!("def quicksort(items):\n"));
            body.insert("temperature".to_owned(), json!(1.0));
            body.insert("seed".to_owned(), json!(11));
            body.insert("max_tokens".to_owned(), json!(24));
            let (prompt, whole) = tokens(&door, body.clone()).await;
            assert!(whole.len() > 8, "{whole:?}");
            for k in 1..whole.len() {
                let begun = [prompt.as_slice(), &whole[..k]].concat();
                body.insert("prompt".to_owned(), json!(begun));
                body.insert("max_tokens".to_owned(), json!(24 - k));
                body.insert("forerun".to_owned(), json!({"written": k}));
                assert_eq!(tokens(&door, body.clone()).await.1, whole[k..], "{more}, after {k}");
            }
        }
    })
    .await;
}
