//! A folder of states: what is written is read to the bit or not at all, whatever happens to its
//! files, to the process that writes them, or to the room on the disk.

use compute::{Activations, Cpu, CpuLevel, KvType};
use engine::synthetic::{Mix, Weights, tiny};
use engine::{Engine, Sequence, Spec};
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use store::{Folder, Identity, Manifest, Name, Reader, Revival, StoreError, WriteError, Writer};

/// Plenty.
const SHARE: u64 = 1 << 30;

fn engine() -> Engine {
    let mut config = tiny();
    config.layers.truncate(4);
    (config.gdn.value_heads, config.vocab, config.mtp) = (2, 256, None);
    let weights = Weights::new(&config, Mix::Q8_0, 1);
    let cpu = Box::new(Cpu::new(CpuLevel::detect(), 1, Activations::Int8));
    let spec = Spec::Lookup { budget: 4 };
    Engine::load(cpu, (&config, &weights), None, KvType::F16, spec).expect("it loads")
}

fn identity() -> Identity {
    Identity(Name::of(b"a tiny model"))
}

fn open(root: &Path) -> Folder {
    Folder::open(root, SHARE, identity()).expect("it opens")
}

/// A conversation's tokens: `seed` tells conversations apart from the first token on.
fn tokens(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| (7 * seed + i * (13 + seed)) % 200).collect()
}

/// The state after some tokens.
fn state(engine: &mut Engine, tokens: &[u32]) -> Sequence {
    let mut sequence = engine.sequence();
    let rows = engine.model().options().max_rows;
    tokens.chunks(rows).for_each(|chunk| engine.read(&mut sequence, chunk).expect("a chunk"));
    sequence
}

fn write(
    engine: &mut Engine,
    folder: &Folder,
    tokens: &[u32],
    sequence: &Sequence,
) -> Result<(), WriteError> {
    folder.write(tokens, &engine.archive(sequence).expect("it is taken apart"))
}

/// What the folder has for a prompt, as far as it can be read.
fn read(engine: &mut Engine, folder: &Folder, prompt: &[u32]) -> Option<Revival> {
    let (blank, vocab) = (engine.sequence(), engine.model().config().vocab);
    let found = folder.longest(prompt)?;
    let fits = |m: &Manifest| m.outline.blocks(&blank, &m.tokens, vocab);
    folder.read(found, prompt, fits)
}

fn revive(engine: &mut Engine, revival: Revival) -> Sequence {
    let Revival { tokens, outline, blocks } = revival;
    engine.revive(&outline, &tokens, blocks).expect("it fits")
}

