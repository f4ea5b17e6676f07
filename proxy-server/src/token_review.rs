//! Agents by token: the Kubernetes API says whose it is (wire-protocol.md 5.5).

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
