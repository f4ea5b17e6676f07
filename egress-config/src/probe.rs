//! Dials through a proxy as kube-apiserver would, and tells how far it came.
//!
//! On the wire it does what kube-apiserver's dialers do (egress-selector.md 3.2 to 3.4), with two exceptions: over gRPC it
//! calls itself by its own name and the socket `localhost`, and it gives up after a given time in HTTP CONNECT too.

mod connect;
mod grpc;
mod transport;

use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::selection::{Connection, HttpConnect};

/// One step of a dial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What was done.
    pub name: &'static str,
    /// How long it took.
    pub took: Duration,
    /// What came of it: a detail, or why it failed.
    pub outcome: Result<String, String>,
}

/// Steps up to the first that failed.
#[derive(Debug)]
struct Steps {
    taken: Vec<Step>,
    patience: Duration,
}

/// A step failed; it is in the list.
struct Failed;

impl Steps {
    /// Takes a step, of which `detail` makes the text.
    async fn take<T>(
        &mut self,
        name: &'static str,
        step: impl Future<Output = anyhow::Result<(T, String)>>,
    ) -> Result<T, Failed> {
        let start = Instant::now();
        let outcome = match timeout(self.patience, step).await {
            Ok(Ok((value, detail))) => Ok((value, detail)),
            Ok(Err(error)) => Err(format!("{error:#}")),
            Err(_) => Err(format!("nothing came within {:?}", self.patience)),
        };
        let (value, outcome) = match outcome {
            Ok((value, detail)) => (Ok(value), Ok(detail)),
            Err(reason) => (Err(Failed), Err(reason)),
        };
        self.taken.push(Step {
            name,
            took: start.elapsed(),
            outcome,
        });
        value
    }
}

/// Dials `target`, `HOST:PORT`, or only reaches the proxy if there is none. Each step may take `patience`.
///
/// A proxy that refuses our certificate under TLS 1.3 says so only behind the handshake: without target that is not seen.
///
/// Dropping the future ends the dial.
pub async fn probe(connection: &Connection, target: Option<&str>, patience: Duration) -> Vec<Step> {
    let mut steps = Steps {
        taken: Vec::new(),
        patience,
    };
    // What failed is in the list.
    dial(&mut steps, connection, target).await.ok();
    steps.taken
}

async fn dial(
    steps: &mut Steps,
    connection: &Connection,
    target: Option<&str>,
) -> Result<(), Failed> {
    match (connection, target) {
        (Connection::Direct, None) => Ok(()),
        (Connection::Direct, Some(target)) => {
            steps.take("connect", transport::tcp(target)).await?;
            Ok(())
        }
        (Connection::HttpConnect(HttpConnect::Uds(path)), target) => {
            let socket = steps.take("connect", transport::uds(path)).await?;
            match target {
                Some(target) => steps.take("CONNECT", connect::dial(socket, target)).await,
                None => Ok(()),
            }
        }
        (Connection::HttpConnect(HttpConnect::Tcp(proxy)), target) => {
            let files = steps
                .take("certificates", transport::files(&proxy.tls))
                .await?;
            let address = transport::address(&proxy.url);
            let socket = steps.take("connect", transport::tcp(&address)).await?;
            let tls = transport::tls(socket, proxy, files);
            let socket = steps.take("TLS", tls).await?;
            match target {
                Some(target) => steps.take("CONNECT", connect::dial(socket, target)).await,
                None => Ok(()),
            }
        }
        (Connection::Grpc(path), target) => {
            let socket = steps.take("connect", transport::uds(path)).await?;
            let session = steps.take("HTTP/2", grpc::open(socket)).await?;
            match target {
                Some(target) => steps.take("DIAL_REQ", session.dial(target)).await,
                None => Ok(()),
            }
        }
    }
}
