//! The CUDA driver as far as Forerun needs it: one device, one stream in which everything happens
//! in order, memory, kernels, graphs. The driver's library is looked for at run time; without it
//! there is an error and no panic.

use super::stopwatch::Stopwatch;
use crate::Error;
use cudarc::driver::sys::{self, CUresult};
use std::{
    ffi::{CStr, CString, c_int, c_void},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

/// What a device is and has.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// Its name.
    pub name: String,
    /// Compute capability.
    pub major: u32,
    /// See `major`.
    pub minor: u32,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of shared memory a block may ask for.
    pub shared: u32,
    /// Bytes of the second-level cache.
    pub l2: u32,
    /// Bytes of memory.
    pub memory: usize,
}

/// A device and its stream.
pub(crate) struct Driver {
    context: sys::CUcontext,
    pub(super) stream: sys::CUstream,
    device: sys::CUdevice,
    info: DeviceInfo,
    /// Whether a kernel may begin before the one before it ends: only kernels built for the device
    /// know when to wait.
    pub(crate) overlap: AtomicBool,
    /// Bytes copied from and to the host.
    uploaded: AtomicU64,
    downloaded: AtomicU64,
    /// Times launches, while somebody asks.
    stopwatch: Mutex<Option<Stopwatch>>,
}

// SAFETY: the driver's handles may be used from any thread whose current context is theirs, which
// every call sets.
unsafe impl Send for Driver {}
// SAFETY: as above; the stream orders what is sent to it.
unsafe impl Sync for Driver {}

/// The driver's answer as a result.
pub(crate) fn check(result: CUresult, call: &'static str) -> Result<(), Error> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut text: *const std::ffi::c_char = std::ptr::null();
    // SAFETY: the driver gives a pointer to a constant string, or none.
    let reason = unsafe {
        let _ = sys::cuGetErrorString(result, &mut text);
        match text.is_null() {
            true => format!("{result:?}"),
            false => CStr::from_ptr(text).to_string_lossy().into_owned(),
        }
    };
    Err(match result {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => Error::OutOfMemory { needed: 0, what: call },
        _ if is_lost(result) => Error::Lost { call, reason },
        _ => Error::Driver { call, reason },
    })
}

/// Whether an answer is one after which the context answers nothing else.
fn is_lost(result: CUresult) -> bool {
    matches!(
        result,
        CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
            | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
            | CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUresult::CUDA_ERROR_INVALID_PC
            | CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUresult::CUDA_ERROR_LAUNCH_FAILED
            | CUresult::CUDA_ERROR_LAUNCH_TIMEOUT
            | CUresult::CUDA_ERROR_ECC_UNCORRECTABLE
            | CUresult::CUDA_ERROR_ASSERT
            | CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED
            | CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE
            | CUresult::CUDA_ERROR_DEINITIALIZED
    )
}

/// Calls a function of the driver and names it in the error.
macro_rules! call {
    ($name:ident($($arg:expr),* $(,)?)) => {
        $crate::cuda::driver::check(sys::$name($($arg),*), stringify!($name))
    };
}
pub(super) use call;

/// Whether there is a driver, and how many devices it has.
pub fn devices() -> Result<usize, Error> {
    let missing =
        "there is no NVIDIA driver on this machine (libcuda was not found); use `--device cpu`";
    // SAFETY: looks for a library; calls follow only if it is there.
    unsafe {
        if !sys::is_culib_present() {
            return Err(Error::NoDevice(missing.into()));
        }
        let none =
            |e: Error| Error::NoDevice(format!("the NVIDIA driver found no usable device: {e}"));
        call!(cuInit(0)).map_err(none)?;
        let mut count = 0;
        call!(cuDeviceGetCount(&mut count)).map_err(none)?;
        Ok(count as usize)
    }
}

/// The driver's CUDA version, as (major, minor).
pub fn driver_version() -> Result<(u32, u32), Error> {
    devices()?;
    let mut version = 0;
    // SAFETY: the driver is there.
    unsafe { call!(cuDriverGetVersion(&mut version)) }?;
    Ok((version as u32 / 1000, version as u32 % 1000 / 10))
}

