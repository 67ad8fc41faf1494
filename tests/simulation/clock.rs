//! Virtual time and seeded random numbers for the whole process: replaces the functions of libc from which the standard
//! library and all crates take the time and random bytes. A world then depends only on its seed.
#![allow(unsafe_code, reason = "replaces functions of libc")]

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Start of the virtual time in seconds since 1970: 2030-01-01.
pub const START: i64 = 1_893_456_000;
/// Start of the virtual monotonic clock, in seconds.
const MONOTONIC_START: i64 = 1_000_000;

static IS_VIRTUAL: AtomicBool = AtomicBool::new(false);
static RANDOM: AtomicU64 = AtomicU64::new(0);
/// Virtual time since the start, in nanoseconds, when it was last read from tokio's clock.
static ELAPSED: AtomicI64 = AtomicI64::new(0);

thread_local! {
    static IS_READING: Cell<bool> = const { Cell::new(false) };
}

/// Starts the virtual time of this process, and seeds its random numbers. The time is that of tokio's paused clock.
pub fn virtualize(seed: u64) {
    RANDOM.store(seed, Ordering::Relaxed);
    fastrand::seed(seed);
    // The hash tables of kube-runtime take random numbers from addresses.
    let _ = ahash::random_state::set_random_source(Counter::default());
    IS_VIRTUAL.store(true, Ordering::Relaxed);
}

#[derive(Default)]
struct Counter(AtomicUsize);

impl ahash::random_state::RandomSource for Counter {
    fn gen_hasher_seed(&self) -> usize {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

/// Returns the virtual time since the start.
pub fn elapsed() -> Duration {
    Duration::from_nanos(elapsed_nanos().unsigned_abs())
}

fn elapsed_nanos() -> i64 {
    // tokio reads the clock outside of a runtime, and while it pauses its clock.
    let is_nested = IS_READING.try_with(|reading| reading.replace(true)).unwrap_or(true);
    if !is_nested {
        if tokio::runtime::Handle::try_current().is_ok() {
            let now = tokio::time::Instant::now().into_std();
            let nanos = now.saturating_duration_since(origin()).as_nanos();
            ELAPSED.fetch_max(i64::try_from(nanos).unwrap_or(i64::MAX), Ordering::Relaxed);
        }
        let _ = IS_READING.try_with(|reading| reading.set(false));
    }
    ELAPSED.load(Ordering::Relaxed)
}

/// Returns the start of the virtual monotonic clock.
fn origin() -> Instant {
    static ORIGIN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    // The time is still zero when the runtime starts, and this function is called with `IS_READING`.
    *ORIGIN.get_or_init(Instant::now)
}

/// Replaces the function of libc.
///
/// # Safety
/// `time` must point to a `timespec`, as for the function of libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, time: *mut libc::timespec) -> libc::c_int {
    if !IS_VIRTUAL.load(Ordering::Relaxed) {
        // SAFETY: the arguments are those of the caller.
        return unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) } as libc::c_int;
    }
    let elapsed = elapsed_nanos();
    let start = match clock {
        libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE => START,
        _ => MONOTONIC_START,
    };
    let (seconds, nanos) = (start + elapsed / 1_000_000_000, elapsed % 1_000_000_000);
    // SAFETY: the caller passes a valid pointer.
    unsafe { time.write(libc::timespec { tv_sec: seconds, tv_nsec: nanos }) };
    0
}

/// Replaces the function of libc with a generator that depends only on the seed.
///
/// # Safety
/// `buffer` must point to `length` bytes, as for the function of libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(buffer: *mut libc::c_void, length: usize, _: libc::c_uint) -> libc::ssize_t {
    for index in 0..length {
        // SAFETY: the caller passes a buffer of this length.
        unsafe { buffer.cast::<u8>().add(index).write(random_byte()) };
    }
    libc::ssize_t::try_from(length).unwrap_or(libc::ssize_t::MAX)
}

/// Replaces the function of libc, with which the crate getrandom finds the function above.
///
/// # Safety
/// `name` must be a C string, as for the function of libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlsym(_: *mut libc::c_void, name: *const libc::c_char) -> *mut libc::c_void {
    // SAFETY: the caller passes a C string.
    match unsafe { std::ffi::CStr::from_ptr(name) }.to_bytes() {
        b"getrandom" => getrandom as *mut libc::c_void,
        _ => std::ptr::null_mut(),
    }
}

/// Returns the next byte of the generator SplitMix64.
fn random_byte() -> u8 {
    let state = RANDOM.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed);
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed.to_le_bytes()[7]
}
