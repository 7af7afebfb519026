//! Rules beyond the schemas: layout, duplicates, removal of everything, workers, signatures.

use std::os::unix::fs::symlink;

use berth_registry::{Outcome, Severity};

use crate::fixture::{WORKER, World, git, path, told};

#[test]
fn a_structure_that_is_wrong_ends_it() {
    let world = World::new();
    world.remove("transactions");
    world.write("models/production/bad.yaml", "id: [");
    let report = world.validate();
    assert_eq!(report.outcome, Outcome::StructureViolation);
    assert_eq!(report.problems.len(), 1, "{}", told(&report));
}

#[test]
fn files_have_their_places() {
    let world = World::new();
    world.write("models/canary/x.yaml", "id: x");
    world.write("models/x.yaml", "id: x");
    world.write("models/staging/weights.bin", "x");
    world.write("models/staging/README.md", "x");
    world.write("data/anything.yaml", "x: [");
    world.write("workers/old/worker-b.yaml", "x");
    world.write("README.md", "x");
    symlink("iris-prod.yaml", world.registry().join("models/production/link.yaml")).expect("a link");
    let report = world.validate();
    let found: Vec<(&str, Severity)> = report.problems.iter().map(|p| (p.file.as_str(), p.severity)).collect();
    let errors = ["models/canary/x.yaml", "models/production/link.yaml", "models/x.yaml", "workers/old/worker-b.yaml"];
    let mut expected: Vec<(&str, Severity)> = errors.map(|file| (file, Severity::Error)).to_vec();
    expected.push(("models/staging/weights.bin", Severity::Warning));
    assert_eq!(found, expected);
}

#[test]
fn manifests_may_lie_in_folders_of_their_own() {
    let world = World::new();
    world.write("models/production/team/other.yaml", &world.manifest("other", "v1.2.3"));
    let report = world.validate();
    assert_eq!(report.desired.clone().unwrap_or_else(|| panic!("{}", told(&report))).deployments.len(), 2);
}

#[test]
fn nothing_is_declared_twice() {
    let world = World::new();
    world.write("models/staging/iris-prod.yaml", &world.manifest("iris-prod", "v1.2.3"));
    let report = world.validate();
    assert_eq!(report.outcome, Outcome::InvalidDeploymentManifest);
    assert!(told(&report).contains("models/production/iris-prod.yaml, too"), "{}", told(&report));
    world.remove("models/staging/iris-prod.yaml");
    world.write("workers/worker-b.yaml", WORKER);
    let report = world.validate();
    assert_eq!(report.outcome, Outcome::InvalidWorkerConfig);
}

#[test]
fn the_last_deployment_is_not_removed_by_accident() {
    let world = World::new();
    world.write("models/production/other.yaml", &world.manifest("other", "v1.2.3"));
    assert!(world.validate().is_accepted());
    world.remove("models/production/iris-prod.yaml");
    assert!(world.validate().is_accepted());
    world.remove("models/production/other.yaml");
    let report = world.validate();
    assert_eq!(report.outcome, Outcome::StructureViolation);
    assert!(told(&report).contains("removes all 1 deployments"), "{}", told(&report));
    let meant = world.commit("remove everything\n\nBerth-Allow-Empty: true");
    assert!(world.validate_commit(meant).is_accepted());
}

#[test]
fn an_empty_registry_is_a_beginning() {
    let world = World::new();
    world.remove("models/production/iris-prod.yaml");
    let report = world.validate();
    assert_eq!(report.desired.clone().unwrap_or_else(|| panic!("{}", told(&report))).deployments, []);
}

