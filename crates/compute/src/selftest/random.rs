//! Random numbers and weights of any type, the same ones every time.

use formats::{BlockType, blocks::integers};

/// A small random number generator (splitmix64), so that a failure can be run again.
pub struct Random(pub u64);

impl Random {
    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Less than `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// About normal, standard deviation 1.
    pub fn number(&mut self) -> f32 {
        (0..4).map(|_| (self.bits() >> 40) as f32 / (1 << 24) as f32 - 0.5).sum::<f32>() * 1.7
    }

    /// `n` of them.
    pub fn numbers(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.number()).collect()
    }
}

/// Where the f16 fields of a block lie.
fn halves(ty: BlockType) -> &'static [usize] {
    match ty {
        BlockType::F32 | BlockType::F16 | BlockType::BF16 => &[],
        BlockType::Q4_0
        | BlockType::Q5_0
        | BlockType::Q8_0
        | BlockType::IQ3_S
        | BlockType::IQ3_XXS
        | BlockType::IQ2_XXS
        | BlockType::IQ2_XS
        | BlockType::IQ2_S
        | BlockType::IQ1_S
        | BlockType::IQ4_NL
        | BlockType::IQ4_XS => &[0],
        BlockType::Q4_1 | BlockType::Q5_1 | BlockType::Q4_K | BlockType::Q5_K => &[0, 2],
        BlockType::Q2_K => &[80, 82],
        BlockType::Q3_K => &[108],
        BlockType::Q6_K => &[208],
        BlockType::TQ1_0 => &[52],
        BlockType::TQ2_0 => &[64],
        // Theirs are of other kinds: see `tame`.
        BlockType::IQ1_M
        | BlockType::MXFP4
        | BlockType::NVFP4
        | BlockType::FP8
        | BlockType::FP4
        | BlockType::INT4
        | BlockType::INT4_32
        | BlockType::INT8 => &[],
    }
}

/// Gives a block whose scales are no f16 some of a sane size.
fn tame(random: &mut Random, ty: BlockType, block: &mut [u8]) {
    // What f16, bf16 and f32 can all hold.
    let scale = half::f16::from_f32(0.01 * random.number()).to_f32();
    let not_nan = |byte: &mut u8| *byte = if *byte & 0x7f == 0x7f { 0 } else { *byte };
    match ty {
        BlockType::IQ1_M => {
            let [low, high] = half::f16::from_f32(scale).to_le_bytes();
            for (i, four) in [low & 15, low >> 4, high & 15, high >> 4].into_iter().enumerate() {
                block[49 + 2 * i] = block[49 + 2 * i] & 15 | four << 4;
            }
        }
        BlockType::MXFP4 => block[0] = 112 + block[0] % 16,
        BlockType::NVFP4 => block[..4].iter_mut().for_each(|d| *d = 8 + *d % 32),
        BlockType::FP8 | BlockType::FP4 | BlockType::INT8 => {
            block[..4].copy_from_slice(&(scale / 8.0).to_le_bytes());
            let floats = match ty {
                BlockType::FP8 => 4..132,
                BlockType::FP4 => 4..12,
                _ => 0..0,
            };
            block[floats].iter_mut().for_each(not_nan);
        }
        BlockType::INT4 | BlockType::INT4_32 => {
            let head = integers::Scale::new(scale, random.below(17) as u8);
            block[..4].copy_from_slice(&head.expect("eleven bits").0);
        }
        _ => {}
    }
}

/// `n` weights of any type: random codes and scales, with scales of a sane size.
pub fn random_blocks(random: &mut Random, ty: BlockType, n: usize) -> Vec<u8> {
    match ty {
        BlockType::F32 => random.numbers(n).iter().flat_map(|x| x.to_le_bytes()).collect(),
        BlockType::F16 => {
            random.numbers(n).iter().flat_map(|x| half::f16::from_f32(*x).to_le_bytes()).collect()
        }
        BlockType::BF16 => {
            random.numbers(n).iter().flat_map(|x| half::bf16::from_f32(*x).to_le_bytes()).collect()
        }
        _ => {
            let mut bytes: Vec<u8> =
                (0..n / ty.block_len() * ty.block_bytes()).map(|_| random.bits() as u8).collect();
            for block in bytes.chunks_exact_mut(ty.block_bytes()) {
                for at in halves(ty) {
                    let d = half::f16::from_f32(0.01 * random.number());
                    block[*at..at + 2].copy_from_slice(&d.to_le_bytes());
                }
                tame(random, ty, block);
            }
            bytes
        }
    }
}
