//! Block types by name, number and size; decoding against the `gguf` package
//! (`scripts/make-block-vectors.py`).

use formats::blocks::{self, BlockType, Half, Q4_K, Q5_K, Q6_K, UnknownType, k, legacy};
use proptest::prelude::*;

#[test]
fn types_are_known_by_name_and_number() {
    for ty in BlockType::ALL {
        match ty.ggml_id() {
            Some(id) => {
                assert_eq!(BlockType::from_ggml(id), Ok(ty));
                assert_eq!(blocks::ggml_name(id), Some(ty.name()));
            }
            // No file can have it.
            None => {
                assert_eq!(BlockType::from_ggml(ty.number()), Err(UnknownType::Id(ty.number())))
            }
        }
        assert_eq!(ty.name(), format!("{ty:?}"));
        assert_eq!(ty.to_string(), ty.name());
        assert_eq!(ty.name().to_lowercase().parse(), Ok(ty));
        assert_eq!(ty.name().parse(), Ok(ty));
    }
    // A few from the specification of GGUF, so that the table is not only compared with itself.
    for (id, ty) in
        [(0, BlockType::F32), (8, BlockType::Q8_0), (12, BlockType::Q4_K), (30, BlockType::BF16)]
    {
        assert_eq!(ty.ggml_id(), Some(id));
    }
}

#[test]
fn other_types_are_refused_by_name() {
    let named = [
        (4, "Q4_2"),
        (9, "Q8_1"),
        (15, "Q8_K"),
        (24, "I8"),
        (28, "F64"),
        (33, "Q4_0_8_8"),
        (38, "IQ4_NL_8_8"),
        (41, "Q1_0"),
        (42, "Q2_0"),
    ];
    for (id, name) in named {
        let error = BlockType::from_ggml(id).unwrap_err();
        assert_eq!(error, UnknownType::Unsupported { id, name });
        let sentence = format!(
            "tensor type `{name}` ({id}) is not supported: get the model in another quantisation, \
             such as Q4_K_M"
        );
        assert_eq!(error.to_string(), sentence);
    }
    assert_eq!(BlockType::from_ggml(43).unwrap_err().to_string(), "unknown tensor type 43");
    assert_eq!(BlockType::from_ggml(u32::MAX), Err(UnknownType::Id(u32::MAX)));
    let error = "q4_k_m".parse::<BlockType>().unwrap_err().to_string();
    assert!(
        error.starts_with("unknown tensor type `q4_k_m`, expected one of F32, F16,"),
        "{error}"
    );
}

#[test]
fn sizes_are_of_whole_blocks() {
    let sizes = [
        (BlockType::F32, 1, 4),
        (BlockType::F16, 1, 2),
        (BlockType::BF16, 1, 2),
        (BlockType::Q4_0, 32, 18),
        (BlockType::Q4_1, 32, 20),
        (BlockType::Q5_0, 32, 22),
        (BlockType::Q5_1, 32, 24),
        (BlockType::Q8_0, 32, 34),
        (BlockType::Q2_K, 256, 84),
        (BlockType::Q3_K, 256, 110),
        (BlockType::Q4_K, 256, 144),
        (BlockType::Q5_K, 256, 176),
        (BlockType::Q6_K, 256, 210),
        (BlockType::IQ2_XXS, 256, 66),
        (BlockType::IQ2_XS, 256, 74),
        (BlockType::IQ3_XXS, 256, 98),
        (BlockType::IQ1_S, 256, 50),
        (BlockType::IQ4_NL, 32, 18),
        (BlockType::IQ3_S, 256, 110),
        (BlockType::IQ2_S, 256, 82),
        (BlockType::IQ4_XS, 256, 136),
        (BlockType::IQ1_M, 256, 56),
        (BlockType::TQ1_0, 256, 54),
        (BlockType::TQ2_0, 256, 66),
        (BlockType::MXFP4, 32, 17),
        (BlockType::NVFP4, 64, 36),
        (BlockType::FP8, 128, 132),
        (BlockType::FP4, 128, 76),
        (BlockType::INT4, 128, 68),
        (BlockType::INT4_32, 32, 20),
        (BlockType::INT8, 128, 132),
    ];
    assert_eq!(sizes.map(|(ty, ..)| ty), BlockType::ALL);
    for (ty, len, bytes) in sizes {
        assert_eq!((ty.block_len(), ty.block_bytes()), (len, bytes), "{ty}");
        assert_eq!(ty.bytes_for(0), Some(0));
        assert_eq!(ty.bytes_for(3 * len), Some(3 * bytes));
        assert_eq!(ty.bytes_for(3 * len + 1), (len == 1).then_some(4 * bytes), "{ty}");
    }
    assert_eq!(BlockType::F32.bytes_for(usize::MAX / 2), None);
    assert_eq!(BlockType::Q8_0.bytes_for(usize::MAX - 31), None);
}