#[test]
fn what_was_emptied_is_not_taken_for_removed() {
    let world = World::new();
    world.write("models/staging/other.yaml", &world.manifest("other", "v1.2.3"));
    assert!(world.validate().is_accepted());
    for text in ["", "---\n", "# later\n"] {
        world.write("models/production/iris-prod.yaml", text);
        let report = world.validate();
        assert_eq!(report.outcome, Outcome::InvalidDeploymentManifest, "{text:?}: {}", told(&report));
    }
    world.write("models/production/iris-prod.yaml", &world.manifest("iris-prod", "v1.2.3"));
    world.write("workers/worker-a.yaml", "");
    assert_eq!(world.validate().outcome, Outcome::InvalidWorkerConfig);
}

#[test]
fn settings_that_cannot_be_read_are_not_taken_for_none() {
    let refused = |change: &dyn Fn(&World), part: &str| {
        let world = World::new();
        change(&world);
        let report = world.validate();
        assert_eq!(report.outcome, Outcome::StructureViolation, "{part}: {}", told(&report));
        assert!(told(&report).contains(part), "{part}: {}", told(&report));
        // The same of a folder.
        let report = world.validate_folder();
        assert!(!report.is_accepted() && told(&report).contains(part), "{part}: {}", told(&report));
    };
    let strict = "unknownWorkers: refuse\n";
    for file in ["registry.yaml", "compatibility-matrix.yaml"] {
        refused(&|world| symlink("README.md", world.registry().join(file)).expect("a link"), "link is not followed");
        refused(&|world| world.write(file, &format!("{strict}{}", "#".repeat(1 << 20))), "1048576 are allowed");
        refused(&|world| world.write(&format!("{file}/a"), strict), "this must be a file");
        refused(
            &|world| fs_err::write(world.registry().join(file), b"# K\xf6ln\n").expect("written"),
            "line 1 holds bytes that are not UTF-8",
        );
    }
    refused(&|world| world.write("registry.yml", strict), "call it registry.yaml");
    refused(&|world| world.write("compatibility-matrix.yml", ""), "call it compatibility-matrix.yaml");
}

#[test]
fn what_is_no_text_is_said() {
    let world = World::new();
    let manifest = world.manifest("iris-prod", "v1.2.3");
    let latin = [manifest.as_bytes(), b"# K\xf6ln\n"].concat();
    fs_err::write(world.registry().join("models/production/iris-prod.yaml"), latin).expect("written");
    let report = world.validate();
    assert_eq!(report.outcome, Outcome::InvalidDeploymentManifest);
    assert!(told(&report).contains("bytes that are not UTF-8"), "{}", told(&report));
    // As Windows writes it.
    world.write("models/production/iris-prod.yaml", &format!("\u{feff}{}", manifest.replace('\n', "\r\n")));
    let report = world.validate();
    assert!(report.is_accepted() && report.problems.is_empty(), "{}", told(&report));
}

#[test]
fn files_that_nobody_reads_are_said() {
    let world = World::new();
    for file in ["workers/worker-b.json", "workers/secrets/worker-b.txt", "workers/secrets/.env"] {
        world.write(file, "token: hunter2canary");
    }
    world.write("workers/notes.txt", "x");
    world.write("workers/secrets/README.md", "x");
    let report = world.validate();
    let found: Vec<&str> = report.warnings().map(|problem| problem.file.as_str()).collect();
    assert_eq!(found, ["workers/secrets/worker-b.txt", "workers/worker-b.json"], "{}", told(&report));
    assert!(report.is_accepted() && !told(&report).contains("canary"));
}

#[test]
fn one_path_of_a_region_has_one_deployment() {
    let world = World::new();
    let at = |id: &str| {
        let line = "    pool: production\n  endpoint: https://api.example.com/v1/iris";
        world.manifest(id, "v1.2.3").replace("    pool: production", line)
    };
    world.write("models/production/iris-prod.yaml", &at("iris-prod"));
    world.write("models/staging/other.yaml", &at("other"));
    let report = world.validate();
    assert_eq!(report.outcome, Outcome::InvalidDeploymentManifest);
    let part = "models/production/iris-prod.yaml answers at /v1/iris in eu-west-1, too (deployment_config.endpoint)";
    assert!(told(&report).contains(part), "{}", told(&report));
    // One that is switched off is about to take over, or was replaced.
    world.write("models/staging/other.yaml", &at("other").replace("enabled: true", "enabled: false"));
    let report = world.validate();
    assert!(report.is_accepted() && report.warnings().count() == 1, "{}", told(&report));
    let elsewhere = at("other").replace("region: eu-west-1", "region: us-east-1");
    world.write("models/staging/other.yaml", &elsewhere.replace("pool: production", "pool: staging"));
    assert!(!told(&world.validate()).contains("answers at"));
}

