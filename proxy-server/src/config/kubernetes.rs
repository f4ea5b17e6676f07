//! What the server asks of the Kubernetes API, if anything: token reviews and Leases.

use std::path::PathBuf;

use cluster::{ClientOptions, Labels};

use super::faults::Faults;
use crate::{cli::Cli, lease, token_review};

/// All three flags or none.
pub(super) fn token_review(cli: &Cli, faults: &mut Faults) -> Option<token_review::Options> {
    let flags = [
        ("agent-namespace", &cli.agent_namespace),
        ("agent-service-account", &cli.agent_service_account),
        ("authentication-audience", &cli.authentication_audience),
    ];
    if flags.iter().all(|(_, value)| value.is_empty()) {
        return None;
    }
    for (flag, value) in flags {
        if value.is_empty() {
            faults.add(format!(
                "--{flag} cannot be empty when agent authentication is enabled"
            ));
        }
    }
    Some(token_review::Options {
        namespace: cli.agent_namespace.clone(),
        service_account: cli.agent_service_account.clone(),
        audience: cli.authentication_audience.clone(),
    })
}

/// Checked whether it is used or not, as upstream does.
pub(super) fn client(cli: &Cli, faults: &mut Faults) -> ClientOptions {
    let kubeconfig = (!cli.kubeconfig.is_empty()).then(|| PathBuf::from(&cli.kubeconfig));
    if let Some(error) = kubeconfig.as_ref().and_then(|file| file.metadata().err()) {
        faults.add(format!(
            "--kubeconfig: checking KubeconfigPath {:?}, got {error}",
            cli.kubeconfig
        ));
    }
    if !cli.kubeconfig_qps.is_finite() {
        faults.add(format!(
            "--kubeconfig-qps must be a number, got {}",
            cli.kubeconfig_qps
        ));
    }
    ClientOptions {
        kubeconfig,
        qps: cli.kubeconfig_qps,
        burst: cli.kubeconfig_burst,
        content_type: cli.kube_api_content_type.clone(),
        ..ClientOptions::new("proxy-server")
    }
}

/// With `--enable-lease-controller`.
pub(super) fn lease(cli: &Cli, server_id: &str, faults: &mut Faults) -> Option<lease::Options> {
    if !cli.enable_lease_controller {
        return None;
    }
    faults.take("--server-id", lease::name(server_id));
    Some(lease::Options {
        namespace: cli.lease_namespace.clone(),
        labels: faults.take("--lease-label", cli.lease_label.parse::<Labels>())?,
        server_id: server_id.to_owned(),
    })
}
