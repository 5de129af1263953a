//! The kernels as images: those of this build for the device's architecture, else PTX that the
//! driver compiles, else the sources compiled with a libnvrtc of this machine, kept under the
//! user's cache folder by their hash.

use super::{
    args::Kernel,
    driver::{Driver, Function, Module, Shape},
    nvrtc::Nvrtc,
};
use crate::Error;
use std::{
    cell::RefCell,
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    path::PathBuf,
    sync::{Arc, atomic::Ordering},
};

include!(concat!(env!("OUT_DIR"), "/images.rs"));

/// Which images to take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Images {
    /// The best there are.
    #[default]
    Best,
    /// PTX, as a card without a cubin of its own would.
    Ptx,
}

/// The architectures whose kernels are in this build.
pub fn architectures() -> Vec<&'static str> {
    let mut names: Vec<&str> = Vec::new();
    for (_, architecture, _) in IMAGES {
        if !names.contains(architecture) {
            names.push(architecture);
        }
    }
    names
}

/// Loaded kernels, by name.
pub(crate) struct Kernels {
    /// By the name of their file.
    modules: HashMap<&'static str, Module>,
    functions: RefCell<HashMap<&'static str, Function>>,
    shared: u32,
    /// Which images they are.
    origin: String,
}

impl Kernels {
    pub(crate) fn load(driver: &Arc<Driver>, images: Images) -> Result<Self, Error> {
        let info = driver.info();
        let own = match (info.major, info.minor) {
            (9, 0) => "sm_90a".to_string(),
            (major @ 10.., minor) => format!("sm_{major}{minor}a"),
            (major, minor) => format!("sm_{major}{minor}"),
        };
        let of = |architecture: &str| -> Vec<(&'static str, &'static [u8])> {
            let images = IMAGES.iter().filter(|(_, a, _)| *a == architecture);
            images.map(|(file, _, image)| (*file, *image)).collect()
        };
        let (cubins, ptx) = (of(&own), of("compute_80"));
        let mut origin = format!("cubins for {own}");
        let modules = if images == Images::Best && !cubins.is_empty() {
            driver.overlap.store(info.major >= 9, Ordering::Relaxed);
            load(driver, cubins)?
        } else if !ptx.is_empty() {
            origin = "PTX".to_owned();
            load(driver, ptx)?
        } else {
            let target = if images == Images::Ptx { "compute_80" } else { own.as_str() };
            driver.overlap.store(info.major >= 9 && images == Images::Best, Ordering::Relaxed);
            let images = compile(target)?;
            let mut hasher = DefaultHasher::new();
            images.hash(&mut hasher);
            origin = format!("kernels for {target} compiled here, {:016x}", hasher.finish());
            let files = SOURCES.iter().map(|(file, _)| *file);
            load(driver, files.zip(images.iter().map(Vec::as_slice)).collect())?
        };
        Ok(Self { modules, functions: RefCell::default(), shared: info.shared, origin })
    }

    /// Which images they are: what others with the same program may have differently.
    pub(crate) fn origin(&self) -> &str {
        &self.origin
    }

    /// Launches a kernel with its argument.
    pub(crate) fn launch<A: Copy>(
        &self,
        driver: &Driver,
        kernel: Kernel<A>,
        shape: Shape,
        args: &A,
    ) -> Result<(), Error> {
        let missing = || Error::Kernels(format!("these images lack `{}`", kernel.name));
        driver.launch(&self.get(kernel)?.ok_or_else(missing)?, shape, args)
    }

    /// Whether the images have a kernel: some are for one architecture alone.
    pub(crate) fn have<A>(&self, kernel: Kernel<A>) -> bool {
        self.get(kernel).is_ok_and(|function| function.is_some())
    }

    fn get<A>(&self, kernel: Kernel<A>) -> Result<Option<Function>, Error> {
        if let Some(function) = self.functions.borrow().get(kernel.name) {
            return Ok(Some(*function));
        }
        let Some(module) = self.modules.get(kernel.file) else { return Ok(None) };
        let function = module.function(kernel.name, self.shared)?;
        if let Some(function) = function {
            self.functions.borrow_mut().insert(kernel.name, function);
        }
        Ok(function)
    }
}

fn load<'i>(
    driver: &Arc<Driver>,
    images: Vec<(&'i str, &[u8])>,
) -> Result<HashMap<&'i str, Module>, Error> {
    images.into_iter().map(|(file, image)| Ok((file, driver.load(image)?))).collect()
}

/// Compiles every kernel with this machine's NVRTC.
fn compile(architecture: &str) -> Result<Vec<Vec<u8>>, Error> {
    let mut hasher = DefaultHasher::new();
    (SOURCES, HEADERS, architecture, env!("CARGO_PKG_VERSION")).hash(&mut hasher);
    let home = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    let folder =
        home.map(|h| h.join("forerun").join(format!("{architecture}-{:016x}", hasher.finish())));
    let cached = |file: &str| std::fs::read(folder.as_ref()?.join(file)).ok();
    if let Some(images) = SOURCES.iter().map(|(file, _)| cached(file)).collect::<Option<Vec<_>>>() {
        return Ok(images);
    }
    let missing = || {
        Error::Kernels(format!(
            "this build has no kernels for `{architecture}` and no libnvrtc was found to compile \
             them with: install a CUDA toolkit, or set NVRTC_LIB to a libnvrtc.so, or use a build with kernels"
        ))
    };
    let nvrtc =
        Nvrtc::find(std::env::var_os("NVRTC_LIB").as_deref().map(std::path::Path::new), None);
    let nvrtc = nvrtc.ok_or_else(missing)?;
    let mut images = Vec::new();
    for (file, source) in SOURCES {
        let image = nvrtc.compile(file, source, HEADERS, architecture).map_err(|log| {
            Error::Kernels(format!("`{file}` does not compile for `{architecture}`: {log}"))
        })?;
        if let Some(folder) = &folder {
            // A cache that cannot be written costs time, nothing else.
            let partial = folder.join(format!("{file}.{}", std::process::id()));
            let written =
                std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&partial, &image));
            if written.and_then(|()| std::fs::rename(&partial, folder.join(file))).is_err() {
                let _ = std::fs::remove_file(&partial);
            }
        }
        images.push(image);
    }
    Ok(images)
}