/// All files below a folder, but for the lock.
fn files(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if !path.ends_with("lock") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// That every file below `root` is a state or a piece of one, once it was tidied up.
fn assert_tidy(root: &Path) {
    let folder = open(root);
    folder.collect().expect("it is tidied up");
    let (mut named, mut there) = (HashSet::new(), HashSet::new());
    let mut bytes = 0;
    for path in files(root) {
        bytes += fs::metadata(&path).expect("a file").len();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.starts_with(root.join("states")) {
            let manifest = Manifest::parse(&fs::read(&path).expect("bytes")).expect("a state");
            named.extend(manifest.pieces.iter().map(|piece| piece.name.to_string()));
        } else {
            there.insert(name);
        }
    }
    assert_eq!(named, there);
    assert_eq!(folder.tally().bytes, bytes);
}

#[test]
fn a_state_is_found_by_the_longest_beginning_and_is_the_same_to_the_bit() {
    let (root, mut engine) = (tempfile::tempdir().unwrap(), engine());
    let all = tokens(1, 300);
    let states: Vec<Sequence> =
        [70, 200].iter().map(|len| state(&mut engine, &all[..*len])).collect();
    let folder = open(root.path());
    for sequence in &states {
        write(&mut engine, &folder, &all[..sequence.committed()], sequence).expect("it is kept");
    }
    // Another process, and one for another model.
    let (again, mut other_engine) = (open(root.path()), self::engine());
    for (prompt, expected) in
        [(300, Some(1)), (201, Some(1)), (200, Some(0)), (71, Some(0)), (70, None)]
    {
        let found = read(&mut other_engine, &again, &all[..prompt]);
        assert_eq!(
            found.as_ref().map(|r| r.tokens.len()),
            expected.map(|i: usize| states[i].committed())
        );
        if let (Some(revival), Some(i)) = (found, expected) {
            assert_eq!(revive(&mut other_engine, revival), states[i]);
        }
    }
    assert!(read(&mut other_engine, &again, &tokens(2, 300)).is_none());
    let other = Folder::open(root.path(), SHARE, Identity(Name::of(b"another"))).expect("it opens");
    assert!(read(&mut other_engine, &other, &all).is_none());
    assert_eq!(again.tally().damaged, 0);
    assert_tidy(root.path());
}

#[test]
fn turns_of_a_conversation_share_their_pages() {
    let (root, mut engine) = (tempfile::tempdir().unwrap(), engine());
    let folder = open(root.path());
    let (all, mut sequence) = (tokens(1, 64 * 20), engine.sequence());
    let mut written = Vec::new();
    for turn in 1..=20 {
        engine.read(&mut sequence, &all[64 * (turn - 1)..64 * turn]).expect("a turn is read");
        let before = folder.tally().written_bytes;
        write(&mut engine, &folder, &all[..64 * turn], &sequence).expect("it is kept");
        written.push(folder.tally().written_bytes - before);
    }
    // A turn writes its page and its recurrent state; the file's list grows by some bytes a token.
    assert!(written[19] < written[1] + 30 * 64 * 20, "{written:?}");
    let whole: usize = sequence.blocks().iter().map(|block| block.bytes).sum();
    assert!(written[19] < whole as u64, "{written:?} of {whole}");
    assert_tidy(root.path());
}

#[test]
fn damaged_files_are_ignored_and_removed() {
    let mut engine = engine();
    let all = tokens(1, 150);
    let sequence = state(&mut engine, &all[..140]);
    let root = tempfile::tempdir().unwrap();
    let folder = open(root.path());
    write(&mut engine, &folder, &all[..140], &sequence).expect("it is kept");
    let sound: Vec<(PathBuf, Vec<u8>)> = files(root.path())
        .into_iter()
        .map(|path| (path.clone(), fs::read(&path).unwrap()))
        .collect();
    assert!(sound.len() > 4);
    type Damage = fn(&mut Vec<u8>);
    let damages: [Damage; 6] = [
        |bytes| bytes.truncate(bytes.len() / 2),
        |bytes| bytes.clear(),
        |bytes| bytes.push(0),
        |bytes| *bytes.first_mut().unwrap() ^= 1,
        |bytes| *bytes.last_mut().unwrap() ^= 0x80,
        |bytes| *bytes = b"something else entirely".to_vec(),
    ];
    for damage in damages {
        for (path, bytes) in &sound {
            let mut damaged = bytes.clone();
            damage(&mut damaged);
            fs::write(path, &damaged).expect("it is damaged");
            let folder = open(root.path());
            assert!(read(&mut engine, &folder, &all).is_none(), "{path:?}");
            assert_eq!(folder.tally().damaged, 1);
            assert!(!path.exists(), "{path:?} stays");
            assert!(folder.longest(&all).is_none());
            // It is written again, by somebody who has all of it.
            sound.iter().for_each(|(path, bytes)| fs::write(path, bytes).expect("it is written"));
        }
    }
    // One whose pieces are missing is none, and another's file under its name neither.
    let (state_file, pieces): (Vec<_>, Vec<_>) =
        sound.iter().partition(|(path, _)| path.starts_with(root.path().join("states")));
    fs::remove_file(&pieces[0].0).expect("a piece goes");
    assert!(read(&mut engine, &open(root.path()), &all).is_none());
    fs::write(&pieces[0].0, &pieces[0].1).expect("it is back");
    let name = state_file[0].0.file_name().unwrap().to_str().unwrap();
    let foreign = state_file[0].0.with_file_name(name.replacen("140-", "139-", 1));
    fs::write(&foreign, &state_file[0].1).expect("a foreign file");
    fs::write(&state_file[0].0, &state_file[0].1).expect("it is back");
    assert_eq!(read(&mut engine, &open(root.path()), &all).map(|r| r.tokens.len()), Some(140));
    fs::remove_file(&state_file[0].0).expect("it goes");
    assert!(read(&mut engine, &open(root.path()), &all).is_none());
    fs::write(root.path().join("pieces").join("stray"), b"stray").expect("a stray file");
    fs::create_dir_all(root.path().join("pieces/zz")).expect("a folder");
    fs::write(root.path().join("pieces/zz/stray"), b"stray").expect("a stray file");
    open(root.path()).collect().expect("it is tidied up");
    assert_eq!(files(root.path()), [root.path().join("pieces").join("stray")]);
}

/// What is left when a process ends at any step, or when the disk is full at any step: the state is
/// read to the bit or not at all, and the next process writes it and tidies up.
#[test]
fn a_write_may_end_anywhere() {
    let mut engine = engine();
    let all = tokens(1, 150);
    let (early, late) = (state(&mut engine, &all[..64]), state(&mut engine, &all[..140]));
    for killed in [true, false] {
        let mut steps = 0;
        for step in 0.. {
            let root = tempfile::tempdir().unwrap();
            let folder = open(root.path());
            // To the engine a copy's blocks are new: it would know the others from the last folder.
            let (first, second) = (early.unshared().unwrap(), late.unshared().unwrap());
            write(&mut engine, &folder, &all[..64], &first).expect("the first is kept");
            folder.faults().fail(step, if killed { usize::MAX } else { 1 });
            let written = write(&mut engine, &folder, &all[..140], &second);
            let is_over = written.is_ok();
            drop(folder);
            let folder = open(root.path());
            let found = read(&mut engine, &folder, &all).expect("the first is there");
            let len = found.tokens.len();
            assert!(len == 64 || len == 140);
            assert_eq!(
                revive(&mut engine, found),
                if len == 64 { early.clone() } else { late.clone() }
            );
            if !killed {
                assert_eq!(
                    fs::read_dir(root.path().join("tmp")).unwrap().count(),
                    0,
                    "step {step}"
                );
            }
            let copy = late.unshared().expect("a copy");
            write(&mut engine, &folder, &all[..140], &copy).expect("now it is kept");
            let found = read(&mut engine, &folder, &all).expect("it is there");
            assert_eq!(revive(&mut engine, found), late);
            assert_tidy(root.path());
            assert!(fs::read_dir(root.path().join("tmp")).unwrap().next().is_none());
            steps = step;
            if is_over {
                break;
            }
        }
        // Four steps a file.
        assert!(steps > 12, "{steps}");
    }
}

#[test]
fn what_was_used_longest_ago_makes_room() {
    let (root, mut engine) = (tempfile::tempdir().unwrap(), engine());
    let conversations: Vec<Vec<u32>> = (1..=4).map(|seed| tokens(seed, 100)).collect();
    let one = {
        let root = tempfile::tempdir().unwrap();
        let folder = open(root.path());
        let sequence = state(&mut engine, &conversations[0][..99]);
        write(&mut engine, &folder, &conversations[0][..99], &sequence).expect("it is kept");
        folder.tally().written_bytes
    };
    // Room for three.
    let share = 3 * one + one / 2;
    let folder = Folder::open(root.path(), share, identity()).expect("it opens");
    let past = |minutes: u64| SystemTime::now() - Duration::from_secs(60 * minutes);
    for (i, conversation) in conversations[..3].iter().enumerate() {
        let sequence = state(&mut engine, &conversation[..99]);
        write(&mut engine, &folder, &conversation[..99], &sequence).expect("it is kept");
        let states = files(&root.path().join("states"));
        for path in states.iter().filter(|p| fs::metadata(p).unwrap().modified().unwrap() > past(1))
        {
            let file = fs::File::options().write(true).open(path).unwrap();
            file.set_modified(past(30 - 10 * i as u64)).unwrap();
        }
    }
    assert_eq!(folder.tally().states, 3);
    // The first is used, so the second is the oldest.
    assert!(read(&mut engine, &folder, &conversations[0]).is_some());
    let sequence = state(&mut engine, &conversations[3][..99]);
    write(&mut engine, &folder, &conversations[3][..99], &sequence).expect("it is kept");
    let there: Vec<bool> =
        conversations.iter().map(|c| read(&mut engine, &folder, c).is_some()).collect();
    assert_eq!(there, [true, false, true, true]);
    assert!(folder.tally().bytes <= share && folder.tally().evicted == 1);
    assert_tidy(root.path());
    // What does not fit alone pushes nobody out.
    let small = Folder::open(root.path(), one / 2, identity()).expect("it opens");
    let gone = state(&mut engine, &conversations[1][..99]);
    let refused = write(&mut engine, &small, &conversations[1][..99], &gone);
    assert!(matches!(refused, Err(WriteError::TooLarge { .. })));
    assert_eq!(files(&root.path().join("states")).len(), 3);
}

/// A session keeps its last states alone, while it goes on too.
#[test]
fn a_folder_may_hold_a_few_states_only() {
    let (root, mut engine) = (tempfile::tempdir().unwrap(), engine());
    let all = tokens(5, 400);
    let mut keep = |folder: &Folder, turns: &[usize]| {
        for len in turns {
            let sequence = state(&mut engine, &all[..*len]);
            write(&mut engine, folder, &all[..*len], &sequence).expect("it is kept");
        }
        files(&root.path().join("states")).len()
    };
    assert_eq!(keep(&open(root.path()), &[50, 100, 150, 200]), 4);
    let folder = open(root.path()).at_most(2);
    folder.collect().expect("it is tidied up");
    assert_eq!(files(&root.path().join("states")).len(), 2);
    assert_eq!(keep(&folder, &[250, 300, 350]), 2);
    assert!(folder.has(&all[..300]) && folder.has(&all[..350]) && folder.tally().states == 2);
    assert_tidy(root.path());
}

#[test]
fn several_may_use_a_folder_at_once() {
    let root = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for worker in 0..3u32 {
            let root = root.path();
            scope.spawn(move || {
                let mut engine = engine();
                // So little that room is made all the time.
                let folder = Folder::open(root, 6 << 20, identity()).expect("it opens");
                for round in 0..12 {
                    let all = tokens(round % 5, 130);
                    let sequence = state(&mut engine, &all[..100 + worker as usize]);
                    let len = sequence.committed();
                    if let Some(revival) = read(&mut engine, &folder, &all) {
                        let expected = state(&mut engine, &revival.tokens.clone());
                        assert_eq!(revive(&mut engine, revival), expected);
                    }
                    match write(&mut engine, &folder, &all[..len], &sequence) {
                        Ok(()) | Err(WriteError::Gone) => {}
                        Err(error) => panic!("{error}"),
                    }
                    folder.refresh().expect("a look");
                }
                assert_eq!(folder.tally().damaged, 0);
            });
        }
    });
    assert_tidy(root.path());
}

