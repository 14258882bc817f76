//! Persistent threads that run the tasks of one job at a time, spin briefly for the next, then sleep.

use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;

/// Pauses of a worker before it sleeps: some tens of microseconds.
const SPINS_BEFORE_SLEEP: u32 = 2000;
/// Pauses of the caller before it lets other threads run.
const SPINS_BEFORE_YIELD: u32 = 1000;

/// A job: called with the task's number, then the worker's (`0` is the caller).
type Job<'a> = dyn Fn(usize, usize) + Sync + 'a;

/// Whether workers may join the job.
const OPEN: u64 = 1 << 31;
/// Number of workers inside the job.
const ACTIVE: u64 = OPEN - 1;
/// One job later.
const EPOCH: u64 = 1 << 32;

struct Shared {
    /// Job number in the upper half, [`OPEN`], and the number of workers inside in the rest.
    state: AtomicU64,
    next: AtomicUsize,
    panicked: AtomicBool,
    stop: AtomicBool,
    sleeping: Vec<AtomicBool>,
    job: UnsafeCell<Option<(*const Job<'static>, usize)>>,
}

// SAFETY: `job` is written only by the caller of `run` while the state is closed with nobody inside, and read only by
// workers that have joined through an acquiring exchange on the state that the caller opened with a release.
unsafe impl Sync for Shared {}
// SAFETY: the pointer inside `job` is to a `Sync` closure and is used only as the rule above allows.
unsafe impl Send for Shared {}

/// A number of threads, the caller's own included.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl Pool {
    /// `threads` in all (at least one: the caller).
    pub(crate) fn new(threads: usize) -> std::io::Result<Self> {
        let extra = threads.saturating_sub(1);
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            next: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            sleeping: (0..extra).map(|_| AtomicBool::new(false)).collect(),
            job: UnsafeCell::new(None),
        });
        let mut pool = Self {
            shared,
            workers: vec![],
        };
        for index in 0..extra {
            let shared = Arc::clone(&pool.shared);
            let builder = std::thread::Builder::new().name(format!("backplane-cpu-{}", index + 1));
            pool.workers
                .push(builder.spawn(move || work(&shared, index))?);
        }
        Ok(pool)
    }

    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `job(task, worker)` for every task in `0..tasks`, in any order, on any thread; returns when all are done.
    ///
    /// # Panics
    /// When a task panicked.
    pub(crate) fn run(&mut self, tasks: usize, job: &Job<'_>) {
        if tasks <= 1 || self.workers.is_empty() {
            (0..tasks).for_each(|task| job(task, 0));
            return;
        }
        let shared = &*self.shared;
        let pointer: *const Job<'_> = job;
        // SAFETY: only the lifetime is changed. Workers use the pointer only between joining and leaving, and `run` does not
        // return before the state is closed and everybody has left, so `job` outlives every use.
        let pointer =
            unsafe { std::mem::transmute::<*const Job<'_>, *const Job<'static>>(pointer) };
        // SAFETY: the state is closed and nobody is inside (`run` takes `&mut self` and leaves it so): no other access.
        unsafe { *shared.job.get() = Some((pointer, tasks)) };
        shared.next.store(0, Ordering::Relaxed);
        let epoch = (shared.state.load(Ordering::Relaxed) & !(OPEN | ACTIVE)).wrapping_add(EPOCH);
        shared.state.store(epoch | OPEN, Ordering::SeqCst);
        for (worker, sleeping) in self.workers.iter().zip(&shared.sleeping) {
            if sleeping.load(Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
        let own = catch_unwind(AssertUnwindSafe(|| drain(&shared.next, tasks, job, 0)));
        shared.state.fetch_and(!OPEN, Ordering::SeqCst);
        let mut spins = 0;
        while shared.state.load(Ordering::Acquire) & ACTIVE != 0 {
            pause(&mut spins);
        }
        if let Err(panic) = own {
            std::panic::resume_unwind(panic);
        }
        assert!(
            !shared.panicked.swap(false, Ordering::Relaxed),
            "a worker thread panicked"
        );
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches its panics, so there is nothing to learn from joining.
            let _ = worker.join();
        }
    }
}

