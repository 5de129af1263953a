//! Philox 4x32-10 (Salmon et al., 2011): random numbers as a function of a key and a counter, the
//! same on any device.

const MULTIPLIERS: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];

/// Ten rounds of Philox.
pub fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let wide = |i: usize, x: u32| {
            let product = u64::from(MULTIPLIERS[i]) * u64::from(x);
            ((product >> 32) as u32, product as u32)
        };
        let ((high0, low0), (high1, low1)) = (wide(0, counter[0]), wide(1, counter[2]));
        counter = [high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

/// The random number in [0, 1) that picks the token at `position` of choice `choice`.
pub fn uniform(seed: u64, choice: u32, position: usize) -> f64 {
    let position = position as u64;
    let counter = [position as u32, (position >> 32) as u32, choice, 0];
    let [a, b, ..] = philox(counter, [seed as u32, (seed >> 32) as u32]);
    // 53 bits.
    ((u64::from(a) << 32 | u64::from(b)) >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answers() {
        // From the authors' Random123 `kat_vectors`.
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([!0; 4], [!0; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
    }
}