#[test]
fn workers_that_are_not_there_are_said() {
    let world = World::new();
    world.write("workers/worker-a.yaml", &WORKER.replace("region: eu-west-1\n", "region: us-east-1\n"));
    let report = world.validate();
    assert_eq!(report.outcome, Outcome::SchemaIncompatibility, "{}", told(&report));
    assert!(told(&report).contains("set workers: elastic in registry.yaml"), "{}", told(&report));
    world.write("registry.yaml", "workers: elastic\n");
    let report = world.validate();
    assert!(report.is_accepted(), "{}", told(&report));
    assert!(
        told(&report).contains("warning: no worker in workers/ has pool=production, region=eu-west-1"),
        "{}",
        told(&report)
    );
    assert!(told(&report).contains("the nearest is worker-a, whose region is us-east-1"), "{}", told(&report));
    world.write("registry.yaml", "unknownWorkers: refuse\nworkers: elastic\n");
    assert_eq!(world.validate().outcome, Outcome::StructureViolation);
    world.write("registry.yaml", "unknownWorkers: refuse\n");
    assert_eq!(world.validate().outcome, Outcome::SchemaIncompatibility);
    // What is switched off needs no worker.
    let off = world.manifest("iris-prod", "v1.2.3").replace("enabled: true", "enabled: false");
    world.write("models/production/iris-prod.yaml", &off);
    assert!(world.validate().is_accepted());
}

#[test]
fn workers_that_are_too_small_are_said() {
    let world = World::new();
    for (from, to) in [("max_memory: 16Gi", "max_memory: 256Mi"), ("max_cpu: 8.0", "max_cpu: 0.2")] {
        world.write("workers/worker-a.yaml", &WORKER.replace(from, to));
        let report = world.validate();
        assert!(report.is_accepted() && told(&report).contains("warning: the model needs 512Mi"), "{}", told(&report));
    }
}

#[test]
fn a_matrix_of_the_registry_counts() {
    let world = World::new();
    let own = "compatibility:\n  \"3.0.0\": {compatible_with: [\"3.0.0\"]}\n  \"3.1.0\":\n    compatible_with: [\"3.0.0\", \"3.1.0\"]\n    deprecated: true\n    sunset_date: \"2027-01-01\"\n";
    world.write("compatibility-matrix.yaml", own);
    let report = world.validate();
    assert!(report.is_accepted() && told(&report).contains("goes out of use on 2027-01-01"), "{}", told(&report));
    world.write("compatibility-matrix.yaml", &own.replace("2027", "2026"));
    assert_eq!(world.validate().outcome, Outcome::SchemaIncompatibility);
    world.write("compatibility-matrix.yaml", &own.replace("[\"3.0.0\", \"3.1.0\"]", "[\"3.1.0\"]"));
    assert_eq!(world.validate().outcome, Outcome::StructureViolation);
}

/// Signs with a key that the registry may trust.
struct Signing {
    world: World,
}

impl Signing {
    fn new() -> Self {
        let world = World::new();
        for name in ["ada", "eve"] {
            let mut command = std::process::Command::new("ssh-keygen");
            command.env_clear().envs(path()).current_dir(world.root.path());
            let out = command.args(["-q", "-t", "ed25519", "-N", "", "-C", name, "-f", name]).output();
            assert!(out.expect("this test needs ssh-keygen").status.success());
        }
        Self { world }
    }

