//! Where questions about tokens are answered, on the thread "kubernetes": from memory, with another's answer, or by the API.

use std::{
    collections::{HashMap, hash_map::Entry},
    fmt,
    sync::Arc,
    time::SystemTime,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot},
    task::{Id, JoinSet},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    Key, MAX_REMEMBERED, Options, REFUSAL_REMEMBERED, REMEMBERED, Reviewed, cache::Cache,
    expiry::expiry, verdict,
};
use crate::metrics::Metrics;

/// Requests to the API at once; others wait, within their agents' time.
const MAX_REQUESTS: usize = 32;

/// Bad tokens that are remembered. They have no place among the good ones, or a stranger could drive those out.
const MAX_REFUSALS: usize = 1024;

/// Whose token it is, or why that is of no use.
pub(super) type Answer = Result<Arc<Reviewed>, Refused>;

/// Why a token is not accepted; what follows upstream's `Failed to validate authentication token, err:`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// The API server has said so.
    Denied(Arc<str>),
    /// It could not be asked.
    Unasked(Arc<str>),
}

impl Refused {
    pub(super) fn unasked(reason: &str) -> Self {
        Self::Unasked(reason.into())
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Denied(text) => f.write_str(text),
            Self::Unasked(text) => write!(f, "Failed to authenticate request. err:{text}"),
        }
    }
}

/// An agent that waits.
pub(super) struct Question {
    pub(super) key: Key,
    pub(super) token: String,
    pub(super) answer: oneshot::Sender<Answer>,
    /// One of the places for those that wait.
    pub(super) place: OwnedSemaphorePermit,
}

/// Who waits for the same answer.
type Waiting = Vec<(oneshot::Sender<Answer>, OwnedSemaphorePermit)>;

/// A review that is over.
struct Done {
    key: Key,
    answer: Answer,
    expires: Option<SystemTime>,
}

pub(super) struct Desk {
    client: cluster::Client,
    options: Arc<Options>,
    metrics: Arc<Metrics>,
    accepted: Cache<Arc<Reviewed>>,
    denied: Cache<Arc<str>>,
    /// By token; as many as there are places for those that wait.
    under_way: HashMap<Key, Waiting>,
    requests: JoinSet<Done>,
    /// What each of them is about, should it panic.
    keys: HashMap<Id, Key>,
    slots: Arc<Semaphore>,
}

impl Desk {
    pub(super) fn new(client: cluster::Client, options: Options, metrics: Arc<Metrics>) -> Self {
        Self {
            client,
            options: Arc::new(options),
            metrics,
            accepted: Cache::new(REMEMBERED, MAX_REMEMBERED),
            denied: Cache::new(REFUSAL_REMEMBERED, MAX_REFUSALS),
            under_way: HashMap::new(),
            requests: JoinSet::new(),
            keys: HashMap::new(),
            slots: Arc::new(Semaphore::new(MAX_REQUESTS)),
        }
    }

    /// Answers until `stop`; who waits then is told that the server ends.
    pub(super) async fn run(
        mut self,
        mut questions: mpsc::Receiver<Question>,
        stop: CancellationToken,
    ) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                Some(done) = self.requests.join_next_with_id() => match done {
                    Ok((id, done)) => {
                        self.keys.remove(&id);
                        self.done(done);
                    }
                    // A panic, which its hook has reported. Who waits is told by the end of its sender.
                    Err(error) => {
                        if let Some(key) = self.keys.remove(&error.id()) {
                            self.under_way.remove(&key);
                        }
                    }
                },
                question = questions.recv() => match question {
                    Some(question) => self.ask(question),
                    None => return,
                },
            }
        }
    }

    fn ask(&mut self, question: Question) {
        let now = Instant::now();
        let wall = SystemTime::now();
        let known = match self.accepted.get(&question.key, now, wall) {
            Some(reviewed) => Some(Ok(reviewed.clone())),
            None => {
                let denied = self.denied.get(&question.key, now, wall);
                denied.map(|reason| Err(Refused::Denied(reason.clone())))
            }
        };
        if let Some(answer) = known {
            self.metrics.token_reviews.cache_hit();
            // An agent that went away needs none.
            drop(question.answer.send(answer));
            return;
        }
        match self.under_way.entry(question.key) {
            Entry::Occupied(mut waiting) => {
                self.metrics.token_reviews.cache_hit();
                waiting.get_mut().push((question.answer, question.place));
            }
            Entry::Vacant(waiting) => {
                waiting.insert(vec![(question.answer, question.place)]);
                let review = review(
                    self.client.clone(),
                    self.options.clone(),
                    self.metrics.clone(),
                    self.slots.clone(),
                    question.key,
                    question.token,
                );
                let id = self.requests.spawn(review).id();
                self.keys.insert(id, question.key);
            }
        }
    }

    fn done(&mut self, done: Done) {
        let now = Instant::now();
        match &done.answer {
            Ok(reviewed) => self
                .accepted
                .insert(done.key, reviewed.clone(), now, done.expires),
            Err(Refused::Denied(reason)) => self.denied.insert(done.key, reason.clone(), now, None),
            // The next one asks again.
            Err(Refused::Unasked(_)) => {}
        }
        for (waiting, _place) in self.under_way.remove(&done.key).unwrap_or_default() {
            drop(waiting.send(done.answer.clone()));
        }
    }
}

async fn review(
    client: cluster::Client,
    options: Arc<Options>,
    metrics: Arc<Metrics>,
    slots: Arc<Semaphore>,
    key: Key,
    token: String,
) -> Done {
    // Never closed.
    let _slot = slots.acquire().await;
    let start = Instant::now();
    let status = client.review_token(&token, &options.audience).await;
    metrics.token_reviews.asked(start.elapsed());
    let answer = match status {
        Ok(status) => verdict::judge(status, &options)
            .map(Arc::new)
            .map_err(|reason| Refused::Denied(without(&reason, &token).into())),
        Err(error) => Err(Refused::unasked(&without(&error.to_string(), &token))),
    };
    Done {
        key,
        answer,
        expires: expiry(&token),
    }
}

/// Nobody's words carry a token any further.
fn without(text: &str, token: &str) -> String {
    if token.is_empty() {
        return text.to_owned();
    }
    text.replace(token, "[token]")
}
