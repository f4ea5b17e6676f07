//! What `deploy/` says is what the binaries take: their start lines are run as written, but for paths, ports and the
//! server's address, and the parts of a manifest that must agree with a start line do.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests: a panic is a finding about a manifest"
)]

use std::{collections::HashMap, fs, net::SocketAddr, path::PathBuf, process::Command};

use anyhow::{Context, Result, bail, ensure};
use e2e::harness::{PATIENCE, Pki, Process, binaries, eventually, free_port, get};
use egress_config::{Connection, Files, HttpConnect, SelectionName};
use serde_yaml::Value;

fn deploy(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../deploy")
        .join(file)
}

/// A container of a manifest, and what its Pod gives it.
struct Container {
    container: Value,
    pod: Value,
}

impl Container {
    /// The only one in `file`, whatever kind of object it is in.
    fn of(file: &str) -> Self {
        let text = fs::read_to_string(deploy(file)).unwrap();
        let mut pods: Vec<Value> = serde_yaml::Deserializer::from_str(&text)
            .map(|document| serde::Deserialize::deserialize(document).unwrap())
            .filter_map(|object: Value| match object["kind"].as_str() {
                Some("Pod") => Some(object["spec"].clone()),
                Some("DaemonSet") => Some(object["spec"]["template"]["spec"].clone()),
                _ => None,
            })
            .collect();
        let pod = pods.pop().expect("a Pod");
        assert!(pods.is_empty(), "{file} has several Pods");
        let containers = pod["containers"].as_sequence().unwrap();
        assert_eq!(containers.len(), 1, "{file}");
        Self {
            container: containers[0].clone(),
            pod: pod.clone(),
        }
    }

    /// `--name=value` for each argument, `$(VARIABLE)` replaced as the kubelet does.
    fn flags(&self) -> Vec<(String, String)> {
        let args = self.container["args"].as_sequence().unwrap();
        args.iter()
            .map(|arg| {
                let (name, value) = arg.as_str().unwrap().split_once('=').expect("--name=value");
                let mut value = value.to_owned();
                for variable in self.container["env"].as_sequence().into_iter().flatten() {
                    let name = variable["name"].as_str().unwrap();
                    value = value.replace(&format!("$({name})"), &format!("the-{name}"));
                }
                assert!(
                    !value.contains("$("),
                    "{name}={value} names a variable that is not set"
                );
                (name.to_owned(), value)
            })
            .collect()
    }

    fn flag(&self, name: &str) -> String {
        self.flags()
            .into_iter()
            .find(|(flag, _)| flag == name)
            .unwrap_or_else(|| panic!("no {name}"))
            .1
    }
}

/// A start line with everything replaced that belongs to the cluster.
fn start_line(container: &Container, replaced: &HashMap<&str, String>) -> Vec<String> {
    container
        .flags()
        .into_iter()
        .map(|(name, value)| match replaced.get(name.as_str()) {
            Some(value) => format!("{name}={value}"),
            None => {
                assert!(
                    !value.starts_with('/'),
                    "{name}={value} needs a file of the test"
                );
                format!("{name}={value}")
            }
        })
        .collect()
}

async fn until_ok(process: &mut Process, port: &str, path: &str) -> Result<()> {
    let address: SocketAddr = ([127, 0, 0, 1], port.parse()?).into();
    eventually(
        &format!("{path} of {address} is 200"),
        PATIENCE,
        async || {
            if let Some(status) = process.ended()? {
                bail!("ended ({status}): {}", process.log());
            }
            let reply = get(address, path).await?;
            ensure!(reply.status == 200, "{reply:?}");
            Ok(())
        },
    )
    .await
}

