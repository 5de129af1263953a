//! Drafters near enough to DFlash to be run: DSpark with its heads, JetSpec with its causal blocks.

mod support;

use checkpoint::convert::{Mix, Progress, convert};
use checkpoint::drafter::{Confidence, Dialect, Kind, Markov};
use checkpoint::{Drafter, Overrides};
use formats::BlockType;
use formats::gguf::{Gguf, Header, Overwrite};
use serde_json::{Value, json};
use std::path::Path;
use support::*;

const VOCAB: usize = 96;
const RANK: usize = 8;

fn opened(path: &Path) -> Drafter {
    open(path, &Overrides::default(), None).unwrap()
}

fn dspark() -> Value {
    let mut config = SMALL.flat(&[1, 5], 90);
    config["architectures"] = json!(["Qwen3DSparkModel"]);
    config["block_size"] = json!(7);
    config["vocab_size"] = json!(VOCAB);
    config["markov_rank"] = json!(RANK);
    config["markov_head_type"] = json!("vanilla");
    config["enable_confidence_head"] = json!(true);
    config["confidence_head_with_markov"] = json!(true);
    config
}

fn dspark_tensors() -> Vec<Listed> {
    let mut tensors = SMALL.tensors();
    tensors.push(("markov_head.markov_w1.weight".into(), vec![VOCAB, RANK]));
    tensors.push(("markov_head.markov_w2.weight".into(), vec![VOCAB, RANK]));
    tensors.push(("confidence_head.proj.weight".into(), vec![1, 64 + RANK]));
    tensors.push(("confidence_head.proj.bias".into(), vec![1]));
    tensors
}

fn sentence(path: &str, value: Value) -> String {
    refusal(&with(dspark(), path, value), &dspark_tensors(), &Overrides::default(), None)
}

#[test]
fn dspark_is_read_and_written_with_both_heads() {
    let folder = filled_folder(&dspark(), dspark_tensors());
    let drafter = opened(folder.path());
    let extras = &drafter.config.extras;
    assert_eq!(extras.kind(), Kind::Dspark);
    assert_eq!(extras.markov, Some(Markov { rank: RANK, vocab: VOCAB }));
    assert_eq!(extras.confidence, Some(Confidence { with_markov: true, bias: true }));
    assert!(extras.sample_from_anchor, "unless a file says otherwise");
    assert_eq!(drafter.config.block, 7);
    assert_eq!(drafter.weights.len(), 3 * 11 + 3 + 4);

    for (name, said) in [("true", true), ("false", false)] {
        let config = with(dspark(), "sample_from_anchor", json!(said));
        let source = filled_folder(&config, dspark_tensors());
        let source = opened(source.path());
        assert_eq!(source.config.extras.sample_from_anchor, said);
        let out = folder.path().join(name);
        let progress = Progress::default();
        convert(&source, "", Mix::Q8_0, None, &out, Overwrite::Refuse, &progress).unwrap();
        let back = opened(&out);
        assert_eq!(back.config, source.config);
        assert_eq!(back.weights.get("conf_proj.weight").unwrap().ty, BlockType::F32);
        let key = Gguf::open(&out).unwrap().bool("dflash.sample_from_anchor").unwrap();
        assert_eq!(key, Some(said));
    }
    // Speculators leave the anchor's row out, and nest what they borrow from Transformers.
    let mut speculators = with(dspark(), "speculators_model_type", json!("dspark"));
    assert!(
        !opened(filled_folder(&speculators, dspark_tensors()).path())
            .config
            .extras
            .sample_from_anchor
    );
    speculators["sample_from_anchor"] = json!(true);
    assert!(
        opened(filled_folder(&speculators, dspark_tensors()).path())
            .config
            .extras
            .sample_from_anchor
    );
}

