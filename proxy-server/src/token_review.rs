//! Agents by token: the Kubernetes API says whose it is (wire-protocol.md 5.5).
//!
//! ```text
//! worker, one a Connect: Reviewer::review ──bounded──> desk, on the thread "kubernetes" ──> API server
//!                                        <─────────── cache, one request for each token
//! ```
//!
//! Upstream asks the API server at each Connect, for as long as it takes, 5 times a second: a cluster of agents that comes back
//! after a fault takes minutes (W11). Ours remembers a good token for [`REMEMBERED`], never past its own end, and asks once for
//! those that come with the same at the same time. So a token that is revoked is good for new tunnels for that time
//! longer; a tunnel that is up is, as upstream's, not asked about again.
//!
//! Tokens are hashed for the cache, sent to the API server, and otherwise in no message, log or metric.

mod cache;
mod desk;
mod expiry;
mod headers;
mod metrics;
mod verdict;

use std::{sync::Arc, time::Duration};

use aws_lc_rs::digest;
use tokio::{
    sync::{Semaphore, mpsc, oneshot},
    time::timeout,
};
use tunnel::grpc::{Code, Status};

pub use headers::Presented;
pub use metrics::Metrics;
pub use verdict::Reviewed;

use desk::{Answer, Desk, Question, Refused};
use metrics::Outcome;

use crate::metrics::Metrics as ServerMetrics;

/// How long a good token is remembered; its own end comes before.
pub const REMEMBERED: Duration = Duration::from_secs(60);

/// How long a bad token is remembered: so short that a right that was just granted is seen, so long that an agent that insists
/// costs no more than a request a second.
pub const REFUSAL_REMEMBERED: Duration = Duration::from_secs(1);

/// Good tokens that are remembered. One takes less than 2 KiB.
pub const MAX_REMEMBERED: usize = 10_000;

/// Agents that wait for an answer at once; more are refused.
pub const MAX_WAITING: usize = 1024;

/// How long an agent waits for an answer. Ours waits 10 s for a server's greeting, and is to hear why there is none.
pub const LIMIT: Duration = Duration::from_secs(9);

/// Who may be an agent, from the three flags that belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// `--agent-namespace`: the namespace of the agents' service account.
    pub namespace: String,
    /// `--agent-service-account`: its name.
    pub service_account: String,
    /// `--authentication-audience`: whom their tokens must be meant for.
    pub audience: String,
}

/// Reviews agents' tokens; cheap to clone, for the worker.
#[derive(Clone, Debug)]
pub struct Reviewer {
    questions: mpsc::Sender<Question>,
    waiting: Arc<Semaphore>,
    metrics: Arc<ServerMetrics>,
}

impl Reviewer {
    /// Reviews by `options` on `thread`, until that stops.
    #[must_use]
    pub fn start(thread: &cluster::Thread, options: Options, metrics: Arc<ServerMetrics>) -> Self {
        let (questions, asked) = mpsc::channel(MAX_WAITING);
        let desk = Desk::new(thread.client(), options, metrics.clone());
        thread.spawn(desk.run(asked, thread.stop().clone()));
        Self {
            questions,
            waiting: Arc::new(Semaphore::new(MAX_WAITING)),
            metrics,
        }
    }

    /// Whose token an agent has sent. Cancel safe.
    ///
    /// # Errors
    /// What to tell the agent: `Unknown` with upstream's words, in all cases. Those that begin with `Failed to authenticate
    /// request` say that the API could not be asked, and may be over soon.
    pub async fn review(&self, presented: Presented<'_>) -> Result<Arc<Reviewed>, Status> {
        let token = presented.token().map_err(|message| {
            self.metrics.token_reviews.reviewed(Outcome::Malformed);
            Status::new(Code::Unknown, message)
        })?;
        let answer = match timeout(LIMIT, self.ask(token)).await {
            Ok(answer) => answer,
            Err(_) => Err(Refused::unasked(&format!("no answer within {LIMIT:?}"))),
        };
        match answer {
            Ok(reviewed) => {
                self.metrics.token_reviews.reviewed(Outcome::Accepted);
                Ok(reviewed)
            }
            Err(refused) => {
                self.metrics.token_reviews.reviewed(match refused {
                    Refused::Denied(_) => Outcome::Denied,
                    Refused::Unasked(_) => Outcome::Failed,
                });
                let message = format!("Failed to validate authentication token, err:{refused}");
                Err(Status::new(Code::Unknown, message))
            }
        }
    }

    async fn ask(&self, token: &str) -> Answer {
        let Ok(place) = self.waiting.clone().try_acquire_owned() else {
            self.metrics.token_reviews.limit_hit();
            return Err(Refused::unasked("too many token reviews are waiting"));
        };
        let (answer, answered) = oneshot::channel();
        let question = Question {
            key: key(token),
            token: token.to_owned(),
            answer,
            place,
        };
        if self.questions.send(question).await.is_err() {
            return Err(Refused::unasked("the server is shutting down"));
        }
        answered
            .await
            .unwrap_or_else(|_| Err(Refused::unasked("the review was given up")))
    }
}

/// SHA-256 of a token.
type Key = [u8; 32];

fn key(token: &str) -> Key {
    let mut key = Key::default();
    for (to, from) in key
        .iter_mut()
        .zip(digest::digest(&digest::SHA256, token.as_bytes()).as_ref())
    {
        *to = *from;
    }
    key
}

#[cfg(test)]
mod tests;
