//! A registry of the size that every fleet must take (a hundred models, fifty workers) and beyond, from the commits of a real
//! repository: validated by the real validator, placed by the real controller on agents that are real, under a clock that
//! is not.

use std::{collections::BTreeMap, fmt::Write as _, process::Command, sync::Arc, time::Duration};

use berth_git::{Credentials, Git, Oid, Protocols, Repository, Stop};
use berth_plan::fixture;
use berth_registry::{Desired, Outcome, Pass, Remotes, Report, Tree, Validator, to_hub};
use berth_sim::{
    cluster::{Cluster, Memory, Watch},
    node::Model,
};
use berth_spec::{
    ByteSize, Deployment, DeploymentName, Generation, Origin, WorkerId, WorkerInfo,
    manifest::{self, ParseContext},
};
use tempfile::TempDir;

const MODELS: usize = 10;
const DEPLOYMENTS: usize = 150;
const WORKERS: usize = 60;
const REGIONS: [&str; 3] = ["eu-west-1", "us-east-1", "ap-south-1"];

/// Two in three want two copies, the others three.
fn copies(nth: usize) -> usize {
    2 + usize::from(nth.is_multiple_of(3))
}

/// Repositories of models, and a registry beside them.
struct World {
    root: TempDir,
    validator: Validator,
    previous: Option<Oid>,
}

impl World {
    fn new() -> Self {
        let root = tempfile::tempdir().expect("a folder");
        let local = Protocols::default().with_local();
        let none = Box::new(|_: &berth_git::Remote| Credentials::None);
        let remotes = Remotes::open(Arc::new(Git::new(path())), &root.path().join("cache"), local, none);
        let world = Self { root, validator: Validator::new(remotes.expect("a cache")), previous: None };
        for nth in 0..MODELS {
            world.git("", &["init", "-q", "-b", "main", &format!("model-{nth}")]);
            for version in ["1.0.0", "1.1.0"] {
                world.write(&format!("model-{nth}/model-card.yaml"), &world.card(nth, version));
                world.commit(&format!("model-{nth}"), version);
                world.git(&format!("model-{nth}"), &["tag", &format!("v{version}")]);
            }
        }
        world.git("", &["init", "-q", "-b", "main", "registry"]);
        for folder in berth_registry::FOLDERS {
            world.write(&format!("registry/{folder}/.gitkeep"), "");
        }
        for nth in 0..WORKERS {
            world.write(&format!("registry/workers/{}.yaml", worker_name(nth)), &worker(nth));
        }
        world.deploy(|_| "1.0.0", copies);
        world
    }

    fn git(&self, folder: &str, arguments: &[&str]) -> String {
        let mut git = Command::new("git");
        git.current_dir(self.root.path().join(folder)).env_clear().envs(path()).envs([
            ("GIT_CONFIG_NOSYSTEM", "1"),
            ("GIT_CONFIG_GLOBAL", "/dev/null"),
            ("GIT_AUTHOR_NAME", "Ada"),
            ("GIT_AUTHOR_EMAIL", "ada@example.com"),
            ("GIT_COMMITTER_NAME", "Ada"),
            ("GIT_COMMITTER_EMAIL", "ada@example.com"),
        ]);
        let out = git.args(arguments).output().expect("git runs");
        assert!(out.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).trim().to_owned()
    }

    fn write(&self, file: &str, text: &str) {
        let file = self.root.path().join(file);
        fs_err::create_dir_all(file.parent().expect("inside")).expect("a folder");
        fs_err::write(file, text).expect("written");
    }

    fn commit(&self, folder: &str, message: &str) -> Oid {
        self.git(folder, &["add", "-A"]);
        self.git(folder, &["commit", "-q", "--allow-empty", "-m", message]);
        Oid::parse(&self.git(folder, &["rev-parse", "HEAD"])).expect("a commit")
    }

    fn repository(&self, model: usize) -> String {
        format!("file://{}", self.root.path().join(format!("model-{model}")).display())
    }

