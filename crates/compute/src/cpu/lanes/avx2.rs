//! The AVX2 level: two 256-bit registers, with FMA and F16C.

use super::Lanes;
use std::arch::x86_64::*;

/// Sixteen numbers in two registers.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(__m256, __m256);

impl Lanes for Avx2 {
    type Ints = (__m256i, __m256i);
    const ROOMY: bool = false;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        unsafe { Self(_mm256_set1_ps(x), _mm256_set1_ps(x)) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { Self(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe {
            _mm256_storeu_ps(to, self.0);
            _mm256_storeu_ps(to.add(8), self.1)
        }
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        unsafe { Self(_mm256_add_ps(self.0, b.0), _mm256_add_ps(self.1, b.1)) }
    }
    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        unsafe { Self(_mm256_sub_ps(self.0, b.0), _mm256_sub_ps(self.1, b.1)) }
    }
    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        unsafe { Self(_mm256_mul_ps(self.0, b.0), _mm256_mul_ps(self.1, b.1)) }
    }
    #[inline(always)]
    unsafe fn div(self, b: Self) -> Self {
        unsafe { Self(_mm256_div_ps(self.0, b.0), _mm256_div_ps(self.1, b.1)) }
    }
    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        unsafe { Self(_mm256_fmadd_ps(self.0, b.0, c.0), _mm256_fmadd_ps(self.1, b.1, c.1)) }
    }
    #[inline(always)]
    unsafe fn fnma(self, b: Self, c: Self) -> Self {
        unsafe { Self(_mm256_fnmadd_ps(self.0, b.0, c.0), _mm256_fnmadd_ps(self.1, b.1, c.1)) }
    }
    #[inline(always)]
    unsafe fn max(self, b: Self) -> Self {
        unsafe { Self(_mm256_max_ps(self.0, b.0), _mm256_max_ps(self.1, b.1)) }
    }
    #[inline(always)]
    unsafe fn abs(self) -> Self {
        unsafe {
            let mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fff_ffff));
            Self(_mm256_and_ps(self.0, mask), _mm256_and_ps(self.1, mask))
        }
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        unsafe { Self(_mm256_round_ps::<8>(self.0), _mm256_round_ps::<8>(self.1)) }
    }
    #[inline(always)]
    unsafe fn power_of_two(self) -> Self {
        unsafe {
            let power = |v| {
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(
                    _mm256_cvtps_epi32(v),
                    _mm256_set1_epi32(127),
                )))
            };
            Self(power(self.0), power(self.1))
        }
    }
    #[inline(always)]
    unsafe fn unless_less(self, a: Self, b: Self) -> Self {
        unsafe {
            Self(
                _mm256_and_ps(self.0, _mm256_cmp_ps::<_CMP_NLT_UQ>(a.0, b.0)),
                _mm256_and_ps(self.1, _mm256_cmp_ps::<_CMP_NLT_UQ>(a.1, b.1)),
            )
        }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        unsafe {
            let v = _mm256_add_ps(self.0, self.1);
            let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
        }
    }
    #[inline(always)]
    unsafe fn sums(v: [Self; 16]) -> Self {
        // The same additions as `sum`: halves, quarters, eighths and the last two, of two vectors
        // in each step.
        unsafe {
            macro_rules! halves {
                ($i:expr) => {
                    _mm256_add_ps(v[$i].0, v[$i].1)
                };
            }
            macro_rules! quarters {
                ($i:expr) => {{
                    let (a, b) = (halves!($i), halves!($i + 4));
                    _mm256_add_ps(
                        _mm256_permute2f128_ps::<0x20>(a, b),
                        _mm256_permute2f128_ps::<0x31>(a, b),
                    )
                }};
            }
            macro_rules! eighths {
                ($i:expr) => {{
                    let (a, b) =
                        (_mm256_castps_pd(quarters!($i)), _mm256_castps_pd(quarters!($i + 1)));
                    _mm256_add_ps(
                        _mm256_castpd_ps(_mm256_unpacklo_pd(a, b)),
                        _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)),
                    )
                }};
            }
            macro_rules! eight {
                ($i:expr) => {{
                    let (a, b) = (eighths!($i), eighths!($i + 2));
                    _mm256_add_ps(_mm256_shuffle_ps::<0x88>(a, b), _mm256_shuffle_ps::<0xdd>(a, b))
                }};
            }
            Self(eight!(0), eight!(8))
        }
    }
    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        unsafe {
            let v = _mm256_max_ps(self.0, self.1);
            let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)))
        }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        unsafe {
            Self(
                _mm256_cvtph_ps(_mm_loadu_si128(from.cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(from.add(8).cast())),
            )
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        unsafe {
            let wide = |p: *const u16| {
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(
                    _mm_loadu_si128(p.cast()),
                )))
            };
            Self(wide(from), wide(from.add(8)))
        }
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self {
        unsafe {
            let wide =
                |p: *const i8| _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast())));
            Self(wide(from), wide(from.add(8)))
        }
    }
    #[inline(always)]
    unsafe fn store_i8(self, to: *mut i8) {
        unsafe {
            let words = _mm256_packs_epi32(_mm256_cvtps_epi32(self.0), _mm256_cvtps_epi32(self.1));
            // Packing goes by halves of registers: its quarters lie in the order 0, 2, 1, 3.
            let words = _mm256_permute4x64_epi64::<0xd8>(words);
            let bytes = _mm_packs_epi16(
                _mm256_castsi256_si128(words),
                _mm256_extracti128_si256::<1>(words),
            );
            _mm_storeu_si128(to.cast(), bytes);
        }
    }
    #[inline(always)]
    unsafe fn from_ints(v: Self::Ints) -> Self {
        unsafe { Self(_mm256_cvtepi32_ps(v.0), _mm256_cvtepi32_ps(v.1)) }
    }

    #[inline(always)]
    unsafe fn from_bits(v: Self::Ints) -> Self {
        unsafe { Self(_mm256_castsi256_ps(v.0), _mm256_castsi256_ps(v.1)) }
    }

    #[inline(always)]
    unsafe fn int_splat(x: i32) -> Self::Ints {
        unsafe { (_mm256_set1_epi32(x), _mm256_set1_epi32(x)) }
    }
    #[inline(always)]
    unsafe fn int_load(from: *const u8) -> Self::Ints {
        unsafe { (_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast())) }
    }
    #[inline(always)]
    unsafe fn int_add(a: Self::Ints, b: Self::Ints) -> Self::Ints {
        unsafe { (_mm256_add_epi32(a.0, b.0), _mm256_add_epi32(a.1, b.1)) }
    }
    #[inline(always)]
    unsafe fn int_and(a: Self::Ints, b: Self::Ints) -> Self::Ints {
        unsafe { (_mm256_and_si256(a.0, b.0), _mm256_and_si256(a.1, b.1)) }
    }
    #[inline(always)]
    unsafe fn int_or(a: Self::Ints, b: Self::Ints) -> Self::Ints {
        unsafe { (_mm256_or_si256(a.0, b.0), _mm256_or_si256(a.1, b.1)) }
    }
    #[inline(always)]
    unsafe fn byte_splat(x: u8) -> Self::Ints {
        unsafe { (_mm256_set1_epi8(x as i8), _mm256_set1_epi8(x as i8)) }
    }
    #[inline(always)]
    unsafe fn int_shr<const N: i32>(a: Self::Ints) -> Self::Ints {
        unsafe { (_mm256_srli_epi32::<N>(a.0), _mm256_srli_epi32::<N>(a.1)) }
    }
    #[inline(always)]
    unsafe fn int_shl<const N: i32>(a: Self::Ints) -> Self::Ints {
        unsafe { (_mm256_slli_epi32::<N>(a.0), _mm256_slli_epi32::<N>(a.1)) }
    }
    #[inline(always)]
    unsafe fn lookup(table: *const u8, index: Self::Ints) -> Self::Ints {
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.cast()));
            (_mm256_shuffle_epi8(table, index.0), _mm256_shuffle_epi8(table, index.1))
        }
    }
    #[inline(always)]
    unsafe fn dot(acc: Self::Ints, codes: Self::Ints, x: *const i8) -> Self::Ints {
        unsafe {
            // Two products of 255 * 127 overflow 16 bits, so even and odd bytes are multiplied
            // apart.
            let low = _mm256_set1_epi16(0xff);
            let x = _mm256_set1_epi32(x.cast::<i32>().read_unaligned());
            let (x_even, x_odd) =
                (_mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(x)), _mm256_srai_epi16::<8>(x));
            macro_rules! dot {
                ($acc:expr, $codes:expr) => {{
                    let even = _mm256_madd_epi16(_mm256_and_si256($codes, low), x_even);
                    let odd = _mm256_madd_epi16(_mm256_srli_epi16::<8>($codes), x_odd);
                    _mm256_add_epi32($acc, _mm256_add_epi32(even, odd))
                }};
            }
            (dot!(acc.0, codes.0), dot!(acc.1, codes.1))
        }
    }
    #[inline(always)]
    unsafe fn dots<const MOST: i32, const N: usize, const R: usize>(
        mut acc: [Self::Ints; R],
        codes: &[Self::Ints; N],
        x: &[*const i8; R],
    ) -> [Self::Ints; R] {
        unsafe {
            if MOST > 127 {
                for j in 0..N {
                    for r in 0..R {
                        acc[r] = Self::dot(acc[r], codes[j], x[r].add(4 * j));
                    }
                }
                return acc;
            }
            // So many pairs of products fit 16 bits; they are added there, which is half the work.
            // Two rows at a time have registers enough.
            let fit = ((32_767 / (2 * 128 * MOST)) as usize).min(N);
            let (zero, ones) = (_mm256_setzero_si256(), _mm256_set1_epi16(1));
            for first in (0..R).step_by(2) {
                for part in (0..N).step_by(fit) {
                    let mut short = [(zero, zero); 2];
                    for j in part..N.min(part + fit) {
                        for r in first..R.min(first + 2) {
                            let x =
                                _mm256_set1_epi32(x[r].add(4 * j).cast::<i32>().read_unaligned());
                            let short = &mut short[r - first];
                            short.0 =
                                _mm256_add_epi16(short.0, _mm256_maddubs_epi16(codes[j].0, x));
                            short.1 =
                                _mm256_add_epi16(short.1, _mm256_maddubs_epi16(codes[j].1, x));
                        }
                    }
                    for r in first..R.min(first + 2) {
                        let short = short[r - first];
                        acc[r].0 = _mm256_add_epi32(acc[r].0, _mm256_madd_epi16(short.0, ones));
                        acc[r].1 = _mm256_add_epi32(acc[r].1, _mm256_madd_epi16(short.1, ones));
                    }
                }
            }
            acc
        }
    }
}
