//! What the tests of both kernels cut.

use super::{
    DeviceInfo, Group,
    TileFormat::{self, F16, Q4_K, Q5_K, Q6_K, Q8_0},
};

pub(super) const H200: DeviceInfo = DeviceInfo {
    name: String::new(),
    major: 9,
    minor: 0,
    multiprocessors: 132,
    shared: 232_448,
    l2: 0,
    memory: 0,
};

/// Large matrices, most of them of the 27B: rows and formats, columns.
pub(super) const LARGE: [(&[(usize, TileFormat)], usize); 7] = [
    (&[(17408, Q4_K), (17408, Q4_K)], 5120),
    (&[(10240, Q4_K), (6144, Q4_K), (48, F16), (48, F16)], 5120),
    (&[(12288, Q4_K), (1024, Q4_K), (1024, Q6_K)], 5120),
    (&[(5120, Q4_K)], 6144),
    (&[(5120, Q6_K)], 17408),
    (&[(248320, Q6_K)], 5120),
    (&[(17408, Q5_K), (1000, Q8_0)], 5120),
];

pub(super) fn group(matrices: &[(usize, TileFormat)], cols: usize) -> Group {
    let matrices = matrices.iter().map(|&(rows, format)| (rows.div_ceil(16), format)).collect();
    Group { matrices, superblocks: cols.div_ceil(256) }
}
