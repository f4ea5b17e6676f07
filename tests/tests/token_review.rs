//! Agents by token, against an API server that can do everything wrong (wire-protocol.md 5.5; field-tests.md R79, R80).

use std::{path::PathBuf, time::Duration};

use anyhow::{Result, bail, ensure};
use e2e::{
    client::Frontend,
    harness::{Agent, AgentBuilder, PATIENCE, Pki, Server, ServerBuilder, eventually, metric},
    kube_api::{Fault, KubeApi, Resource, ServiceAccount},
};

struct Scene {
    api: KubeApi,
    server: Server,
    folder: tempfile::TempDir,
    pki: std::sync::Arc<Pki>,
}

impl Scene {
    async fn start() -> Result<Self> {
        let api = KubeApi::start()?;
        let pki = Pki::shared()?;
        let server = ServerBuilder::new(Frontend::GrpcUds, pki.clone())
            // It is the token alone that counts.
            .flag("--cluster-ca-cert=")
            .flag("--agent-namespace=kube-system")
            .flag("--agent-service-account=konnectivity-agent")
            .flag("--authentication-audience=system:konnectivity-server")
            .flag(format!("--kubeconfig={}", api.kubeconfig().display()))
            .start()
            .await?;
        Ok(Self {
            api,
            server,
            folder: tempfile::tempdir()?,
            pki,
        })
    }

    fn token_file(&self, token: &str) -> Result<PathBuf> {
        let path = self
            .folder
            .path()
            .join(format!("token-{:08x}", fastrand::u32(..)));
        // As mounted by those who write tokens by hand (W10).
        std::fs::write(&path, format!("{token}\n"))?;
        Ok(path)
    }

    fn agent(&self, token: &str) -> Result<AgentBuilder> {
        let path = self.token_file(token)?;
        let agent = AgentBuilder::new(self.server.agents(), self.pki.clone());
        Ok(agent.flag(format!("--service-account-token-path={}", path.display())))
    }

    fn reviews(&self) -> usize {
        self.api.count("create", Resource::TokenReviews)
    }
}

/// Waits until the agent's log has a line with `text`.
async fn logged(agent: &mut Agent, text: &str) -> Result<()> {
    eventually(
        &format!("{text:?} in the agent's log"),
        PATIENCE,
        async || {
            // Quotes within a field are escaped.
            let log = agent.process().log().replace("\\\"", "\"");
            match log.lines().any(|line| line.contains(text)) {
                true => Ok(()),
                false => bail!("{log}"),
            }
        },
    )
    .await
}

#[tokio::test]
async fn an_agent_with_the_right_token_connects_and_the_others_are_told_why_not() -> Result<()> {
    let scene = Scene::start().await?;
    for (account, reason) in [
        (
            ServiceAccount::new("default", "konnectivity-agent"),
            "from \"default\" namespace",
        ),
        (
            ServiceAccount::new("kube-system", "default"),
            "from \"default\" service account",
        ),
    ] {
        let token = scene
            .api
            .token(&account.audience("system:konnectivity-server"));
        let mut agent = scene.agent(&token)?.quiet().start_unconnected().await?;
        logged(&mut agent, reason).await?;
        let log = agent.process().log();
        assert!(!log.contains(&token), "a token in a log");
    }
    let other = ServiceAccount::new("kube-system", "konnectivity-agent").audience("others");
    let token = scene.api.token(&other);
    let mut agent = scene.agent(&token)?.quiet().start_unconnected().await?;
    logged(&mut agent, "token audiences").await?;
    let mut stranger = scene.agent("stranger")?.quiet().start_unconnected().await?;
    logged(&mut stranger, "invalid bearer token").await?;
    let token = scene.api.token(&ServiceAccount::agent());
    scene.agent(&token)?.start().await?;
    Ok(())
}

/// R80: the reason is in one line of the agent's log, and it connects soon after the API server is well.
#[tokio::test]
async fn an_api_server_that_fails_is_named_in_the_agents_log_until_it_is_well() -> Result<()> {
    let scene = Scene::start().await?;
    let token = scene.api.token(&ServiceAccount::agent());
    for (fault, reason) in [
        (Fault::Status(401), "create tokenreviews: 401"),
        (Fault::Status(403), "create tokenreviews: 403"),
        (
            Fault::TooMany(Duration::from_secs(60)),
            "create tokenreviews: 429",
        ),
        (Fault::Status(500), "create tokenreviews: 500"),
        (Fault::Hang, "create tokenreviews: no answer within"),
        (Fault::Close, "create tokenreviews: "),
        (Fault::Nonsense, "makes no sense"),
        (Fault::Huge(1 << 20), "larger than"),
    ] {
        scene.api.fail(Resource::TokenReviews, fault);
        // Each its own token, as a good one is remembered.
        let token = format!("{token}{}", fastrand::u32(..));
        let mut agent = scene.agent(&token)?.quiet().start_unconnected().await?;
        logged(&mut agent, reason).await?;
    }
    scene.api.fail(Resource::TokenReviews, Fault::Status(503));
    let mut agent = scene.agent(&token)?.start_unconnected().await?;
    logged(&mut agent, "create tokenreviews: 503").await?;
    scene.api.heal();
    agent.ready().await
}

/// R79; a hundred of one agent are a unit test of `proxy_server::token_review`.
#[tokio::test]
async fn agents_that_share_a_token_cost_a_handful_of_reviews() -> Result<()> {
    let scene = Scene::start().await?;
    let token = scene.api.token(&ServiceAccount::agent());
    let hits = "konnectivity_network_proxy_server_token_review_cache_hits_total";
    let start = std::time::SystemTime::now();
    let mut agents = Vec::new();
    for _ in 0..21 {
        agents.push(scene.agent(&token)?.quiet().start().await?);
    }
    let health = scene.server.health();
    eventually("hits of the memory", PATIENCE, async || {
        let hits = metric(health, hits, "").await?;
        ensure!(hits >= 20.0, "{hits}");
        Ok(())
    })
    .await?;
    let minutes = start.elapsed()?.as_secs() / 60;
    let handful = 3 + usize::try_from(minutes)?;
    assert!(scene.reviews() <= handful, "{} reviews", scene.reviews());
    Ok(())
}
