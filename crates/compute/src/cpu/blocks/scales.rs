//! Where the scales of a block come from.
// The contract of an unsafe kernel (see `lanes`) covers the block inside it.
#![allow(clippy::missing_safety_doc, clippy::undocumented_unsafe_blocks)]

use super::{Exploded, TILE};
use crate::cpu::lanes::Lanes;

/// Where the scales of a block come from.
pub(crate) trait Scales {
    /// Groups of 32 columns in a block.
    const GROUPS: usize;
    /// Whether 16 columns share a scale rather than 32.
    const HALVES: bool = false;
    /// Whether there are minima.
    const MINIMA: bool = false;
    /// Bytes of a tile's scales for one block.
    const BYTES: usize;
    /// What a block's groups share: (d, dmin).
    unsafe fn shared<L: Lanes>(from: *const u8) -> (L, L);
    /// Scale and minimum of scale group `i` (of 16 or 32 columns).
    unsafe fn group<L: Lanes>(from: *const u8, shared: (L, L), i: usize) -> (L, L);
    /// Writes the scales of a row. A block of the file may be several of a tile: `part` is which.
    fn put(scales: &mut [u8], lane: usize, block: &Exploded, part: usize);
}

/// One f16 scale per 32 columns, and with `MINIMA` one f16 constant.
pub(crate) struct Half<const MINIMA: bool>;

impl<const MINIMA: bool> Scales for Half<MINIMA> {
    const GROUPS: usize = 1;
    const MINIMA: bool = MINIMA;
    const BYTES: usize = 32 * (1 + MINIMA as usize);

    #[inline(always)]
    unsafe fn shared<L: Lanes>(from: *const u8) -> (L, L) {
        unsafe {
            let d = L::load_f16(from.cast());
            (d, if MINIMA { L::zero().sub(L::load_f16(from.add(32).cast())) } else { d })
        }
    }

    #[inline(always)]
    unsafe fn group<L: Lanes>(_: *const u8, shared: (L, L), _: usize) -> (L, L) {
        shared
    }

    fn put(scales: &mut [u8], lane: usize, block: &Exploded, _: usize) {
        scales[2 * lane..][..2].copy_from_slice(&block.d);
        if MINIMA {
            scales[32 + 2 * lane..][..2].copy_from_slice(&block.dmin);
        }
    }
}

/// Small integer scales per `256 / COUNT` columns times one f16 per 256, and with `MINIMA` the same
/// again.
pub(crate) struct Super<const COUNT: usize, const MINIMA: bool>;

impl<const COUNT: usize, const MINIMA: bool> Super<COUNT, MINIMA> {
    const D: usize = COUNT * TILE * (1 + MINIMA as usize);
}

impl<const COUNT: usize, const MINIMA: bool> Scales for Super<COUNT, MINIMA> {
    const GROUPS: usize = 8;
    const HALVES: bool = COUNT == 16;
    const MINIMA: bool = MINIMA;
    const BYTES: usize = (COUNT * TILE + 32) * (1 + MINIMA as usize);

    #[inline(always)]
    unsafe fn shared<L: Lanes>(from: *const u8) -> (L, L) {
        unsafe {
            let d = L::load_f16(from.add(Self::D).cast());
            (d, if MINIMA { L::load_f16(from.add(Self::D + 32).cast()) } else { d })
        }
    }

    #[inline(always)]
    unsafe fn group<L: Lanes>(from: *const u8, (d, dmin): (L, L), i: usize) -> (L, L) {
        unsafe {
            let scale = L::load_i8(from.add(i * TILE).cast()).mul(d);
            (
                scale,
                if MINIMA {
                    L::load_i8(from.add((COUNT + i) * TILE).cast()).mul(dmin)
                } else {
                    scale
                },
            )
        }
    }

    fn put(scales: &mut [u8], lane: usize, block: &Exploded, _: usize) {
        for i in 0..COUNT {
            scales[i * TILE + lane] = block.scales[i] as u8;
            if MINIMA {
                scales[(COUNT + i) * TILE + lane] = block.minima[i] as u8;
            }
        }
        scales[Self::D + 2 * lane..][..2].copy_from_slice(&block.d);
        if MINIMA {
            scales[Self::D + 32 + 2 * lane..][..2].copy_from_slice(&block.dmin);
        }
    }
}

/// One f32 scale for `GROUPS` groups, and with `ZERO` the code that stands for zero.
pub(crate) struct Single<const GROUPS: usize, const ZERO: bool>;

impl<const GROUPS: usize, const ZERO: bool> Scales for Single<GROUPS, ZERO> {
    const GROUPS: usize = GROUPS;
    const MINIMA: bool = ZERO;
    const BYTES: usize = 4 * TILE + TILE * ZERO as usize;

    #[inline(always)]
    unsafe fn shared<L: Lanes>(from: *const u8) -> (L, L) {
        unsafe {
            let scale = L::load(from.cast());
            (scale, if ZERO { L::load_i8(from.add(4 * TILE).cast()).mul(scale) } else { scale })
        }
    }

    #[inline(always)]
    unsafe fn group<L: Lanes>(_: *const u8, shared: (L, L), _: usize) -> (L, L) {
        shared
    }

    fn put(scales: &mut [u8], lane: usize, block: &Exploded, part: usize) {
        let single = block.singles[2 * GROUPS * part];
        scales[4 * lane..][..4].copy_from_slice(&single.to_le_bytes());
        if ZERO {
            scales[4 * TILE + lane] = block.zero as u8;
        }
    }
}

/// One f32 scale for 16 columns.
pub(crate) struct Sixteenths;

impl Scales for Sixteenths {
    const GROUPS: usize = 1;
    const HALVES: bool = true;
    const BYTES: usize = 2 * 4 * TILE;

    #[inline(always)]
    unsafe fn shared<L: Lanes>(_: *const u8) -> (L, L) {
        unsafe { (L::zero(), L::zero()) }
    }

    #[inline(always)]
    unsafe fn group<L: Lanes>(from: *const u8, _: (L, L), i: usize) -> (L, L) {
        unsafe {
            let scale = L::load(from.add(4 * TILE * i).cast());
            (scale, scale)
        }
    }

    fn put(scales: &mut [u8], lane: usize, block: &Exploded, part: usize) {
        for i in 0..2 {
            let single = block.singles[2 * part + i];
            scales[4 * (TILE * i + lane)..][..4].copy_from_slice(&single.to_le_bytes());
        }
    }
}
