//! This server's Lease, and the collection of those that were left behind (wire-protocol.md 5.10).

use cluster::Labels;

/// What to publish, from `--lease-namespace`, `--lease-label` and `--server-id`; with `--enable-lease-controller` only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where.
    pub namespace: String,
    /// All labels that the Lease has; they also say whose garbage is collected.
    pub labels: Labels,
    /// Holder, and a part of the name, see [`name`].
    pub server_id: String,
}

/// A server id that makes no object name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "--server-id {server_id:?} cannot be used with --enable-lease-controller: as a Lease's name, {name:?} {reason}"
)]
pub struct InvalidName {
    server_id: String,
    name: String,
    reason: String,
}

/// The Lease's name: `konnectivity-proxy-server-` and the server's id.
///
/// # Errors
/// If that is no name of an object, so that the API server would refuse it for ever.
pub fn name(server_id: &str) -> Result<String, InvalidName> {
    let name = format!("konnectivity-proxy-server-{server_id}");
    match cluster::selector::check_object_name(&name) {
        Ok(()) => Ok(name),
        Err(reason) => Err(InvalidName {
            server_id: server_id.to_owned(),
            name,
            reason,
        }),
    }
}
