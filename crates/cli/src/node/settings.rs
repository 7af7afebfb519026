//! Settings of `berth node` beyond those of every server: membership, addresses and roles.

mod pods;

use std::{
    ffi::OsString,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use berth_control::store::etcd::EtcdConfig;
use berth_kubernetes::JoiningPods;
use berth_peer::pki::{CA, GOSSIP_KEY, JoinToken, NODE, NODE_KEY, certifies};
use berth_secrets::keys::Pkcs11Uri;
use berth_spec::{Gpu, Roles, WorkerId};
use clap::Args;

use self::pods::PodArgs;
use crate::{
    ca_key,
    failure::Failure,
    settings::{
        ServerArgs, ServerSettings, check_distinct,
        source::{SourceArgs, SourceSettings},
        store::{StoreArgs, StoreSettings},
        values::{self, Gpus, Host, HostPort},
    },
};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  berth pki init ./pki && berth pki issue ./pki node-a   once: certificates; node-a also covers a
  berth node --name a --store etcd://127.0.0.1:2379 --pki ./pki/node-a
  berth node --store etcd://127.0.0.1:2379 --pki ./pki/b --join 10.0.0.2 \\
             --gossip 10.0.0.3:7946 --peer 10.0.0.3:7947
  berth node --pki ./pki/c --join 10.0.0.2 --advertise 10.0.0.4 --roles worker,gateway \\
             --labels pool=production,region=eu-west-1 --memory 8GiB
  berth node --config /etc/berth/berth.yaml   settings from a file; `berth config show node` tells

On SIGTERM or Ctrl-C, the node moves its replicas elsewhere, finishes requests in flight and exits
with 0. A second signal ends it at once. For several nodes on one machine, give each its own --http,
--api, --gossip, --peer and --data.")]
pub(crate) struct NodeArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    source: SourceArgs,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Cluster")]
struct ClusterArgs {
    /// Folder with this node's certificate, created by `berth pki issue`
    #[arg(long, value_name = "DIR", env = "BERTH_PKI")]
    pki: Option<PathBuf>,
    /// File with a join token, made by `berth join-token create`: the node asks the cluster for its certificate at its first start
    /// and keeps it in its data folder
    #[arg(long, value_name = "FILE", env = "BERTH_JOIN_TOKEN_FILE", conflicts_with = "pki")]
    join_token: Option<PathBuf>,
    /// Folder of the certificate authority, created by `berth pki init`: this controller gives certificates to nodes that join,
    /// and the next ones to nodes whose certificates end
    #[arg(long, value_name = "DIR", env = "BERTH_AUTHORITY")]
    authority: Option<PathBuf>,
    /// Key of the authority in an HSM: pkcs11:token=…;object=…?module-path=…&pin-source=… [default: ca.key in its folder]
    #[arg(long, value_name = "URI", env = "BERTH_CA_KEY", requires = "authority", value_parser = ca_key::parse)]
    ca_key: Option<Pkcs11Uri>,
    /// Validity of certificates that this node gives to others. They renew them when a third of it is left
    #[arg(long, value_name = "TIME", env = "BERTH_CERTIFICATE_LIFE", default_value = "90d", value_parser = values::duration)]
    certificate_life: Duration,
    /// Gossip address of another node; one reachable node is enough. Repeatable
    #[arg(long, value_name = "HOST[:PORT],…", env = "BERTH_JOIN", value_delimiter = ',', value_parser = values::join)]
    join: Vec<HostPort>,
    /// Address for gossip (UDP)
    #[arg(long, value_name = "ADDR", env = "BERTH_GOSSIP", default_value = "127.0.0.1:7946", value_parser = values::socket)]
    gossip: SocketAddr,
    /// Address for connections from other nodes (TLS)
    #[arg(long, value_name = "ADDR", env = "BERTH_PEER", default_value = "127.0.0.1:7947", value_parser = values::socket)]
    peer: SocketAddr,
    /// Host or address at which others reach this server: clients of functions and, in a cluster, other nodes [default: the addresses
    /// to listen on]
    #[arg(long, value_name = "HOST", env = "BERTH_ADVERTISE", value_parser = Host::parse)]
    advertise: Option<Host>,
    /// Roles of this node: controller, worker, gateway
    #[arg(long, value_name = "ROLE,…", env = "BERTH_ROLES", default_value = "controller,worker,gateway")]
    roles: Roles,
    /// GPUs for models: KIND=MEMORY or KIND=MEMORYxCOUNT, separated by commas [default: those that the driver finds]
    #[arg(long, value_name = "KIND=MEMORY[xN],…", env = "BERTH_GPUS", value_delimiter = ',', value_parser = Gpus::parse)]
    gpus: Vec<Gpus>,
    /// Most models at a time [default: as many as fit]
    #[arg(long, value_name = "N", env = "BERTH_MAX_MODELS", value_parser = clap::value_parser!(u32).range(1..))]
    max_models: Option<u32>,
    /// Time to accept new requests after the request to stop, so that load balancers can react
    #[arg(long, value_name = "TIME", env = "BERTH_LAME_DUCK", default_value = "5s", value_parser = values::duration)]
    lame_duck: Duration,
    #[command(flatten)]
    pods: PodArgs,
}

/// Everything that flags, variables and the file say about a node, checked together.
#[derive(Debug)]
pub(crate) struct NodeSettings {
    /// Settings of every server. Its name is the node's name.
    pub(crate) server: ServerSettings,
    /// Roles of the node. In a cluster its certificate has them, perhaps among others.
    pub(crate) roles: Roles,
    /// The sources of deployments that the leader follows.
    pub(crate) sources: SourceSettings,
    /// GPUs that models may use; empty: those that the driver finds.
    pub(crate) gpus: Vec<Gpu>,
    /// The most models at once; `None`: as many as fit.
    pub(crate) max_models: Option<u32>,
    /// Time to accept new requests after the request to stop.
    pub(crate) lame_duck: Duration,
    /// The worker has the built-in runtimes beside the declared ones.
    pub(crate) built_in: bool,
    /// The methods of models that may be called; `None`: all.
    pub(crate) data_plane: Option<berth_mesh::data_plane::CurrentDataPlane>,
    /// Settings of ModelMesh's management API.
    pub(crate) management: berth_modelmesh::Options,
    /// Host at which others reach it, if it differs from the addresses to listen on.
    pub(crate) advertise: Option<Host>,
    /// The cluster that it is a node of; `None`: it is alone, with an embedded store.
    pub(crate) cluster: Option<ClusterSettings>,
}

/// The settings of a node of a cluster.
#[derive(Debug)]
pub(crate) struct ClusterSettings {
    /// The cluster's store: there where it has the role controller, and only there.
    pub(crate) store: Option<StoreSettings>,
    /// The store's whole settings, where they come from elsewhere than `store`.
    pub(crate) etcd: Option<EtcdConfig>,
    /// Folder with its certificate and key, the CA and the gossip key.
    pub(crate) pki: PathBuf,
    /// Address for gossip (UDP).
    pub(crate) gossip: SocketAddr,
    /// Address for connections from other nodes (TLS).
    pub(crate) peer: SocketAddr,
    /// The CA from which it gives certificates to nodes; `None`: it gives none.
    pub(crate) authority: Option<AuthoritySettings>,
    /// Gossip addresses of other nodes. Names are looked up at each use, because they may change.
    pub(crate) join: Vec<HostPort>,
}

/// The settings of a node that gives certificates to nodes.
#[derive(Debug)]
pub(crate) struct AuthoritySettings {
    /// Folder of the CA.
    pub(crate) folder: PathBuf,
    /// Its key in an HSM; `None`: it is in the folder.
    pub(crate) key: Option<Pkcs11Uri>,
    /// Validity of the certificates that it gives: 30 s to 3,650 days.
    pub(crate) life: Duration,
    /// Pods of Kubernetes that get one without a join token.
    pub(crate) pods: Option<JoiningPods>,
}

/// File by which a node asks the cluster for its first certificate.
#[derive(Debug, Clone, Copy)]
pub(super) enum Proof<'a> {
    JoinToken(&'a Path),
    PodToken(&'a Path),
}

/// Shortest validity of certificates: a node has ten seconds to renew.
const SHORTEST_LIFE: Duration = Duration::from_secs(30);

/// Longest validity of certificates, as `berth pki issue --days` has it.
const LONGEST_LIFE: Duration = Duration::from_secs(3_650 * 86_400);

/// The name of a node that is alone.
const ALONE: &str = "local";

/// The arguments alone, for whoever starts a node in other words.
#[derive(Debug, clap::Parser)]
#[command(name = "node")]
struct NodeCommandLine {
    #[command(flatten)]
    args: NodeArgs,
}

impl NodeArgs {
    /// The folder for a certificate that the cluster gives; `None`: the certificate is from elsewhere.
    pub(super) fn joins(&self) -> Option<PathBuf> {
        match (&self.cluster.pki, self.cluster.pods.token()) {
            (Some(folder), Some(_)) => Some(folder.clone()),
            (Some(_), None) => None,
            (None, _) => Some(self.server.data.join("pki")),
        }
    }

    /// The file by which the node asks for its first certificate.
    pub(super) fn proof(&self) -> Option<Proof<'_>> {
        let pod = self.cluster.pods.token().map(Proof::PodToken);
        pod.or_else(|| self.cluster.join_token.as_deref().map(Proof::JoinToken))
    }

    /// Reads the token of the node's pod.
    ///
    /// # Errors
    /// The file cannot be read, or nobody says whom to ask.
    pub(super) fn pod_token(&self, file: &Path) -> Result<JoinToken, Failure> {
        self.cluster.pods.read(file)
    }

    /// The roles that the node is to have.
    pub(super) fn roles(&self) -> Roles {
        self.cluster.roles
    }

    /// The name that the node is to have.
    pub(super) fn wanted_name(&self) -> Option<&WorkerId> {
        self.server.name.as_ref()
    }

    /// Takes the certificate in a folder, and members to begin with where no others are named.
    pub(super) fn take_certificate(&mut self, folder: PathBuf, members: &[String]) {
        self.cluster.pki = Some(folder);
        if self.cluster.join.is_empty() {
            self.cluster.join = members.iter().filter_map(|member| values::join(member).ok()).collect();
        }
    }
}

impl NodeSettings {
    /// The settings that these words of the command line give.
    pub(crate) fn from_words(words: Vec<OsString>) -> Result<Self, Failure> {
        let words = <NodeCommandLine as clap::Parser>::try_parse_from(words)
            .map_err(|error| Failure::Usage(error.to_string()))?;
        Self::new(words.args, certified)
    }

    /// Checks what one setting alone cannot know. `certified` reads the name and the roles in the certificate in a folder.
    pub(crate) fn new(
        args: NodeArgs,
        certified: impl FnOnce(&Path) -> Result<(WorkerId, Roles), Failure>,
    ) -> Result<Self, Failure> {
        let NodeArgs { server, cluster, store, source } = args;
        let sources = source.settings(None)?;
        let pki = cluster.pki.ok_or_else(|| {
            let how = "`berth pki init ./pki && berth pki issue ./pki NAME` makes one, --pki ./pki/NAME takes it; or \
                       --join-token FILE asks a cluster for one";
            Failure::Usage(format!("a node needs a certificate: {how}"))
        })?;
        let (name, granted) = certified(&pki)?;
        let name = check_certificate(name, granted, server.name.as_ref(), cluster.roles, &pki)?;
        let insecure = server.insecure;
        if !insecure {
            sources.check_exposed()?;
        }
        let mut server = ServerSettings::new(server, name)?;
        server.cards.local_repositories |= sources.is_local();
        let http = server.inference_addresses().filter(|_| cluster.roles.gateway);
        let ports = [("--api", server.api), ("--peer", cluster.peer)];
        check_distinct(&http.chain(ports).collect::<Vec<_>>())?;
        for (flag, address) in [("--gossip", cluster.gossip), ("--peer", cluster.peer)] {
            if address.ip().is_unspecified() && cluster.advertise.is_none() {
                return Err(Failure::Usage(format!(
                    "{flag} {address} is every address of this machine: say with --advertise HOST at which one others reach it"
                )));
            }
        }
        let store = store.settings()?.filter(|_| cluster.roles.controller);
        if let Some(store) = store.as_ref().filter(|_| !insecure) {
            store.check_exposed()?;
        }
        if cluster.roles.controller && store.is_none() {
            return Err(Failure::Usage(
                "a node with the role controller needs --store etcd://HOST:PORT; \
                 --roles worker,gateway makes one that needs none, `berth up` a server that is alone"
                    .to_owned(),
            ));
        }
        let (pods, life) = (cluster.pods.joining(), cluster.certificate_life);
        let authority = authority(cluster.authority, cluster.ca_key, pods, life, cluster.roles)?;
        if !cluster.roles.controller && cluster.join.is_empty() {
            return Err(Failure::Usage(
                "a node that is no controller needs others: say with --join HOST:PORT where one of them gossips"
                    .to_owned(),
            ));
        }
        Ok(Self {
            sources,
            roles: cluster.roles,
            gpus: cluster.gpus.iter().flat_map(Gpus::each).collect(),
            max_models: cluster.max_models,
            lame_duck: cluster.lame_duck,
            built_in: true,
            data_plane: None,
            management: berth_modelmesh::Options::default(),
            advertise: cluster.advertise,
            server,
            cluster: Some(ClusterSettings {
                store,
                etcd: None,
                pki,
                gossip: cluster.gossip,
                peer: cluster.peer,
                authority,
                join: cluster.join,
            }),
        })
    }

    /// The settings of a node that is alone: all roles, and every GPU that the driver finds. `advertise` is the host at which clients
    /// reach it.
    ///
    /// # Errors
    /// [`Failure::Usage`]: settings that contradict each other.
    pub(crate) fn alone(server: ServerArgs, sources: SourceSettings, advertise: Option<Host>) -> Result<Self, Failure> {
        let name = WorkerId::new(ALONE).expect("the name of a node that is alone is a name");
        let mut server = ServerSettings::new(server, name)?;
        server.cards.local_repositories |= sources.is_local();
        Ok(Self {
            server,
            sources,
            roles: Roles::ALL,
            gpus: Vec::new(),
            max_models: None,
            // Nobody else takes the requests that a load balancer would send elsewhere.
            lame_duck: Duration::ZERO,
            built_in: true,
            data_plane: None,
            management: berth_modelmesh::Options::default(),
            advertise,
            cluster: None,
        })
    }

    /// Host at which others reach this node, if it differs from the addresses to listen on.
    pub(crate) fn advertised(&self) -> Option<&Host> {
        self.advertise.as_ref()
    }

    /// Address under which other nodes reach a listener at `bound`: the advertised host with its port, else `bound`.
    /// May block to look up the name.
    ///
    /// # Errors
    /// [`Failure::Failed`]: the advertised name is not known.
    pub(crate) fn reached_at(&self, bound: SocketAddr) -> Result<SocketAddr, Failure> {
        let Some(host) = self.advertised() else { return Ok(bound) };
        let ip: IpAddr = host.resolve().map_err(|e| Failure::Failed(format!("--advertise: {e}")))?;
        Ok(SocketAddr::new(ip, bound.port()))
    }
}

/// True if a folder has all that a node needs, left by an earlier start that joined.
pub(super) fn has_joined(folder: &Path) -> bool {
    [NODE, NODE_KEY, CA, GOSSIP_KEY].iter().all(|file| folder.join(file).exists())
}

/// The name and the roles in the certificate in a folder.
pub(super) fn certified(folder: &Path) -> Result<(WorkerId, Roles), Failure> {
    let identity = berth_peer::Identity::load(folder).map_err(|error| Failure::Usage(error.to_string()))?;
    Ok((identity.name().clone(), identity.roles()))
}

/// Checks that a certificate is good for the name and the roles that the node says; its name is that of the node.
fn check_certificate(
    name: WorkerId,
    certified: Roles,
    said: Option<&WorkerId>,
    roles: Roles,
    folder: &Path,
) -> Result<WorkerId, Failure> {
    let folder = folder.display();
    if let Some(said) = said.filter(|said| !certifies(&name, said)) {
        return Err(Failure::Usage(format!(
            "--name says {said}, the certificate in {folder} says {name}: \
             leave --name out, or `berth pki issue` one for {said} or node-{said}"
        )));
    }
    if !certified.contain(roles) {
        return Err(Failure::Usage(format!(
            "--roles says {roles}, the certificate in {folder} is for {certified}: say --roles {certified}, or issue one with \
             `berth pki issue DIR {name} --roles {roles}`; if a join token gave it, remove {folder} and join with another, of \
             `berth join-token create --roles {roles}`"
        )));
    }
    Ok(name)
}

fn authority(
    folder: Option<PathBuf>,
    key: Option<Pkcs11Uri>,
    pods: Option<JoiningPods>,
    life: Duration,
    roles: Roles,
) -> Result<Option<AuthoritySettings>, Failure> {
    if folder.is_some() && !roles.controller {
        let error = "--authority is for nodes with the role controller: others give no certificates";
        return Err(Failure::Usage(error.to_owned()));
    }
    if !(SHORTEST_LIFE..=LONGEST_LIFE).contains(&life) {
        return Err(Failure::Usage("--certificate-life may be 30s to 3650d".to_owned()));
    }
    if folder.is_none() && pods.is_some() {
        return Err(Failure::Usage("--join-pods needs --authority DIR: pods are given certificates".to_owned()));
    }
    Ok(folder.map(|folder| AuthoritySettings { folder, key, life, pods }))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct TestArgs {
        #[command(flatten)]
        args: NodeArgs,
    }

    fn settings(words: &str) -> Result<NodeSettings, String> {
        settings_with("a", words)
    }

    fn settings_with(certificate: &str, words: &str) -> Result<NodeSettings, String> {
        let line = TestArgs::try_parse_from(std::iter::once("node").chain(words.split_whitespace()));
        let line = line.map_err(|e| e.to_string())?;
        let certified = |_: &Path| Ok((WorkerId::new(certificate).expect("a name"), Roles::ALL));
        NodeSettings::new(line.args, certified).map_err(|e| e.to_string())
    }

    #[test]
    fn a_node_as_people_start_it() {
        let node = settings(
            "--name a --store etcd://127.0.0.1:2379 --join 10.0.0.2:7946,10.0.0.3 --join c --pki ./pki/a \
             --labels pool=production,region=eu-west-1 --label zone=a --memory 8GiB --gpus nvidia-l4=24GiBx2,nvidia-h200=141GiB",
        )
        .expect("settings");
        assert_eq!(node.server.name.as_str(), "a");
        assert_eq!(node.server.labels.len(), 3);
        let cluster = node.cluster.expect("a cluster");
        assert_eq!(
            cluster.join.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
            "10.0.0.2:7946 10.0.0.3:7946 c:7946"
        );
        assert_eq!((node.gpus.len(), node.roles), (3, Roles::ALL));
        assert_eq!(cluster.store.map(|store| store.address.endpoints), Some(vec!["127.0.0.1:2379".to_owned()]));
        let bound = "0.0.0.0:7".parse().expect("an address");
        let node =
            settings("--pki p --store etcd://localhost --gossip 0.0.0.0:7946 --advertise 10.0.0.9").expect("settings");
        assert_eq!(node.reached_at(bound).map(|at| at.to_string()).ok().as_deref(), Some("10.0.0.9:7"));
        let worker = settings("--pki p --store etcd://localhost --roles worker --join b").expect("settings");
        assert_eq!(worker.cluster.and_then(|cluster| cluster.store), None, "only controllers ask the store");
    }

    #[test]
    fn a_node_is_called_as_its_certificate_or_what_follows_node_in_it() {
        let named = |certificate: &str, said: &str| {
            let node = settings_with(certificate, &format!("--pki p --store etcd://localhost {said}"));
            node.map(|node| (node.server.telemetry.worker.to_string(), node.server.name.to_string()))
        };
        for (certificate, said, name) in [
            ("node-a", "", "node-a"),
            ("node-a", "--name a", "a"),
            ("node-a", "--name node-a", "node-a"),
            ("a", "", "a"),
        ] {
            assert_eq!(named(certificate, said), Ok((name.to_owned(), name.to_owned())), "{certificate} {said}");
        }
        for (certificate, said) in [("node-a", "--name b"), ("a", "--name node-a"), ("node-a", "--name node-node-a")] {
            let error = named(certificate, said).expect_err(said);
            assert!(error.contains("the certificate in p says") && error.contains("berth pki issue"), "{error}");
        }
    }

    #[test]
    fn what_holds_for_a_type_reaches_the_planner() {
        let node = settings("--pki p --store etcd://localhost --model-type onnx:required:pool=a,onnx:preferred:zone=b");
        let types = node.expect("settings").server.policy().types;
        let onnx = &types["onnx"];
        assert_eq!((types.len(), onnx.required["pool"].as_str(), onnx.preferred["zone"].as_str()), (1, "a", "b"));
        assert!(settings("--pki p --store etcd://localhost").expect("settings").server.policy().types.is_empty());
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_what_to_do() {
        for (words, says) in [
            ("--store etcd://localhost", "berth pki init"),
            ("--pki p", "--roles worker,gateway"),
            ("--pki p --roles worker", "--join HOST:PORT"),
            ("--pki p --store etcd://localhost --name b", "the certificate in p says a"),
            ("--pki p --store etcd://localhost --peer 0.0.0.0:7947", "--advertise HOST"),
            ("--pki p --store etcd://localhost --http 0.0.0.0:80", "--insecure"),
            ("--pki p --store etcd://localhost --peer 127.0.0.1:8081", "--api and --peer are both"),
            ("--pki p --store etcd://localhost --store-ca ca.pem", "etcds://"),
            ("--pki p --store etcd://127.0.0.1,10.0.0.9", "10.0.0.9:2379"),
            ("--pki p --store etcd://localhost --source etcd=http://10.0.0.9:2379", "etcd=https://"),
            ("--pki p --store etcds://s --store-cert c.pem", "--store-cert and --store-key belong together"),
            ("--pki p --store etcds://s --store-user root", "--store-password-file belong together"),
            ("--pki p --store etcd://localhost --roles cook", "is no role"),
            ("--pki p --store etcd://localhost --max-models 0", "--max-models"),
            ("--pki p --store etcd://localhost --labels a=1,a=2", "the label a is both"),
            ("--pki p --store etcd://localhost --join-pods a/b=worker", "--authority DIR"),
        ] {
            let error = settings(words).expect_err(words);
            assert!(error.contains(says), "{words}: {error}");
        }
    }
}
