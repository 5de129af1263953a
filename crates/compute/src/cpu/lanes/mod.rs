//! Sixteen numbers at a time. Kernels are written once over this trait; the three levels differ
//! only here, and compute the same bits: multiply-adds are fused everywhere and sums are folded in
//! halves everywhere.
//!
//! The scalar level is there on every processor. The others exist where `build.rs` opens the gate
//! `x86_lanes`: on x86-64, unless the feature `portable` keeps it closed.
//!
//! Kernels do without closures around these methods: a closure is compiled without the level's
//! instructions unless it is inlined, and each method in it then costs a call.
//!
//! Every method is unsafe for the same two reasons: the processor must have the level's
//! instructions (`CpuLevel` checks that once), and pointers must be valid for the 16 elements (or
//! stated bytes) they stand for.
// The contract of an unsafe kernel covers the block inside it.
#![allow(clippy::undocumented_unsafe_blocks)]

#[cfg(x86_lanes)]
mod avx2;
#[cfg(x86_lanes)]
mod avx512;
mod scalar;

#[cfg(x86_lanes)]
pub(crate) use avx2::Avx2;
#[cfg(x86_lanes)]
pub(crate) use avx512::Avx512;
pub(crate) use scalar::Scalar;

/// Sixteen f32, with sixteen 32-bit integers (or 64 bytes) beside them.
#[allow(clippy::missing_safety_doc)]
pub(crate) trait Lanes: Copy {
    /// 16 x i32, or 64 bytes.
    type Ints: Copy;
    /// Whether some thirty of these may be at hand at a time; else seven, which is what registers
    /// hold, and kernels take fewer columns or rows.
    const ROOMY: bool = true;

