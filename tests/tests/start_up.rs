//! What cannot work is refused at the start: with exit code 1, and with the flag and the file in the message.

use std::{fs, net::TcpListener, path::Path, sync::Arc};

use anyhow::{Context, Result, ensure};
use certs::{
    Authority, Validity,
    issue::{Leaf, Replace},
};
use e2e::{
    client::Frontend,
    exchange::dial_and_echo,
    harness::{
        AgentBuilder, Cluster, Ended, PATIENCE, Pki, Server, ServerBuilder, eventually, free_port,
        get,
    },
    targets::Target,
};
use tempfile::TempDir;

/// Files that are not what a flag wants.
struct Files {
    folder: TempDir,
}

impl Files {
    fn make(pki: &Pki) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let dir = folder.path();
        fs::create_dir(dir.join("folder"))?;
        fs::write(dir.join("empty"), "")?;
        fs::write(
            dir.join("garbage"),
            "-----BEGIN CERTIFICATE-----\nnot base64\n",
        )?;
        let authority = pki.authority();
        let server = Leaf::server(&["localhost", "127.0.0.1"]);
        let client = Leaf::client("konnectivity-agent");
        for (leaf, stem) in [(server, "server"), (client, "agent")] {
            authority
                .issue(&leaf.clone().valid(Validity::over()))?
                .write(dir, &format!("{stem}-over"), Replace::No)?;
            authority
                .issue(&leaf)?
                .write(dir, &format!("{stem}-other"), Replace::No)?;
        }
        Ok(Self { folder })
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }
}

/// The flags to add, and what the message must have.
struct Case {
    flags: Vec<String>,
    says: Vec<String>,
}

/// `--flag=file` with the names of both in the message.
fn bad_file(flag: &str, file: String) -> Case {
    Case {
        flags: vec![format!("--{flag}={file}")],
        says: vec![flag.to_owned(), file],
    }
}

