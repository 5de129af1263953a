use super::{shapes::group, *};

fn device(major: u32, multiprocessors: u32, shared: u32) -> DeviceInfo {
    DeviceInfo { name: String::new(), major, minor: 0, multiprocessors, shared, l2: 0, memory: 0 }
}

const H200: (u32, u32, u32) = (9, 132, 232_448);

#[test]
fn the_matrices_of_27b_fill_an_h200() {
    use TileFormat::{F16, Q4_K, Q6_K};
    let limits = device(H200.0, H200.1, H200.2);
    let cut = |matrices: &[_], cols| {
        let g = geometry(&group(matrices, cols), &limits);
        (g.slices, g.shares, g.warps)
    };
    assert_eq!(cut(&[(17408, Q4_K), (17408, Q4_K)], 5120), (2, 66, 16));
    assert_eq!(cut(&[(10240, Q4_K), (6144, Q4_K), (48, F16), (48, F16)], 5120), (2, 66, 16));
    assert_eq!(cut(&[(12288, Q4_K), (1024, Q4_K), (1024, Q6_K)], 5120), (2, 66, 16));
    assert_eq!(cut(&[(5120, Q4_K)], 6144), (2, 66, 12));
    assert_eq!(cut(&[(248320, Q6_K)], 5120), (2, 66, 16));
    let down = geometry(&group(&[(5120, Q4_K)], 17408), &limits);
    assert!(down.slices * down.shares >= 110, "{down:?}");
}

#[test]
fn every_number_of_rows_fits_and_shares_meet() {
    use TileFormat::{F16, IQ3_S, IQ3_XXS, Q4_K, Q5_K, Q6_K, Q8_0};
    let devices = [
        H200,
        (8, 108, 166_912),
        (8, 84, 101_376),
        (10, 148, 232_448),
        (12, 170, 101_376),
        (12, 48, 101_376),
    ];
    let matrices: [&[(usize, TileFormat)]; 10] = [
        &[(17408, Q4_K), (17408, Q4_K)],
        &[(10240, Q5_K), (6144, Q4_K), (48, F16), (48, Q8_0)],
        &[(512, Q8_0), (512, Q8_0), (256, F16), (1, F16)],
        &[(248320, Q6_K)],
        &[(1, F16)],
        &[(33, Q8_0)],
        &[(5120, Q8_0)],
        &[(2048, F16)],
        &[(5120, IQ3_S)],
        &[(17408, IQ3_XXS), (17408, IQ3_XXS)],
    ];
    for (major, multiprocessors, shared) in devices {
        let limits = device(major, multiprocessors, shared);
        for (matrices, cols) in
            matrices.iter().flat_map(|m| [64, 2048, 5120, 17408, 25600].map(|cols| (m, cols)))
        {
            let group = group(matrices, cols);
            let g = geometry(&group, &limits);
            assert!(g.join || g.slices <= MAX_CLUSTER);
            assert!(!g.join || g.slices > MAX_CLUSTER || major < 9);
            assert!(g.slices * g.shares <= multiprocessors as usize || g.shares == 1, "{g:?}");
            assert!(g.launch_rows >= 4, "{matrices:?} {cols}: {g:?} on {limits:?}");
            for rows in 1..=g.launch_rows {
                let room = room(&group, &g, &limits, rows).expect("fits");
                assert!(room.shared + group.book_bytes() <= shared as usize && room.stages >= 2);
                assert!(g.slices > 1 || !room.workspace);
            }
            let cuts: Vec<usize> = (0..=g.shares).map(|i| group.first_tile(i, g.shares)).collect();
            assert!(cuts[0] == 0 && cuts[g.shares] == group.tiles());
            assert!(
                cuts.windows(2).all(|w| w[0] <= w[1] && w[1] - w[0] <= g.owned * g.slices),
                "{cuts:?}"
            );
            for (block, b) in group.cuts(&g).iter().enumerate() {
                let (tiles, depth) = (b[21], b[23]);
                assert!(b[17] as usize == block % g.slices && (1..256).contains(&depth));
                assert!(b[..=g.warps].windows(2).all(|w| w[0] <= w[1]), "{b:?}");
                assert!(b[0] == 0 && b[g.warps] == tiles << 8, "{b:?}");
                assert!(b[..=g.warps].iter().all(|at| at & 255 < depth), "{b:?}");
            }
        }
    }
}
