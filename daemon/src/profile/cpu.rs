//! Samples of all threads, by the timer that counts their CPU time.

use std::time::Duration;

use pprof::{Frames, ProfilerGuard, ProfilerGuardBuilder, Symbol};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::encode::{Function, Profile, Sample};

/// Samples a second of CPU time; not a round number, so as not to beat with what happens a hundred times a second.
const FREQUENCY: i32 = 99;

/// What a sample must not be taken within: unwinding a thread that holds a lock of its loader or allocator could wait for
/// itself (the crate's own advice).
const NOT_WITHIN: [&str; 4] = ["libc", "libgcc", "pthread", "vdso"];

/// How deep the profiler's own frames are looked for.
const MOST_OWN_FRAMES: usize = 8;

/// Why there is no profile.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProfileError {
    /// The profiler did not start or gave no report.
    #[error(transparent)]
    Profiler(#[from] pprof::Error),
    /// Resolving names panicked.
    #[error("the profile could not be resolved")]
    Resolve,
}

/// Samples for `duration` and encodes what was seen. Cancel safe: dropping it ends the sampling.
pub(super) async fn take(duration: Duration) -> Result<Vec<u8>, ProfileError> {
    let sampling = ProfilerGuardBuilder::default()
        .frequency(FREQUENCY)
        .blocklist(&NOT_WITHIN)
        .build()?;
    sleep(duration).await;
    // Names are looked up in debug information, which takes seconds: not on the thread that answers probes.
    spawn_blocking(move || encode(sampling))
        .await
        .map_err(|_| ProfileError::Resolve)?
}

fn encode(sampling: ProfilerGuard<'static>) -> Result<Vec<u8>, ProfileError> {
    let report = sampling.report().build_unresolved()?;
    // No more signals while names are looked up.
    drop(sampling);
    let mut profile = Profile::new(
        report.timing.start_time,
        report.timing.duration,
        Duration::from_secs(1) / u32::try_from(FREQUENCY).unwrap_or(1),
    );
    for (unresolved, count) in report.data {
        let frames = Frames::from(unresolved);
        profile.add(Sample {
            stack: interrupted(&frames.frames)
                .iter()
                .map(|f| places(f))
                .collect(),
            thread: frames.thread_name,
            count: u64::try_from(count).unwrap_or(0),
        });
    }
    Ok(profile.encode())
}

/// What ran when the signal came: the stack without the profiler's own frames above it. The crate takes its handler's out, but
/// not those of the unwinding within, unless they are inlined.
fn interrupted(frames: &[Vec<Symbol>]) -> &[Vec<Symbol>] {
    let is_own = |frame: &Vec<Symbol>| frame.iter().any(|place| place.name().contains("pprof::"));
    let own = frames.iter().take(MOST_OWN_FRAMES).rposition(is_own);
    frames
        .get(own.map_or(0, |last| last + 1)..)
        .unwrap_or_default()
}

fn places(inlined: &[Symbol]) -> Vec<Function> {
    let functions = inlined.iter().map(|symbol| Function {
        name: symbol.name(),
        system_name: symbol.sys_name().into_owned(),
        file: symbol.filename().into_owned(),
        line: symbol.lineno(),
    });
    functions.collect()
}
