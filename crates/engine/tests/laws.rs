//! The laws, on random models and random trees: a row's logits have the same bits in any company, a
//! pass changes no state, a snapshot restores to the bit.

use checkpoint::TargetConfig;
use compute::{Activations, Cpu, CpuLevel, KvType};
use engine::{Model, Options, Row, Sequence, synthetic};
use proptest::prelude::*;

/// A small model that has every part: both mixers, both kinds of feed-forward, ragged sizes.
fn small(moe: bool) -> TargetConfig {
    let mut config = if moe { synthetic::tiny_moe() } else { synthetic::tiny() };
    config.vocab = 300;
    config.layers.truncate(4);
    config.layers.rotate_left(2); // attention before and after Gated DeltaNet
    config.mtp = None;
    config
}

struct Setup {
    cpu: Cpu,
    model: Model,
}

impl Setup {
    fn new(moe: bool, kv: KvType, activations: Activations, threads: usize) -> Self {
        Self::at(CpuLevel::detect(), moe, kv, activations, threads)
    }

    fn at(
        level: CpuLevel,
        moe: bool,
        kv: KvType,
        activations: Activations,
        threads: usize,
    ) -> Self {
        let config = small(moe);
        let mut cpu = Cpu::new(level, threads, activations);
        let weights = synthetic::Weights::new(&config, synthetic::Mix::Q4_K_M, 3);
        let taps = vec![0, 3];
        let options = Options { kv, max_rows: 96, max_chosen: 96, taps, ..Options::new(&cpu) };
        let model = Model::load(&mut cpu, &config, &weights, options).expect("the model loads");
        Self { cpu, model }
    }

    /// Logits, hidden state and taps of all rows of a pass, as bits.
    fn pass(&mut self, rows: &[Row], sequences: &[&Sequence]) -> Vec<Vec<u32>> {
        let chosen: Vec<u32> = (0..rows.len() as u32).collect();
        self.model.forward(&mut self.cpu, rows, &chosen, sequences).expect("a pass");
        self.bits(rows)
    }

    /// The same of the last pass.
    fn bits(&self, rows: &[Row]) -> Vec<Vec<u32>> {
        let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
        (0..rows.len())
            .map(|r| {
                let logits = self.model.logits(&self.cpu, r).expect("logits");
                let (hidden, taps) =
                    (self.model.hidden(r).expect("a row"), self.model.taps(r).expect("a row"));
                [bits(&logits), bits(&hidden), bits(&taps)].concat()
            })
            .collect()
    }

    fn commit(&mut self, index: usize, sequence: &mut Sequence, path: &[u32]) {
        self.model.commit(&mut self.cpu, index, sequence, path).expect("a commit");
    }

    /// Reads `tokens` in chunks of the given sizes (again and again); every row's bits.
    fn read(&mut self, sequence: &mut Sequence, tokens: &[u32], sizes: &[usize]) -> Vec<Vec<u32>> {
        let mut bits = Vec::new();
        let mut rest = tokens;
        for size in sizes.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (chunk, after) = rest.split_at((*size).min(rest.len()));
            rest = after;
            bits.extend(self.pass(&chain(chunk, 0), &[sequence]));
            self.commit(0, sequence, &(0..chunk.len() as u32).collect::<Vec<_>>());
        }
        bits
    }
}

fn chain(tokens: &[u32], sequence: u32) -> Vec<Row> {
    tokens
        .iter()
        .zip(0u32..)
        .map(|(token, i)| Row { token: *token, sequence, parent: i.checked_sub(1) })
        .collect()
}

fn tokens(n: impl Into<proptest::collection::SizeRange>) -> impl Strategy<Value = Vec<u32>> {
    proptest::collection::vec(0..300u32, n)
}

fn settings() -> impl Strategy<Value = (bool, KvType, Activations, usize)> {
    let kv = prop::sample::select(KvType::ALL.to_vec());
    let activations = prop::sample::select(vec![Activations::Int8, Activations::F32]);
    (any::<bool>(), kv, activations, 1..3usize)
}

/// A tree: each row's parent is the tip or any earlier row.
fn tree(max: usize) -> impl Strategy<Value = Vec<(u32, Option<u32>)>> {
    proptest::collection::vec((0..300u32, any::<prop::sample::Index>(), 0..4u8), 1..max).prop_map(
        |rows| {
            let parent = |i: usize, at: prop::sample::Index, kind: u8| match (i, kind) {
                (0, _) => None,
                // Mostly deep, so that trees cross anchors.
                (_, 0) => at.index(i + 1).checked_sub(1).map(|p| p as u32),
                _ => Some(i as u32 - 1),
            };
            rows.iter()
                .enumerate()
                .map(|(i, (token, at, kind))| (*token, parent(i, *at, *kind)))
                .collect()
        },
    )
}

