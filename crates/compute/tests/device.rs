//! Every op of a CUDA device against the reference, where there is one.

use compute::cuda::{Cuda, Images};
use std::io::Write;

#[test]
fn every_op_of_the_device_equals_the_reference() {
    for images in [Images::Best, Images::Ptx] {
        let mut cuda = match Cuda::new(0, images) {
            Ok(cuda) => cuda,
            Err(reason) => {
                // Not through `eprintln!`, which the harness keeps to itself.
                let name = "every_op_of_the_device_equals_the_reference";
                let _ = writeln!(std::io::stderr(), "skipped: {name} ({images:?}): {reason}");
                continue;
            }
        };
        let checks = compute::selftest::run(&mut cuda, |_| ()).expect("the device works");
        let failed: Vec<_> = checks.iter().filter(|check| !check.holds()).collect();
        assert!(failed.is_empty(), "{} of {} failed: {failed:?}", failed.len(), checks.len());
    }
}
