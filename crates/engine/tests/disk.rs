//! Experts in a file of a disk: the same tokens in every mode, nothing in the folder that anybody
//! could see, and refusals where they cannot lie there.

#![cfg(target_os = "linux")]

mod support;

use compute::{Activations, Cpu, CpuLevel, KvType};
use engine::sampling::Sampling;
use engine::{Engine, Place, Placement, Spec, WeightSource};
use std::path::Path;
use support::{CHAIN, answer, cpu, pair};

const ON_DISK: Placement = Placement { experts: Place::Disk, ..Placement::ON_DEVICE };
const TREE: Spec = Spec::Tree { block: 16, budget: 22 };

fn processor(folder: Option<&Path>) -> Box<Cpu> {
    let cpu = Cpu::new(CpuLevel::detect(), 2, Activations::Int8);
    Box::new(cpu.with_disk(folder.map(Path::to_path_buf)))
}

/// Bytes of files of that folder, with a name or without one, that this process has mapped.
fn mapped(folder: &Path) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("the kernel tells");
    let of_folder = maps.lines().filter(|line| line.contains(folder.to_str().expect("a name")));
    let bytes = of_folder.map(|line| {
        let (range, _) = line.split_once(' ').expect("a range");
        let (from, to) = range.split_once('-').expect("two addresses");
        let address = |digits| usize::from_str_radix(digits, 16).expect("an address");
        address(to) - address(from)
    });
    bytes.sum()
}

#[test]
fn every_mode_writes_the_same_with_experts_on_a_disk() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let path = folder.path().canonicalize().expect("its name");
    let names = || std::fs::read_dir(&path).expect("it is read").count();
    let (pair, memory) = (pair("moe"), (KvType::F16, ON_DISK));
    let mut whole = pair.engine_on(cpu(2, Activations::Int8), Spec::Off);
    let mut some = pair.engine_placed(processor(Some(&path)), memory, Spec::Off);
    let experts = pair.target.weights.iter().filter(|weight| weight.shape.len() == 3);
    let bytes: usize = experts.map(|weight| weight.byte_len()).sum();
    assert!(bytes > 0 && mapped(&path) >= bytes, "{} of {bytes}", mapped(&path));
    let sampled = Sampling { temperature: 0.8, seed: 7, ..Sampling::default() };
    for mode in [Spec::Off, CHAIN, TREE] {
        whole.set_spec(mode);
        some.set_spec(mode);
        for prompt in pair.prompts("code", 2) {
            let expected = answer(&mut whole, &prompt, &sampled, 40);
            assert_eq!(answer(&mut some, &prompt, &sampled, 40), expected, "{mode:?}");
        }
    }
    assert_eq!(names(), 0);
    drop(some);
    assert_eq!((names(), mapped(&path)), (0, 0));
}

#[test]
fn experts_that_cannot_lie_on_a_disk_are_refused() {
    let pair = pair("moe");
    let refused = |folder: Option<&Path>| {
        let target = (&pair.target.config, &pair.target.weights as &dyn WeightSource);
        let memory = (KvType::F16, ON_DISK);
        let loaded = Engine::load_placed(
            (processor(folder) as Box<dyn compute::Backend>).into(),
            target,
            None,
            memory,
            Spec::Off,
        );
        loaded.err().expect("a refusal").to_string()
    };
    assert_eq!(refused(None), "this backend reads no weights from a disk");
    let gone = Path::new(env!("CARGO_TARGET_TMPDIR")).join("not there");
    let said = refused(Some(&gone));
    assert!(said.contains("not there` cannot hold ") && said.contains(" MB of experts"), "{said}");
}