    fn trust(&self, names: &[&str]) {
        let line = |name: &&str| {
            let key = fs_err::read_to_string(self.world.root.path().join(format!("{name}.pub"))).expect("a key");
            format!("{name}@example.com {key}")
        };
        self.world.write("keys/allowed_signers", &names.iter().map(line).collect::<String>());
    }

    fn commit(&self, by: Option<&str>) -> berth_registry::Report {
        git(&self.world.registry(), &["add", "-A"]);
        match by {
            Some(name) => {
                let key = format!("user.signingkey={}", self.world.root.path().join(name).display());
                let config = ["-c", "gpg.format=ssh", "-c", &key];
                git(
                    &self.world.registry(),
                    &[&config[..], &["commit", "-q", "-S", "--allow-empty", "-m", name]].concat(),
                );
            }
            None => drop(self.world.commit("unsigned")),
        }
        let head = git(&self.world.registry(), &["rev-parse", "HEAD"]);
        self.world.validate_commit(berth_git::Oid::parse(&head).expect("a commit"))
    }
}

#[test]
fn only_those_who_were_trusted_before_may_change_who_is() {
    let registry = Signing::new();
    assert!(registry.commit(None).is_accepted());
    registry.trust(&["ada"]);
    registry.world.write("registry.yaml", "signatures: {required: true, allowedSigners: keys/allowed_signers}\n");
    let report = registry.commit(None);
    assert!(!report.is_accepted() && told(&report).contains("is not signed"), "{}", told(&report));
    let report = registry.commit(Some("ada"));
    let signer = report.signer.clone().expect("who signed it");
    assert!(signer.name == "ada@example.com" && signer.key.starts_with("SHA256:"), "{signer:?}");
    assert_eq!(report.desired.and_then(|desired| desired.signer), Some(signer));
    // Eve adds her own key, or switches it off: she is not among those who may.
    registry.trust(&["ada", "eve"]);
    let report = registry.commit(Some("eve"));
    assert!(!report.is_accepted() && told(&report).contains("not trusted"), "{}", told(&report));
    registry.world.write("registry.yaml", "signatures: {required: false}\n");
    assert!(!registry.commit(None).is_accepted());
    // A good commit on top does not wash those before it.
    let report = registry.commit(Some("ada"));
    assert_eq!(report.errors().count(), 2, "{}", told(&report));
}

const SECRETS: &str = "workers/secrets/worker-a-secrets.yaml";

#[test]
fn a_secret_in_the_clear_is_refused_and_not_repeated() {
    let world = World::new();
    world.write(
        SECRETS,
        "worker_id: worker-a\nsecrets:\n  s3_access:\n    type: s3_credentials\n    access_key_id: AKIACANARY\n    \
         secret_access_key: hunter2canary\n    region: us-east-1\n",
    );
    let report = world.validate();
    assert_eq!(report.outcome, Outcome::InvalidWorkerConfig);
    let told = told(&report) + &berth_registry::render::text(&report, berth_registry::render::Colours::Off);
    assert!(told.contains(&format!("--> {SECRETS}:6:")), "{told}");
    assert!(!told.to_lowercase().contains("canary"), "{told}");
    assert!(!berth_registry::render::json(&report).to_string().to_lowercase().contains("canary"));
}