fn assert_refused(ended: &Ended, case: &Case) -> Result<()> {
    let flags = &case.flags;
    ensure!(ended.code == Some(1), "{flags:?}: {ended:?}");
    // Upstream writes some flags as words, some of those in capitals.
    let log = ended.log.to_lowercase();
    for part in &case.says {
        let part = part.to_lowercase();
        ensure!(
            log.contains(&part) || log.contains(&part.replace('-', " ")),
            "{flags:?}: no {part:?} in {}",
            ended.log
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_server_with_bad_certificates_does_not_start() -> Result<()> {
    let pki = Pki::shared()?;
    let files = Files::make(&pki)?;
    let roles: [(Frontend, &[&str]); 2] = [
        (
            Frontend::GrpcUds,
            &["cluster-cert", "cluster-key", "cluster-ca-cert"],
        ),
        (
            Frontend::GrpcTls,
            &["server-cert", "server-key", "server-ca-cert"],
        ),
    ];
    for (frontend, flags) in roles {
        let mut cases = Vec::new();
        for flag in flags {
            for name in ["missing", "folder", "empty", "garbage"] {
                cases.push(bad_file(flag, files.path(name)));
            }
        }
        let role = flags
            .first()
            .context("three flags")?
            .trim_end_matches("-cert");
        // One half of a pair, or halves of two.
        cases.push(Case {
            flags: vec![format!("--{role}-key=")],
            says: vec![
                format!("{role}-key"),
                pki.server.certificate.display().to_string(),
            ],
        });
        cases.push(Case {
            flags: vec![format!("--{role}-cert=")],
            says: vec![format!("{role}-cert"), pki.server.key.display().to_string()],
        });
        cases.push(bad_file(
            &format!("{role}-key"),
            files.path("server-other.key"),
        ));
        cases.push(Case {
            flags: vec![
                format!("--{role}-cert={}", files.path("server-over.crt")),
                format!("--{role}-key={}", files.path("server-over.key")),
            ],
            says: vec![
                format!("{role}-cert"),
                files.path("server-over.crt"),
                "expired".into(),
            ],
        });
        for case in &cases {
            let mut server = ServerBuilder::new(frontend, Arc::clone(&pki));
            for flag in &case.flags {
                server = server.flag(flag);
            }
            assert_refused(&server.fail().await?, case)?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn an_agent_with_bad_certificates_does_not_start() -> Result<()> {
    let pki = Pki::shared()?;
    let files = Files::make(&pki)?;
    let mut cases = Vec::new();
    for flag in ["agent-cert", "agent-key", "ca-cert"] {
        for name in ["missing", "folder", "empty", "garbage"] {
            cases.push(bad_file(flag, files.path(name)));
        }
    }
    cases.push(bad_file(
        "service-account-token-path",
        files.path("missing"),
    ));
    cases.push(Case {
        flags: vec!["--agent-key=".into()],
        says: vec![
            "agent-key".into(),
            pki.agent.certificate.display().to_string(),
        ],
    });
    cases.push(Case {
        flags: vec!["--agent-cert=".into()],
        says: vec!["agent-cert".into(), pki.agent.key.display().to_string()],
    });
    cases.push(bad_file("agent-key", files.path("agent-other.key")));
    cases.push(Case {
        flags: vec![
            format!("--agent-cert={}", files.path("agent-over.crt")),
            format!("--agent-key={}", files.path("agent-over.key")),
        ],
        says: vec![
            "agent-cert".into(),
            files.path("agent-over.crt"),
            "expired".into(),
        ],
    });
    for case in &cases {
        let mut agent = AgentBuilder::new(([127, 0, 0, 1], free_port()?).into(), Arc::clone(&pki));
        for flag in &case.flags {
            agent = agent.flag(flag);
        }
        assert_refused(&agent.fail().await?, case)?;
    }
    Ok(())
}

#[tokio::test]
async fn a_port_in_use_is_named() -> Result<()> {
    let pki = Pki::shared()?;
    for (frontend, flag) in [
        (Frontend::GrpcTls, "server-port"),
        (Frontend::GrpcUds, "agent-port"),
        (Frontend::GrpcUds, "health-port"),
        (Frontend::GrpcUds, "admin-port"),
    ] {
        let port = free_port()?;
        let _taken = TcpListener::bind(("127.0.0.1", port))?;
        let case = Case {
            flags: vec![format!("--{flag}={port}")],
            says: vec![flag.into(), port.to_string(), "in use".into()],
        };
        let folder = tempfile::tempdir()?;
        let socket = folder.path().join("proxy.sock");
        let mut server = ServerBuilder::new(frontend, Arc::clone(&pki)).flag(&case.flags[0]);
        if frontend.is_uds() {
            server = server.flag(format!("--uds-name={}", socket.display()));
        }
        assert_refused(&server.fail().await?, &case)?;
        ensure!(!socket.exists(), "a socket is left behind");
    }
    for flag in ["health-server-port", "admin-server-port"] {
        let port = free_port()?;
        let _taken = TcpListener::bind(("127.0.0.1", port))?;
        let case = Case {
            flags: vec![format!("--{flag}={port}")],
            says: vec![flag.into(), port.to_string(), "in use".into()],
        };
        let server = ([127, 0, 0, 1], free_port()?).into();
        let agent = AgentBuilder::new(server, Arc::clone(&pki)).flag(&case.flags[0]);
        assert_refused(&agent.fail().await?, &case)?;
    }
    Ok(())
}

#[tokio::test]
async fn a_socket_path_that_cannot_be_is_named() -> Result<()> {
    let pki = Pki::shared()?;
    let folder = tempfile::tempdir()?;
    let long = folder.path().join("x".repeat(120));
    let nowhere = folder.path().join("nowhere/proxy.sock");
    for path in [long, nowhere, folder.path().to_owned()] {
        let case = bad_file("uds-name", path.display().to_string());
        let server = ServerBuilder::new(Frontend::GrpcUds, Arc::clone(&pki)).flag(&case.flags[0]);
        assert_refused(&server.fail().await?, &case)?;
    }
    Ok(())
}

/// R70, the first half: nobody takes a socket from a process that lives.
#[tokio::test]
async fn a_socket_that_a_live_process_serves_stays_its_own() -> Result<()> {
    let target = Target::echo().await?;
    let mut cluster = Cluster::with(Frontend::GrpcUds).await?;
    let socket = cluster.server().socket().context("a socket")?.clone();
    for delete in [true, false] {
        let case = Case {
            flags: vec![
                format!("--uds-name={}", socket.display()),
                format!("--delete-existing-uds-file={delete}"),
            ],
            says: vec![
                "uds-name".into(),
                socket.display().to_string(),
                "in use".into(),
            ],
        };
        let mut server = ServerBuilder::new(Frontend::GrpcUds, Arc::clone(cluster.pki()));
        for flag in &case.flags {
            server = server.flag(flag);
        }
        assert_refused(&server.fail().await?, &case)?;
        dial_and_echo(&cluster.client()?, &target.name(), 1_000).await?;
    }
    Ok(())
}

/// R70, the second half: nobody trips over the socket of a process that is dead, unless told to.
#[tokio::test]
async fn a_socket_that_nobody_serves_is_replaced_unless_forbidden() -> Result<()> {
    let pki = Pki::shared()?;
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("proxy.sock");
    let start = async |more: &[&str]| -> Result<Server> {
        let mut server = ServerBuilder::new(Frontend::GrpcUds, Arc::clone(&pki))
            .flag(format!("--uds-name={}", socket.display()));
        for &flag in more {
            server = server.flag(flag);
        }
        server.start().await
    };
    leave_stale(start(&[]).await?, &socket)?;
    leave_stale(start(&[]).await?, &socket)?;
    leave_stale(start(&["--delete-existing-uds-file=true"]).await?, &socket)?;
    let case = Case {
        flags: vec![
            format!("--uds-name={}", socket.display()),
            "--delete-existing-uds-file=false".into(),
        ],
        says: vec![
            "uds-name".into(),
            socket.display().to_string(),
            "in use".into(),
        ],
    };
    let mut server = ServerBuilder::new(Frontend::GrpcUds, Arc::clone(&pki));
    for flag in &case.flags {
        server = server.flag(flag);
    }
    assert_refused(&server.fail().await?, &case)?;
    ensure!(socket.exists(), "it was not to be deleted");
    Ok(())
}

fn leave_stale(mut server: Server, socket: &Path) -> Result<()> {
    server.process().kill()?;
    ensure!(socket.exists(), "SIGKILL leaves the file behind");
    Ok(())
}

#[tokio::test]
async fn a_flag_that_makes_no_sense_is_named() -> Result<()> {
    let pki = Pki::shared()?;
    for (flag, says) in [
        ("--no-such-flag=1", "no-such-flag"),
        ("--mode=tcp", "mode must be set to either"),
        ("--keepalive-time=5", "keepalive-time"),
        ("--agent-port=80", "reserved port 80 for the agent port"),
        ("--server-port=8090", "server port should be set to 0"),
        ("--proxy-strategies=best", "unknown proxy strategy: best"),
    ] {
        let case = Case {
            flags: vec![flag.into()],
            says: vec![says.into()],
        };
        let server = ServerBuilder::new(Frontend::GrpcUds, Arc::clone(&pki)).flag(flag);
        assert_refused(&server.fail().await?, &case)?;
    }
    for (flag, says) in [
        ("--no-such-flag=1", "no-such-flag"),
        ("--sync-interval=1", "sync-interval"),
        (
            "--proxy-server-port=0",
            "proxy server port 0 must be greater than 0",
        ),
        (
            "--agent-identifiers=planet=mars",
            "unknown address type: planet",
        ),
    ] {
        let case = Case {
            flags: vec![flag.into()],
            says: vec![says.into()],
        };
        let server = ([127, 0, 0, 1], free_port()?).into();
        let agent = AgentBuilder::new(server, Arc::clone(&pki)).flag(flag);
        assert_refused(&agent.fail().await?, &case)?;
    }
    Ok(())
}

/// Whoever signed it: an authority of that name is not the authority.
#[tokio::test]
async fn an_agent_that_does_not_trust_its_server_says_so_and_is_not_ready() -> Result<()> {
    let mut cluster = Cluster::builder().agents(0).start().await?;
    let folder = tempfile::tempdir()?;
    let other = Authority::generate("adit e2e")?.write(folder.path(), "ca", Replace::No)?;
    let spec = cluster
        .agent_spec()
        .flag(format!("--ca-cert={}", other.certificate.display()));
    let mut agent = spec.start_unconnected().await?;
    eventually("it says why", PATIENCE, async || {
        let log = agent.process().log();
        ensure!(log.contains("certificate"), "{log}");
        Ok(())
    })
    .await?;
    let reply = get(agent.health(), "/readyz").await?;
    ensure!(reply.status == 503, "{reply:?}");
    ensure!(cluster.server().process().ended()?.is_none());
    Ok(())
}