    unsafe fn splat(x: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn store(self, to: *mut f32);
    unsafe fn add(self, b: Self) -> Self;
    unsafe fn sub(self, b: Self) -> Self;
    unsafe fn mul(self, b: Self) -> Self;
    unsafe fn div(self, b: Self) -> Self;
    /// `self * b + c`, rounded once.
    unsafe fn fma(self, b: Self, c: Self) -> Self;
    /// `c - self * b`, rounded once.
    unsafe fn fnma(self, b: Self, c: Self) -> Self;
    /// The larger; `b` where either is NaN.
    unsafe fn max(self, b: Self) -> Self;
    unsafe fn abs(self) -> Self;
    /// To the nearest integer, ties to even.
    unsafe fn round(self) -> Self;
    /// `2^self` for integers from -126 to 127.
    unsafe fn power_of_two(self) -> Self;
    /// 0 where `a < b`, else `self`: so NaN in `a` is not a reason for 0.
    unsafe fn unless_less(self, a: Self, b: Self) -> Self;
    /// Sum of the lanes, folded in halves.
    unsafe fn sum(self) -> f32;
    /// The sum of each of 16 vectors, as the lanes of one.
    #[inline(always)]
    unsafe fn sums(v: [Self; 16]) -> Self {
        unsafe {
            let mut sums = [0f32; 16];
            for i in 0..16 {
                sums[i] = v[i].sum();
            }
            Self::load(sums.as_ptr())
        }
    }
    /// Largest lane.
    unsafe fn largest(self) -> f32;
    /// 16 f16.
    unsafe fn load_f16(from: *const u16) -> Self;
    /// 16 bf16.
    unsafe fn load_bf16(from: *const u16) -> Self;
    /// 16 i8, read as numbers.
    unsafe fn load_i8(from: *const i8) -> Self;
    /// Lanes are integers in -128..=127: 16 bytes out.
    unsafe fn store_i8(self, to: *mut i8);
    unsafe fn from_ints(ints: Self::Ints) -> Self;
    /// The numbers whose bits these are.
    unsafe fn from_bits(ints: Self::Ints) -> Self;
    /// 8-bit floats (e4m3) times 2^-120: their bits in an f32's places.
    #[inline(always)]
    unsafe fn from_e4m3(bytes: Self::Ints) -> Self {
        unsafe {
            let sign = Self::int_shl::<24>(Self::int_and(bytes, Self::int_splat(0x80)));
            let rest = Self::int_shl::<20>(Self::int_and(bytes, Self::int_splat(0x7f)));
            Self::from_bits(Self::int_or(sign, rest))
        }
    }

    unsafe fn int_splat(x: i32) -> Self::Ints;
    /// 64 bytes.
    unsafe fn int_load(from: *const u8) -> Self::Ints;
    unsafe fn int_add(a: Self::Ints, b: Self::Ints) -> Self::Ints;
    unsafe fn int_and(a: Self::Ints, b: Self::Ints) -> Self::Ints;
    unsafe fn int_or(a: Self::Ints, b: Self::Ints) -> Self::Ints;
    /// Every byte the same.
    unsafe fn byte_splat(x: u8) -> Self::Ints;
    /// Right shift of the 32-bit lanes.
    unsafe fn int_shr<const N: i32>(a: Self::Ints) -> Self::Ints;
    /// Left shift of the 32-bit lanes.
    unsafe fn int_shl<const N: i32>(a: Self::Ints) -> Self::Ints;
    /// Each byte (below 16) replaced by that entry of a table of 16 bytes.
    unsafe fn lookup(table: *const u8, index: Self::Ints) -> Self::Ints;
    /// Adds to each lane the dot product of its four bytes (unsigned) with the four signed bytes at
    /// `x`.
    unsafe fn dot(acc: Self::Ints, codes: Self::Ints, x: *const i8) -> Self::Ints;
    /// The same over `N` vectors of codes up to `MOST` and `4 N` signed bytes, for `R` rows of
    /// them.
    #[inline(always)]
    unsafe fn dots<const MOST: i32, const N: usize, const R: usize>(
        mut acc: [Self::Ints; R],
        codes: &[Self::Ints; N],
        x: &[*const i8; R],
    ) -> [Self::Ints; R] {
        unsafe {
            if R < 4 && N == 8 {
                // Two chains hide the latency that other rows hide otherwise; the sum is exact.
                for r in 0..R {
                    let mut second = Self::int_splat(0);
                    for j in 0..N / 2 {
                        acc[r] = Self::dot(acc[r], codes[j], x[r].add(4 * j));
                        second = Self::dot(second, codes[N / 2 + j], x[r].add(4 * (N / 2 + j)));
                    }
                    acc[r] = Self::int_add(acc[r], second);
                }
            } else {
                for j in 0..N {
                    for r in 0..R {
                        acc[r] = Self::dot(acc[r], codes[j], x[r].add(4 * j));
                    }
                }
            }
            acc
        }
    }

    /// Asks for a cache line before it is needed; any address will do.
    #[inline(always)]
    unsafe fn fetch(address: *const u8) {
        #[cfg(x86_lanes)]
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(address.cast())
        }
        #[cfg(not(x86_lanes))]
        let _ = address;
    }

    #[inline(always)]
    unsafe fn zero() -> Self {
        unsafe { Self::splat(0.0) }
    }

    /// `e^self`, for `self` up to 88; below -87 it is 0; NaN stays NaN.
    #[inline(always)]
    unsafe fn exp(self) -> Self {
        unsafe {
            let low = Self::splat(-87.0);
            let x = low.max(self);
            let n = x.mul(Self::splat(std::f32::consts::LOG2_E)).round();
            let r = n.fnma(Self::splat(0.693_359_4), x);
            let r = n.fnma(Self::splat(-2.121_944_4e-4), r);
            let mut p = Self::splat(1.987_569_1e-4);
            for c in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
                p = p.fma(r, Self::splat(c));
            }
            let one = Self::splat(1.0);
            p.fma(r.mul(r), r).add(one).mul(n.power_of_two()).unless_less(self, low)
        }
    }

    /// `1 / (1 + e^-self)`.
    #[inline(always)]
    unsafe fn sigmoid(self) -> Self {
        unsafe {
            let one = Self::splat(1.0);
            // The cap keeps e^-x finite; the quotient is 0 to f32 well before it.
            let e = Self::zero().sub(Self::splat(-87.0).max(self)).exp();
            one.div(one.add(e))
        }
    }

    /// `self * sigmoid(self)`.
    #[inline(always)]
    unsafe fn silu(self) -> Self {
        unsafe { self.mul(self.sigmoid()) }
    }
}