impl Driver {
    /// Opens device number `index`.
    pub(crate) fn open(index: usize) -> Result<Arc<Self>, Error> {
        let count = devices()?;
        if index >= count {
            return Err(Error::NoDevice(format!(
                "there is no CUDA device {index}; the driver has {count}"
            )));
        }
        // SAFETY: plain calls with pointers to locals.
        unsafe {
            let (mut device, mut context, mut stream) =
                (0, std::ptr::null_mut(), std::ptr::null_mut());
            call!(cuDeviceGet(&mut device, index as c_int))?;
            call!(cuDevicePrimaryCtxRetain(&mut context, device))?;
            call!(cuCtxSetCurrent(context))?;
            call!(cuStreamCreate(&mut stream, 1))?; // not ordered with the default stream
            let mut pool = std::ptr::null_mut();
            call!(cuDeviceGetDefaultMemPool(&mut pool, device))?;
            let mut keep = u64::MAX; // freed memory stays with us
            call!(cuMemPoolSetAttribute(
                pool,
                sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
                (&raw mut keep).cast(),
            ))?;
            let info = info_of(device)?;
            let (uploaded, downloaded) = (AtomicU64::new(0), AtomicU64::new(0));
            let overlap = AtomicBool::new(false);
            let stopwatch = Mutex::new(None);
            Ok(Arc::new(Self {
                context,
                stream,
                device,
                info,
                overlap,
                uploaded,
                downloaded,
                stopwatch,
            }))
        }
    }

    pub(crate) fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Bytes copied so far, to the device and from it.
    pub(crate) fn transferred(&self) -> (u64, u64) {
        (self.uploaded.load(Ordering::Relaxed), self.downloaded.load(Ordering::Relaxed))
    }

    /// Free and total bytes of memory.
    pub(crate) fn memory(&self) -> Result<(usize, usize), Error> {
        self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: pointers to locals.
        unsafe { call!(cuMemGetInfo_v2(&mut free, &mut total)) }?;
        Ok((free, total))
    }

    /// Makes the device this thread's.
    pub(crate) fn enter(&self) -> Result<(), Error> {
        // SAFETY: the context lives as long as `self`.
        unsafe { call!(cuCtxSetCurrent(self.context)) }
    }

    /// Waits for the stream.
    pub(crate) fn finish(&self) -> Result<(), Error> {
        self.enter()?;
        // SAFETY: the stream lives as long as `self`.
        unsafe { call!(cuStreamSynchronize(self.stream)) }
    }

    /// Gives what was freed and is kept for later back to the driver, where others and its own
    /// calls may take it.
    pub(crate) fn give_back(&self) -> Result<(), Error> {
        self.finish()?;
        let mut pool = std::ptr::null_mut();
        // SAFETY: a pointer to a local; the pool is the device's own and lives as long as it does.
        unsafe {
            call!(cuDeviceGetDefaultMemPool(&mut pool, self.device))?;
            call!(cuMemPoolTrimTo(pool, 0))
        }
    }

    /// Copies host bytes to an address; they may be reused at once.
    pub(crate) fn upload(&self, address: u64, bytes: &[u8]) -> Result<(), Error> {
        self.enter()?;
        self.uploaded.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        // SAFETY: callers give an address of a block that is long enough; the driver has copied
        // pageable memory when the call returns.
        unsafe {
            call!(cuMemcpyHtoDAsync_v2(address, bytes.as_ptr().cast(), bytes.len(), self.stream))
        }
    }

    /// Copies bytes of an address to the host, after everything before it is done.
    pub(crate) fn download(&self, address: u64, bytes: &mut [u8]) -> Result<(), Error> {
        self.enter()?;
        self.downloaded.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        // SAFETY: as in `upload`; the stream is waited for before `bytes` is read.
        unsafe {
            call!(cuMemcpyDtoHAsync_v2(
                bytes.as_mut_ptr().cast(),
                address,
                bytes.len(),
                self.stream
            ))?;
        }
        self.finish()
    }

