//! Encoding: against ggml's files and figures, and by properties of what comes back.

use formats::blocks::{self, BlockType, Half};
use formats::quantize::{self, EncodeError};
use proptest::prelude::*;

const QUANTISED: [BlockType; 5] =
    [BlockType::Q8_0, BlockType::Q4_0, BlockType::Q4_K, BlockType::Q5_K, BlockType::Q6_K];

/// Excerpts of a model's weights, and what ggml made of them: `scripts/make-block-vectors.py`. The
/// first half of the values are from tensors that ggml's `Q4_K_M` stores as `Q4_K`, the second from
/// those it stores as `Q6_K`.
const WEIGHTS: &[u8] = include_bytes!("vectors/weights.bf16");
const GGML_Q8_0: &[u8] = include_bytes!("vectors/weights.q8_0");
const GGML_Q4_K: &[u8] = include_bytes!("vectors/weights.q4_k");
const GGML_Q6_K: &[u8] = include_bytes!("vectors/weights.q6_k");

/// The error, relative to the root mean square of the values, that ggml leaves on 4M values of N(0,
/// 1), and what ours may be at most as a part of it. Measured with `ggml_quantize_chunk` of the
/// ggml in llama-cpp-python 0.3.36, no importance matrix, decoded by the `gguf` package 0.19.
const GGML_GAUSSIAN_ERROR: [(BlockType, f64, f64); 7] = [
    (BlockType::F16, 0.000208, 1.005),
    (BlockType::BF16, 0.001662, 1.005),
    (BlockType::Q8_0, 0.005351, 1.005),
    (BlockType::Q4_0, 0.085952, 0.953),
    (BlockType::Q4_K, 0.071336, 0.993),
    (BlockType::Q5_K, 0.036121, 0.967),
    (BlockType::Q6_K, 0.017735, 0.970),
];

fn encoded(ty: BlockType, values: &[f32]) -> Vec<u8> {
    let mut out = vec![0xa5; ty.bytes_for(values.len()).unwrap()];
    quantize::encode(ty, values, &mut out).unwrap();
    out
}

fn decoded(ty: BlockType, bytes: &[u8]) -> Vec<f32> {
    let mut out = vec![f32::NAN; bytes.len() / ty.block_bytes() * ty.block_len()];
    blocks::decode(ty, bytes, &mut out);
    out
}

/// The root mean square of the differences.
fn rms(values: &[f32], others: &[f32]) -> f64 {
    assert_eq!(values.len(), others.len());
    let squares = values.iter().zip(others).map(|(a, b)| f64::from(a - b).powi(2));
    (squares.sum::<f64>() / values.len() as f64).sqrt()
}