/// Defines a kernel entry that runs `$body` at the level asked for.
macro_rules! at_level {
    (
        $(#[$doc:meta])*
        $vis:vis fn $name:ident = $body:ident $(<$($c:ident : $ct:ty),*>)?
        ($($arg:ident: $ty:ty),* $(,)?)
    ) => {
        $(#[$doc])*
        #[allow(clippy::missing_safety_doc)]
        $vis unsafe fn $name $(<$(const $c: $ct),*>)? (
            level: $crate::cpu::CpuLevel,
            $($arg: $ty),*
        ) {
            use $crate::cpu::lanes;
            #[cfg(x86_lanes)]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn avx2 $(<$(const $c: $ct),*>)? ($($arg: $ty),*) {
                // SAFETY: as for the caller.
                unsafe { $body::<lanes::Avx2 $($(, $c)*)?>($($arg),*) }
            }
            #[cfg(x86_lanes)]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
            unsafe fn avx512 $(<$(const $c: $ct),*>)? ($($arg: $ty),*) {
                // SAFETY: as for the caller.
                unsafe { $body::<lanes::Avx512 $($(, $c)*)?>($($arg),*) }
            }
            // SAFETY: a `CpuLevel` above scalar is in use only where its instructions are.
            unsafe {
                match level {
                    #[cfg(x86_lanes)]
                    $crate::cpu::CpuLevel::Avx2 => avx2 $(::<$($c),*>)? ($($arg),*),
                    #[cfg(x86_lanes)]
                    $crate::cpu::CpuLevel::Avx512 => avx512 $(::<$($c),*>)? ($($arg),*),
                    _ => $body::<lanes::Scalar $($(, $c)*)?>($($arg),*),
                }
            }
        }
    };
}
pub(crate) use at_level;

#[cfg(test)]
mod tests {
    use super::*;

    /// Dot products of 8 vectors of codes with `R` rows.
    #[inline(always)]
    unsafe fn dots_of<L: Lanes, const MOST: i32, const R: usize>(
        codes: &[[u8; 64]; 8],
        x: &[[i8; 32]; R],
    ) -> [[f32; 16]; R] {
        unsafe {
            let mut vectors = [L::int_splat(0); 8];
            for i in 0..8 {
                vectors[i] = L::int_load(codes[i].as_ptr());
            }
            let mut rows = [std::ptr::null(); R];
            for r in 0..R {
                rows[r] = x[r].as_ptr();
            }
            let dots = L::dots::<MOST, 8, R>([L::int_splat(3); R], &vectors, &rows);
            let mut out = [[0f32; 16]; R];
            for r in 0..R {
                L::from_ints(dots[r]).store(out[r].as_mut_ptr());
            }
            out
        }
    }

    #[cfg(x86_lanes)]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn avx2<const MOST: i32, const R: usize>(
        codes: &[[u8; 64]; 8],
        x: &[[i8; 32]; R],
    ) -> [[f32; 16]; R] {
        unsafe { dots_of::<Avx2, MOST, R>(codes, x) }
    }

    fn largest_codes<const MOST: i32>() {
        let codes = [[MOST as u8; 64]; 8];
        for (positive, negative) in [(127, 127), (-127, -127), (127, -127)] {
            let mut x = [[positive; 32]; 3];
            x[1][16..].fill(negative);
            // SAFETY: scalar code runs everywhere, the other where its instructions are.
            unsafe {
                let expected = dots_of::<Scalar, MOST, 3>(&codes, &x);
                assert_eq!(expected[0][0], (3 + 32 * MOST * i32::from(positive)) as f32);
                #[cfg(x86_lanes)]
                if crate::CpuLevel::detect() >= crate::CpuLevel::Avx2 {
                    assert_eq!(expected, avx2::<MOST, 3>(&codes, &x), "codes of {MOST}");
                }
            }
        }
    }

    #[test]
    fn the_largest_codes_and_activations_fit() {
        largest_codes::<15>();
        largest_codes::<31>();
        largest_codes::<63>();
        largest_codes::<255>();
    }
}
