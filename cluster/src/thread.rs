//! The thread that everything Kubernetes runs on, so that an API server can be as slow as it likes.

use std::{io, thread::JoinHandle, time::Duration};

use tokio::{
    runtime::{self, Handle},
    sync::oneshot,
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{client::Client, connection::ConfigError, options::ClientOptions};

/// The thread's name.
const NAME: &str = "kubernetes";

/// A thread with a runtime of its own and a [`Client`] there. Dropping it cuts its tasks and ends it.
#[derive(Debug)]
pub struct Thread {
    client: Client,
    handle: Handle,
    tasks: TaskTracker,
    stop: CancellationToken,
    /// Ends the thread.
    end: Option<oneshot::Sender<()>>,
    ended: oneshot::Receiver<()>,
    thread: JoinHandle<()>,
}

impl Thread {
    /// Starts the thread and reads kubeconfig or service account there; nothing is sent yet. Blocks until they are read: at
    /// start-up, before anybody is served.
    ///
    /// # Errors
    /// [`ConfigError`], which names the file: such a process would never work.
    pub fn start(options: ClientOptions) -> Result<Self, ConfigError> {
        let runtime = runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(ConfigError::Thread)?;
        let handle = runtime.handle().clone();
        let (end, wanted_end) = oneshot::channel::<()>();
        let (has_ended, ended) = oneshot::channel::<()>();
        let (loaded, client) = std::sync::mpsc::sync_channel(1);
        let thread = std::thread::Builder::new()
            .name(NAME.to_owned())
            .spawn(move || {
                runtime.block_on(async move {
                    let client = Client::load(options).await;
                    let is_usable = client.is_ok();
                    // Who started us waits for it.
                    if loaded.send(client).is_ok() && is_usable {
                        // An error means that the `Thread` was dropped.
                        drop(wanted_end.await);
                    }
                });
                runtime.shutdown_background();
                drop(has_ended);
            })
            .map_err(ConfigError::Thread)?;
        let client = client
            .recv()
            .map_err(|_| ConfigError::Thread(io::Error::other("it panicked")))??;
        Ok(Self {
            client,
            handle,
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            end: Some(end),
            ended,
            thread,
        })
    }

    /// For requests, by futures that are spawned [here](Self::spawn).
    #[must_use]
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Is cancelled when tasks are to come to their end.
    #[must_use]
    pub fn stop(&self) -> &CancellationToken {
        &self.stop
    }

    /// Runs a task on the thread. It has to end, soon after [`stop`](Self::stop).
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        drop(self.tasks.spawn_on(task, &self.handle));
    }

    /// Whether the thread has ended, which before [`finish`](Self::finish) is a fault.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Tells tasks to stop, gives them `grace`, cuts what is left, and ends the thread; whether all were done in time. Can be
    /// awaited on any runtime. Not cancel safe: then tasks are cut at once.
    pub async fn finish(mut self, grace: Duration) -> bool {
        self.stop.cancel();
        self.tasks.close();
        let in_time = timeout(grace, self.tasks.wait()).await.is_ok();
        if !in_time {
            tracing::warn!(
                left = self.tasks.len(),
                "requests to the Kubernetes API are cut"
            );
        }
        drop(self.end.take());
        // The sender is dropped at the thread's end, whatever that is.
        drop((&mut self.ended).await);
        in_time
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
