//! Connections from nodes to the control plane.

use daemon::flags::StringSlice;

use super::faults::Faults;
use crate::{cli::Cli, forward::ForwardTargets};

/// Targets and who may use them. A target that nobody can use is worth a warning: it is safe, and hardly meant.
pub(super) fn targets(
    cli: &Cli,
    faults: &mut Faults,
    warnings: &mut Vec<String>,
) -> ForwardTargets {
    let list = |flag: &[StringSlice]| StringSlice::concat(flag.iter().cloned());
    let (targets, allow) = (list(&cli.forward_target), list(&cli.forward_allow));
    if cli.forward_max_connections == 0 {
        faults.add("--forward-max-connections must be at least 1, got 0".to_owned());
    }
    let targets = match ForwardTargets::parse(&targets, &allow) {
        Ok(targets) => targets,
        Err(errors) => {
            errors
                .iter()
                .for_each(|error| faults.add(error.to_string()));
            return ForwardTargets::default();
        }
    };
    for target in targets.iter().filter(|target| !target.is_open()) {
        let name = target.name();
        warnings.push(format!(
            "--forward-target={name}={target}: without a --forward-allow={name}=PATTERN no agent may use it"
        ));
    }
    if targets.iter().any(|target| target.is_open())
        && cli.cluster_ca_cert.is_empty()
        && cli.agent_namespace.is_empty()
    {
        warnings.push("--forward-allow: matches no agent, as neither --cluster-ca-cert nor --agent-namespace is set and no name of an agent is verified".to_owned());
    }
    targets
}