    /// Copies from one address to another, be it of the device or of mapped memory.
    pub(crate) fn copy(&self, from: u64, to: u64, len: usize) -> Result<(), Error> {
        self.enter()?;
        // SAFETY: callers give addresses of blocks that are long enough.
        unsafe { call!(cuMemcpyAsync(to, from, len, self.stream)) }
    }

    /// Loads the image of a kernel file.
    pub(crate) fn load(self: &Arc<Self>, image: &[u8]) -> Result<Module, Error> {
        self.enter()?;
        let mut module = std::ptr::null_mut();
        // SAFETY: a cubin says how long it is; text images end with a zero (see `kernels`).
        unsafe { call!(cuModuleLoadData(&mut module, image.as_ptr().cast())) }?;
        Ok(Module { handle: module, _driver: self.clone() })
    }

    /// Launches a kernel with one argument.
    pub(crate) fn launch<A: Copy>(
        &self,
        function: &Function,
        shape: Shape,
        args: &A,
    ) -> Result<(), Error> {
        let mut attributes: [sys::CUlaunchAttribute; 2] = [zeroed_attribute(), zeroed_attribute()];
        let mut count = 0;
        if self.overlap.load(Ordering::Relaxed) {
            attributes[0].id =
                sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
            attributes[0].value.programmaticStreamSerializationAllowed = 1;
            count = 1;
        }
        if shape.cluster > 1 {
            attributes[count].id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
            attributes[count].value.clusterDim =
                sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: shape.cluster, y: 1, z: 1 };
            count += 1;
        }
        let [x, y, z] = shape.grid;
        let config = sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: shape.block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shape.shared,
            hStream: self.stream,
            attrs: attributes.as_mut_ptr(),
            numAttrs: count as u32,
        };
        let mut arguments = [(args as *const A).cast_mut().cast::<c_void>()];
        // SAFETY: kernels take their one argument by value, in the layout `args.rs` asserts.
        unsafe {
            call!(cuLaunchKernelEx(
                &config,
                function.handle,
                arguments.as_mut_ptr(),
                std::ptr::null_mut()
            ))
        }?;
        self.with_stopwatch(|watch| watch.launched(function.name, self.stream)).unwrap_or(Ok(()))
    }

    fn with_stopwatch<T>(&self, f: impl FnOnce(&mut Stopwatch) -> T) -> Option<T> {
        self.stopwatch.lock().unwrap_or_else(PoisonError::into_inner).as_mut().map(f)
    }

    /// Whether launches are timed; where they are, the launches of a pass follow.
    pub(crate) fn is_timed(&self) -> Result<bool, Error> {
        self.with_stopwatch(|watch| watch.begin(self.stream))
            .transpose()
            .map(|begun| begun.is_some())
    }

    /// Times launches from now on, or no longer; the kernels timed until now, with their seconds.
    pub(crate) fn time_launches(&self, on: bool) -> Result<Vec<(&'static str, f64)>, Error> {
        let next = on.then(Stopwatch::default);
        let before = std::mem::replace(
            &mut *self.stopwatch.lock().unwrap_or_else(PoisonError::into_inner),
            next,
        );
        before.map_or(Ok(Vec::new()), |watch| watch.read(self))
    }
}

/// A matrix as the copies of boxes that kernels for Hopper make see it.
pub(crate) type TensorMap = sys::CUtensorMap;

