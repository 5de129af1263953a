//! NVRTC, the CUDA compiler as a library: `build.rs` makes the kernels of a release with it, and a
//! build without them compiles at first use where a libnvrtc is found. Shared by both, so it uses
//! nothing of this crate.
#![allow(unsafe_code)]

use libloading::{Library, Symbol};
use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    path::{Path, PathBuf},
};

/// A loaded libnvrtc and where CUDA's headers are.
pub(crate) struct Nvrtc {
    library: Library,
    include: Option<PathBuf>,
}

impl Nvrtc {
    /// Where NVRTC may be: the file `given` names, what `scripts/get-nvrtc` installed under `root`,
    /// a CUDA toolkit.
    pub(crate) fn find(given: Option<&Path>, root: Option<&Path>) -> Option<Self> {
        let mut places: Vec<(PathBuf, Option<PathBuf>)> = Vec::new();
        if let Some(file) = given {
            let nvidia = file.ancestors().nth(3);
            places.push((file.into(), nvidia.map(|n| n.join("cuda_runtime/include"))));
        }
        let installed =
            root.into_iter().flat_map(|r| folders(&r.join(".nvrtc/lib"))).flat_map(|python| {
                let nvidia = python.join("site-packages/nvidia");
                let include = nvidia.join("cuda_runtime/include");
                libraries(&nvidia.join("cuda_nvrtc/lib"))
                    .into_iter()
                    .map(move |l| (l, Some(include.clone())))
            });
        places.extend(installed);
        for toolkit in [Path::new("/usr/local/cuda"), Path::new("/opt/cuda")] {
            let found = libraries(&toolkit.join("lib64"));
            places.extend(found.into_iter().map(|l| (l, Some(toolkit.join("include")))));
        }
        places
            .extend(["libnvrtc.so.12", "libnvrtc.so.13", "libnvrtc.so"].map(|l| (l.into(), None)));
        places.into_iter().find_map(|(library, include)| {
            // SAFETY: loading NVIDIA's library runs its initialisers.
            let library = unsafe { Library::new(&library) }.ok()?;
            Some(Self { library, include: include.filter(|i| i.exists()) })
        })
    }

    fn symbol<F>(&self, name: &str) -> Result<Symbol<'_, F>, String> {
        // SAFETY: the callers below name functions of NVRTC with their types.
        unsafe { self.library.get(name.as_bytes()) }.map_err(|e| e.to_string())
    }

    /// Compiles one file for an architecture: `sm_90a` gives a cubin, `compute_80` gives PTX that
    /// ends with a zero.
    pub(crate) fn compile(
        &self,
        name: &str,
        source: &str,
        headers: &[(&str, &str)],
        architecture: &str,
    ) -> Result<Vec<u8>, String> {
        type Program = *mut c_void;
        let text = |s: &str| CString::new(s).map_err(|e| e.to_string());
        let texts = |pick: fn(&(&str, &str)) -> String| {
            headers.iter().map(|h| text(&pick(h))).collect::<Result<Vec<CString>, String>>()
        };
        let names = texts(|h| h.0.to_string())?;
        let sources = texts(|h| h.1.to_string())?;
        let pointers = |list: &[CString]| list.iter().map(|c| c.as_ptr()).collect::<Vec<_>>();
        let mut options = vec![format!("--gpu-architecture={architecture}"), "--std=c++17".into()];
        options.push("-default-device".into());
        options.extend(self.include.as_ref().map(|i| format!("-I{}", i.display())));
        let options = options.iter().map(|o| text(o)).collect::<Result<Vec<CString>, String>>()?;
        let (name, source) = (text(name)?, text(source)?);
        let (getter, size_getter) = match architecture.starts_with("sm_") {
            true => ("nvrtcGetCUBIN", "nvrtcGetCUBINSize"),
            false => ("nvrtcGetPTX", "nvrtcGetPTXSize"),
        };
        // SAFETY: the types are those of nvrtc.h; every pointer outlives its call.
        unsafe {
            let create: Symbol<
                '_,
                unsafe extern "C" fn(
                    *mut Program,
                    *const c_char,
                    *const c_char,
                    c_int,
                    *const *const c_char,
                    *const *const c_char,
                ) -> c_int,
            > = self.symbol("nvrtcCreateProgram")?;
            let compile: Symbol<
                '_,
                unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int,
            > = self.symbol("nvrtcCompileProgram")?;
            let destroy: Symbol<'_, unsafe extern "C" fn(*mut Program) -> c_int> =
                self.symbol("nvrtcDestroyProgram")?;
            type GetSize = unsafe extern "C" fn(Program, *mut usize) -> c_int;
            type Get = unsafe extern "C" fn(Program, *mut c_char) -> c_int;
            let fetch = |size: &str, get: &str, program: Program| -> Result<Vec<u8>, String> {
                let (size, get) = (self.symbol::<GetSize>(size)?, self.symbol::<Get>(get)?);
                let mut len = 0;
                let mut code = size(program, &mut len);
                let mut bytes = vec![0u8; len];
                if code == 0 {
                    code = get(program, bytes.as_mut_ptr().cast());
                }
                if code == 0 { Ok(bytes) } else { Err(format!("NVRTC answers with code {code}")) }
            };
            let mut program: Program = std::ptr::null_mut();
            let (names, sources, options) =
                (pointers(&names), pointers(&sources), pointers(&options));
            let code = create(
                &mut program,
                source.as_ptr(),
                name.as_ptr(),
                names.len() as c_int,
                sources.as_ptr(),
                names.as_ptr(),
            );
            if code != 0 {
                return Err(format!("NVRTC answers with code {code}"));
            }
            let code = compile(program, options.len() as c_int, options.as_ptr());
            let result = if code == 0 {
                fetch(size_getter, getter, program)
            } else {
                let log = fetch("nvrtcGetProgramLogSize", "nvrtcGetProgramLog", program)?;
                let log = CStr::from_bytes_until_nul(&log)
                    .map_or_else(|e| e.to_string(), |l| l.to_string_lossy().into());
                Err(log)
            };
            destroy(&mut program);
            result
        }
    }
}

fn folders(of: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(of).into_iter().flatten().flatten().map(|e| e.path()).collect()
}

fn libraries(of: &Path) -> Vec<PathBuf> {
    let is_nvrtc = |p: &PathBuf| {
        p.file_name().is_some_and(|n| {
            let n = n.to_string_lossy();
            n.starts_with("libnvrtc.so") && !n.contains("alt")
        })
    };
    folders(of).into_iter().filter(is_nvrtc).collect()
}
