//! The threads of the CPU backend: they spin between regions, since a decode step has hundreds of them and waking a
//! sleeping thread costs more than most regions take, and park when nothing comes for a while.

use std::{
    any::Any,
    hint::spin_loop,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::*},
    },
    thread::{self, JoinHandle},
};

/// Spins before a waiting thread parks, about 50 us.
const SPINS_BEFORE_PARK: usize = 20_000;

/// Spins at a barrier before the thread offers its core to others, about 40 us: longer than threads usually wait for
/// each other, since a core once offered may be gone for milliseconds; no longer, since what is awaited may be waiting
/// for this very core.
const SPINS_BEFORE_YIELD: usize = 2_000;

type Job<'a> = &'a (dyn Fn(Worker<'_>) + Sync);

/// A fixed set of threads that run a region together.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

struct Shared {
    threads: usize,
    /// Regions started so far; a worker runs region `n` when it sees `n`.
    region: AtomicUsize,
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
        let mut spins = 0;
        while self.barrier.generation.load(Acquire) == generation {
            assert!(!self.barrier.broken.load(Relaxed), "another thread of the pool panicked");
            spins += 1;
            if spins % SPINS_BEFORE_YIELD == 0 { thread::yield_now() } else { spin_loop() }
        }
    }
}

impl Pool {
    /// A pool of `threads`, the caller's own among them.
    pub fn new(threads: usize) -> Self {
        assert!(threads > 0, "a pool needs a thread");
        let shared = Arc::new(Shared {
            threads,
            region: AtomicUsize::new(0),
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
        Self { shared, workers }
    }

    /// Threads of the pool.
    pub fn threads(&self) -> usize {
        self.shared.threads
    }

    /// Runs `job` on every thread and returns when all are done.
    pub fn run(&mut self, job: impl Fn(Worker<'_>) + Sync) {
        let shared = &*self.shared;
        let job: Job<'_> = &job;
        shared.finished.store(0, Relaxed);
        shared.job.store((&raw const job).cast_mut().cast(), Relaxed);
        shared.region.fetch_add(1, SeqCst);
        for (worker, parked) in self.workers.iter().zip(&shared.parked[1..]) {
            if parked.load(SeqCst) {
                worker.thread().unpark();
            }
        }
        shared.work(0, job);
        let mut spins = 0;
        while shared.finished.load(Acquire) + 1 < shared.threads {
            spins += 1;
            if spins % SPINS_BEFORE_YIELD == 0 { thread::yield_now() } else { spin_loop() }
        }
        if shared.barrier.broken.swap(false, Relaxed) {
            shared.barrier.arrived.store(0, Relaxed);
            let panic = shared.panic.lock().ok().and_then(|mut p| p.take());
            resume_unwind(panic.unwrap_or_else(|| Box::new("a thread of the pool panicked")));
        }
    }
}

impl Shared {
    fn work(&self, index: usize, job: Job<'_>) {
        let worker = Worker { index, count: self.threads, barrier: &self.barrier };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| job(worker))) {
            if let Ok(mut first) = self.panic.lock() {
                first.get_or_insert(panic);
            }
            self.barrier.broken.store(true, Relaxed);
        }
    }

    fn serve(&self, index: usize) {
        let mut seen = 0;
        loop {
            let mut spins = 0;
            while self.region.load(Acquire) == seen {
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
            }
            seen += 1;
            // SAFETY: the leader keeps the job alive until every worker has finished the region.
            let job = unsafe { *self.job.load(Relaxed).cast::<Job<'_>>() };
            self.work(index, job);
            self.finished.fetch_add(1, Release);
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
                    assert_eq!(before.load(Relaxed), threads);
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
        let count = AtomicUsize::new(0);
        pool.run(|_| _ = count.fetch_add(1, Relaxed));
        assert_eq!(count.load(Relaxed), 3);
    }
}