impl Driver {
    /// Halves [rows][cols] at `address`, in boxes of 64 columns and `box_rows` rows whose 16-byte
    /// pieces are turned by the row as wgmma reads them. Rows outside are zeros.
    pub(crate) fn tensor_map(
        &self,
        address: u64,
        rows: usize,
        cols: usize,
        box_rows: usize,
    ) -> Result<TensorMap, Error> {
        let mut map = TensorMap { opaque: [0; 16] };
        let (dims, row_bytes) = ([cols as u64, rows as u64], [2 * cols as u64]);
        let (boxes, steps) = ([64, box_rows as u32], [1, 1]);
        // SAFETY: all pointers are to locals; the driver writes the map and reads nothing at
        // `address`.
        unsafe {
            call!(cuTensorMapEncodeTiled(
                &mut map,
                sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                2,
                address as *mut c_void,
                dims.as_ptr(),
                row_bytes.as_ptr(),
                boxes.as_ptr(),
                steps.as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            ))?;
        }
        Ok(map)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // SAFETY: nothing that uses the stream is left: modules, memory and graphs hold the driver.
        unsafe {
            let _ = sys::cuCtxSetCurrent(self.context);
            let _ = sys::cuStreamDestroy_v2(self.stream);
            let _ = sys::cuDevicePrimaryCtxRelease_v2(self.device);
        }
    }
}

fn zeroed_attribute() -> sys::CUlaunchAttribute {
    // SAFETY: a C struct of plain numbers, for which zero means nothing.
    unsafe { std::mem::zeroed() }
}

fn info_of(device: sys::CUdevice) -> Result<DeviceInfo, Error> {
    use sys::CUdevice_attribute as A;
    let attribute = |which: A| {
        let mut value = 0;
        // SAFETY: a pointer to a local.
        unsafe { call!(cuDeviceGetAttribute(&mut value, which, device)) }?;
        Ok::<u32, Error>(value as u32)
    };
    let mut name = [0; 128];
    let mut memory = 0;
    // SAFETY: pointers to locals, with the length of the text.
    let name = unsafe {
        call!(cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int, device))?;
        call!(cuDeviceTotalMem_v2(&mut memory, device))?;
        CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned()
    };
    Ok(DeviceInfo {
        name,
        major: attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        minor: attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        multiprocessors: attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        shared: attribute(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        l2: attribute(A::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?,
        memory,
    })
}

/// How a kernel is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Blocks.
    pub(crate) grid: [u32; 3],
    /// Threads of a block.
    pub(crate) block: u32,
    /// Bytes of shared memory beyond what the kernel declares.
    pub(crate) shared: u32,
    /// Blocks of a cluster; 1 for none.
    pub(crate) cluster: u32,
}

impl Shape {
    /// Blocks of so many threads, nothing else.
    pub(crate) fn new(grid: [u32; 3], block: u32) -> Self {
        Self { grid, block, shared: 0, cluster: 1 }
    }
}

/// Kernels of one file. Stays loaded as long as its device is open, which it keeps open.
pub(crate) struct Module {
    handle: sys::CUmodule,
    _driver: Arc<Driver>,
}

// SAFETY: a handle of the driver.
unsafe impl Send for Module {}

/// A kernel.
#[derive(Clone, Copy)]
pub(crate) struct Function {
    handle: sys::CUfunction,
    name: &'static str,
}

// SAFETY: a handle of the driver.
unsafe impl Send for Function {}

impl Module {
    /// The kernel of that name, allowed to take all the shared memory a block may have; none where
    /// the file has none.
    pub(crate) fn function(
        &self,
        name: &'static str,
        shared: u32,
    ) -> Result<Option<Function>, Error> {
        let symbol = CString::new(name).expect("a kernel's name has no zero in it");
        let mut function = std::ptr::null_mut();
        // SAFETY: the module is loaded; pointers to locals.
        unsafe {
            let found = sys::cuModuleGetFunction(&mut function, self.handle, symbol.as_ptr());
            if found == CUresult::CUDA_ERROR_NOT_FOUND {
                return Ok(None);
            }
            check(found, "cuModuleGetFunction")?;
            let mut fixed = 0;
            call!(cuFuncGetAttribute(
                &mut fixed,
                sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
                function
            ))?;
            call!(cuFuncSetAttribute(
                function,
                sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                shared as c_int - fixed
            ))?;
        }
        Ok(Some(Function { handle: function, name }))
    }
}