/// Real processes, killed at any moment. This test is also the process: it writes until it is
/// killed where it finds a folder in its environment.
#[test]
fn killed_processes_leave_nothing_wrong() {
    const FOLDER: &str = "FORERUN_STORE_KILLED";
    let mut engine = engine();
    if let Some(root) = std::env::var_os(FOLDER) {
        let folder = Folder::open(Path::new(&root), 6 << 20, identity()).expect("it opens");
        println!("writing");
        for round in 0u32.. {
            let all = tokens(round % 7, 130);
            let sequence = state(&mut engine, &all);
            if write(&mut engine, &folder, &all, &sequence).is_ok() {
                println!("written");
            }
        }
    }
    let root = tempfile::tempdir().unwrap();
    let program = std::env::current_exe().expect("this program");
    let mut found = 0;
    for round in 0..12u64 {
        let mut child = Command::new(&program)
            .args(["killed_processes_leave_nothing_wrong", "--exact", "--nocapture"])
            .env(FOLDER, root.path())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut lines = std::io::BufReader::new(child.stdout.take().expect("a pipe"));
        let mut line = String::new();
        // However slow the machine is, the last one has something to leave.
        while !line.contains(if round < 11 { "writing" } else { "written" }) {
            line.clear();
            assert!(std::io::BufRead::read_line(&mut lines, &mut line).expect("a line") > 0);
        }
        std::thread::sleep(Duration::from_millis(20 + 37 * round));
        child.kill().expect("it is killed");
        child.wait().expect("it has ended");
        let folder = open(root.path());
        for seed in 0..7 {
            let all = tokens(seed, 131);
            if let Some(revival) = read(&mut engine, &folder, &all) {
                assert_eq!(revival.tokens, &all[..130]);
                assert_eq!(revive(&mut engine, revival), state(&mut engine, &all[..130]));
                found += 1;
            }
        }
        assert_eq!(folder.tally().damaged, 0);
        assert_tidy(root.path());
    }
    assert!(found > 0, "nothing was ever kept");
}