    fn card(&self, model: usize, version: &str) -> String {
        format!(
            "schemaVersion: '3.0.0'\n\
             metadata: {{name: model-{model}, version: {version}, description: A model of a size, owner: ml@example.com}}\n\
             runtime: {{framework: custom, framework_version: 1.0.0, python_version: '3.11', dependencies: []}}\n\
             artifacts:\n  storage_type: s3\n  model_path: s3://models/{model}/{version}\n  size_bytes: 1000\n  checksum: '{:064x}'\n\
             code: {{repository: '{}', path: src/, ref: v{version}, entrypoint: src.model}}\n\
             preprocessing: {{module: src.pre, function: read}}\n\
             postprocessing: {{module: src.post, function: write}}\n\
             interface: {{input_schema: {{type: object}}, output_schema: {{type: object}}}}\n\
             resources: {{cpu: 0.5, memory: {}Mi}}\n",
            // What has the same digest is the same.
            model * 10 + usize::from(version == "1.1.0"),
            self.repository(model),
            128 + 64 * model,
        )
    }

    /// Writes all manifests.
    fn deploy(&self, version: impl Fn(usize) -> &'static str, copies: impl Fn(usize) -> usize) {
        for nth in 0..DEPLOYMENTS {
            let (region, model) = (REGIONS[nth % 3], nth % MODELS);
            let text = format!(
                "id: d{nth}\nmodel_card_ref: {{repository: '{}', path: model-card.yaml, ref: v{}}}\nenabled: true\n\
                 deployment_config:\n  region: {region}\n  replicas: {}\n  priority: 50\n  worker_selector: {{pool: production}}\n\
                 metadata: {{owner: ml@example.com, deployed_at: '2026-11-22T10:30:00Z', deployed_by: ops@example.com}}\n",
                self.repository(model),
                version(nth),
                copies(nth),
            );
            self.write(&format!("registry/models/production/d{nth}.yaml"), &text);
        }
    }

    /// Commits what is there and validates it after the commit that was accepted before.
    fn validate(&mut self, message: &str) -> Report {
        let commit = self.commit("registry", message);
        let stop = Stop::within(Duration::from_secs(120));
        let folder = self.root.path().join("registry");
        let repository = Repository::open(Arc::new(Git::new(path())), &folder, &stop).expect("a repository");
        let tree = Tree::Commit { repository, commit: commit.clone() };
        let now = 1_795_305_600;
        let pass = Pass { tree: &tree, previous: self.previous.as_ref(), now, allow_empty: false, stop: &stop };
        let report = self.validator.validate(&pass).expect("the registry can be read");
        if report.is_accepted() {
            self.previous = Some(commit);
        }
        report
    }

    /// The same, of a commit that passes.
    fn desired(&mut self, message: &str) -> Desired {
        let report = self.validate(message);
        assert!(report.is_accepted(), "{:?}", report.errors().next());
        report.desired.expect("it passed with its cards")
    }
}

fn path() -> Vec<(std::ffi::OsString, std::ffi::OsString)> {
    std::env::vars_os().filter(|(name, _)| name == "PATH").collect()
}

fn worker_name(nth: usize) -> String {
    format!("worker-{}-{nth:02}", REGIONS[nth % 3])
}

/// Every tenth is not for production, and every seventh lists a later version than the cards have, which reads theirs.
fn worker(nth: usize) -> String {
    let pool = if nth % 10 == 9 { "staging" } else { "production" };
    let versions = if nth % 7 == 6 { "3.1.0" } else { "3.0.0" };
    format!(
        "worker_id: {}\nsupported_schema_versions: ['{versions}']\n\
         capacity: {{max_models: 20, max_memory: 12Gi, max_cpu: 16.0}}\n\
         labels: {{pool: {pool}, region: {}, zone: z{}}}\n",
        worker_name(nth),
        REGIONS[nth % 3],
        nth / 3 % 3,
    )
}

/// A fleet that is as the registry says.
struct Fleet {
    cluster: Cluster,
    generations: BTreeMap<String, Generation>,
}