/// `count` numbers of splitmix64, as the script has them.
fn mix(seed: u64, count: usize) -> impl Iterator<Item = u64> {
    (1..=count as u64).map(move |i| {
        let z = seed.wrapping_add(i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    })
}

fn unhex(text: &str) -> Vec<u8> {
    text.as_bytes().as_chunks().0.iter().map(|pair| byte(*pair)).collect()
}

fn byte(pair: [u8; 2]) -> u8 {
    u8::from_str_radix(std::str::from_utf8(&pair).unwrap(), 16).unwrap()
}

/// The decoded elements' bits, with one NaN for all.
fn decoded(ty: BlockType, bytes: &[u8]) -> Vec<u32> {
    let mut out = vec![f32::NAN; bytes.len() / ty.block_bytes() * ty.block_len()];
    blocks::decode(ty, bytes, &mut out);
    out.iter().map(|x| if x.is_nan() { 0x7fc0_0000 } else { x.to_bits() }).collect()
}

/// Random bytes: every pattern of quants, and scales of every exponent, infinite and NaN included.
#[test]
fn decoding_agrees_with_gguf() {
    const ELEMENTS: usize = 1 << 17;
    let vectors = include_str!("vectors/decode.txt");
    assert_eq!(vectors.lines().count(), BlockType::ALL.len());
    for line in vectors.lines() {
        let [name, digest, bytes, bits] = line.split(' ').collect::<Vec<_>>().try_into().unwrap();
        let ty: BlockType = name.parse().unwrap();
        let expected: Vec<u32> =
            unhex(bits).as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        assert_eq!(decoded(ty, &unhex(bytes)), expected, "{ty}: the blocks spelled out");

        let words = ty.bytes_for(ELEMENTS).unwrap() / 8;
        let bytes: Vec<u8> =
            mix(u64::from(ty.number()), words).flat_map(u64::to_le_bytes).collect();
        let pairs = decoded(ty, &bytes).into_iter().zip(mix(0, ELEMENTS));
        let sum = pairs
            .fold(0u64, |sum, (bits, key)| sum.wrapping_add(u64::from(bits).wrapping_mul(key)));
        assert_eq!(format!("{sum:016x}"), digest, "{ty}: {ELEMENTS} elements");
    }
}

#[test]
fn decoding_needs_no_alignment() {
    for ty in BlockType::ALL {
        let bytes: Vec<u8> =
            mix(7, ty.bytes_for(1024).unwrap() / 8).flat_map(u64::to_le_bytes).collect();
        let shifted: Vec<u8> = std::iter::once(0).chain(bytes.iter().copied()).collect();
        assert_eq!(decoded(ty, &bytes), decoded(ty, &shifted[1..]), "{ty}");
    }
}

#[test]
#[should_panic(expected = "bytes of 64 `Q8_0` elements")]
fn decoding_into_the_wrong_length_is_a_mistake() {
    blocks::decode(BlockType::Q8_0, &[0; 34], &mut [0.0; 64]);
}

#[test]
fn every_half_has_its_value() {
    for bits in 0..=u16::MAX {
        let (ours, theirs) = (Half(bits.to_le_bytes()).get(), half::f16::from_bits(bits).to_f32());
        assert!(
            ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()),
            "{bits:04x}"
        );
        assert!(theirs.is_nan() || Half::new(theirs).0 == bits.to_le_bytes(), "{bits:04x}");
    }
}

proptest! {
    #[test]
    fn packing_is_undone_by_unpacking(seed: u64) {
        let quants: Vec<u8> = mix(seed, 256).map(|word| word as u8).collect();
        let quants: [u8; 256] = quants.try_into().unwrap();
        let zero: [u8; 256] = [0; 256];

        let [scales, mins]: [[u8; 8]; 2] = [0, 8].map(|at| std::array::from_fn(|i| quants[at + i] & 63));
        prop_assert_eq!(k::unpack_scales(&k::pack_scales(&scales, &mins)), (scales, mins));

        let expected = quants.map(|q| q & 15);
        let block = Q4_K { qs: Q4_K::pack_quants(&expected), ..*bytemuck::from_bytes(&zero[..144]) };
        prop_assert_eq!(block.quants(), expected);

        let expected = quants.map(|q| q & 31);
        let (qh, qs) = Q5_K::pack_quants(&expected);
        let block = Q5_K { qh, qs, ..*bytemuck::from_bytes(&zero[..176]) };
        prop_assert_eq!(block.quants(), expected);

        let expected = quants.map(|q| (q & 63) as i8 - 32);
        let (ql, qh) = Q6_K::pack_quants(&expected);
        let block = Q6_K { ql, qh, ..*bytemuck::from_bytes(&zero[..210]) };
        prop_assert_eq!(block.quants(), expected);

        let expected: [u8; 32] = std::array::from_fn(|i| quants[i] & 15);
        prop_assert_eq!(legacy::nibbles(&legacy::pack_nibbles(&expected)), expected);
    }
}