#[test]
fn dspark_without_its_confidence_head_or_without_the_markov_part_of_it() {
    let mut tensors = dspark_tensors();
    tensors.retain(|(name, _)| !name.starts_with("confidence"));
    let config = with(dspark(), "enable_confidence_head", json!(false));
    assert_eq!(
        opened(filled_folder(&config, tensors.clone()).path()).config.extras.confidence,
        None
    );
    tensors.push(("confidence_head.proj.weight".into(), vec![1, 64]));
    let config = with(dspark(), "confidence_head_with_markov", json!(false));
    let drafter = opened(filled_folder(&config, tensors).path());
    let expected = Confidence { with_markov: false, bias: false };
    assert_eq!(drafter.config.extras.confidence, Some(expected));
}

#[test]
fn dspark_that_disagrees_with_itself() {
    let cases = [
        (
            "markov_rank",
            json!(16),
            "Markov rank is 16 by `markov_rank`, but 8 by shape of `markov_head.markov_w1.weight`",
        ),
        (
            "markov_head_type",
            json!("gated"),
            "a DSpark drafter with a `gated` Markov head is not supported (`markov_head_type`)",
        ),
        (
            "confidence_head_with_markov",
            json!(false),
            "a confidence head that reads the Markov head is false by \
             `confidence_head_with_markov`, but true by shape of `confidence_head.proj.weight`",
        ),
        (
            "vocab_size",
            json!(100),
            "vocabulary is 100 by `vocab_size`, but 96 by rows of `markov_head.markov_w1.weight`",
        ),
    ];
    for (path, value, expected) in cases {
        assert_eq!(sentence(path, value), expected, "{path}");
    }
    let without = |part: &str| {
        let mut tensors = dspark_tensors();
        tensors.retain(|(name, _)| !name.contains(part));
        refusal(&dspark(), &tensors, &Overrides::default(), None)
    };
    let lost = "it was lost when the file was made; get another, or convert it anew from its \
                Hugging Face folder";
    assert_eq!(
        without("markov"),
        format!(
            "`markov_rank` says that the drafter has a Markov head, but tensor \
             `markov_head.markov_w1.weight` is missing: {lost}"
        )
    );
    assert_eq!(
        without("confidence"),
        format!(
            "`enable_confidence_head` says that the drafter has a confidence head, but tensor \
             `confidence_head.proj.weight` is missing: {lost}"
        )
    );
    assert_eq!(without("markov_w2"), "tensor `markov_head.markov_w2.weight` is missing");
    let mut both = dspark_tensors();
    both.push(("candidate_selector.predecessor_codebook".into(), vec![VOCAB, RANK]));
    let mut config = dspark();
    config["selector_rank"] = json!(RANK);
    config["selector_top_k"] = json!(16);
    assert_eq!(
        refusal(&config, &both, &Overrides::default(), None),
        "a drafter with both a selector and a Markov head is not supported (tensors \
         `candidate_selector.predecessor_codebook` and `markov_head.markov_w1.weight`)"
    );
}

#[test]
fn dspark_of_lucebox_is_read_with_both_heads() {
    let folder = filled_folder(&dspark(), dspark_tensors());
    let hf = opened(folder.path());
    let path = folder.path().join("x.gguf");
    let arch = "qwen35-dflash-draft";
    let header = |switch: fn(&mut Header, &str)| {
        let mut header = common(arch, 7);
        header.entries.u32(&format!("{arch}.dflash.dspark.markov_rank"), RANK as u32);
        header.entries.u32(&format!("{arch}.dflash.dspark.vocab_size"), VOCAB as u32);
        for key in ["enabled", "confidence.enabled"] {
            switch(&mut header, &format!("{arch}.dflash.dspark.{key}"));
        }
        header.entries.u32(&format!("{arch}.context_length"), 262_144);
        header
    };
    let rename = |name: &str| match name {
        "markov_w1.weight" => "dflash.dspark.markov.w1".to_owned(),
        "markov_w2.weight" => "dflash.dspark.markov.w2".to_owned(),
        other => other.replace("conf_proj", "dflash.dspark.confidence"),
    };
    let full = Overrides { window: Some(0), ..Overrides::default() };
    let switches: [fn(&mut Header, &str); 2] =
        [|header, key| header.entries.u32(key, 1), |header, key| header.entries.bool(key, true)];
    for switch in switches {
        write_gguf(&hf, &path, header(switch), rename);
        let found = open(&path, &full, None).unwrap();
        assert_eq!(found.dialect, Dialect::Lucebox);
        assert_eq!(found.config, hf.config);
        for name in ["markov_w2.weight", "conf_proj.weight", "conf_proj.bias"] {
            let weight = |of: &Drafter| of.weights.decode(of.weights.get(name).unwrap());
            assert_eq!(weight(&found), weight(&hf), "{name}");
        }
    }

    // The heads were lost, and the keys speak of them still.
    let plain = filled_folder(&SMALL.flat(&[1, 5], 90), SMALL.tensors());
    let refused = |key: &str| {
        let mut header = common(arch, 7);
        header.entries.u32(&format!("{arch}.dflash.dspark.{key}"), 1);
        write_gguf(&opened(plain.path()), &path, header, str::to_owned);
        open(&path, &full, None).unwrap_err().to_string()
    };
    let lost = [
        ("enabled", "a Markov"),
        ("confidence.enabled", "a confidence"),
        ("confidence_dim", "a confidence"),
    ];
    for (key, part) in lost {
        let says = format!("`{arch}.dflash.dspark.{key}` says that the drafter has {part} head");
        assert!(refused(key).starts_with(&says), "{}", refused(key));
    }
}

