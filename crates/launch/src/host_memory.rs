//! What the host has left for weights that a device reads from there, or that the processor
//! multiplies with.

use crate::device_memory::Need;
use anyhow::{Result, bail};
use checkpoint::{Drafter, Target, Weight};
use compute::{KvType, cpu::packed_bytes};
use engine::{Place, Placement};
use formats::BlockType;
use std::fs;
use std::path::Path;

/// Bytes that the processor packs a model into, beside its files, whose pages can go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    /// Those of experts, which may lie on a disk.
    experts: usize,
    /// All others, and the state of a short text.
    others: usize,
}

impl Held {
    /// Of a target and of the drafter that runs with it, its floats as that type where one is given.
    pub(crate) fn of(
        target: &Target,
        drafter: Option<&Drafter>,
        draft_type: Option<BlockType>,
        kv: KvType,
    ) -> Self {
        let config = &target.config;
        let on_disk = Placement { experts: Place::Disk, ..Placement::ON_DEVICE };
        // All of the next-token block stays.
        let mtp = format!("blk.{}.", config.layers.len());
        let is_expert =
            |w: &&Weight| !w.name.starts_with(&mtp) && on_disk.of(&w.name, &w.shape) == Place::Disk;
        let (experts, others): (Vec<_>, Vec<_>) = target.weights.iter().partition(is_expert);
        let sum = |weights: Vec<&Weight>| weights.iter().map(|w| packed(w, None)).sum::<usize>();
        let of_drafter = drafter.into_iter().flat_map(|drafter| drafter.weights.iter());
        let of_drafter = of_drafter.map(|w| packed(w, draft_type)).sum::<usize>();
        let state = engine::state_bytes(config, kv, Need::LEAST);
        Self { experts: sum(experts), others: sum(others) + of_drafter + state }
    }

    /// Refuses what does not fit the `left` bytes that this process may take, where somebody says
    /// how many, or the disk of the folder that experts are to lie in.
    pub(crate) fn check(self, left: Option<usize>, folder: Option<&Path>) -> Result<()> {
        let gb = |bytes: usize| format!("{:.1} GB", bytes as f64 / 1e9);
        let free =
            folder.and_then(hub::free).map(|free| usize::try_from(free).unwrap_or(usize::MAX));
        if let (Some(folder), Some(free)) = (folder, free.filter(|free| *free < self.experts)) {
            bail!(
                "`--place experts=disk:{}`: the experts take {} there, where {} are free: name a \
                 folder of a disk with more room",
                folder.display(),
                gb(self.experts),
                gb(free)
            );
        }
        let in_memory = self.others + if folder.is_some() { 0 } else { self.experts };
        let Some(left) = left.filter(|left| *left < in_memory) else { return Ok(()) };
        let on_disk = match folder {
            None if self.experts > 0 && self.others <= left => format!(
                "`--place experts=disk:DIR` keeps its experts, {}, in a folder of a fast disk and \
                 reads those that are chosen; a",
                gb(self.experts)
            ),
            _ => "A".to_owned(),
        };
        bail!(
            "the model takes {} of this machine's memory, of which this process may take {} more. \
             {on_disk} smaller quantisation takes less; `--device-memory` with a size tries it all \
             the same",
            gb(in_memory),
            gb(left)
        )
    }
}

/// Bytes of a weight as the processor packs it, of a matrix of floats in that type.
fn packed(weight: &Weight, floats_as: Option<BlockType>) -> usize {
    let ty = floats_as.filter(|_| weight.ty.block_len() == 1).unwrap_or(weight.ty);
    match weight.shape[..] {
        [rows, cols] if cols.is_multiple_of(ty.block_len()) => packed_bytes(ty, rows, cols),
        [rows, cols] => packed_bytes(weight.ty, rows, cols),
        [experts, rows, cols] => experts * packed_bytes(weight.ty, rows, cols),
        _ => 4 * weight.elements(),
    }
}

