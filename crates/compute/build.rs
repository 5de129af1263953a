//! Compiles the CUDA kernels for every architecture Forerun ships, where NVRTC is found, and writes
//! a table of the images for `src/cuda/kernels.rs`. Without NVRTC the table is empty and the build
//! goes on. What the kernels declare is read in any case: see `build/declarations.rs`.

#[path = "build/declarations.rs"]
mod declarations;
#[path = "src/cuda/nvrtc.rs"]
mod nvrtc;

use declarations::{Kernel, Sources};
use std::{env, fmt::Write, fs, path::Path, path::PathBuf};

/// Cubins for these; PTX of `compute_80` serves every other card.
const ARCHITECTURES: [&str; 9] =
    ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_120a", "sm_121a", "compute_80"];

/// Structs that kernels are given, as CUDA declares them.
const GIVEN: [&str; 1] = ["TensorMap"];
/// Structs that kernels find in memory.
const ARRAYS: [&str; 6] = ["Sequence", "Step", "Draw", "KvText", "RecurrentText", "KeptRow"];

fn main() {
    for variable in ["NVRTC_LIB", "FORERUN_CUDA_ARCHITECTURES"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    println!("cargo::rerun-if-changed=kernels");
    println!("cargo::rerun-if-changed=build");
    // A path that is not there would make every build start here.
    let installed = "../../.nvrtc/pyvenv.cfg";
    println!(
        "cargo::rerun-if-changed={}",
        if Path::new(installed).exists() { installed } else { "build.rs" }
    );
    println!("cargo::rerun-if-changed=src/cuda/nvrtc.rs");
    // The gate of the processor's lanes (`src/cpu/lanes`).
    println!("cargo::rustc-check-cfg=cfg(x86_lanes)");
    let architecture = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets CARGO_CFG_TARGET_ARCH");
    if architecture == "x86_64" && env::var_os("CARGO_FEATURE_PORTABLE").is_none() {
        println!("cargo::rustc-cfg=x86_lanes");
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let write = |name: &str, text: &str| {
        fs::write(out.join(name), text).expect("OUT_DIR is writable");
    };
    let (mut kernels, mut headers) = (read("cu"), read("cuh"));
    write("args.rs", &declare(&mut kernels, &mut headers));
    let mut sources = String::from("pub(crate) const SOURCES: &[(&str, &str)] = &[\n");
    for (list, name) in [(&kernels, "kernels"), (&headers, "headers")] {
        if name == "headers" {
            sources += "];\npub(crate) const HEADERS: &[(&str, &str)] = &[\n";
        }
        for (file, source) in list {
            write(file, source);
            let path = out.join(file);
            writeln!(sources, "    ({file:?}, include_str!({path:?})),").expect("a string grows");
        }
    }
    sources += "];\n";
    let mut images = String::from("pub(crate) const IMAGES: &[(&str, &str, &[u8])] = &[\n");
    let root = Path::new("../..");
    match nvrtc::Nvrtc::find(env::var_os("NVRTC_LIB").as_deref().map(Path::new), Some(root)) {
        None => println!(
            "cargo::warning=no NVRTC found: kernels are not in this build \
             (scripts/get-nvrtc installs it)"
        ),
        Some(nvrtc) => {
            let chosen = env::var("FORERUN_CUDA_ARCHITECTURES").ok();
            let chosen: Vec<&str> = match &chosen {
                Some(list) => list.split(',').filter(|a| !a.is_empty()).collect(),
                None => ARCHITECTURES.to_vec(),
            };
            let headers: Vec<(&str, &str)> =
                headers.iter().map(|(n, s)| (n.as_str(), s.as_str())).collect();
            for (file, source) in &kernels {
                for architecture in &chosen {
                    let image =
                        nvrtc.compile(file, source, &headers, architecture).unwrap_or_else(|log| {
                            panic!("{file} does not compile for {architecture}:\n{log}")
                        });
                    let path = out.join(format!("{file}.{architecture}"));
                    fs::write(&path, image).expect("OUT_DIR is writable");
                    writeln!(images, "    ({file:?}, {architecture:?}, include_bytes!({path:?})),")
                        .expect("a string grows");
                }
            }
        }
    }
    images += "];\n";
    write("images.rs", &(sources + &images));
}

/// What the sources declare, as Rust: the structs that kernels are given, a constant for each
/// kernel. Every source that declares a struct then asserts where its fields lie.
fn declare(kernels: &mut [(String, String)], headers: &mut [(String, String)]) -> String {
    let all = || headers.iter().chain(kernels.iter());
    let sources = Sources::new(all().map(|(name, text)| (name.as_str(), text.as_str())));
    let mut structs = Vec::new();
    let mut constants = String::from("/// Every kernel there is.\npub(crate) mod kernel {\n");
    constants += "    use super::*;\n";
    for Kernel { name, file, args } in sources.kernels() {
        sources.layout(&args, &mut structs);
        let constant = name.to_uppercase();
        writeln!(
            constants,
            "    pub(crate) const {constant}: Kernel<{args}> = Kernel::new({name:?}, {file:?});"
        )
        .expect("a string grows");
    }
    for array in ARRAYS {
        sources.layout(array, &mut structs);
    }
    let mut rust = declarations::rust(&structs, &GIVEN, &ARRAYS) + &constants + "}\n";
    for (name, value) in sources.integers("forerun.cuh") {
        writeln!(rust, "pub(crate) const {name}: usize = {value};").expect("a string grows");
    }
    for (_, text) in headers.iter_mut().chain(kernels) {
        *text += &declarations::assertions(&structs, text);
    }
    rust
}

/// The files of `kernels` with that extension, by name.
fn read(extension: &str) -> Vec<(String, String)> {
    let mut files: Vec<(String, String)> = fs::read_dir("kernels")
        .expect("the kernels are part of this crate")
        .flatten()
        .map(|e| e.path())
        .filter(|p| p.extension().is_some_and(|e| e == extension))
        .map(|p| {
            let name = p.file_name().expect("a file").to_string_lossy().into_owned();
            (name, fs::read_to_string(&p).expect("a readable file"))
        })
        .collect();
    files.sort();
    files
}
