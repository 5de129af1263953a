//! What the host has left for weights that a device reads from there.

use anyhow::{Result, bail};
use std::fs;
use std::path::Path;

/// Refuses weights that the host has no room for. They are locked in its memory, so nothing could
/// be moved out of their way, and a process that takes too much is ended without a word.
pub(crate) fn check(needed: usize) -> Result<()> {
    match available() {
        Some(left) if needed > left => bail!(
            "weights of {:.1} GB do not fit on the device and would lie in the host's memory, of \
             which this process may take {:.1} GB more. More of the device (`--device-memory`), a \
             shorter context (`--ctx`), a smaller cache (`--kv q8_0`) or a smaller quantisation \
             leaves less of them there",
            needed as f64 / 1e9,
            left as f64 / 1e9
        ),
        _ => Ok(()),
    }
}

/// Bytes that this process may still take: what the machine has available, or what its control
/// groups leave it. None where nobody says.
fn available() -> Option<usize> {
    let machine = fs::read_to_string("/proc/meminfo").ok();
    let machine = machine.and_then(|text| Some(1024 * number_of(&text, "MemAvailable:")?));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    let root = Path::new("/sys/fs/cgroup");
    let group = group.and_then(|name| left_in(root, &root.join(name)));
    machine.into_iter().chain(group).min()
}

/// What a group and those around it leave: their limit without what is in use, but for what was
/// read from files and can go.
fn left_in(root: &Path, group: &Path) -> Option<usize> {
    let left = |group: &Path| {
        let read = |file: &str| fs::read_to_string(group.join(file)).ok();
        let limit: usize = read("memory.max")?.trim().parse().ok()?;
        let used: usize = read("memory.current")?.trim().parse().ok()?;
        let files = read("memory.stat").and_then(|text| number_of(&text, "inactive_file"));
        Some(limit.saturating_sub(used.saturating_sub(files.unwrap_or(0))))
    };
    group.ancestors().take_while(|group| group.starts_with(root)).filter_map(left).min()
}

/// The number of the line that begins with that word.
fn number_of(text: &str, name: &str) -> Option<usize> {
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_narrowest_group_counts() {
        let root = std::env::temp_dir().join(format!("forerun-groups-{}", std::process::id()));
        let inner = root.join("outer/inner");
        fs::create_dir_all(&inner).expect("a folder");
        let write = |group: &Path, file: &str, text: &str| {
            fs::write(group.join(file), text).expect("a file");
        };
        assert_eq!(left_in(&root, &inner), None, "nobody says");
        write(&inner, "memory.max", "max\n");
        write(&inner, "memory.current", "500\n");
        assert_eq!(left_in(&root, &inner), None, "no limit");
        write(&root.join("outer"), "memory.max", "1000\n");
        write(&root.join("outer"), "memory.current", "700\n");
        assert_eq!(left_in(&root, &inner), Some(300));
        write(&root.join("outer"), "memory.stat", "anon 5\nfile 600\ninactive_file 200\n");
        assert_eq!(left_in(&root, &inner), Some(500), "what was read can go");
        write(&inner, "memory.max", "400\n");
        assert_eq!(left_in(&root, &inner), Some(0), "more in use than allowed");
        fs::remove_dir_all(&root).expect("the folder goes");
    }

    #[test]
    fn lines_have_numbers() {
        let text = "MemTotal:       16 kB\nMemAvailable:    7 kB\n";
        assert_eq!(number_of(text, "MemAvailable:"), Some(7));
        assert_eq!(number_of(text, "MemAvail"), None);
        let refusal = check(usize::MAX).expect_err("nobody has so much").to_string();
        assert!(refusal.contains("`--device-memory`"), "{refusal}");
    }
}
