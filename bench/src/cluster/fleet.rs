//! Nodes and their store as processes.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use berth_control::store::{
    Store,
    etcd::{EtcdConfig, EtcdStore},
};
use serde_json::{Value, json};

use crate::{
    Arguments,
    load::HttpConnection,
    server::{Server, free, scratch},
};

/// Time limit for a cluster to do what it was asked.
const PATIENCE: Duration = Duration::from_secs(60);

/// One node to be.
pub(crate) struct Plan<'a> {
    pub(crate) name: &'static str,
    pub(crate) roles: &'static str,
    pub(crate) more: &'a [&'a str],
}

/// A running node.
pub(crate) struct Node {
    pub(crate) name: &'static str,
    pub(crate) http: SocketAddr,
    pub(crate) api: SocketAddr,
    pub(crate) process: Option<Server>,
}

/// A store and its nodes. Dropping it ends them.
pub(crate) struct Fleet {
    pub(crate) nodes: Vec<Node>,
    _etcd: Server,
    _pki: PathBuf,
}

impl Fleet {
    /// Starts nodes and waits until all of them are ready.
    pub(crate) async fn start(arguments: &Arguments, plans: &[Plan<'_>]) -> Result<Self> {
        let (etcd, etcd_at) = etcd().await?;
        let pki = scratch("pki")?;
        berth(arguments, &["pki", "init", &pki.to_string_lossy()])?;
        let gossip: Vec<SocketAddr> = plans.iter().map(|_| free()).collect::<Result<_>>()?;
        let join: Vec<String> = gossip.iter().map(SocketAddr::to_string).collect();
        let mut nodes = Vec::new();
        for (plan, gossip) in plans.iter().zip(gossip) {
            berth(arguments, &["pki", "issue", &pki.to_string_lossy(), plan.name])?;
            let files = scratch(&format!("node-{}", plan.name))?;
            let (http, api) = (free()?, free()?);
            let mut command = Command::new(&arguments.berth);
            command.args(["node", "--name", plan.name, "--roles", plan.roles, "--join", &join.join(",")]);
            command.args(["--store", &format!("etcd://{etcd_at}"), "--log", "warn,berth=info"]);
            command.arg("--pki").arg(pki.join(plan.name)).arg("--data").arg(files.join("data"));
            command.args(["--http", &http.to_string(), "--api", &api.to_string()]);
            command.args(["--gossip", &gossip.to_string(), "--peer", &free()?.to_string()]).args(plan.more);
            let process = Some(Server::spawn("node", &mut command, files)?);
            nodes.push(Node { name: plan.name, http, api, process });
        }
        let fleet = Self { nodes, _etcd: etcd, _pki: pki };
        fleet.until_ready().await?;
        Ok(fleet)
    }

    async fn until_ready(&self) -> Result<()> {
        until("all nodes to be ready", || async {
            let Ok(view) = self.ask("/v1/nodes").await else { return Ok(None) };
            let items = view["items"].as_array().context("a list")?;
            let there = |item: &&Value| item["status"]["health"] == "Alive" || item["status"]["state"] == "Ready";
            Ok((items.iter().filter(there).count() == self.nodes.len() && self.leader(&view).is_some()).then_some(()))
        })
        .await
    }

    /// The name of the node that leads, by an answer of `/v1/nodes`.
    pub(crate) fn leader(&self, view: &Value) -> Option<String> {
        let items = view["items"].as_array()?;
        let leader = items.iter().find(|item| item["status"]["leader"] == true)?;
        leader["metadata"]["name"].as_str().map(str::to_owned)
    }

    /// Asks the control API of the first node that lives.
    pub(crate) async fn ask(&self, path: &str) -> Result<Value> {
        let node = self.nodes.iter().find(|node| node.process.is_some()).context("a node lives")?;
        get(node.api, path).await
    }

    /// Declares a deployment with so many copies and waits until they are ready; gives their nodes.
    pub(crate) async fn deploy(&self, name: &str, model: Value, replicas: u32, more: Value) -> Result<Vec<String>> {
        let mut spec = json!({"model": model, "replicas": replicas});
        if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
            spec.extend(more.clone());
        }
        let manifest = json!({
            "apiVersion": "berth.dev/v1", "kind": "ModelDeployment", "metadata": {"name": name}, "spec": spec,
        });
        post(self.nodes[0].api, "/v1/apply", &manifest.to_string()).await?;
        until("the copies to be ready", || async {
            let places = self.places(name).await?;
            Ok((places.len() == replicas as usize).then_some(places))
        })
        .await
    }

