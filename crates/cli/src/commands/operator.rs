//! `berth operator`: Berth on Kubernetes.

mod network;
mod picker;
mod plan_upgrade;
mod port;
mod webhook;

use std::{net::SocketAddr, path::PathBuf};

use berth_kubernetes::{ClusterSettings, FleetSettings, cluster_objects, fleet_objects, kserve_definitions, with_pool};
use berth_operator::{
    api::VERSION,
    driver::{
        self, Config,
        gatekeeper::Gatekeeper,
        migration::{self, Migrated},
    },
    install::{self, FailurePolicy},
    metrics::OperatorMetrics,
    render::{Installation, Sidecars},
};
use berth_peer::{pki::fingerprint_of, port::Port};
use berth_spec::WorkerId;
use clap::{Args, Subcommand};
use kube::config::{KubeConfigOptions, Kubeconfig};
use tokio_util::sync::CancellationToken;

use self::{network::NetworkArgs, webhook::Webhook};
use super::output::yaml;
use crate::{failure::Failure, settings::TelemetrySettings, telemetry::Telemetry, terminal};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth operator manifests --image REGISTRY/berth:0.1.0 | kubectl apply -f -   install it
  berth operator crds | kubectl apply -f -                   the custom resources alone
  berth operator run --image REGISTRY/berth:0.1.0            run it here, with your kubeconfig
  berth operator plan-upgrade --image REGISTRY/berth:0.2.0   models that a new version would change
  berth operator migrate-storage                             after an upgrade: objects of older APIs

docs/kubernetes.md tells more.")]
pub(crate) struct OperatorArgs {
    #[command(subcommand)]
    command: OperatorCommand,
}

#[derive(Debug, Subcommand)]
enum OperatorCommand {
    /// Run the operator: in a pod, or with a kubeconfig
    Run(RunArgs),
    /// Print the custom resources: CLOpsDeployment, ModelDeployment, AsyncAPI
    Crds(CrdsArgs),
    /// Print what installs the operator: custom resources, rights, Deployment
    Manifests(ManifestsArgs),
    /// Print what runs a fleet that follows the cluster's objects: rights, StatefulSets, Services
    Fleet(Box<FleetArgs>),
    /// Run the endpoint picker of a pool, which tells Gateways the pod that takes a request
    Picker(picker::PickerArgs),
    /// Show which models a new version would change if they adopted its rules, and let them
    PlanUpgrade(plan_upgrade::PlanUpgradeArgs),
    /// Have objects of older API versions stored in the newest one
    MigrateStorage(MigrateStorageArgs),
}