impl Fleet {
    fn found(desired: &Desired) -> Self {
        let mut cluster = Cluster::fleet(7, &["c1", "c2", "c3"], &[("g1", None), ("g2", None)]);
        let patience = Some(Duration::from_secs(30));
        cluster.watch = Watch { lint_every: 2_000, patience, memory: Memory::Declared };
        for config in &desired.workers {
            // The machine has more than the registry lets it use.
            let machine = WorkerInfo { cpus: 64.0, ..fixture::worker(&config.worker_id, ByteSize::gib(64)) };
            let info: WorkerInfo = config.terms().apply(&machine);
            cluster.start(info);
        }
        cluster.run_for(Duration::from_secs(10));
        Self { cluster, generations: BTreeMap::new() }
    }

    /// Declares what differs, as the source does.
    fn declare(&mut self, desired: &Desired, before: Option<&Desired>) -> usize {
        let mut declared = 0;
        for wanted in &desired.deployments {
            if before.and_then(|before| before.deployment(&wanted.id)) == Some(wanted) {
                continue;
            }
            let hub = to_hub(wanted, None).expect("validation looked at it");
            let parsed = manifest::ManifestDeployment::of(hub, &ParseContext::default());
            let manifest::ManifestDeployment { name, labels, spec, .. } = parsed.expect("validation looked at it");
            let memory = spec.memory.expect("the card says");
            let (fetch, load) = (Duration::from_secs(2), Duration::from_secs(1));
            self.cluster.models.insert(spec.model.uri.to_string(), Model { memory, fetch, load, fails: None });
            let generation = self.generations.entry(wanted.id.clone()).or_insert(Generation(0));
            *generation = generation.next();
            let origin = Origin::git("file:///registry");
            let deployment = Deployment {
                name,
                labels: labels.into(),
                spec,
                origin,
                generation: *generation,
                ..fixture::deployment("any")
            };
            assert!(self.cluster.declare(deployment), "somebody leads");
            declared += 1;
        }
        declared
    }

    /// Time passes, with requests for everything through both gateways.
    fn run(&mut self, seconds: u64) {
        for second in 0..seconds {
            for nth in (0..DEPLOYMENTS).filter(|nth| (*nth as u64 + second).is_multiple_of(5)) {
                let gateway_id = fixture::worker_id(if nth % 2 == 0 { "g1" } else { "g2" });
                self.cluster.infer_at(&gateway_id, &fixture::name(&format!("d{nth}")), 1);
            }
            self.cluster.run_for(Duration::from_secs(1));
            assert!(self.cluster.broken.is_empty(), "{:#?}", self.cluster.broken);
        }
    }

    /// Every deployment has its copies, in its version, on workers that may hold it; and nobody holds too many.
    fn is_as(&self, desired: &Desired) -> Result<(), String> {
        let world = self.cluster.world().ok_or("nobody leads")?;
        let (placement, callable) = (self.cluster.placement(), self.cluster.callable());
        let mut wrong = String::new();
        for wanted in &desired.deployments {
            let name: DeploymentName = fixture::name(&wanted.id);
            let status = berth_plan::report::status(world, &name, self.cluster.now).ok_or("it is not known")?;
            let controllers = placement.get(&name).cloned().unwrap_or_default();
            let ready = callable.iter().filter(|(_, held)| *held == status.wanted).count();
            let copies = wanted.manifest.wanted() as usize;
            let known = status.observed_generation == self.generations[&wanted.id];
            if !known || (ready, controllers.len()) != (copies, copies) {
                let _ = write!(wrong, "{name}: {ready} of {copies} ready at {controllers:?}; ");
            }
            for (worker, _) in &controllers {
                let info =
                    world.worker(worker).and_then(|controllers| controllers.info.as_ref()).ok_or("it is there")?;
                let config = &wanted.manifest.deployment_config;
                assert_eq!(info.labels["region"], config.region, "{name} on {worker}");
                assert_eq!(info.labels["pool"], "production", "{name} on {worker}");
                assert!(info.schema_versions.contains(&wanted.card.schema_version), "{name} on {worker}");
            }
        }
        for (worker, machine) in &self.cluster.machines {
            assert!(machine.callable.len() <= 20, "{worker} holds {}", machine.callable.len());
        }
        wrong.extend(self.cluster.unsettled());
        if wrong.is_empty() { Ok(()) } else { Err(wrong) }
    }