    /// The nodes where a deployment is ready.
    pub(crate) async fn places(&self, name: &str) -> Result<Vec<String>> {
        let replicas = self.ask("/v1/replicas").await?;
        let items = replicas["items"].as_array().context("a list")?;
        let here = items.iter().map(|item| &item["status"]);
        let ready = here.filter(|status| status["deployment"] == name && status["state"] == "Ready");
        Ok(ready.filter_map(|status| status["worker"].as_str().map(str::to_owned)).collect())
    }
}

/// The `model` of a deployment that serves a file of ONNX.
pub(crate) fn onnx(artifact: &Path) -> Result<Value> {
    let artifact = fs_err::canonicalize(artifact)?;
    Ok(json!({"format": "onnx", "uri": format!("file:{}", artifact.display())}))
}

/// A store of one member, and where it answers.
async fn etcd() -> Result<(Server, SocketAddr)> {
    let (client, peer) = (free()?, free()?);
    let files = scratch("etcd")?;
    let url = |address: SocketAddr| format!("http://{address}");
    let mut command = Command::new("etcd");
    command.arg("--data-dir").arg(files.join("data"));
    command.args(["--listen-client-urls", &url(client), "--advertise-client-urls", &url(client)]);
    command.args(["--listen-peer-urls", &url(peer), "--initial-advertise-peer-urls", &url(peer)]);
    command.args(["--initial-cluster", &format!("default={}", url(peer)), "--log-level", "error"]);
    command.args(["--logger", "zap", "--auto-compaction-mode", "revision", "--auto-compaction-retention", "1000"]);
    let server = Server::spawn("etcd", &mut command, files)?;
    until("etcd", || async { Ok(tokio::net::TcpStream::connect(client).await.ok()) }).await?;
    Ok((server, client))
}

/// The same, and a connection to it.
pub(crate) async fn store() -> Result<(Server, Arc<dyn Store>)> {
    let (server, address) = etcd().await?;
    let store = EtcdStore::connect(EtcdConfig::parse(&format!("etcd://{address}"))?).await?;
    Ok((server, Arc::new(store)))
}

/// Asks until there is an answer.
pub(crate) async fn until<T, F>(what: &str, ask: impl Fn() -> F) -> Result<T>
where
    F: Future<Output = Result<Option<T>>>,
{
    let end = Instant::now() + PATIENCE;
    loop {
        if let Ok(Some(answer)) = ask().await {
            return Ok(answer);
        }
        ensure!(Instant::now() < end, "never came: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

pub(crate) async fn get(api: SocketAddr, path: &str) -> Result<Value> {
    let request = format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n");
    answer(api, path, request.as_bytes()).await
}

async fn post(api: SocketAddr, path: &str, body: &str) -> Result<Value> {
    let head = "host: 127.0.0.1\r\ncontent-type: application/json";
    let request = format!("POST {path} HTTP/1.1\r\n{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    answer(api, path, request.as_bytes()).await
}

async fn answer(api: SocketAddr, path: &str, request: &[u8]) -> Result<Value> {
    let called = async { HttpConnection::open(api).await?.call(request).await };
    let (status, body) = tokio::time::timeout(Duration::from_secs(5), called).await??;
    ensure!(status == 200, "{path}: {status} {}", String::from_utf8_lossy(&body));
    Ok(serde_json::from_slice(&body)?)
}

fn berth(arguments: &Arguments, command: &[&str]) -> Result<()> {
    let output = Command::new(&arguments.berth).args(command).output()?;
    ensure!(output.status.success(), "berth {command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