#[derive(Debug, Args)]
struct CrdsArgs {
    /// Namespace of the operator, which converts between versions
    #[arg(long, value_name = "NAME", default_value = "berth")]
    namespace: String,
    /// Print those of KServe and ModelMesh instead, for clusters that have none: --source kubernetes follows their objects
    #[arg(long)]
    kserve: bool,
    /// Put rules into them that API servers check by themselves (CEL): for Kubernetes 1.25 or newer, whose kubectl knows them
    #[arg(long, conflicts_with = "kserve")]
    cel: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Each object is written as it is; no pod restarts. Run it again if it fails: nothing is lost.
It needs the rights to list and patch CLOpsDeployments and ModelDeployments, and to get
customresourcedefinitions and patch their status.")]
struct MigrateStorageArgs {
    /// Context of the kubeconfig [default: the current one]
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "On SIGTERM or Ctrl-C, it ends its writes, lets another operator lead and exits with 0.")]
struct RunArgs {
    /// Image of Berth for init containers. Objects keep theirs until their spec changes
    #[arg(long, value_name = "IMAGE", env = "BERTH_OPERATOR_IMAGE")]
    image: String,
    /// Image of executors [default: that of --image]
    #[arg(long, value_name = "IMAGE", env = "BERTH_OPERATOR_EXECUTOR_IMAGE")]
    executor_image: Option<String>,
    /// Form of executors: auto, native (init containers that stay, Kubernetes 1.29) or container
    #[arg(long, value_name = "FORM", env = "BERTH_OPERATOR_SIDECARS", default_value = "auto", value_parser = sidecars)]
    sidecars: Sidecars,
    /// The only namespace to look at [default: all]
    #[arg(long, value_name = "NAME", env = "BERTH_OPERATOR_WATCH_NAMESPACE")]
    watch_namespace: Option<String>,
    /// Namespace of the Lease by which several operators choose a leader
    #[arg(long, value_name = "NAME", env = "BERTH_OPERATOR_NAMESPACE", default_value = "default")]
    namespace: String,
    /// Name in the election, unique [default: a random one]
    #[arg(long, value_name = "NAME", env = "BERTH_OPERATOR_IDENTITY")]
    identity: Option<String>,
    /// Address for metrics and health, by http [default: none]
    #[arg(long, value_name = "ADDRESS", env = "BERTH_OPERATOR_LISTEN")]
    listen: Option<SocketAddr>,
    /// Address for the webhook that admits and converts objects, by https with a certificate that is made and renewed here [default: none]
    #[arg(long, value_name = "ADDRESS", env = "BERTH_OPERATOR_WEBHOOK_LISTEN", requires = "webhook_folder")]
    webhook_listen: Option<SocketAddr>,
    /// Folder for the webhook's key and certificate, this operator's own
    #[arg(long, value_name = "FOLDER", env = "BERTH_OPERATOR_WEBHOOK_FOLDER")]
    webhook_folder: Option<PathBuf>,
    /// Context of the kubeconfig [default: the current one; in a pod, its service account]
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Log filter
    #[arg(long, value_name = "FILTER", env = "BERTH_LOG", default_value = "warn,berth=info,berth_operator=info")]
    log: String,
}

#[derive(Debug, Args)]
struct ManifestsArgs {
    /// Namespace of the operator
    #[arg(long, value_name = "NAME", default_value = "berth")]
    namespace: String,
    /// Image of Berth
    #[arg(long, value_name = "IMAGE")]
    image: String,
    /// Image of executors [default: that of --image]
    #[arg(long, value_name = "IMAGE")]
    executor_image: Option<String>,
    /// Form of executors: auto, native (init containers that stay, Kubernetes 1.29) or container
    #[arg(long, value_name = "FORM", default_value = "auto", value_parser = ["auto", "native", "container"])]
    sidecars: String,
    /// Operators; one leads. Two or more have a PodDisruptionBudget (Kubernetes 1.21 or newer)
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=9))]
    replicas: u16,
    /// Print a ServiceMonitor, and a PodMonitor for executors, for clusters with the Prometheus operator
    #[arg(long)]
    service_monitor: bool,
    /// Handling of objects that the webhook cannot be asked about: ignore lets them through, fail refuses them
    #[arg(long, value_name = "POLICY", default_value = "ignore", value_parser = failure_policy)]
    webhook_failure: FailurePolicy,
    /// Put rules into the custom resources that API servers check by themselves (CEL): for Kubernetes 1.25 or newer, whose kubectl knows them
    #[arg(long)]
    cel: bool,
    /// The only namespace whose objects it looks at, which must be there: its rights end with that namespace [default: all]
    #[arg(long, value_name = "NAME")]
    watch_namespace: Option<String>,
    #[command(flatten)]
    network: NetworkArgs,
    /// Namespace with models whose pods are reached through their executors alone, by a NetworkPolicy there. Repeatable
    #[arg(long = "model-policies", value_name = "NAMESPACE")]
    model_policies: Vec<String>,
}