#[tokio::test]
async fn the_start_lines_of_the_manifests_start_a_server_and_an_agent_that_find_each_other()
-> Result<()> {
    let pki = Pki::generate()?;
    let folder = tempfile::tempdir()?;
    let file = |path: &PathBuf| path.display().to_string();
    let port = || Ok::<_, anyhow::Error>(free_port()?.to_string());
    let (agents, server_health, agent_health) = (port()?, port()?, port()?);

    let server = start_line(
        &Container::of("proxy-server.yaml"),
        &HashMap::from([
            ("--uds-name", file(&folder.path().join("s"))),
            ("--agent-port", agents.clone()),
            ("--admin-port", port()?),
            ("--health-port", server_health.clone()),
            ("--cluster-cert", file(&pki.server.certificate)),
            ("--cluster-key", file(&pki.server.key)),
            ("--cluster-ca-cert", file(&pki.ca)),
        ]),
    );
    let agent = start_line(
        &Container::of("proxy-agent.yaml"),
        &HashMap::from([
            ("--proxy-server-host", "127.0.0.1".to_owned()),
            ("--proxy-server-port", agents),
            ("--health-server-port", agent_health.clone()),
            ("--admin-server-port", port()?),
            ("--ca-cert", file(&pki.ca)),
            ("--agent-cert", file(&pki.agent.certificate)),
            ("--agent-key", file(&pki.agent.key)),
        ]),
    );

    let binaries = binaries()?;
    let mut command = Command::new(&binaries.server);
    command.args(server);
    let mut server = Process::spawn("server", command)?;
    until_ok(&mut server, &server_health, "/healthz").await?;
    let mut command = Command::new(&binaries.agent);
    command.args(agent);
    let mut agent = Process::spawn("agent", command)?;
    until_ok(&mut agent, &agent_health, "/readyz").await?;
    until_ok(&mut server, &server_health, "/readyz").await
}

#[test]
fn probes_ask_the_port_that_the_start_line_sets_and_paths_lie_in_mounts() {
    for (file, health) in [
        ("proxy-server.yaml", "--health-port"),
        ("proxy-agent.yaml", "--health-server-port"),
    ] {
        let container = Container::of(file);
        for (probe, path) in [("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")] {
            let probe = &container.container[probe]["httpGet"];
            assert_eq!(
                probe["port"].as_u64().unwrap().to_string(),
                container.flag(health),
                "{file}"
            );
            assert_eq!(probe["path"], path, "{file}");
        }
        let mounts: Vec<_> = container.container["volumeMounts"]
            .as_sequence()
            .unwrap()
            .iter()
            .collect();
        for (name, value) in container
            .flags()
            .iter()
            .filter(|(_, value)| value.starts_with('/'))
        {
            let in_mount = |mount: &&&Value| {
                value.starts_with(&format!("{}/", mount["mountPath"].as_str().unwrap()))
            };
            let mount = mounts
                .iter()
                .find(in_mount)
                .unwrap_or_else(|| panic!("{file}: {name}={value} is in no mount"));
            let volumes = container.pod["volumes"].as_sequence().unwrap();
            assert!(
                volumes.iter().any(|volume| volume["name"] == mount["name"]),
                "{file}: {mount:?}"
            );
        }
    }
}

#[test]
fn agents_dial_the_servers_port_and_hold_less_than_their_limit() {
    let (server, agent) = (
        Container::of("proxy-server.yaml"),
        Container::of("proxy-agent.yaml"),
    );
    assert_eq!(
        server.flag("--agent-port"),
        agent.flag("--proxy-server-port")
    );
    let limit = agent.container["resources"]["limits"]["memory"]
        .as_str()
        .unwrap();
    let limit: usize = limit
        .strip_suffix("Mi")
        .context("Mi")
        .unwrap()
        .parse()
        .unwrap();
    let budget: usize = agent.flag("--memory-budget").parse().unwrap();
    assert!(
        budget * 3 <= limit * 1024 * 1024,
        "{budget} bytes of {limit} MiB"
    );
}

#[test]
fn kube_apiserver_can_work_with_each_egress_file_and_finds_the_servers_socket() {
    let uds_name = Container::of("proxy-server.yaml").flag("--uds-name");
    for file in ["grpc-uds", "http-connect-uds", "http-connect-mtls"] {
        let path = deploy(&format!("egress-selector/{file}.yaml"));
        let loaded = egress_config::load(&path, Files::Elsewhere).unwrap();
        assert!(loaded.findings.is_empty(), "{file}: {:?}", loaded.findings);
        let socket = match loaded.selector.connection(SelectionName::Cluster) {
            Some(Connection::Grpc(socket) | Connection::HttpConnect(HttpConnect::Uds(socket))) => {
                socket.as_str()
            }
            Some(Connection::HttpConnect(HttpConnect::Tcp(_))) if file == "http-connect-mtls" => {
                continue;
            }
            other => panic!("{file}: {other:?}"),
        };
        assert_eq!(socket, uds_name, "{file}");
    }
}
