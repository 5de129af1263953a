//! The threads of the CPU backend: they spin at barriers, since a decode step has hundreds of them
//! and waking a sleeping thread costs more than most ops take, and park when nothing comes for a
//! while. On a machine that others use too, threads that wait for each other can be slower than one
//! alone; then fewer take part, until it is worth trying again.

use std::{
    any::Any,
    hint::spin_loop,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering::*},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Spins before a waiting thread parks, about 50 us.
const SPINS_BEFORE_PARK: usize = 20_000;

/// Spins at a barrier before the thread offers its core to others, about 40 us: longer than threads
/// usually wait for each other, since a core once offered may be gone for milliseconds; no longer,
/// since what is awaited may be waiting for this very core.
const SPINS_BEFORE_YIELD: usize = 2_000;

/// Regions that run with fewer threads before more are tried again: at first, and at most.
const PATIENCE: [usize; 2] = [8, 256];

type Job<'a> = &'a (dyn Fn(Worker<'_>) + Sync);

/// A fixed set of threads that run a region together.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Threads that take part in the next region.
    active: usize,
    /// Regions before more take part.
    patience: usize,
    /// What `patience` was last set to.
    last_patience: usize,
}

struct Shared {
    threads: usize,
    /// Regions started so far times 2^16, plus the threads that take part in the newest.
    region: AtomicU64,
    /// Points at a `Job` on the leader's stack while a region runs.
    job: AtomicPtr<()>,
    /// Workers that have finished the region.
    finished: AtomicUsize,
    parked: Vec<AtomicBool>,
    stop: AtomicBool,
    barrier: Barrier,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

#[derive(Default)]
struct Barrier {
    arrived: AtomicUsize,
    generation: AtomicUsize,
    /// A thread has panicked: the others must not wait for it.
    broken: AtomicBool,
    /// Nanoseconds that threads of the region have waited beyond the first spins.
    waited: AtomicU64,
}

impl Barrier {
    /// Waits, spinning at first, while `pending` holds.
    fn wait_while(&self, pending: impl Fn() -> bool) {
        for _ in 0..SPINS_BEFORE_YIELD {
            if !pending() {
                return;
            }
            spin_loop();
        }
        let begin = Instant::now();
        let mut spins = 0;
        while pending() {
            if spins % SPINS_BEFORE_YIELD == 0 {
                thread::yield_now()
            } else {
                spin_loop()
            }
            spins += 1;
        }
        self.waited.fetch_add(begin.elapsed().as_nanos() as u64, Relaxed);
    }
}

/// One thread's part in a region.
#[derive(Clone, Copy)]
pub struct Worker<'a> {
    /// 0 is the caller's thread.
    pub index: usize,
    /// Threads in the region.
    pub count: usize,
    barrier: &'a Barrier,
}

impl Worker<'_> {
    /// This thread's share of `n` things; a single thing is the caller's, which is surely awake.
    pub fn share(&self, n: usize) -> Range<usize> {
        (n * self.index).div_ceil(self.count)..(n * (self.index + 1)).div_ceil(self.count)
    }

    /// Waits until every thread of the region is here.
    pub fn wait(&self) {
        if self.count == 1 {
            return;
        }
        let generation = self.barrier.generation.load(Acquire);
        if self.barrier.arrived.fetch_add(1, AcqRel) + 1 == self.count {
            self.barrier.arrived.store(0, Relaxed);
            self.barrier.generation.store(generation.wrapping_add(1), Release);
            return;
        }
        self.barrier.wait_while(|| {
            assert!(!self.barrier.broken.load(Relaxed), "another thread of the pool panicked");
            self.barrier.generation.load(Acquire) == generation
        });
    }
}

impl Pool {
    /// A pool of `threads`, the caller's own among them.
    pub fn new(threads: usize) -> Self {
        assert!((1..1 << 16).contains(&threads), "a pool of {threads} threads");
        let shared = Arc::new(Shared {
            threads,
            region: AtomicU64::new(0),
            job: AtomicPtr::new(std::ptr::null_mut()),
            finished: AtomicUsize::new(0),
            parked: (0..threads).map(|_| AtomicBool::new(false)).collect(),
            stop: AtomicBool::new(false),
            barrier: Barrier::default(),
            panic: Mutex::new(None),
        });
        let workers = (1..threads)
            .map(|index| {
                let shared = shared.clone();
                let builder = thread::Builder::new().name(format!("compute-{index}"));
                builder.spawn(move || shared.serve(index)).expect("the system gives a thread")
            })
            .collect();
        Self { shared, workers, active: threads, patience: 0, last_patience: 0 }
    }

    /// Threads of the pool.
    pub fn threads(&self) -> usize {
        self.shared.threads
    }