impl ManifestsArgs {
    fn settings(self) -> Result<install::Settings, Failure> {
        let network = self.network.callers()?;
        if !self.model_policies.is_empty() && network.is_none() {
            let message = "--model-policies are NetworkPolicies, and --network-policies is off";
            return Err(Failure::Usage(message.to_owned()));
        }
        if self.model_policies.is_empty() && network.as_ref().is_some_and(|callers| callers.clients.is_some()) {
            let message = "--clients-from is for the pods of models: name their namespaces by --model-policies";
            return Err(Failure::Usage(message.to_owned()));
        }
        Ok(install::Settings {
            namespace: self.namespace,
            watch: self.watch_namespace,
            image: self.image,
            executor_image: self.executor_image,
            sidecars: self.sidecars,
            replicas: self.replicas,
            service_monitor: self.service_monitor,
            webhook_failure: self.webhook_failure,
            network,
            model_policies: self.model_policies,
        })
    }
}

#[derive(Debug, Args)]
struct FleetArgs {
    /// Name of the fleet
    #[arg(long, value_name = "NAME", default_value = "berth-fleet")]
    name: String,
    /// Its namespace, which must be there
    #[arg(long, value_name = "NAME", default_value = "berth")]
    namespace: String,
    /// Image of Berth
    #[arg(long, value_name = "IMAGE")]
    image: String,
    /// The only namespace whose objects it follows [default: all]
    #[arg(long, value_name = "NAME")]
    watch_namespace: Option<String>,
    /// Labels of the objects that it follows, as kubectl -l takes them [default: all objects]
    #[arg(long, value_name = "LABELS")]
    selector: Option<String>,
    /// Memory of its pod
    #[arg(long, value_name = "SIZE", default_value = "4Gi")]
    memory: String,
    /// Size of the volume for its store and for fetched models
    #[arg(long, value_name = "SIZE", default_value = "20Gi")]
    storage: String,
    /// Secret whose entries are its environment: AWS_ACCESS_KEY_ID and so on
    #[arg(long, value_name = "NAME")]
    credentials_secret: Option<String>,
    /// Secret with storages that models name, as storage-config of ModelMesh and KServe
    #[arg(long, value_name = "NAME")]
    storage_config: Option<String>,
    /// PersistentVolumeClaim of its namespace whose files models name by pvc://NAME/PATH. Repeatable
    #[arg(long = "volume", value_name = "NAME")]
    volumes: Vec<String>,
    /// Print a ServiceMonitor, for clusters with the Prometheus operator, and serve metrics at /metrics of the inference port
    #[arg(long)]
    service_monitor: bool,
    /// Address of the models for clients: http://HOST, or http://{name}-{namespace}.HOST [default: that of its Service]
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Gateway that gets an HTTPRoute for each InferenceService, with an address for each in --url
    #[arg(long, value_name = "NAMESPACE/NAME", requires = "url")]
    gateway: Option<String>,
    /// Print an InferencePool of its pods with an endpoint picker, to which these routes lead in place of its Service
    #[arg(long)]
    inference_pool: bool,
    /// Nodes of a cluster, a pod each, over a store that is there [default: one node, which needs no store]
    #[arg(long, value_name = "COUNT", requires_all = ["store", "authority_secret", "ca"], value_parser = clap::value_parser!(u16).range(2..=99))]
    nodes: Option<u16>,
    /// Controllers of that cluster, a pod each beside the nodes; one leads
    #[arg(long, value_name = "COUNT", requires = "nodes", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=9))]
    controllers: u16,
    /// Store of the nodes, etcds:// for TLS
    #[arg(long, value_name = "etcd://HOST:PORT,…", requires = "nodes")]
    store: Option<String>,
    /// Secret with ca.crt, tls.crt and tls.key for the store
    #[arg(long, value_name = "NAME", requires = "nodes")]
    store_secret: Option<String>,
    /// Secret with the files of `berth pki init`, by which controllers give nodes their certificates
    #[arg(long, value_name = "NAME", requires = "nodes")]
    authority_secret: Option<String>,
    /// The file ca.pem in that Secret, here: nodes ask no others for a certificate
    #[arg(long, value_name = "FILE", requires = "nodes")]
    ca: Option<PathBuf>,
    #[command(flatten)]
    network: NetworkArgs,
}

