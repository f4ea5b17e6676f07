//! What can be wrong with an API server.

use std::time::Duration;

/// How requests about a resource end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// With this status, and the reason that the real one gives with it.
    Status(u16),
    /// With 429 and `Retry-After`, in whole seconds.
    TooMany(Duration),
    /// With nothing until [`heal`](super::KubeApi::heal), then as they should.
    Hang,
    /// As they should, but only after this time.
    Slow(Duration),
    /// With the connection, unanswered.
    Close,
    /// With 200 and no JSON.
    Nonsense,
    /// With 200 and so many bytes of well-formed JSON.
    Huge(usize),
}

/// `Status.reason` of the real API server.
pub(super) fn reason(code: u16) -> &'static str {
    match code {
        400 => "BadRequest",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        410 => "Expired",
        429 => "TooManyRequests",
        500 => "InternalError",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "",
    }
}