#[test]
fn threads_write_and_read_behind() {
    let (root, mut engine) = (tempfile::tempdir().unwrap(), engine());
    let all = tokens(3, 200);
    let sequence = state(&mut engine, &all[..150]);
    let folder = Arc::new(open(root.path()));
    let writer = Writer::start(Arc::clone(&folder)).expect("a thread");
    writer.send(all[..150].to_vec(), engine.archive(&sequence).expect("it is taken apart"));
    drop(writer);
    assert!(folder.has(&all[..150]) && !folder.has(&all[..149]));
    let vocab = engine.model().config().vocab;
    let mut reader = Reader::start(folder, engine.sequence(), vocab).expect("a thread");
    assert!(reader.ask(&all, 151).is_none());
    let (len, awaited) = reader.ask(&all, 100).expect("it is there");
    assert_eq!(len, 150);
    let revival = awaited.wait(Duration::from_secs(60)).expect("in time").expect("it is sound");
    assert_eq!(revive(&mut engine, revival), sequence);
}

#[test]
fn other_folders_are_left_alone() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("thesis.tex"), "years of work").expect("a file");
    let refused = Folder::open(root.path(), SHARE, identity());
    assert!(matches!(refused, Err(StoreError::Foreign(_))));
    assert_eq!(files(root.path()).len(), 1);
}