/// Refuses weights and older keys that the host has no room for beside a drafter that runs there.
/// They are locked in its memory, so nothing could be moved out of their way, and a process that
/// takes too much is ended without a word. Gives what this process may take, where that is known.
pub(crate) fn check(needed: usize, drafter: usize) -> Result<Option<usize>> {
    match free_host_memory() {
        Some(left) if needed == 0 && drafter > left => bail!(
            "the drafter would take {:.1} GB of the host's memory, of which this process may take \
             {:.1} GB more: leave `--draft-device` out, or give a smaller quantisation",
            drafter as f64 / 1e9,
            left as f64 / 1e9
        ),
        Some(left) if needed.saturating_add(drafter) > left => bail!(
            "{:.1} GB of weights and older keys do not fit on the device and would lie in the host's \
             memory, of which this process may take {:.1} GB more. More of the device \
             (`--device-memory`), a shorter context (`--ctx`), a smaller cache (`--kv q8_0`) or a \
             smaller quantisation leaves less of them there",
            needed.saturating_add(drafter) as f64 / 1e9,
            left as f64 / 1e9
        ),
        left => Ok(left),
    }
}

/// Refuses weights that a processor has no memory for, pages that can be moved out included: a
/// process that takes too much is ended without a word.
pub fn check_weights(bytes: u64) -> Result<()> {
    match free_with_swap() {
        Some(left) if bytes > left as u64 => bail!(
            "the weights take {:.1} GB of memory, of which this process may take {:.1} GB more: a \
             smaller quantisation or model fits, and `forerun models` marks those that do",
            bytes as f64 / 1e9,
            left as f64 / 1e9
        ),
        _ => Ok(()),
    }
}

/// Bytes that this process may still take where they need not stay in memory.
pub(crate) fn free_with_swap() -> Option<usize> {
    let machine = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let swap = number_of(&machine, "SwapFree:").unwrap_or(0).saturating_mul(1024);
    let swap = own_group(swap_left_in).map_or(swap, |left| swap.min(left));
    free_host_memory().map(|left| left.saturating_add(swap))
}

/// Bytes that this process may still take: what the machine has available, or what its control
/// groups leave it. None where nobody says.
pub fn free_host_memory() -> Option<usize> {
    let machine = fs::read_to_string("/proc/meminfo").ok();
    let machine = machine.and_then(|text| Some(1024 * number_of(&text, "MemAvailable:")?));
    machine.into_iter().chain(own_group(left_in)).min()
}

/// What this process's control group leaves.
fn own_group(left: fn(&Path, &Path) -> Option<usize>) -> Option<usize> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let root = Path::new("/sys/fs/cgroup");
    left(root, &root.join(group))
}

/// What a group and those around it leave of memory that was moved out.
fn swap_left_in(root: &Path, group: &Path) -> Option<usize> {
    let left = |group: &Path| {
        let read = |file: &str| -> Option<usize> {
            fs::read_to_string(group.join(file)).ok()?.trim().parse().ok()
        };
        Some(read("memory.swap.max")?.saturating_sub(read("memory.swap.current")?))
    };
    group.ancestors().take_while(|group| group.starts_with(root)).filter_map(left).min()
}

