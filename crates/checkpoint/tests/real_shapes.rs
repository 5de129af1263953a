//! Header-only checkpoints of the published shapes. The tiny pairs share head counts and widths
//! with their targets; these do not, so a dimension taken from the wrong model shows here.

mod support;

use checkpoint::target::{Attention, Ffn, Gdn, Mixer, Mtp};
use checkpoint::{Overrides, Rope, Target, TargetConfig, drafter};
use formats::BlockType;
use formats::gguf::Header;
use support::*;

fn config(
    hidden: usize,
    layers: usize,
    q_heads: usize,
    kv_heads: usize,
    value_heads: usize,
    ffn: Ffn,
) -> TargetConfig {
    TargetConfig {
        hidden,
        vocab: 248_320,
        layers: (1..=layers)
            .map(|n| if n % 4 == 0 { Mixer::Attention } else { Mixer::Gdn })
            .collect(),
        attention: Attention {
            q_heads,
            kv_heads,
            head_dim: 256,
            rotary_dims: 64,
            rope: Rope { theta: 1e7, scaling: None },
        },
        gdn: Gdn { key_heads: 16, value_heads, head_dim: 128, conv_kernel: 4 },
        ffn,
        norm_eps: 1e-6,
        context_length: 262_144,
        tied_head: false,
        mtp: Some(Mtp { own_embedding: false, own_head: false, own_norm: true }),
    }
}

fn dense_27b() -> TargetConfig {
    config(5120, 64, 24, 4, 48, Ffn::Dense { width: 17_408 })
}

fn moe_35b() -> TargetConfig {
    let ffn = Ffn::Moe { experts: 256, used: 8, width: 512, shared_width: 512, weights_scale: 1.0 };
    config(2048, 40, 16, 2, 32, ffn)
}

/// A GGUF that says what `config` says, with matrices in Q4_K and a hole for data.
fn write_target(path: &std::path::Path, config: &TargetConfig) {
    let arch = if matches!(config.ffn, Ffn::Moe { .. }) { "qwen35moe" } else { "qwen35" };
    let mut header = Header::new(arch);
    let e = &mut header.entries;
    let mut put = |key: &str, value: usize| e.u32(&format!("{arch}.{key}"), value as u32);
    put("block_count", config.layers.len() + 1);
    put("context_length", config.context_length);
    put("embedding_length", config.hidden);
    put("attention.head_count", config.attention.q_heads);
    put("attention.head_count_kv", config.attention.kv_heads);
    put("attention.key_length", 256);
    put("attention.value_length", 256);
    put("rope.dimension_count", 64);
    put("ssm.conv_kernel", 4);
    put("ssm.state_size", 128);
    put("ssm.group_count", 16);
    put("ssm.time_step_rank", config.gdn.value_heads);
    put("ssm.inner_size", config.gdn.value_width());
    put("full_attention_interval", 4);
    put("nextn_predict_layers", 1);
    match config.ffn {
        Ffn::Dense { width } => put("feed_forward_length", width),
        Ffn::Moe { experts, used, width, shared_width, .. } => {
            put("expert_count", experts);
            put("expert_used_count", used);
            put("expert_feed_forward_length", width);
            put("expert_shared_feed_forward_length", shared_width);
        }
    }
    e.f32(&format!("{arch}.rope.freq_base"), 1e7);
    e.f32(&format!("{arch}.attention.layer_norm_rms_epsilon"), 1e-6);
    for slot in checkpoint::target::slots(config) {
        let quantised = slot.shape.len() > 1 && slot.shape.last().unwrap().is_multiple_of(256);
        header.tensor(
            &slot.name,
            if quantised { BlockType::Q4_K } else { BlockType::F32 },
            &slot.shape,
        );
    }
    sparse_gguf(path, &header);
}

#[test]
fn the_real_targets_load() {
    let folder = tempfile::tempdir().unwrap();
    for (name, config, parameters) in [("27b", dense_27b(), 27.0e9), ("35b", moe_35b(), 35.0e9)] {
        let path = folder.path().join(name);
        write_target(&path, &config);
        let target = Target::open(&path).unwrap();
        assert_eq!(target.config, config);
        let count: usize = target.weights.iter().map(|w| w.elements()).sum();
        assert!((count as f64 / parameters - 1.0).abs() < 0.05, "{name}: {count} parameters");
    }
    assert_eq!((dense_27b().attention_layers(), dense_27b().gdn.conv_channels()), (16, 10_240));
    assert_eq!((moe_35b().attention_layers(), moe_35b().gdn.conv_channels()), (10, 8_192));
}

struct Published {
    name: &'static str,
    target: TargetConfig,
    size: Size,
    taps: &'static [usize],
    mask: u32,
    window: Option<usize>,
    tensors: usize,
    gibibytes: f64,
}

