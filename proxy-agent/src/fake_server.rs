//! A server for tests, in process: real TLS and HTTP/2 over a pipe in memory, with manners to choose from.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use certs::issue::Replace;
use certs::{Authority, ClientFiles, Current, Timestamp, TlsOptions, Watcher};
use hashbrown::HashMap;
use http::{Request, Response};
use rustls::{ClientConfig, ServerConfig};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncWrite, duplex};
use tokio::net::TcpStream;
use tokio::task::spawn_local;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tunnel::batch::Batch;
use tunnel::conn::Role;
use tunnel::grpc::{self, Status};
use tunnel::ledger::{DEFAULT_BUDGET, Ledger};
use tunnel::link::{Link, server_builder};
use tunnel::mux::{Event, Mux};
use tunnel::observe::Unobserved;

use crate::client::{CONNECT_LIMIT, ConnectError, Connector, Tunnel, Via};
use crate::client_set::Connect;
use crate::config::{Announcement, SyncConfig};
use crate::dial::Resolver;
use crate::server_address::ServerAddress;

/// The address that tunnels claim to have gone to.
pub(crate) const PEER: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 8091);

/// How a server answers one connection.
#[derive(Clone, Debug)]
pub(crate) enum Manner {
    /// With headers of these names and values, then serving.
    Serve(Vec<(&'static str, String)>),
    /// With a status and nothing else.
    Refuse(Status),
    /// Not at all, behind the TLS handshake.
    Ignore,
    /// Without ALPN.
    NoAlpn,
    /// Not even with TLS.
    Hang,
}

impl Manner {
    /// A server as it should be.
    pub(crate) fn server(id: &str, count: i64) -> Self {
        Self::Serve(vec![
            ("serverid", id.to_owned()),
            ("servercount", count.to_string()),
        ])
    }
}

/// A server's end of one tunnel.
#[derive(Debug)]
pub(crate) struct Backend {
    pub(crate) mux: Rc<Mux>,
    pub(crate) request: Request<()>,
    /// How often the agent has asked for a drain.
    pub(crate) drains: Rc<Cell<usize>>,
    /// Cancelled, the connection is closed.
    pub(crate) cut: CancellationToken,
}

/// Servers; each connection gets the next manner of its address, or of all that have none of their own, and the last for ever.
#[derive(Debug)]
pub(crate) struct FakeServers {
    pub(crate) connector: Connector,
    folder: TempDir,
    authority: Authority,
    watcher: RefCell<Watcher>,
    tls: Arc<ServerConfig>,
    no_alpn: Arc<ServerConfig>,
    manners: RefCell<VecDeque<Manner>>,
    own_manners: RefCell<HashMap<SocketAddr, VecDeque<Manner>>>,
    /// What the servers' name resolves to; empty, it does not.
    addresses: RefCell<Vec<SocketAddr>>,
    /// When each connection came.
    pub(crate) connections: RefCell<Vec<Instant>>,
    /// Where each connection went.
    pub(crate) visits: RefCell<Vec<SocketAddr>>,
    /// Tunnels that were accepted.
    pub(crate) backends: RefCell<Vec<Rc<Backend>>>,
}

impl FakeServers {
    pub(crate) fn new(manners: impl IntoIterator<Item = Manner>) -> Rc<Self> {
        let authority = Authority::generate("test CA").unwrap();
        let identity = authority
            .issue_server(&["server.example"])
            .unwrap()
            .identity()
            .unwrap();
        let folder = tempfile::tempdir().unwrap();
        let ca = folder.path().join("ca.crt");
        std::fs::write(&ca, authority.certificate_pem()).unwrap();
        let client = authority.issue_client("agent").unwrap();
        let client = client.write(folder.path(), "agent", Replace::No).unwrap();
        let files = ClientFiles {
            ca,
            identity: Some((client.certificate, client.key)),
        };
        let mut watcher = Watcher::new();
        let roots = authority.roots().unwrap();
        let options = TlsOptions::default();
        let server =
            |alpn: &[&[u8]]| certs::server_config(&identity, Some(&roots), alpn, &options).unwrap();
        let server_address = ServerAddress::new("server.example", 8091);
        let connector = Connector {
            server_name: server_address.name().unwrap(),
            authority: server_address.authority(true),
            server: server_address,
            tls: watcher.client(files, &[b"h2"], &options).unwrap(),
            announcement: Announcement {
                agent_id: "agent-1".parse().unwrap(),
                identifiers: "".parse().unwrap(),
                token: None,
            },
            keepalive: None,
            resolver: Resolver::default(),
            proxy: None,
            ledger: Rc::new(Ledger::new(DEFAULT_BUDGET)),
            observer: Rc::new(Unobserved),
        };
        Rc::new(Self {
            connector,
            folder,
            authority,
            watcher: RefCell::new(watcher),
            tls: server(&[b"h2"]),
            no_alpn: server(&[]),
            manners: RefCell::new(manners.into_iter().collect()),
            own_manners: RefCell::default(),
            addresses: RefCell::new(vec![PEER]),
            connections: RefCell::default(),
            visits: RefCell::default(),
            backends: RefCell::default(),
        })
    }

    /// Gives the agent another certificate of the same authority.
    pub(crate) fn renew_certificate(&self) {
        let client = self.authority.issue_client("agent").unwrap();
        client
            .write(self.folder.path(), "agent", Replace::Yes)
            .unwrap();
        // The second look finds the files at rest.
        for _ in 0..2 {
            self.watcher.borrow_mut().poll_once(Timestamp::now());
        }
    }

    /// What the next connections get.
    pub(crate) fn behave(&self, manners: impl IntoIterator<Item = Manner>) {
        *self.manners.borrow_mut() = manners.into_iter().collect();
    }

    /// What the name of the servers resolves to from now on; nothing, and it does not.
    pub(crate) fn resolve_to(&self, addresses: &[SocketAddr]) {
        *self.addresses.borrow_mut() = addresses.to_vec();
    }

    /// What the next connections to one address get.
    pub(crate) fn behave_at(&self, address: SocketAddr, manners: impl IntoIterator<Item = Manner>) {
        let manners = manners.into_iter().collect();
        self.own_manners.borrow_mut().insert(address, manners);
    }

    /// The tunnel accepted last.
    pub(crate) fn last(&self) -> Rc<Backend> {
        self.backends.borrow().last().unwrap().clone()
    }

    fn next_manner(&self, address: SocketAddr) -> Manner {
        let mut own = self.own_manners.borrow_mut();
        let mut all = self.manners.borrow_mut();
        let manners = own.get_mut(&address).unwrap_or(&mut all);
        if manners.len() > 1 {
            manners.pop_front().unwrap()
        } else {
            manners.front().unwrap().clone()
        }
    }

    /// Serves one connection as the next one to [`PEER`].
    pub(crate) async fn accept(self: Rc<Self>, stream: TcpStream) {
        let manner = self.next_manner(PEER);
        self.serve(stream, manner).await;
    }

    async fn serve<T>(self: Rc<Self>, pipe: T, manner: Manner)
    where
        T: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let tls = match manner {
            Manner::Hang => return hang(pipe).await,
            Manner::NoAlpn => &self.no_alpn,
            _ => &self.tls,
        };
        let Ok(stream) = TlsAcceptor::from(tls.clone()).accept(pipe).await else {
            return;
        };
        if matches!(manner, Manner::Ignore | Manner::NoAlpn) {
            return hang(stream).await;
        }
        let Ok(mut connection) = server_builder().handshake::<_, Batch>(stream).await else {
            return;
        };
        let Some(Ok((request, mut respond))) = connection.accept().await else {
            return;
        };
        let cut = CancellationToken::new();
        match manner {
            Manner::Serve(headers) => {
                let (parts, recv) = request.into_parts();
                let mut response = grpc::response();
                add(&mut response, &headers);
                let send = respond.send_response(response, false).unwrap();
                let mux = Mux::new(
                    Role::Server,
                    Rc::new(Ledger::new(DEFAULT_BUDGET)),
                    Rc::new(Unobserved),
                );
                let drains = Rc::new(Cell::new(0));
                self.backends.borrow_mut().push(Rc::new(Backend {
                    mux: mux.clone(),
                    request: Request::from_parts(parts, ()),
                    drains: drains.clone(),
                    cut: cut.clone(),
                }));
                let mut link = Link::new(mux, send, recv);
                spawn_local(async move {
                    link.run(|event| {
                        if event == Event::Drain {
                            drains.set(drains.get() + 1);
                        }
                    })
                    .await
                });
            }
            Manner::Refuse(status) => {
                respond.send_response(grpc::refusal(&status), true).unwrap();
            }
            Manner::Ignore | Manner::NoAlpn | Manner::Hang => {}
        }
        cut.run_until_cancelled(async { while let Some(Ok(_)) = connection.accept().await {} })
            .await;
    }
}

impl Connect for Rc<FakeServers> {
    async fn routes(&self) -> Result<Vec<Via>, ConnectError> {
        let addresses = self.addresses.borrow();
        if addresses.is_empty() {
            return Err(ConnectError::Alpn(None));
        }
        Ok(addresses.iter().copied().map(Via::Address).collect())
    }

    async fn connect(&self, via: Via) -> Result<Tunnel, ConnectError> {
        let Via::Address(address) = via else {
            panic!("there is no proxy")
        };
        self.connections.borrow_mut().push(Instant::now());
        self.visits.borrow_mut().push(address);
        let (ours, theirs) = duplex(64 * 1024);
        spawn_local(self.clone().serve(theirs, self.next_manner(address)));
        self.connector
            .open(ours, address, Instant::now() + CONNECT_LIMIT)
            .await
    }

    fn proxy(&self) -> Option<String> {
        None
    }

    fn tls(&self) -> &Current<Arc<ClientConfig>> {
        &self.connector.tls
    }
}

fn add(response: &mut Response<()>, headers: &[(&'static str, String)]) {
    for (name, value) in headers {
        response.headers_mut().append(*name, value.parse().unwrap());
    }
}

/// Holds a connection open and does nothing.
async fn hang<T>(stream: T) {
    std::future::pending::<()>().await;
    drop(stream);
}

/// The defaults of the flags.
pub(crate) const SYNC: SyncConfig = SyncConfig {
    interval: std::time::Duration::from_secs(1),
    cap: std::time::Duration::from_secs(10),
    forever: false,
};