fn pause(spins: &mut u32) {
    *spins += 1;
    if *spins < SPINS_BEFORE_YIELD {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

fn drain(next: &AtomicUsize, tasks: usize, job: &Job<'_>, worker: usize) {
    loop {
        let task = next.fetch_add(1, Ordering::Relaxed);
        if task >= tasks {
            return;
        }
        job(task, worker);
    }
}

fn work(shared: &Shared, index: usize) {
    let mut seen = 0;
    while let Some(epoch) = wait(shared, index, seen) {
        seen = epoch;
        if !join(shared, epoch) {
            continue;
        }
        // SAFETY: this worker is inside the job, so the caller keeps `job` unchanged and its closure alive.
        let job = unsafe { *shared.job.get() };
        if let Some((pointer, tasks)) = job {
            // SAFETY: as above.
            let job = unsafe { &*pointer };
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                drain(&shared.next, tasks, job, index + 1)
            }));
            if outcome.is_err() {
                shared.panicked.store(true, Ordering::Relaxed);
            }
        }
        shared.state.fetch_sub(1, Ordering::Release);
    }
}

/// Enters the job of this epoch if it is still open.
fn join(shared: &Shared, epoch: u64) -> bool {
    let enter = |state: u64| (state & OPEN != 0 && state >> 32 == epoch).then_some(state + 1);
    shared
        .state
        .fetch_update(Ordering::Acquire, Ordering::Relaxed, enter)
        .is_ok()
}

/// Waits for an open job later than `seen` and gives its epoch; `None` when the pool ends.
fn wait(shared: &Shared, index: usize, seen: u64) -> Option<u64> {
    let mut spins = 0;
    loop {
        if shared.stop.load(Ordering::SeqCst) {
            return None;
        }
        let state = shared.state.load(Ordering::Acquire);
        if state & OPEN != 0 && state >> 32 != seen {
            return Some(state >> 32);
        }
        spins += 1;
        if spins < SPINS_BEFORE_SLEEP {
            std::hint::spin_loop();
            continue;
        }
        shared.sleeping[index].store(true, Ordering::SeqCst);
        let state = shared.state.load(Ordering::SeqCst);
        let idle = state & OPEN == 0 || state >> 32 == seen;
        if idle && !shared.stop.load(Ordering::SeqCst) {
            std::thread::park();
        }
        shared.sleeping[index].store(false, Ordering::SeqCst);
        spins = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_whatever_the_threads() {
        for threads in [1, 2, 3, 5] {
            let mut pool = Pool::new(threads).unwrap();
            for tasks in [0, 1, 2, 7, 100] {
                for _ in 0..50 {
                    let counts: Vec<_> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                    pool.run(tasks, &|task, worker| {
                        assert!(worker < threads);
                        counts[task].fetch_add(1, Ordering::Relaxed);
                    });
                    assert!(
                        counts
                            .iter()
                            .all(|count| count.load(Ordering::Relaxed) == 1)
                    );
                }
            }
        }
    }

    #[test]
    fn workers_wake_from_sleep() {
        let mut pool = Pool::new(2).unwrap();
        for _ in 0..3 {
            std::thread::sleep(std::time::Duration::from_millis(20));
            let done = AtomicUsize::new(0);
            pool.run(64, &|_, _| {
                done.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(done.load(Ordering::Relaxed), 64);
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
        let mut pool = Pool::new(3).unwrap();
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            pool.run(16, &|task, _| assert!(task != 5))
        }));
        assert!(panicked.is_err());
        let done = AtomicUsize::new(0);
        pool.run(8, &|_, _| {
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.load(Ordering::Relaxed), 8);
    }
}
