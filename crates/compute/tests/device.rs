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
        let checks = compute::selftest::run(&mut cuda, "", |_| ()).expect("the device works");
        let failed: Vec<_> = checks.iter().filter(|check| !check.holds()).collect();
        assert!(failed.is_empty(), "{} of {} failed: {failed:?}", failed.len(), checks.len());
    }
}

#[test]
fn only_the_groups_that_are_asked_for_run() {
    let names = |only: &str| -> Vec<String> {
        let mut device = compute::reference::Reference::default();
        let checks =
            compute::selftest::run(&mut device, only, |_| ()).expect("the reference works");
        assert!(checks.iter().all(compute::selftest::Check::holds), "{only}");
        checks.into_iter().map(|check| check.name).collect()
    };
    let embeddings = names("embed");
    assert!(
        embeddings.len() > 5 && embeddings.iter().all(|name| name.starts_with("embed ")),
        "{embeddings:?}"
    );
    let attention = names("attention F16 6 x 96, 30 before");
    assert!(attention.iter().any(|name| name.ends_with(", tree")), "{attention:?}");
    assert!(
        attention.iter().all(|name| name.starts_with("attention F16 6 x 96, 30 before, ")),
        "{attention:?}"
    );
    assert!(names("several texts").len() >= 8);
    assert!(names("no such op").is_empty());
}
