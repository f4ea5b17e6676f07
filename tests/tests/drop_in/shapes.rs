//! D18: the egress selector files of the field, read and dialled by kube-apiserver's rules.
//!
//! `interop` does the same with upstream's client library in Go.

use std::fs;

use anyhow::{Context, Result, ensure};
use e2e::{client::Frontend, exchange::dial_and_echo, harness::PATIENCE, targets::Target};
use egress_config::{Files, SelectionName, load, probe::probe};

use crate::{hypershift, kubeadm, line::Line, site::Site};

const E1: &str = "
apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: cluster
  connection:
    proxyProtocol: GRPC
    transport:
      uds:
        udsName: /etc/kubernetes/konnectivity-server/konnectivity-server.socket
";

const E4: &str = "
apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: controlplane
  connection:
    proxyProtocol: Direct
- name: etcd
  connection:
    proxyProtocol: Direct
- name: cluster
  connection:
    proxyProtocol: HTTPConnect
    transport:
      tcp:
        url: https://konnectivity-server-local:8090
        tlsConfig:
          caBundle: /etc/kubernetes/certs/konnectivity-ca/ca.crt
          clientCert: /etc/kubernetes/certs/konnectivity-client/tls.crt
          clientKey: /etc/kubernetes/certs/konnectivity-client/tls.key
";

const E5: &str = "
apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: cluster
  connection:
    proxyProtocol: HTTPConnect
    transport:
      uds:
        udsName: /etc/kubernetes/konnectivity-server/konnectivity-server.socket
";

pub(crate) async fn egress_files(site: Site) -> Result<String> {
    let http_over_uds = kubeadm::SERVER.replace("--mode=grpc", "--mode=http-connect");
    let shapes = [
        ("E1", E1, kubeadm::SERVER, kubeadm::AGENT, Frontend::GrpcUds),
        (
            "E4",
            E4,
            hypershift::SERVER,
            hypershift::DATA_PLANE_AGENT,
            Frontend::HttpTls,
        ),
        ("E5", E5, &http_over_uds, kubeadm::AGENT, Frontend::HttpUds),
    ];
    let target = Target::echo().await?;
    for (shape, yaml, server, agent, frontend) in shapes {
        let site = site
            .another()?
            .fill("<address>", "127.0.0.1")
            .fill("<konnectivity-server>", "localhost");
        let server = site.server(Line::new(server)).await?;
        let mut agent = site.agent(Line::new(agent), server.agents()?).await?;
        agent.ready().await?;

        let file = site.path("/egress-selector-configuration.yaml");
        fs::write(&file, here(yaml, &site, server.port("server-port")?)?)?;
        let loaded = load(&file, Files::MustExist).with_context(|| shape)?;
        let connection = loaded.selector.connection(SelectionName::Cluster);
        let connection = connection.context("no cluster")?;
        let steps = probe(connection, Some(&target.name()), PATIENCE).await;
        ensure!(
            !steps.is_empty() && steps.iter().all(|step| step.outcome.is_ok()),
            "{shape}: {steps:?}"
        );
        let client = site.client(&server, frontend)?;
        dial_and_echo(&client, &target.name(), 1_000_000)
            .await
            .context(shape)?;
    }
    Ok("each file is loaded and dialled as by kube-apiserver, and streams work; Go's client library: interop/run".into())
}

/// The file with the site's paths, and with an address that its server listens at.
fn here(yaml: &str, site: &Site, port: u16) -> Result<String> {
    let pki = site.pki();
    for (path, source) in [
        ("/etc/kubernetes/certs/konnectivity-ca/ca.crt", &pki.ca),
        (
            "/etc/kubernetes/certs/konnectivity-client/tls.crt",
            &pki.apiserver.certificate,
        ),
        (
            "/etc/kubernetes/certs/konnectivity-client/tls.key",
            &pki.apiserver.key,
        ),
    ] {
        let path = site.path(path);
        fs::create_dir_all(path.parent().context("a folder")?)?;
        fs::copy(source, path)?;
    }
    Ok(yaml
        .replace("/etc/", &format!("{}/", site.path("/etc").display()))
        .replace(
            "konnectivity-server-local:8090",
            &format!("localhost:{port}"),
        ))
}