/// What a group and those around it leave: their limit without what is in use, but for what was
/// read from files and can go.
fn left_in(root: &Path, group: &Path) -> Option<usize> {
    let left = |group: &Path| {
        let read = |file: &str| fs::read_to_string(group.join(file)).ok();
        let limit: usize = read("memory.max")?.trim().parse().ok()?;
        let used: usize = read("memory.current")?.trim().parse().ok()?;
        let stat = read("memory.stat").unwrap_or_default();
        let of_files = |kind| number_of(&stat, kind).unwrap_or(0);
        let can_go = of_files("inactive_file") + of_files("active_file");
        Some(limit.saturating_sub(used.saturating_sub(can_go)))
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
    fn what_the_processor_cannot_hold_is_refused_with_a_way_out() {
        let held = Held { experts: 18_000_000_000, others: 3_100_000_000 };
        let said = |left, folder: Option<&Path>| match held.check(left, folder) {
            Ok(()) => String::new(),
            Err(refusal) => refusal.to_string(),
        };
        for fits in [None, Some(21_100_000_000)] {
            assert_eq!(said(fits, None), "");
        }
        let refusal = said(Some(14_000_000_000), None);
        assert!(refusal.starts_with(
            "the model takes 21.1 GB of this machine's memory, of which this process may take 14.0 \
             GB more. `--place experts=disk:DIR` keeps its experts, 18.0 GB, in a folder"
        ));
        // A disk helps where the rest fits, and where there are experts.
        assert!(said(Some(3_000_000_000), None).contains("GB more. A smaller quantisation"));
        let dense = Held { experts: 0, others: 21_100_000_000 };
        let refusal = dense.check(Some(14_000_000_000), None).expect_err("too much").to_string();
        assert!(refusal.contains("21.1 GB") && !refusal.contains("disk"), "{refusal}");
        // On a disk they take none of it, but room there.
        let tiny = Held { experts: 1, others: 3_100_000_000 };
        let folder = std::env::temp_dir();
        assert!(tiny.check(Some(3_100_000_000), Some(&folder)).is_ok());
        assert!(tiny.check(Some(3_000_000_000), Some(&folder)).is_err());
        let vast = Held { experts: usize::MAX, others: 0 };
        let refusal = vast.check(None, Some(&folder)).expect_err("no disk has so much").to_string();
        assert!(refusal.contains("the experts take 18446744073.7 GB there, where"), "{refusal}");
    }

    #[test]
    fn what_is_held_is_what_is_packed() {
        let files = testing::Pair::moe();
        let target = Target::open(&files.target).expect("the target opens");
        let held = Held::of(&target, None, None, KvType::F16);
        let mut cpu = compute::Cpu::new(compute::CpuLevel::Scalar, 1, compute::Activations::Int8);
        let options = engine::Options::new(&cpu);
        engine::Model::load(&mut cpu, &target.config, &target.weights, options).expect("it loads");
        let state = engine::state_bytes(&target.config, KvType::F16, Need::LEAST);
        let matrices = held.experts + held.others - state;
        let vectors = matrices.abs_diff(cpu.weight_bytes());
        assert!(vectors < matrices / 100, "{vectors} of {matrices}");
    }

    #[test]
    fn the_narrowest_group_counts() {
        let root = std::env::temp_dir().join(format!("forerun-groups-{}", std::process::id()));
        // A process of that number may have failed here before.
        let _ = fs::remove_dir_all(&root);
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
        write(
            &root.join("outer"),
            "memory.stat",
            "anon 5\nfile 600\ninactive_file 150\nactive_file 50\n",
        );
        assert_eq!(left_in(&root, &inner), Some(500), "what was read can go");
        write(&inner, "memory.max", "400\n");
        assert_eq!(left_in(&root, &inner), Some(0), "more in use than allowed");
        assert_eq!(swap_left_in(&root, &inner), None, "nobody says");
        write(&inner, "memory.swap.max", "max\n");
        write(&root.join("outer"), "memory.swap.max", "90\n");
        write(&root.join("outer"), "memory.swap.current", "20\n");
        assert_eq!(swap_left_in(&root, &inner), Some(70));
        fs::remove_dir_all(&root).expect("the folder goes");
    }

    #[test]
    fn lines_have_numbers() {
        let text = "MemTotal:       16 kB\nMemAvailable:    7 kB\n";
        assert_eq!(number_of(text, "MemAvailable:"), Some(7));
        assert_eq!(number_of(text, "MemAvail"), None);
        let refusal = check(usize::MAX, 0).expect_err("nobody has so much").to_string();
        assert!(refusal.contains("`--device-memory`"), "{refusal}");
        let refusal = check_weights(u64::MAX).expect_err("nobody has so much").to_string();
        assert!(refusal.contains("`forerun models`"), "{refusal}");
        check_weights(1).expect("a byte is there");
    }
}
