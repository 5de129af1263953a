//! Converting a drafter of 0.88 GiB takes a few buffers of memory. Alone in its file: it measures
//! the process.

mod support;

use checkpoint::convert::{Mix, Progress, convert};
use checkpoint::{Drafter, Overrides};
use formats::gguf::Overwrite;
use support::*;

#[cfg(target_os = "linux")]
#[test]
fn memory_does_not_grow_with_the_model() {
    let size = Size {
        hidden: 2048,
        layers: 8,
        q_heads: 32,
        kv_heads: 4,
        head_dim: 128,
        ffn: 6144,
        taps: 5,
    };
    let folder = folder(&size.flat(&[1, 10, 19, 28, 37], 9), &size.tensors());
    let source = Drafter::open(folder.path(), &Overrides::default(), None).unwrap();
    let out = folder.path().join("out.gguf");
    let summary =
        convert(&source, "", Mix::Q8_0, None, &out, Overwrite::Refuse, &Progress::default())
            .unwrap();
    assert!(summary.source_bytes > 900 << 20);
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak < 256 << 10, "{peak} kB resident at the peak");
}