/// Normally distributed values: xorshift64*, Box-Muller.
fn gaussian(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed;
    let mut uniform = move || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        ((state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    };
    let normal =
        |_| ((-2.0 * uniform().ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos()) as f32;
    (0..count).map(normal).collect()
}

#[test]
fn q8_0_is_ggmls_to_the_bit() {
    let weights = decoded(BlockType::BF16, WEIGHTS);
    assert_eq!(encoded(BlockType::Q8_0, &weights), GGML_Q8_0);
}

/// Quants round half away from zero, and not what merely comes near a half.
#[test]
fn q8_0_rounds_ties_away_from_zero() {
    let mut values = [0.0; 32];
    let below = 0.5_f32.next_down();
    values[..9].copy_from_slice(&[127.0, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, below, -below]);
    let bytes = encoded(BlockType::Q8_0, &values);
    assert_eq!(bytes[..2], Half::new(1.0).0);
    assert_eq!(
        bytes[2..12].iter().map(|b| *b as i8).collect::<Vec<_>>(),
        [127, 1, -1, 2, -2, 3, -3, 0, 0, 0]
    );
}

#[test]
fn weights_lose_no_more_than_with_ggml() {
    let weights = decoded(BlockType::BF16, WEIGHTS);
    let (first, second) = weights.split_at(weights.len() / 2);
    for (ty, weights, theirs) in
        [(BlockType::Q4_K, first, GGML_Q4_K), (BlockType::Q6_K, second, GGML_Q6_K)]
    {
        let ours = rms(weights, &decoded(ty, &encoded(ty, weights)));
        let theirs = rms(weights, &decoded(ty, theirs));
        assert!(ours <= theirs, "{ty}: {ours} against {theirs}");
    }
}

#[test]
fn gaussian_rows_lose_no_more_than_with_ggml() {
    let values = gaussian(1, 1 << 20);
    let size = rms(&values, &vec![0.0; values.len()]);
    for (ty, theirs, most) in GGML_GAUSSIAN_ERROR {
        let ours = rms(&values, &decoded(ty, &encoded(ty, &values))) / size;
        assert!(ours <= theirs * most, "{ty}: {ours:.6} is {:.4} of {theirs}", ours / theirs);
    }
}

/// Weights so small that the scales are subnormal halves lose no more than others.
#[test]
fn small_weights_lose_no_more() {
    let values: Vec<f32> = gaussian(2, 1 << 16).iter().map(|x| x * 2e-4).collect();
    for (ty, ggml, _) in GGML_GAUSSIAN_ERROR.into_iter().filter(|(ty, ..)| ty.block_len() == 256) {
        let error = rms(&values, &decoded(ty, &encoded(ty, &values))) / 2e-4;
        assert!(error <= ggml * 1.01, "{ty}: {error:.6} against {ggml}");
    }
}

#[test]
fn floats_round_to_nearest_even() {
    // The last bits that survive in F16 (10 of the fraction) and BF16 (7), and ties on either side
    // of an even one.
    let one = |fraction: f32| 1.0 + fraction;
    let (f16, bf16) = (2.0_f32.powi(-10), 2.0_f32.powi(-7));
    let values =
        [one(f16 * 0.5), one(f16 * 1.5), one(f16 * 0.5).next_up(), -one(f16 * 1.5), 65519.0, 1e-9];
    assert_eq!(
        decoded(BlockType::F16, &encoded(BlockType::F16, &values)),
        [1.0, one(f16 * 2.0), one(f16), -one(f16 * 2.0), 65504.0, 0.0]
    );
    let values = [
        one(bf16 * 0.5),
        one(bf16 * 1.5),
        one(bf16 * 0.5).next_up(),
        -one(bf16 * 1.5),
        3.389e38,
        1e-45,
    ];
    let largest = f32::from_bits(0x7f7f_0000);
    assert_eq!(
        decoded(BlockType::BF16, &encoded(BlockType::BF16, &values)),
        [1.0, one(bf16 * 2.0), one(bf16), -one(bf16 * 2.0), largest, 0.0]
    );
    let values = gaussian(3, 1000);
    assert_eq!(decoded(BlockType::F32, &encoded(BlockType::F32, &values)), values);
}

#[test]
fn values_without_a_place_are_refused() {
    for ty in BlockType::ALL {
        let mut values = vec![1.0; 8192];
        let mut out = vec![0; ty.bytes_for(values.len()).unwrap()];
        if !quantize::supports(ty) {
            let error = quantize::encode(ty, &values, &mut out).unwrap_err();
            assert_eq!(error, EncodeError::Unsupported(ty));
            assert_eq!(error.to_string(), format!("type `{ty}` can be read but not written"));
            continue;
        }
        (values[5000], values[6000]) = (f32::NEG_INFINITY, f32::NAN);
        let error = quantize::encode(ty, &values, &mut out).unwrap_err();
        assert_eq!(error, EncodeError::NotFinite { index: 5000, value: f32::NEG_INFINITY });
        assert_eq!(error.to_string(), "value 5000 is -inf, not a finite number");
        values[4097] = f32::NAN;
        let error = quantize::encode(ty, &values, &mut out).unwrap_err();
        assert!(
            matches!(error, EncodeError::NotFinite { index: 4097, value } if value.is_nan()),
            "{ty}"
        );
    }
    let supported = BlockType::ALL.into_iter().filter(|ty| quantize::supports(*ty));
    assert!(supported.eq([
        BlockType::F32,
        BlockType::F16,
        BlockType::BF16,
        BlockType::Q4_0,
        BlockType::Q8_0,
        BlockType::Q4_K,
        BlockType::Q5_K,
        BlockType::Q6_K
    ]));
}

/// The largest magnitude each type takes comes back finite and near; the next one is refused.
#[test]
fn values_too_large_are_refused() {
    for ty in
        BlockType::ALL.into_iter().filter(|ty| quantize::supports(*ty) && *ty != BlockType::F32)
    {
        let mut values = vec![0.0; 256];
        let mut out = vec![0; ty.bytes_for(256).unwrap()];
        values[70] = -f32::MAX;
        let error = quantize::encode(ty, &values, &mut out).unwrap_err();
        let EncodeError::TooLarge { index: 70, value, limit, .. } = error else {
            panic!("{ty}: {error}")
        };
        assert_eq!(value, -f32::MAX);
        for (limit, sign) in [(limit, 1.0), (limit, -1.0)] {
            values[70] = limit * sign;
            let back = decoded(ty, &encoded(ty, &values));
            assert!(
                (back[70] - values[70]).abs() <= limit * 0.01,
                "{ty}: {} for {}",
                back[70],
                values[70]
            );
            values[70] = limit.next_up() * sign;
            assert!(quantize::encode(ty, &values, &mut out).is_err(), "{ty}: {}", values[70]);
        }
    }
    let error = quantize::encode(BlockType::F16, &[0.0, 7e4], &mut [0; 4]).unwrap_err().to_string();
    assert_eq!(error, "value 1 is 7e4, beyond the 6.5519996e4 that `F16` holds");
}

#[test]
#[should_panic(expected = "bytes of 32 `Q8_0` elements")]
fn encoding_into_the_wrong_length_is_a_mistake() {
    let _ = quantize::encode(BlockType::Q8_0, &[0.0; 32], &mut [0; 33]);
}

/// What plain rounding over the block's extent (or to its peak) can cost: as a part of the extent,
/// half a step and half a unit of each quantised scale and min (`Q4_0` may cut the end opposite to
/// its peak by a step); and, where scales are subnormal halves, half the smallest half for each of
/// the largest quant.
fn coarsest(ty: BlockType) -> (f32, f32) {
    const HALF_UNIT: f32 = 1.0 / 33_554_432.0; // 2^-25
    match ty {
        BlockType::Q8_0 => (0.5 / 127.0, 127.0 * HALF_UNIT),
        BlockType::Q4_0 => (1.0 / 8.0, 8.0 * HALF_UNIT),
        BlockType::Q4_K => (0.5 / 15.0 + 0.5 / 63.0 + 0.5 / 63.0, 16.0 * HALF_UNIT),
        BlockType::Q5_K => (0.5 / 31.0 + 0.5 / 63.0 + 0.5 / 63.0, 32.0 * HALF_UNIT),
        BlockType::Q6_K => (0.5 / 32.0 + 0.5 / 128.0, 32.0 * HALF_UNIT),
        _ => unreachable!("{ty}"),
    }
}

/// Rows of 256 in many shapes: each value a fraction of `2^exponent`, some sub-blocks much smaller,
/// outliers.
fn row() -> impl Strategy<Value = Vec<f32>> {
    let exponent = prop_oneof![-149..-120i32, -45..-10i32, -10..10i32, 10..16i32];
    let part = prop_oneof![4 => -1.0..1.0f32, 1 => Just(0.0f32), 1 => 0.9..1.0f32];
    let shrink = prop::collection::vec(
        prop_oneof![Just(1.0f32), Just(0.05f32), Just(-1.0f32), 0.0..1.0f32],
        16,
    );
    (exponent, prop::collection::vec(part, 256), shrink, prop_oneof![-1.0..1.0f32, -4.0..4.0f32])
        .prop_map(|(exponent, parts, shrink, lift)| {
            let size = 2.0_f64.powi(exponent);
            let value = |(i, part): (usize, &f32)| {
                (f64::from((part + lift) * shrink[i / 16]) * size) as f32
            };
            parts.iter().enumerate().map(value).collect()
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn errors_stay_within_the_step(values in row()) {
        for ty in QUANTISED {
            let back = decoded(ty, &encoded(ty, &values));
            prop_assert!(back.iter().all(|x| x.is_finite()), "{}", ty);
            for (values, back) in values.chunks(ty.block_len()).zip(back.chunks(ty.block_len())) {
                let (low, high) = values.iter().fold((0.0f32, 0.0f32), |(l, h), x| (l.min(*x), h.max(*x)));
                let peak = high.max(-low);
                let extent = if matches!(ty, BlockType::Q4_K | BlockType::Q5_K) { high - low } else { peak };
                let (part, least) = coarsest(ty);
                // And halves round to a part in 2048.
                let most = extent * part + peak / 1024.0 + least;
                let error = rms(values, back);
                prop_assert!(error <= f64::from(most), "{}: {} of {}", ty, error, extent);
                if ty == BlockType::Q8_0 {
                    let worst = values.iter().zip(back).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                    prop_assert!(worst <= most, "{}: {} of {}", ty, worst, extent);
                }
            }
        }
    }

    /// Blocks whose largest value is the largest the type takes stay finite, whatever the others
    /// are.
    #[test]
    fn rows_at_the_limit_stay_finite(values in row()) {
        let peak = values.iter().fold(0.0f32, |peak, x| peak.max(x.abs()));
        let fraction = |x: &f32| if peak == 0.0 { 0.0 } else { (f64::from(*x) / f64::from(peak)) as f32 };
        for ty in QUANTISED {
            let refused = quantize::encode(ty, &[f32::MAX; 256], &mut vec![0; ty.bytes_for(256).unwrap()]);
            let Err(EncodeError::TooLarge { limit, .. }) = refused else { panic!("{refused:?}") };
            let values: Vec<f32> = values.iter().map(|x| fraction(x) * limit).collect();
            let back = decoded(ty, &encoded(ty, &values));
            prop_assert!(back.iter().all(|x| x.is_finite()), "{}: {:?}", ty, back);
        }
    }

    /// As ggml writes them: `Q4_K` and `Q5_K` begin with two halves, neither negative.
    #[test]
    fn scales_and_mins_are_not_negative(values in row()) {
        for ty in [BlockType::Q4_K, BlockType::Q5_K] {
            let bytes = encoded(ty, &values);
            prop_assert!(bytes[1] < 0x80 && bytes[3] < 0x80, "{}: {:?}", ty, &bytes[..4]);
        }
    }

    /// Rows of one value, and of values too near each other to be told apart.
    #[test]
    fn constant_rows_come_back(
        value in prop_oneof![Just(0.0f32), 1.0..1e5f32, -1e5..-1.0f32],
        spread in prop_oneof![Just(0.0f32), 0.0..5e-4f32],
    ) {
        let values: Vec<f32> = (0..256).map(|i| value * (1.0 + spread * (i * 7 % 13) as f32 / 13.0)).collect();
        // Near values may be given other scales in each sub-block, of which not all are multiples
        // of the block's.
        let most = value.abs() / if spread == 0.0 { 1000.0 } else { 100.0 };
        for ty in QUANTISED {
            for (back, value) in decoded(ty, &encoded(ty, &values)).iter().zip(&values) {
                prop_assert!((back - value).abs() <= most, "{}: {} for {}", ty, back, value);
            }
        }
    }

    /// Encoding what was decoded changes no bit (of `Q8_0`, unless the scale had vanished).
    #[test]
    fn decoded_values_encode_to_themselves(values in row()) {
        for ty in [BlockType::F32, BlockType::F16, BlockType::BF16, BlockType::Q8_0] {
            let values: Vec<f32> = values.iter().map(|x| x.clamp(-65504.0, 65504.0)).collect();
            let first = encoded(ty, &values);
            let second = encoded(ty, &decoded(ty, &first));
            prop_assert_eq!(decoded(ty, &first), decoded(ty, &second), "{}", ty);
            for (first, second) in first.chunks(ty.block_bytes()).zip(second.chunks(ty.block_bytes())) {
                if ty != BlockType::Q8_0 || first[..2] != [0, 0] {
                    prop_assert_eq!(first, second, "{}", ty);
                }
            }
        }
    }

    /// Bits of any kind: encoding refuses or gives finite values back, and never panics.
    #[test]
    fn any_bits_are_encoded_or_refused(bits in prop::collection::vec(any::<u32>(), 256), shift in 0..4u32) {
        let values: Vec<f32> = bits.iter().map(|bits| f32::from_bits(bits >> shift)).collect();
        for ty in BlockType::ALL.into_iter().filter(|ty| quantize::supports(*ty)) {
            let mut out = vec![0; ty.bytes_for(256).unwrap()];
            match quantize::encode(ty, &values, &mut out) {
                Ok(()) => prop_assert!(decoded(ty, &out).iter().all(|x| x.is_finite()), "{}", ty),
                Err(EncodeError::NotFinite { index, .. } | EncodeError::TooLarge { index, .. }) => {
                    prop_assert!(values[..index].iter().all(|x| x.is_finite()), "{}", ty);
                    let fits = values[index].abs() <= 65504.0 * 127.0 * 31.0;
                    prop_assert!(ty != BlockType::Q6_K || !fits, "{}", ty);
                }
                Err(error) => prop_assert!(false, "{}", error),
            }
        }
    }
}
