//! The scalar level: plain arrays.

use super::Lanes;
use half::{bf16, f16};

/// Sixteen numbers in an array.
#[derive(Clone, Copy)]
pub(crate) struct Scalar([f32; 16]);

#[inline(always)]
fn each(f: impl FnMut(usize) -> f32) -> Scalar {
    Scalar(std::array::from_fn(f))
}

#[inline(always)]
fn bytes(v: [i32; 16]) -> [u8; 64] {
    bytemuck::cast(v)
}

/// Folds 16 lanes in halves: 8, 4, 2, 1.
#[inline(always)]
fn fold(mut v: [f32; 16], f: impl Fn(f32, f32) -> f32) -> f32 {
    for half in [8, 4, 2, 1] {
        for i in 0..half {
            v[i] = f(v[i], v[i + half]);
        }
    }
    v[0]
}

impl Lanes for Scalar {
    type Ints = [i32; 16];

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Scalar([x; 16])
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { Scalar(from.cast::<[f32; 16]>().read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe { to.cast::<[f32; 16]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        each(|i| self.0[i] + b.0[i])
    }
    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        each(|i| self.0[i] - b.0[i])
    }
    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        each(|i| self.0[i] * b.0[i])
    }
    #[inline(always)]
    unsafe fn div(self, b: Self) -> Self {
        each(|i| self.0[i] / b.0[i])
    }
    #[inline(always)]
    unsafe fn fma(self, b: Self, c: Self) -> Self {
        each(|i| self.0[i].mul_add(b.0[i], c.0[i]))
    }
    #[inline(always)]
    unsafe fn fnma(self, b: Self, c: Self) -> Self {
        each(|i| (-self.0[i]).mul_add(b.0[i], c.0[i]))
    }
    #[inline(always)]
    unsafe fn max(self, b: Self) -> Self {
        each(|i| if self.0[i] > b.0[i] { self.0[i] } else { b.0[i] })
    }
    #[inline(always)]
    unsafe fn abs(self) -> Self {
        each(|i| self.0[i].abs())
    }
    #[inline(always)]
    unsafe fn round(self) -> Self {
        each(|i| self.0[i].round_ties_even())
    }
    #[inline(always)]
    unsafe fn power_of_two(self) -> Self {
        each(|i| f32::from_bits(((self.0[i] as i32 + 127) << 23) as u32))
    }
    #[inline(always)]
    unsafe fn unless_less(self, a: Self, b: Self) -> Self {
        each(|i| if a.0[i] < b.0[i] { 0.0 } else { self.0[i] })
    }
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        fold(self.0, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        fold(self.0, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self {
        let v = unsafe { from.cast::<[u16; 16]>().read_unaligned() };
        each(|i| f16::from_bits(v[i]).to_f32())
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self {
        let v = unsafe { from.cast::<[u16; 16]>().read_unaligned() };
        each(|i| bf16::from_bits(v[i]).to_f32())
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self {
        let v = unsafe { from.cast::<[i8; 16]>().read_unaligned() };
        each(|i| v[i] as f32)
    }
    #[inline(always)]
    unsafe fn store_i8(self, to: *mut i8) {
        unsafe { to.cast::<[i8; 16]>().write_unaligned(std::array::from_fn(|i| self.0[i] as i8)) }
    }
    #[inline(always)]
    unsafe fn from_ints(v: [i32; 16]) -> Self {
        each(|i| v[i] as f32)
    }

    #[inline(always)]
    unsafe fn from_bits(v: [i32; 16]) -> Self {
        each(|i| f32::from_bits(v[i] as u32))
    }

    #[inline(always)]
    unsafe fn int_splat(x: i32) -> [i32; 16] {
        [x; 16]
    }
    #[inline(always)]
    unsafe fn int_load(from: *const u8) -> [i32; 16] {
        unsafe { from.cast::<[i32; 16]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn int_add(a: [i32; 16], b: [i32; 16]) -> [i32; 16] {
        std::array::from_fn(|i| a[i].wrapping_add(b[i]))
    }
    #[inline(always)]
    unsafe fn int_and(a: [i32; 16], b: [i32; 16]) -> [i32; 16] {
        std::array::from_fn(|i| a[i] & b[i])
    }
    #[inline(always)]
    unsafe fn int_or(a: [i32; 16], b: [i32; 16]) -> [i32; 16] {
        std::array::from_fn(|i| a[i] | b[i])
    }
    #[inline(always)]
    unsafe fn byte_splat(x: u8) -> [i32; 16] {
        [i32::from_ne_bytes([x; 4]); 16]
    }
    #[inline(always)]
    unsafe fn int_shr<const N: i32>(a: [i32; 16]) -> [i32; 16] {
        a.map(|x| (x as u32 >> N) as i32)
    }
    #[inline(always)]
    unsafe fn int_shl<const N: i32>(a: [i32; 16]) -> [i32; 16] {
        a.map(|x| x << N)
    }
    #[inline(always)]
    unsafe fn lookup(table: *const u8, index: [i32; 16]) -> [i32; 16] {
        let table = unsafe { table.cast::<[u8; 16]>().read_unaligned() };
        bytemuck::cast(bytes(index).map(|i| table[i as usize & 15]))
    }
    #[inline(always)]
    unsafe fn dot(acc: [i32; 16], codes: [i32; 16], x: *const i8) -> [i32; 16] {
        let x = unsafe { x.cast::<[i8; 4]>().read_unaligned() };
        let codes = bytes(codes);
        std::array::from_fn(|i| {
            acc[i] + (0..4).map(|b| codes[4 * i + b] as i32 * x[b] as i32).sum::<i32>()
        })
    }
}