#[test]
fn a_worker_configuration_may_say_what_vault_has() {
    let world = World::new();
    let vault = "secrets:\n  backend: vault\n  vault_addr: https://vault.example.com\n  paths:\n    s3_credentials: secret/workers/a/s3\n";
    world.write("workers/worker-a.yaml", &format!("{WORKER}{vault}"));
    let report = world.validate();
    let desired = report.desired.clone().unwrap_or_else(|| panic!("{}", told(&report)));
    assert_eq!(report.problems, [], "{}", told(&report));
    let [file] = desired.secret_files.as_slice() else { panic!("{:?}", desired.secret_files) };
    assert_eq!((file.worker.as_str(), file.path.as_str()), ("worker-a", "workers/worker-a.yaml"));
    assert!(matches!(berth_secrets::Contents::parse(&file.text, &file.path), Ok(berth_secrets::Contents::Vault(..))));
    assert_eq!(berth_registry::vault_of_worker(&file.path, &format!("{WORKER}{vault}")).as_ref(), Some(file));
    // In two places only one could count.
    world.write(SECRETS, &format!("worker_id: worker-a\n{vault}"));
    let report = world.validate();
    assert!(!report.is_accepted() && told(&report).contains("needs from Vault, too"), "{}", told(&report));
    world.remove(SECRETS);
    world
        .write("workers/worker-a.yaml", &format!("{WORKER}{}", vault.replace("vault_addr: https", "vault_adr: https")));
    let report = world.validate();
    assert_eq!(report.outcome, Outcome::InvalidWorkerConfig);
    assert!(report.errors().all(|problem| problem.path.starts_with("secrets")), "{}", told(&report));
    // What is no reference to Vault is a secret.
    for plain in ["{git: {type: git_token, token: hunter2canary}}", "hunter2canary", "[hunter2canary]"] {
        world.write("workers/worker-a.yaml", &format!("{WORKER}secrets: {plain}\n"));
        let report = world.validate();
        assert_eq!(report.outcome, Outcome::InvalidWorkerConfig, "{plain}");
        assert!(told(&report).contains("holds no secrets") && !told(&report).contains("canary"), "{}", told(&report));
    }
}

#[test]
fn secrets_are_handed_on_as_they_are() {
    let world = World::new();
    let text = "worker_id: worker-a\nsecrets:\n  backend: vault\n  vault_addr: https://vault.example.com\n  paths:\n    s3_credentials: secret/workers/a/s3\n";
    world.write(SECRETS, text);
    let report = world.validate();
    let desired = report.desired.clone().unwrap_or_else(|| panic!("{}", told(&report)));
    let files: Vec<(&str, &str)> = desired.secret_files.iter().map(|f| (f.worker.as_str(), &*f.text)).collect();
    assert_eq!(files, [("worker-a", text)]);
    // Of a worker that is not declared.
    world.remove(SECRETS);
    world.write("workers/secrets/worker-b-secrets.yaml", &text.replace("worker-a", "worker-b"));
    let report = world.validate();
    assert!(
        report.is_accepted() && told(&report).contains("worker-b has secrets, but no configuration"),
        "{}",
        told(&report)
    );
}

#[test]
fn fields_that_do_nothing_yet_are_refused() {
    for field in ["deployment_strategy: canary", "canary_percentage: 5", "ab_test: enabled", "auto_scaling: enabled"] {
        for text in [format!("{field}\nenabled: true"), "enabled: true".to_owned()] {
            let world = World::new();
            let manifest = world.manifest("iris-prod", "v1.2.3").replace("enabled: true", &text);
            let inside = format!("replicas: 1\n  {field}");
            let manifest = if text == "enabled: true" { manifest.replace("replicas: 1", &inside) } else { manifest };
            world.write("models/production/iris-prod.yaml", &manifest);
            let report = world.validate();
            assert_eq!(report.outcome, Outcome::InvalidDeploymentManifest, "{field}: {}", told(&report));
            assert!(told(&report).contains("is not supported"), "{field}: {}", told(&report));
        }
    }
    // Any other field is a warning still, and one of these names elsewhere is nobody's mistake.
    let world = World::new();
    let manifest =
        world.manifest("iris-prod", "v1.2.3").replace("metadata:", "colour: red\nmetadata:\n  variants: two");
    world.write("models/production/iris-prod.yaml", &manifest);
    let report = world.validate();
    assert!(report.is_accepted() && told(&report).contains("colour is not a field"), "{}", told(&report));
}
