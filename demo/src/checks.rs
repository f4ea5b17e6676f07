//! What is proved: each check dials as kube-apiserver does.

use std::{fmt::Write, net::SocketAddr, path::Path, pin::Pin, process::Stdio};

use anyhow::{Context, bail, ensure};
use e2e::{
    client::{Client, DialFailure, Endpoint, Frontend},
    harness::free_port,
};
use tokio::{
    process::Command,
    time::{Duration, timeout},
};

use crate::{
    http,
    scene::Scene,
    story::{Done, Story, done},
};

/// What goes to the target and comes back, in bytes: far more than every window and queue on the way.
const BULK: usize = 16 * 1024 * 1024;

/// No check takes a hundredth of it; one that hangs must end all the same.
const CHECK_LIMIT: Duration = Duration::from_secs(30);

/// Runs all checks, also those behind one that failed. Returns how many did.
pub(crate) async fn run(story: &Story, scene: &Scene) -> usize {
    let mut failed = 0;
    let mut count = |outcome: anyhow::Result<()>| failed += usize::from(outcome.is_err());
    story.title("kube-apiserver dials");
    for frontend in Frontend::ALL {
        count(
            story
                .step(&name(frontend), limited(through(scene, frontend)))
                .await,
        );
    }
    story.title("What must fail, and does, at once and with its cause");
    count(
        story
            .step("target that refuses", limited(refused(scene)))
            .await,
    );
    count(
        story
            .step("name that nobody knows", limited(unknown(scene)))
            .await,
    );
    count(
        story
            .step("client without a certificate", limited(stranger(scene)))
            .await,
    );
    story.title("A client that is not ours");
    let curl = "curl, CONNECT over mTLS TCP";
    if has_curl().await {
        count(story.step(curl, limited(curl_works(scene))).await);
    } else {
        story.left_out(curl, "there is no curl on this machine");
    }
    failed
}

fn name(frontend: Frontend) -> String {
    let protocol = if frontend.is_grpc() {
        "gRPC"
    } else {
        "HTTP CONNECT"
    };
    let place = if frontend.is_uds() {
        "Unix socket"
    } else {
        "mTLS TCP"
    };
    format!("{protocol}, {place}")
}

/// `check` with a limit, on the heap, since TLS handshakes make large futures.
fn limited<'a, T: 'a>(
    check: impl Future<Output = anyhow::Result<T>> + 'a,
) -> Pin<Box<dyn Future<Output = anyhow::Result<T>> + 'a>> {
    Box::pin(async {
        timeout(CHECK_LIMIT, check)
            .await
            .with_context(|| format!("not done within {CHECK_LIMIT:?}"))?
    })
}

/// The target's word comes through, and so does bulk in both directions.
async fn through(scene: &Scene, frontend: Frontend) -> anyhow::Result<Done<()>> {
    let client = scene.client(frontend)?;
    let target = scene.target.address.to_string();
    let greeting = http::exchange(client.dial(&target).await?, "GET", "/", b"").await?;
    ensure!(
        scene.target.is_greeting(&greeting),
        "the greeting lacks the target's word"
    );
    let mut bulk = vec![0; BULK];
    fastrand::fill(&mut bulk);
    let back = http::exchange(client.dial(&target).await?, "POST", "/", &bulk).await?;
    ensure!(
        back == bulk,
        "{} bytes sent, {} came back, and they differ",
        bulk.len(),
        back.len()
    );
    Ok(done(
        format!(
            "the target's word; then {} MiB there and back, byte for byte",
            BULK >> 20
        ),
        (),
    ))
}

async fn refused(scene: &Scene) -> anyhow::Result<Done<()>> {
    let closed = SocketAddr::from(([127, 0, 0, 1], free_port()?)).to_string();
    let http = failure(&scene.client(Frontend::HttpUds)?, &closed).await?;
    ensure!(
        http.status() == Some(502) && http.cause().contains("connection refused"),
        "{http}"
    );
    let grpc = failure(&scene.client(Frontend::GrpcUds)?, &closed).await?;
    ensure!(grpc.cause().contains("connection refused"), "{grpc}");
    Ok(done("502, and over gRPC DIAL_RSP: connection refused", ()))
}

async fn unknown(scene: &Scene) -> anyhow::Result<Done<()>> {
    // RFC 6761 keeps `invalid` for names that do not exist. Without any resolver the answer is another, and a failure, too.
    let failure = failure(&scene.client(Frontend::HttpTls)?, "nowhere.invalid:443").await?;
    let status = failure.status().with_context(|| failure.to_string())?;
    ensure!(
        matches!(status, 502 | 504) && failure.cause().contains("lookup nowhere.invalid"),
        "{failure}"
    );
    Ok(done(format!("{status}: {}", failure.cause().trim()), ()))
}

async fn stranger(scene: &Scene) -> anyhow::Result<Done<()>> {
    let endpoint = Endpoint::tls(scene.proxy()?, scene.pki.roots(), None, Frontend::HttpTls)?;
    let client = Client::new(Frontend::HttpTls, endpoint);
    match failure(&client, &scene.target.address.to_string()).await? {
        DialFailure::Connect(error) => Ok(done(format!("TLS: {error}"), ())),
        other => bail!("not refused by TLS, but: {other}"),
    }
}

async fn failure(client: &Client, target: &str) -> anyhow::Result<DialFailure> {
    match client.dial(target).await {
        Ok(_) => bail!("{target} was reached"),
        Err(failure) => Ok(failure),
    }
}

async fn has_curl() -> bool {
    let version = Command::new("curl")
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .await;
    version.is_ok_and(|status| status.success())
}

/// Runs the line exactly as it is printed.
async fn curl_works(scene: &Scene) -> anyhow::Result<Done<()>> {
    let output = Command::new("sh")
        .args(["-c", &curl_line(scene)?])
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .context("run sh")?;
    ensure!(
        output.status.success(),
        "{}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    ensure!(
        scene.target.is_greeting(&output.stdout),
        "curl got something else than the target's greeting"
    );
    Ok(done("the target's word", ()))
}

/// A shell line that reaches the target through the TCP frontend.
pub(crate) fn curl_line(scene: &Scene) -> anyhow::Result<String> {
    let mut line = format!("  curl -sS -p -x https://{}", scene.proxy()?);
    for (option, file) in [
        ("--proxy-cacert", &scene.pki.ca),
        ("--proxy-cert", &scene.pki.apiserver.certificate),
        ("--proxy-key", &scene.pki.apiserver.key),
    ] {
        write!(line, " \\\n    {option} {}", quoted(file))?;
    }
    write!(line, " \\\n    http://{}/", scene.target.address)?;
    Ok(line)
}

/// A path as one word of a shell.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = text
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte));
    if is_plain {
        text
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}