/// The keys of the small drafter under another family's name.
fn common(arch: &str, block: u32) -> Header {
    let mut header = Header::new(arch);
    let family = if arch.starts_with("jetspec") { "jetspec" } else { arch };
    let counts = [
        ("block_count", 3),
        ("block_size", block),
        ("mask_token_id", 90),
        ("num_target_layers", 8),
        ("embedding_length", 64),
        ("feed_forward_length", 96),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
        ("attention.key_length", 16),
        ("attention.value_length", 16),
    ];
    for (key, value) in counts {
        header.entries.u32(&format!("{family}.{key}"), value);
    }
    header.entries.i32s(&format!("{family}.target_layer_ids"), &[1, 5]);
    header.entries.f32(&format!("{family}.rope.freq_base"), 1e7);
    header.entries.f32(&format!("{family}.attention.layer_norm_rms_epsilon"), 1e-6);
    header
}

#[test]
fn jetspec_is_a_first_generation_with_causal_blocks() {
    let mut config = SMALL.flat(&[1, 5], 90);
    config["dflash_config"]["causal_head"] = json!(true);
    let folder = filled_folder(&config, SMALL.tensors());
    let hf = opened(folder.path());
    assert_eq!(hf.config.layer_summary(), "full 3 of 3, causal");
    assert_eq!(hf.config.extras.kind(), Kind::Dflash);

    let path = folder.path().join("x.gguf");
    let hf_name = |name: &str| hf.weights.get(name).unwrap().sources[0].clone();
    let said = |causal: Option<bool>| {
        let mut header = common("jetspec_qwen3_draft_head", 16);
        if let Some(causal) = causal {
            header.entries.bool("jetspec.causal_head", causal);
        }
        write_gguf(&hf, &path, header, |name| format!("draft.{}", hf_name(name)));
        opened(&path)
    };
    // Silence is causal in this dialect; a key that says otherwise is heard, as in every dialect.
    let silent = said(None);
    assert_eq!(silent.config.layer_summary(), "full 3 of 3, causal");
    let from = silent.report.resolved.iter().find(|r| r.field == "causal").unwrap().from.clone();
    assert!(from.starts_with("this dialect"), "{from}");
    assert_eq!(said(Some(false)).config.layer_summary(), "full 3 of 3, not causal");
    let found = said(Some(true));
    assert_eq!(found.dialect, Dialect::Jetspec);
    // The GGUF does not say how long a text it was trained on.
    let expected = checkpoint::DrafterConfig { context_length: None, ..hf.config.clone() };
    assert_eq!(found.config, expected);
    for weight in hf.weights.iter() {
        let same = found.weights.get(&weight.name).unwrap();
        assert_eq!(found.weights.decode(same), hf.weights.decode(weight), "{}", weight.name);
    }
}
