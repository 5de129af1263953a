//! The AVX-512 level: one 512-bit register, with the VNNI dot product.

use super::Lanes;
use std::arch::x86_64::*;

/// Sixteen numbers in one register.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(__m512);

impl Lanes for Avx512 {
    type Ints = __m512i;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        unsafe { Self(_mm512_set1_ps(x)) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { Self(_mm512_loadu_ps(from)) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe { _mm512_storeu_ps(to, self.0) }
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        unsafe { Self(_mm512_add_ps(self.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        unsafe { Self(_mm512_sub_ps(self.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        unsafe { Self(_mm512_mul_ps(self.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn div(self, b: Self) -> Self {
        unsafe { Self(_mm512_div_ps(self.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        unsafe { Self(_mm512_fmadd_ps(self.0, b.0, c.0)) }
    }
    #[inline(always)]
    unsafe fn fnma(self, b: Self, c: Self) -> Self {
        unsafe { Self(_mm512_fnmadd_ps(self.0, b.0, c.0)) }
    }
    #[inline(always)]
    unsafe fn max(self, b: Self) -> Self {
        unsafe { Self(_mm512_max_ps(self.0, b.0)) }
    }
    #[inline(always)]
    unsafe fn abs(self) -> Self {
        unsafe { Self(_mm512_abs_ps(self.0)) }
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        unsafe { Self(_mm512_roundscale_ps::<0>(self.0)) }
    }
    #[inline(always)]
    unsafe fn power_of_two(self) -> Self {
        unsafe {
            let n = _mm512_add_epi32(_mm512_cvtps_epi32(self.0), _mm512_set1_epi32(127));
            Self(_mm512_castsi512_ps(_mm512_slli_epi32::<23>(n)))
        }
    }
    #[inline(always)]
    unsafe fn unless_less(self, a: Self, b: Self) -> Self {
        unsafe { Self(_mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(a.0, b.0), self.0)) }
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        unsafe {
            let high = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(self.0)));
            let v = _mm256_add_ps(_mm512_castps512_ps256(self.0), high);
            let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
        }
    }
    #[inline(always)]
    unsafe fn sums(v: [Self; 16]) -> Self {
        // The same additions as `sum`, for 16 vectors side by side: each step packs two vectors'
        // halves into one.
        unsafe {
            macro_rules! step {
                ($x:expr, $y:expr, $low:expr, $high:expr) => {
                    _mm512_add_ps($low($x, $y), $high($x, $y))
                };
            }
            macro_rules! eighths {
                ($i:expr) => {
                    step!(
                        v[$i].0,
                        v[$i + 1].0,
                        _mm512_shuffle_f32x4::<0x44>,
                        _mm512_shuffle_f32x4::<0xee>
                    )
                };
            }
            macro_rules! quarters {
                ($i:expr) => {
                    step!(
                        eighths!($i),
                        eighths!($i + 2),
                        _mm512_shuffle_f32x4::<0x88>,
                        _mm512_shuffle_f32x4::<0xdd>
                    )
                };
            }
            macro_rules! pd {
                ($f:ident, $x:expr, $y:expr) => {
                    _mm512_castpd_ps($f(_mm512_castps_pd($x), _mm512_castps_pd($y)))
                };
            }
            // In each 128-bit part: two numbers of vector i, two of vector i + 4 (and so on by
            // part).
            let (a, b) = (quarters!(0), quarters!(4));
            let (c, d) = (quarters!(8), quarters!(12));
            let ab = _mm512_add_ps(pd!(_mm512_unpacklo_pd, a, b), pd!(_mm512_unpackhi_pd, a, b));
            let cd = _mm512_add_ps(pd!(_mm512_unpacklo_pd, c, d), pd!(_mm512_unpackhi_pd, c, d));
            let all = step!(ab, cd, _mm512_shuffle_ps::<0x88>, _mm512_shuffle_ps::<0xdd>);
            // Lane 4 p + j holds vector 4 j + p.
            let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
            Self(_mm512_permutexvar_ps(order, all))
        }
    }
    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        unsafe { _mm512_reduce_max_ps(self.0) }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        unsafe { Self(_mm512_cvtph_ps(_mm256_loadu_si256(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        unsafe {
            let v = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(v)))
        }
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self {
        unsafe { Self(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast())))) }
    }
    #[inline(always)]
    unsafe fn store_i8(self, to: *mut i8) {
        unsafe { _mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(self.0))) }
    }
    #[inline(always)]
    unsafe fn from_ints(v: __m512i) -> Self {
        unsafe { Self(_mm512_cvtepi32_ps(v)) }
    }

    #[inline(always)]
    unsafe fn from_bits(v: __m512i) -> Self {
        unsafe { Self(_mm512_castsi512_ps(v)) }
    }

    #[inline(always)]
    unsafe fn int_splat(x: i32) -> __m512i {
        unsafe { _mm512_set1_epi32(x) }
    }
    #[inline(always)]
    unsafe fn int_load(from: *const u8) -> __m512i {
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn int_add(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_add_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn int_and(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_and_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn int_or(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_or_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn byte_splat(x: u8) -> __m512i {
        unsafe { _mm512_set1_epi8(x as i8) }
    }
    #[inline(always)]
    unsafe fn int_shr<const N: i32>(a: __m512i) -> __m512i {
        unsafe { _mm512_srl_epi32(a, _mm_cvtsi32_si128(N)) }
    }
    #[inline(always)]
    unsafe fn int_shl<const N: i32>(a: __m512i) -> __m512i {
        unsafe { _mm512_sll_epi32(a, _mm_cvtsi32_si128(N)) }
    }
    #[inline(always)]
    unsafe fn lookup(table: *const u8, index: __m512i) -> __m512i {
        unsafe { _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table.cast())), index) }
    }
    #[inline(always)]
    unsafe fn dot(acc: __m512i, codes: __m512i, x: *const i8) -> __m512i {
        unsafe {
            _mm512_dpbusd_epi32(acc, codes, _mm512_set1_epi32(x.cast::<i32>().read_unaligned()))
        }
    }
}