fn cases(n: u32) -> ProptestConfig {
    ProptestConfig { cases: n, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases(12))]

    #[test]
    fn any_chunking_gives_the_same_bits(
        (moe, kv, activations, threads) in settings(),
        text in tokens(60..180),
        sizes in proptest::collection::vec(1..97usize, 1..6),
    ) {
        let mut setup = Setup::new(moe, kv, activations, threads);
        let mut one_by_one = setup.model.sequence();
        let expected = setup.read(&mut one_by_one, &text, &[1]);
        let mut chunked = setup.model.sequence();
        let got = setup.read(&mut chunked, &text, &sizes);
        prop_assert_eq!(expected.len(), got.len());
        for (row, (e, g)) in expected.iter().zip(&got).enumerate() {
            prop_assert!(e == g, "row {} differs", row);
        }
        prop_assert!(one_by_one == chunked, "the states differ");
    }

    #[test]
    fn a_tree_gives_the_bits_of_each_of_its_paths(
        (moe, kv, activations, threads) in settings(),
        text in tokens(0..120),
        tree in tree(64),
        other in tokens(1..70),
    ) {
        let mut setup = Setup::new(moe, kv, activations, threads);
        let mut sequence = setup.model.sequence();
        setup.read(&mut sequence, &text, &[50]);
        let mut second = setup.model.sequence();
        setup.read(&mut second, &other, &[64]);
        let (before, second_before) = (sequence.unshared().unwrap(), second.unshared().unwrap());

        // The tree, its rows between those of a chain on another sequence.
        let mut rows: Vec<Row> = Vec::new();
        let mut place = Vec::new();
        let mut last_other = None;
        for (i, (token, parent)) in tree.iter().enumerate() {
            if i % 3 == 1 && rows.len() < 90 {
                rows.push(Row { token: *token, sequence: 1, parent: last_other });
                last_other = Some(rows.len() as u32 - 1);
            }
            place.push(rows.len() as u32);
            let parent = parent.map(|p| place[p as usize]);
            rows.push(Row { token: *token, sequence: 0, parent });
        }
        let together = setup.pass(&rows, &[&sequence, &second]);
        prop_assert!(sequence == before && second == second_before, "a pass changed a sequence");

        // Each path alone, as a chain; and one of them token by token.
        for (i, at) in place.iter().enumerate() {
            let mut path = Vec::new();
            let mut node = Some(i as u32);
            while let Some(n) = node {
                path.insert(0, tree[n as usize].0);
                node = tree[n as usize].1;
            }
            let alone = setup.pass(&chain(&path, 0), &[&sequence]);
            prop_assert!(alone.last() == Some(&together[*at as usize]), "row {} differs alone", i);
            if i + 1 == tree.len() {
                let mut copy = sequence.clone();
                let steps = setup.read(&mut copy, &path, &[1]);
                prop_assert!(steps.last() == alone.last(), "row {} differs one by one", i);
            }
        }
    }

    #[test]
    fn a_committed_path_leaves_what_its_tokens_leave(
        (moe, kv, activations, threads) in settings(),
        text in tokens(0..100),
        tree in tree(40),
        more in tokens(1..60),
    ) {
        let mut setup = Setup::new(moe, kv, activations, threads);
        let mut sequence = setup.model.sequence();
        setup.read(&mut sequence, &text, &[64]);
        let snapshot = sequence.clone();
        let kept = snapshot.unshared().unwrap();
        let rows: Vec<Row> = tree.iter().map(|(token, parent)| Row { token: *token, sequence: 0, parent: *parent }).collect();
        setup.pass(&rows, &[&sequence]);
        let mut path = vec![rows.len() as u32 - 1];
        while let Some(parent) = rows[path[0] as usize].parent {
            path.insert(0, parent);
        }
        setup.commit(0, &mut sequence, &path);
        let after = setup.read(&mut sequence, &more, &[7]);

        let mut again = snapshot.clone();
        let tokens: Vec<u32> = path.iter().map(|r| rows[*r as usize].token).collect();
        setup.read(&mut again, &tokens, &[1]);
        prop_assert!(setup.read(&mut again, &more, &[1]) == after, "what follows differs");
        prop_assert!(again == sequence, "the states differ");
        prop_assert!(snapshot == kept, "a snapshot changed");
    }
}

