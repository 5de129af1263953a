//! Random weights made on the device, and how fast its memory is read.

use crate::{
    Error,
    cuda::{
        args::{Address, FillTilesArgs, ReadArgs, kernel},
        driver::{Driver, Shape},
        kernels::Kernels,
        mapped::MappedMemory,
        pack::TileFormat,
    },
};
use std::{sync::Arc, time::Instant};

/// Fills tiles with random weights of standard deviation `scale`.
pub(crate) fn tiles(
    driver: &Driver,
    kernels: &Kernels,
    (out, bytes): (Address, usize),
    format: TileFormat,
    scale: f32,
    seed: u64,
) -> Result<(), Error> {
    let pieces = bytes as u64 / 16;
    let args = FillTilesArgs { out, pieces, seed, format: format as i32, scale };
    let blocks = 16 * driver.info().multiprocessors;
    driver.enter()?;
    kernels.launch(driver, kernel::FILL_TILES, Shape::new([blocks, 1, 1], 256), &args)
}

/// Seconds that reading `bytes` of the device's memory takes, the median of a few.
pub(crate) fn read_seconds(
    driver: &Arc<Driver>,
    kernels: &Kernels,
    bytes: usize,
) -> Result<f64, Error> {
    let memory = driver.allocate(bytes, "a test")?;
    seconds_at(driver, kernels, memory.address(), bytes)
}

/// The same of the host's memory, over the bus.
pub(crate) fn read_host_seconds(
    driver: &Arc<Driver>,
    kernels: &Kernels,
    bytes: usize,
) -> Result<f64, Error> {
    let mut memory = MappedMemory::new(driver, bytes)?;
    memory.bytes().fill(1);
    seconds_at(driver, kernels, memory.address(), bytes)
}

fn seconds_at(
    driver: &Arc<Driver>,
    kernels: &Kernels,
    data: Address,
    bytes: usize,
) -> Result<f64, Error> {
    let out = driver.allocate(4, "a test")?;
    let args = ReadArgs { data, pieces: bytes as u64 / 16, out: out.address() };
    let shape = Shape::new([16 * driver.info().multiprocessors, 1, 1], 256);
    let mut times = Vec::new();
    for _ in 0..7 {
        // Several in a row, so that the launch does not count.
        driver.finish()?;
        let begin = Instant::now();
        for _ in 0..8 {
            kernels.launch(driver, kernel::READ_MEMORY, shape, &args)?;
        }
        driver.finish()?;
        times.push(begin.elapsed().as_secs_f64() / 8.0);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}