    /// Seconds until everything is so.
    fn until(&mut self, desired: &Desired, patience: u64) -> u64 {
        for second in 0..patience {
            if self.is_as(desired).is_ok() {
                return second;
            }
            self.run(1);
        }
        panic!("after {patience} s: {}", self.is_as(desired).expect_err("it is not so"));
    }
}

#[test]
fn a_hundred_and_fifty_models_on_sixty_workers() {
    let mut world = World::new();
    let first = world.desired("Everything at once");
    assert_eq!((first.deployments.len(), first.workers.len()), (DEPLOYMENTS, WORKERS));
    let mut fleet = Fleet::found(&first);
    assert_eq!(fleet.declare(&first, None), DEPLOYMENTS);
    let took = fleet.until(&first, 300);
    eprintln!("from the commit to {DEPLOYMENTS} deployments ready: {took} s");

    // One commit changes one: nothing else is declared again, and nothing else moves.
    let placed = fleet.cluster.placement();
    world.deploy(|nth| if nth == 70 { "1.1.0" } else { "1.0.0" }, copies);
    let second = world.desired("One");
    assert_eq!(fleet.declare(&second, Some(&first)), 1);
    fleet.until(&second, 60);
    let moved: Vec<_> =
        placed.iter().filter(|(name, controllers)| fleet.cluster.placement()[*name] != **controllers).collect();
    assert_eq!(moved.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["d70"]);

    // Half of all versions and the number of copies change, and while that is under way 30 % of the workers die.
    world.deploy(|nth| if nth % 2 == 0 { "1.1.0" } else { "1.0.0" }, |_| 2);
    let third = world.desired("Half of all");
    fleet.declare(&third, Some(&second));
    fleet.run(2);
    let dead: Vec<WorkerId> = (0..WORKERS).step_by(10).flat_map(|nth| [nth, nth + 3, nth + 5]).map(worker_id).collect();
    assert_eq!(dead.len() * 10, WORKERS * 3);
    for worker in &dead {
        fleet.cluster.cut_power(worker);
    }
    let took = fleet.until(&third, 300);
    eprintln!("after {} of {WORKERS} workers died in the middle of it: {took} s", dead.len());
    assert!(took < 300, "five minutes from failure to redeployed");

    // They come back, the leader changes: nothing has to move, and nobody is asked twice.
    for worker in &dead {
        fleet.cluster.restart(worker);
    }
    let leader = fleet.cluster.leader().cloned().expect("somebody leads");
    fleet.cluster.crash(&leader);
    fleet.run(60);
    fleet.until(&third, 60);

    let tally = &fleet.cluster.requests.tally;
    eprintln!("{tally:?}");
    assert!(tally.answered > 1_000 && tally.gave_up == 0, "{tally:?}");
    // In the first second gateways had not heard of what was declared. From then on only those were refused under whom three
    // workers died, one after the other.
    assert!(tally.refused.keys().all(|reason| matches!(*reason, "not_found" | "unavailable")), "{tally:?}");
    let broken = tally.refused.get("unavailable").copied().unwrap_or_default();
    assert!(broken * 500 <= tally.answered, "{tally:?}");
}

fn worker_id(nth: usize) -> WorkerId {
    fixture::worker_id(&worker_name(nth))
}

#[test]
fn a_bad_manifest_among_many_refuses_the_commit() {
    let mut world = World::new();
    world.desired("Everything at once");
    let file = "registry/models/production/d77.yaml";
    let text = fs_err::read_to_string(world.root.path().join(file)).expect("it is there");
    world.write(file, &text.replace("ref: v1.0.0", "ref: main"));
    let report = world.validate("A branch");
    assert_eq!(report.outcome, Outcome::UnpinnedRef);
    let (problem, more) = (report.errors().next().expect("an error"), report.errors().count());
    assert_eq!((problem.file.as_str(), more), ("models/production/d77.yaml", 1));
    assert!(report.desired.is_none(), "nothing of it is wanted");
}