impl FleetArgs {
    fn objects(self) -> Result<Vec<serde_json::Value>, Failure> {
        let (cluster, pool) = (self.cluster()?, self.inference_pool);
        let settings = self.settings()?;
        let objects = match cluster {
            Some(cluster) => cluster_objects(&settings, &cluster),
            None => fleet_objects(&settings),
        };
        Ok(if pool { with_pool(objects, &settings) } else { objects })
    }

    fn cluster(&self) -> Result<Option<ClusterSettings>, Failure> {
        let (Some(nodes), Some(store), Some(authority), Some(ca)) =
            (self.nodes, &self.store, &self.authority_secret, &self.ca)
        else {
            return Ok(None);
        };
        let fingerprint = fingerprint_of(ca).map_err(|error| Failure::Usage(format!("--ca: {error}")))?;
        Ok(Some(ClusterSettings {
            nodes,
            controllers: self.controllers,
            store: store.clone(),
            store_secret: self.store_secret.clone(),
            authority: authority.clone(),
            fingerprint,
        }))
    }

    fn settings(self) -> Result<FleetSettings, Failure> {
        let network = self.network.callers()?;
        Ok(FleetSettings {
            name: self.name,
            namespace: self.namespace,
            image: self.image,
            follow: self.watch_namespace,
            selector: self.selector,
            memory: self.memory,
            storage: self.storage,
            credentials: self.credentials_secret,
            storage_config: self.storage_config,
            volumes: self.volumes,
            service_monitor: self.service_monitor,
            url: self.url,
            gateway: self.gateway,
            network,
        })
    }
}

/// Custom resources, with rules that API servers check by themselves where these are asked for.
fn ruled(objects: Vec<serde_json::Value>, cel: bool) -> Vec<serde_json::Value> {
    if cel { install::with_schema_rules(objects) } else { objects }
}

fn sidecars(text: &str) -> Result<Sidecars, String> {
    match text {
        "auto" => Ok(Sidecars::Auto),
        "native" => Ok(Sidecars::Native),
        "container" => Ok(Sidecars::Container),
        _ => Err("expected auto, native or container".to_owned()),
    }
}

/// The images, and what the cluster is able to do.
async fn installation(
    client: &kube::Client,
    image: String,
    executor: Option<String>,
    sidecars: Sidecars,
) -> Result<Installation, Failure> {
    let minor = driver::minor_version(client).await;
    let minor = minor.map_err(|error| Failure::Failed(format!("the cluster does not say its version: {error}")))?;
    Ok(Installation::new(image, executor, sidecars, minor))
}

fn failure_policy(text: &str) -> Result<FailurePolicy, String> {
    match text {
        "ignore" => Ok(FailurePolicy::Ignore),
        "fail" => Ok(FailurePolicy::Fail),
        _ => Err("expected ignore or fail".to_owned()),
    }
}

pub(crate) async fn run(args: OperatorArgs) -> Result<(), Failure> {
    match args.command {
        OperatorCommand::Crds(CrdsArgs { kserve: true, .. }) => print(&kserve_definitions()),
        OperatorCommand::Crds(CrdsArgs { namespace, cel, .. }) => {
            print(&ruled(install::custom_resources(&namespace), cel))
        }
        OperatorCommand::Manifests(args) => {
            let cel = args.cel;
            print(&ruled(install::everything(&args.settings()?), cel))
        }
        OperatorCommand::Fleet(args) => print(&args.objects()?),
        OperatorCommand::Run(args) => Box::pin(operate(args)).await,
        OperatorCommand::Picker(args) => Box::pin(picker::run(args)).await,
        OperatorCommand::PlanUpgrade(args) => plan_upgrade::run(args).await,
        OperatorCommand::MigrateStorage(args) => migrate_storage(&args).await,
    }
}