fn published() -> [Published; 5] {
    let size = |hidden, layers, kv_heads, ffn, taps| Size {
        hidden,
        layers,
        q_heads: 32,
        kv_heads,
        head_dim: 128,
        ffn,
        taps,
    };
    [
        Published {
            name: "Qwen3.5-27B, April",
            target: dense_27b(),
            size: size(5120, 5, 8, 17_408, 5),
            taps: &[1, 16, 31, 46, 61],
            mask: 248_070,
            window: None,
            tensors: 58,
            gibibytes: 3.22,
        },
        Published {
            name: "Qwen3.6-27B",
            target: dense_27b(),
            size: size(5120, 5, 8, 17_408, 5),
            taps: &[1, 16, 31, 46, 61],
            mask: 248_070,
            window: Some(2048),
            tensors: 58,
            gibibytes: 3.22,
        },
        Published {
            name: "Qwen3.5-27B, June",
            target: dense_27b(),
            size: size(5120, 6, 8, 17_408, 8),
            taps: &[1, 10, 18, 27, 35, 44, 52, 61],
            mask: 248_077,
            window: Some(4096),
            tensors: 69,
            gibibytes: 3.97,
        },
        Published {
            name: "Qwen3.6-35B-A3B, April",
            target: moe_35b(),
            size: size(2048, 8, 4, 6144, 5),
            taps: &[1, 10, 19, 28, 37],
            mask: 248_070,
            window: None,
            tensors: 91,
            gibibytes: 0.88,
        },
        Published {
            name: "Qwen3.6-35B-A3B, June",
            target: moe_35b(),
            size: size(2048, 6, 8, 6144, 8),
            taps: &[1, 6, 11, 16, 22, 27, 32, 37],
            mask: 248_077,
            window: Some(4096),
            tensors: 69,
            gibibytes: 0.72,
        },
    ]
}

#[test]
fn the_published_drafters_load_with_their_targets() {
    for p in published() {
        let json = match p.window {
            None => p.size.flat(p.taps, p.mask),
            Some(window) => p.size.nested(p.taps, p.mask, window),
        };
        let folder = folder(&json, &p.size.tensors());
        let drafter = open(folder.path(), &Overrides::default(), Some(&p.target))
            .unwrap_or_else(|e| panic!("{}: {e}", p.name));
        let config = &drafter.config;
        assert_eq!(
            (config.q_heads, config.kv_heads, config.head_dim),
            (32, p.size.kv_heads, 128),
            "{}",
            p.name
        );
        assert_eq!((config.taps.as_slice(), config.mask_token), (p.taps, p.mask), "{}", p.name);
        assert_eq!(drafter.weights.len(), p.tensors, "{}", p.name);
        let bytes: usize = drafter.weights.iter().map(|w| w.byte_len()).sum();
        let gibibytes = bytes as f64 / (1u64 << 30) as f64;
        assert!((gibibytes - p.gibibytes).abs() < 0.01, "{}: {gibibytes} GiB", p.name);
        let windows: Vec<_> = config.layers.iter().map(|l| l.window).collect();
        let mut expected = vec![p.window; p.size.layers];
        expected[p.size.layers - 1] = None;
        assert_eq!(windows, expected, "{}", p.name);
        assert!(
            config.layers.iter().all(|l| l.causal == l.window.is_some()),
            "{}: the rule",
            p.name
        );
        assert_eq!(drafter.report.warnings, [""; 0], "{}", p.name);
        assert_eq!(drafter::slots(config).len(), p.tensors);
    }
}

#[test]
fn the_published_second_generation_loads_with_its_targets() {
    let [_, dense, _, _, mixture] = published();
    let dense = Size { layers: 5, taps: 5, ..dense.size };
    let mixture = Size { layers: 6, ..mixture.size };
    let cases = [
        (dense, dense_27b(), &[5, 19, 33, 47, 61][..], 248_070, 81, 1_924_404_480),
        (mixture, moe_35b(), &[1, 6, 11, 16, 22, 27, 32, 37], 248_077, 96, 526_251_520),
    ];
    for (size, target, taps, mask, tensors, parameters) in cases {
        let (vocab, rank) = (248_320, 256);
        let json = size.dflash2(taps, mask, vocab, rank);
        let folder = folder(&json, &size.dflash2_tensors(vocab, rank));
        let drafter = open(folder.path(), &Overrides::default(), Some(&target)).unwrap();
        assert_eq!(drafter.weights.len(), tensors);
        // The counts that their cards publish.
        let count: usize = drafter.weights.iter().map(|w| w.elements()).sum();
        assert_eq!(count, parameters);
        assert_eq!(drafter.config.extras.kind(), drafter::Kind::Dflash2);
        assert!(drafter.config.layers.iter().all(|l| l.window == Some(2048) && !l.causal));
        assert_eq!(drafter.report.warnings, [""; 0]);
    }
}

#[test]
fn the_wrong_target_is_noticed() {
    let [april, _, _, small, _] = published();
    let folder = folder(&april.size.flat(april.taps, april.mask), &april.size.tensors());
    let sentence =
        open(folder.path(), &Overrides::default(), Some(&small.target)).unwrap_err().to_string();
    assert_eq!(
        sentence,
        "a tap is 46 of [1, 16, 31, 46, 61] by the drafter; 0 to 39, for the 40 layers of the \
         target, expected"
    );
    // A target whose vocabulary was trimmed to the tokens in use cannot serve a June drafter.
    let june = &published()[2];
    let mut trimmed = dense_27b();
    trimmed.vocab = 248_077;
    let folder =
        support::folder(&june.size.nested(june.taps, june.mask, 4096), &june.size.tensors());
    let sentence =
        open(folder.path(), &Overrides::default(), Some(&trimmed)).unwrap_err().to_string();
    assert_eq!(
        sentence,
        "mask token is 248077 by the drafter; a row of the target's embedding, below 248077, \
         expected"
    );
}