    /// Runs `job` on the threads that take part and returns when all are done.
    pub fn run(&mut self, job: impl Fn(Worker<'_>) + Sync) {
        let shared = &*self.shared;
        let active = self.active;
        let begin = Instant::now();
        let job: Job<'_> = &job;
        if active > 1 {
            shared.finished.store(0, Relaxed);
            shared.job.store((&raw const job).cast_mut().cast(), Relaxed);
            let regions = shared.region.load(Relaxed) >> 16;
            shared.region.store((regions + 1) << 16 | active as u64, SeqCst);
            for (worker, parked) in self.workers.iter().zip(&shared.parked[1..]).take(active - 1) {
                if parked.load(SeqCst) {
                    worker.thread().unpark();
                }
            }
        }
        shared.work(0, active, job);
        if active > 1 {
            shared.barrier.wait_while(|| shared.finished.load(Acquire) + 1 < active);
        }
        let waited = Duration::from_nanos(shared.barrier.waited.swap(0, Relaxed));
        if shared.barrier.broken.swap(false, Relaxed) {
            shared.barrier.arrived.store(0, Relaxed);
            let panic = shared.panic.lock().ok().and_then(|mut p| p.take());
            resume_unwind(panic.unwrap_or_else(|| Box::new("a thread of the pool panicked")));
        }
        self.adapt(begin.elapsed(), waited);
    }

    /// Halves the threads when they did little but wait for each other; doubles them again after a
    /// while.
    fn adapt(&mut self, elapsed: Duration, waited: Duration) {
        let threads = self.shared.threads;
        if self.active > 1 && waited * 4 > elapsed * 3 * (self.active as u32 - 1) {
            self.active /= 2;
            self.last_patience = (2 * self.last_patience).clamp(PATIENCE[0], PATIENCE[1]);
            self.patience = self.last_patience;
        } else if self.active < threads {
            self.patience = self.patience.saturating_sub(1);
            if self.patience == 0 {
                self.active = (2 * self.active).min(threads);
                self.patience = self.last_patience;
            }
        } else {
            self.last_patience /= 2;
        }
    }
}

impl Shared {
    fn work(&self, index: usize, count: usize, job: Job<'_>) {
        let worker = Worker { index, count, barrier: &self.barrier };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| job(worker))) {
            if let Ok(mut first) = self.panic.lock() {
                first.get_or_insert(panic);
            }
            self.barrier.broken.store(true, Relaxed);
        }
    }

    fn serve(&self, index: usize) {
        let mut seen = 0;
        let mut spins = 0;
        loop {
            let region = self.region.load(Acquire);
            if region == seen {
                if self.stop.load(Relaxed) {
                    return;
                }
                spins += 1;
                if spins < SPINS_BEFORE_PARK {
                    spin_loop();
                    continue;
                }
                self.parked[index].store(true, SeqCst);
                if self.region.load(SeqCst) == seen && !self.stop.load(SeqCst) {
                    thread::park();
                }
                self.parked[index].store(false, Relaxed);
                continue;
            }
            seen = region;
            let active = (region & 0xffff) as usize;
            // A region without this thread does not keep it from parking.
            if index < active {
                // SAFETY: the leader keeps the job alive until every thread of the region has
                // finished.
                let job = unsafe { *self.job.load(Relaxed).cast::<Job<'_>>() };
                self.work(index, active, job);
                self.finished.fetch_add(1, Release);
                spins = 0;
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker's panic was reported by the region it happened in.
            let _ = worker.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_works_and_meets_the_others() {
        for threads in [1, 2, 5] {
            let mut pool = Pool::new(threads);
            for round in 0..50 {
                let (before, after) = (AtomicUsize::new(0), AtomicUsize::new(0));
                pool.run(|worker| {
                    before.fetch_add(1, Relaxed);
                    worker.wait();
                    assert_eq!(before.load(Relaxed), worker.count);
                    after.fetch_add(worker.share(100).len(), Relaxed);
                });
                assert_eq!(after.load(Relaxed), 100);
                if round == 25 {
                    thread::sleep(std::time::Duration::from_millis(2)); // the workers park
                }
            }
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let mut pool = Pool::new(3);
        let failed = catch_unwind(AssertUnwindSafe(|| {
            pool.run(|worker| {
                assert!(worker.index != 1, "no");
                worker.wait();
            })
        }));
        assert!(failed.is_err());
        let (count, threads) = (AtomicUsize::new(0), AtomicUsize::new(0));
        pool.run(|worker| {
            count.fetch_add(1, Relaxed);
            threads.store(worker.count, Relaxed);
        });
        assert_eq!(count.load(Relaxed), threads.load(Relaxed));
    }

    #[test]
    fn threads_that_only_wait_are_left_out_and_tried_again() {
        let mut pool = Pool::new(4);
        let (long, none) = (Duration::from_millis(1), Duration::ZERO);
        pool.adapt(long, 3 * long);
        assert_eq!(pool.active, 2);
        pool.adapt(long, long);
        assert_eq!(pool.active, 1);
        for _ in 0..2 * PATIENCE[0] {
            pool.adapt(long, none);
        }
        assert_eq!(pool.active, 2);
        for _ in 0..2 * PATIENCE[0] {
            pool.adapt(long, long / 2); // a usual imbalance
        }
        assert_eq!(pool.active, 4);
    }
}