fn print(objects: &[serde_json::Value]) -> Result<(), Failure> {
    let documents: Result<Vec<_>, _> = objects.iter().map(yaml).collect();
    Ok(terminal::print(&documents?.join("---\n"))?)
}

async fn migrate_storage(args: &MigrateStorageArgs) -> Result<(), Failure> {
    let client = client(args.context.as_deref()).await?;
    let migrated = migration::migrate(&client).await.map_err(|error| Failure::Failed(error.to_string()))?;
    for Migrated { definition, objects } in migrated {
        terminal::print(&match objects {
            Some(count) => format!("{definition}: {count} objects written, all are stored as {VERSION}\n"),
            None => format!("{definition}: all objects are stored as {VERSION}\n"),
        })?;
    }
    Ok(())
}

async fn operate(args: RunArgs) -> Result<(), Failure> {
    let identity = args.identity.unwrap_or_else(|| format!("berth-operator-{:08x}", rand::random::<u32>()));
    let worker: WorkerId = "operator".parse().map_err(|e| Failure::doing("no name for the log", e))?;
    let json = !std::io::IsTerminal::is_terminal(&std::io::stderr());
    let telemetry = Telemetry::start(&TelemetrySettings { filter: args.log, json, otlp: None, worker })?;
    let metrics = OperatorMetrics::default();
    let port = match args.listen {
        Some(address) => Some(port::bind("metrics", "--listen", address, None).await?),
        None => None,
    };
    let client = client(args.context.as_deref()).await?;
    let installation = installation(&client, args.image, args.executor_image, args.sidecars).await?;
    let webhook = match (args.webhook_listen, &args.webhook_folder) {
        (Some(address), Some(folder)) => {
            let gatekeeper = Gatekeeper::new(client.clone(), installation.clone(), metrics.clone());
            Some(webhook::bind(address, folder, &args.namespace, gatekeeper).await?)
        }
        _ => None,
    };
    let answering = answer(port, webhook, metrics.clone());
    let shutdown = CancellationToken::new();
    let watched = args.watch_namespace.filter(|name| !name.is_empty());
    let config = Config { namespace: watched, lease_namespace: args.namespace, identity, installation };
    let signalled = async {
        super::signal::stopped().await;
        shutdown.cancel();
        std::future::pending().await
    };
    let ended = tokio::select! {
        ended = driver::run(client, config, metrics, shutdown.clone()) => ended,
        () = answering => Ok(()),
        () = signalled => Ok(()),
    };
    telemetry.stop();
    ended.map_err(|stopped| Failure::Failed(stopped.to_string()))
}

/// Answers at the ports that there are, for as long as it is polled.
async fn answer(port: Option<Port>, webhook: Option<Webhook>, metrics: OperatorMetrics) {
    let about_itself = async {
        match port {
            Some(port) => {
                port::serve(port, move |request| std::future::ready(port::management(&request, &metrics))).await;
            }
            None => std::future::pending().await,
        }
    };
    let admission = async {
        match webhook {
            Some(webhook) => webhook.serve().await,
            None => std::future::pending().await,
        }
    };
    tokio::join!(about_itself, admission);
}

/// A client for the cluster of a kubeconfig, or for the one that this pod is in.
async fn client(context: Option<&str>) -> Result<kube::Client, Failure> {
    let remedy = "set KUBECONFIG or --context, or run it in a pod with a service account";
    let failed = |error: &dyn std::fmt::Display| Failure::Failed(format!("no cluster: {error}; {remedy}"));
    let config = match context {
        None => kube::Config::infer().await.map_err(|e| failed(&e))?,
        Some(context) => {
            let file = Kubeconfig::read().map_err(|e| failed(&e))?;
            let options = KubeConfigOptions { context: Some(context.to_owned()), ..KubeConfigOptions::default() };
            kube::Config::from_custom_kubeconfig(file, &options).await.map_err(|e| failed(&e))?
        }
    };
    kube::Client::try_from(config).map_err(|e| failed(&e))
}
