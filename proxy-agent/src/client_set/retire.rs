//! The end of a tunnel that another one to the same server has taken the place of, because certificates changed.
//!
//! Its server has been told to send no new dials (DRAIN, which upstream's server heeds since 0.35). What is established goes on
//! until it ends by itself; then the stream is ended in order. Nothing is cut before [`LIMIT`].

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::endpoint::Endpoints;

/// How long connections may go on over a tunnel that was made with certificates of before: as long as a kubelet lets an
/// idle `kubectl exec` live by default. Then they are cut, so that no tunnel outlives its certificate without end.
pub(crate) const LIMIT: Duration = Duration::from_secs(4 * 3600);

/// How long dials may still come that the server sent before it heard of the drain.
pub(crate) const UNDER_WAY: Duration = Duration::from_secs(5);

/// How often it is looked whether all connections have ended.
const LOOK: Duration = Duration::from_secs(1);

/// Waits until a tunnel that has been drained now carries nothing any more, or [`LIMIT`] is over.
pub(super) async fn unused(endpoints: &Endpoints) {
    let deadline = Instant::now() + LIMIT;
    sleep(UNDER_WAY).await;
    while !endpoints.is_idle() {
        if Instant::now() >= deadline {
            tracing::warn!(
                left = endpoints.connections(),
                "a tunnel that was replaced has been in use for {LIMIT:?} more: its connections are cut"
            );
            return;
        }
        sleep(LOOK).await;
    }
}
