//! Samples of all threads, by the timer that counts their CPU time.

use std::time::Duration;

use pprof::{ProfilerGuard, ProfilerGuardBuilder, Report};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::encode::{Function, Profile, Sample};

/// Samples a second of CPU time; not a round number, so as not to beat with what happens a hundred times a second.
const FREQUENCY: i32 = 99;

/// What a sample must not be taken within: unwinding a thread that holds a lock of its loader or allocator could wait for
/// itself (the crate's own advice).
const NOT_WITHIN: [&str; 4] = ["libc", "libgcc", "pthread", "vdso"];

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
    let report = sampling.report().build()?;
    drop(sampling);
    Ok(profile(&report).encode())
}

fn profile(report: &Report) -> Profile {
    let mut profile = Profile::new(
        report.timing.start_time,
        report.timing.duration,
        Duration::from_secs(1) / u32::try_from(FREQUENCY).unwrap_or(1),
    );
    for (frames, &count) in &report.data {
        let stack = frames.frames.iter().map(|inlined| {
            let functions = inlined.iter().map(|symbol| Function {
                name: symbol.name(),
                system_name: symbol.sys_name().into_owned(),
                file: symbol.filename().into_owned(),
                line: symbol.lineno(),
            });
            functions.collect()
        });
        profile.add(Sample {
            stack: stack.collect(),
            thread: frames.thread_name.clone(),
            count: u64::try_from(count).unwrap_or(0),
        });
    }
    profile
}