proptest! {
    #![proptest_config(cases(12))]

    #[test]
    fn prompts_read_together_are_as_if_each_were_alone(
        (moe, kv, activations, threads) in settings(),
        texts in proptest::collection::vec(
            (tokens(0..70), tokens(1..32), any::<prop::sample::Index>()), 2..4),
    ) {
        let mut setup = Setup::new(moe, kv, activations, threads);
        let (mut sequences, mut rows, mut paths) = (Vec::new(), Vec::new(), Vec::new());
        for (i, (before, part, _)) in texts.iter().enumerate() {
            let mut sequence = setup.model.sequence();
            setup.read(&mut sequence, before, &[50]);
            sequences.push(sequence);
            let first = rows.len() as u32;
            rows.extend(chain(part, i as u32).into_iter().map(|row| {
                Row { parent: row.parent.map(|parent| parent + first), ..row }
            }));
            paths.push((first..rows.len() as u32).collect::<Vec<u32>>());
        }
        let alone = sequences.clone();
        let chosen: Vec<u32> = (0..rows.len() as u32).collect();
        let seen: Vec<&Sequence> = sequences.iter().collect();
        setup.model.forward_prompt(&mut setup.cpu, &rows, &chosen, &seen).expect("a pass");
        let together = setup.bits(&rows);
        // Each is committed in two steps, the state between them kept, before any is compared.
        let mut kept = Vec::new();
        for (i, (_, part, at)) in texts.iter().enumerate() {
            let (begin, end) = paths[i].split_at(at.index(part.len()));
            setup.commit(i, &mut sequences[i], begin);
            kept.push(sequences[i].clone());
            setup.commit(i, &mut sequences[i], end);
        }
        for (i, (_, part, at)) in texts.iter().enumerate() {
            let (begin, end) = part.split_at(at.index(part.len()));
            let mut sequence = alone[i].clone();
            let mut bits = setup.read(&mut sequence, begin, &[7]);
            prop_assert!(sequence == kept[i], "text {} leaves another state between", i);
            bits.extend(setup.read(&mut sequence, end, &[7]));
            prop_assert!(sequence == sequences[i], "text {} leaves another state", i);
            for (row, bits) in paths[i].iter().zip(&bits) {
                prop_assert!(*bits == together[*row as usize], "row {} differs", row);
            }
        }
    }
}

#[test]
fn threads_and_levels_give_the_same_bits() {
    let text: Vec<u32> = (0..90).map(|i| i * 37 % 300).collect();
    for (moe, activations) in
        [(false, Activations::Int8), (true, Activations::Int8), (false, Activations::F32)]
    {
        let mut first = None;
        for level in CpuLevel::ALL.into_iter().rev().filter(|l| l.is_available()) {
            for threads in [1, 3] {
                let mut setup = Setup::at(level, moe, KvType::Q8_0, activations, threads);
                let mut sequence = setup.model.sequence();
                let bits = setup.read(&mut sequence, &text, &[40]);
                let (expected, state) =
                    first.get_or_insert_with(|| (bits.clone(), sequence.clone()));
                assert!(*expected == bits, "{level:?} with {threads} threads differs");
                assert!(
                    *state == sequence,
                    "{level:?} with {threads} threads leaves another state"
                );
            }
        }
    }
}

#[test]
fn a_wrong_commit_is_refused() {
    let mut setup = Setup::new(false, KvType::F16, Activations::Int8, 1);
    let mut sequence = setup.model.sequence();
    setup.pass(&chain(&[1, 2, 3], 0), &[&sequence]);
    for path in [&[1u32][..], &[0, 2], &[7]] {
        assert!(setup.model.commit(&mut setup.cpu, 0, &mut sequence, path).is_err());
    }
    assert!(setup.model.commit(&mut setup.cpu, 1, &mut sequence, &[0]).is_err());
    setup.commit(0, &mut sequence, &[0, 1]);
    assert!(
        setup.model.commit(&mut setup.cpu, 0, &mut sequence, &[0]).is_err(),
        "the rows were committed already"
    );
    assert_eq!(sequence.committed(), 2);
}

#[test]
fn tokens_and_sizes_from_outside_are_checked() {
    let mut setup = Setup::new(false, KvType::F16, Activations::Int8, 1);
    let sequence = setup.model.sequence();
    let error = setup
        .model
        .forward(&mut setup.cpu, &chain(&[300], 0), &[], &[&sequence])
        .expect_err("refused");
    assert_eq!(error.to_string(), "token 300 is not in the vocabulary of 300");
    let long = chain(&[0; 97], 0);
    assert!(setup.model.forward(&mut setup.cpu, &long, &[], &[&sequence]).is_err());
}
