//! The brain with a Vault that answers at once, hour by hour in no time.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use berth_secrets::vault::{Call, Declared, Effect, Event, Reply, UnrevokedLease, Vault, VaultRequest, VaultSecrets};
use berth_spec::{Credential, Time, WorkerId, manifest::node::Node};
use serde_json::{Value, json};

use super::fake::{FakeVault, Request, Terms};

const ADDR: &str = "https://vault.acme.com";
const BEGIN: u64 = 1_000_000;

pub(crate) fn declared(paths: &Value) -> Declared {
    declared_at(ADDR, paths)
}

pub(crate) fn declared_at(addr: &str, paths: &Value) -> Declared {
    let secrets = json!({"backend": "vault", "vault_addr": addr, "paths": paths});
    Declared::parse(&Node::of(&secrets), "worker.yaml", "secrets").expect("a declaration")
}

fn worker(name: &str) -> WorkerId {
    WorkerId::new(name).expect("a name")
}

const DYNAMIC: &str = "aws/creds/reader";

fn dynamic() -> Value {
    json!({"s3": {"type": "s3_credentials", "path": DYNAMIC, "region": "us-east-1"}})
}

/// As the driver would put it.
fn request(call: &Call) -> Request {
    let (method, path, body) = match &call.ask {
        VaultRequest::LogIn => ("POST", "auth/approle/login", json!({"role_id": "role", "secret_id": "secret-id"})),
        VaultRequest::RenewToken => ("PUT", "auth/token/renew-self", json!({})),
        VaultRequest::LookUpToken => ("GET", "auth/token/lookup-self", Value::Null),
        VaultRequest::Read(path) => ("GET", path.as_str(), Value::Null),
        VaultRequest::Renew { lease, increment } => {
            ("PUT", "sys/leases/renew", json!({"lease_id": lease, "increment": increment.as_secs()}))
        }
        VaultRequest::Revoke(lease) => ("PUT", "sys/leases/revoke", json!({"lease_id": lease})),
        VaultRequest::RevokeToken => ("PUT", "auth/token/revoke-self", json!({})),
    };
    Request {
        method: method.to_owned(),
        path: path.to_owned(),
        token: call.token.as_ref().map(|token| token.expose().to_owned()),
        namespace: call.namespace.clone(),
        worker: call.worker.clone(),
        body,
    }
}

struct World {
    now: Time,
    brain: Vault,
    vault: FakeVault,
    found: VaultSecrets,
    /// Nobody answers while it is set.
    unplugged: bool,
    /// Answers are kept back while it is set.
    slow: Option<Vec<Call>>,
    most_in_flight: usize,
    stopped: bool,
    /// Leases that live to their end.
    left: Vec<UnrevokedLease>,
    /// Looked at after each step.
    law: fn(&World),
}

impl World {
    fn new() -> Self {
        Self {
            now: Time(BEGIN * 1_000_000_000),
            brain: Vault::new(ADDR.parse().expect("a URL"), None, 7),
            vault: FakeVault::new(),
            found: VaultSecrets::default(),
            unplugged: false,
            slow: None,
            most_in_flight: 0,
            stopped: false,
            left: Vec::new(),
            law: |_| {},
        }
    }

    fn seconds(&self) -> u64 {
        self.now.0 / 1_000_000_000
    }

    fn want(&mut self, all: &[(&str, Declared)]) {
        let all: BTreeMap<WorkerId, Declared> =
            all.iter().map(|(name, declared)| (worker(name), declared.clone())).collect();
        self.tell(Event::Wanted(all));
    }

    /// Tells an event and answers every call that follows.
    fn tell(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let mut in_flight = events.len();
            for effect in self.brain.on(event, self.now) {
                match effect {
                    Effect::Call(call) => {
                        in_flight += 1;
                        match &mut self.slow {
                            Some(kept) => kept.push(call),
                            None => events.push_back(self.answered(&call)),
                        }
                    }
                    Effect::VaultSecrets(found) => self.found = found,
                    Effect::UnrevokedLease(left) => self.left.push(left),
                    Effect::Stopped => self.stopped = true,
                }
            }
            self.most_in_flight = self.most_in_flight.max(in_flight);
            (self.law)(self);
        }
    }

    fn answered(&mut self, call: &Call) -> Event {
        let reply = if self.unplugged {
            Err("connection refused".to_owned())
        } else {
            let (status, body) = self.vault.answer(&request(call), self.seconds());
            Ok(Reply { status, body: body.to_string().into_bytes().into() })
        };
        Event::Answered { call: call.id, reply }
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        let mut steps = 0;
        while let Some(wake) = self.brain.wake_at().filter(|wake| *wake <= end) {
            self.now = self.now.max(wake);
            self.tell(Event::Tick);
            steps += 1;
            assert!(steps < 100_000, "it wakes without end");
        }
        self.now = end;
    }

    fn key_of(&self, name: &str) -> Option<String> {
        let granted = self.found.secrets.get(&worker(name))?.values().next()?;
        match &granted.credential {
            Credential::S3(s3) => Some(s3.access_key_id.expose().to_owned()),
            Credential::Git(git) => Some(format!("{:?}", git.scopes)),
            _ => None,
        }
    }

    fn problem(&self) -> String {
        self.found.status.iter().filter_map(|status| status.problem.clone()).collect::<Vec<_>>().join("; ")
    }
}

fn minutes(minutes: u64) -> Duration {
    Duration::from_secs(minutes * 60)
}

fn with_kv() -> World {
    let mut world = World::new();
    world.vault.kv.insert("workers/a/git".to_owned(), json!({"token": "t-SECRET", "scopes": "repo:read, x"}));
    world
}

fn kv() -> Declared {
    declared(&json!({"git_token": "secret/workers/a/git"}))
}

#[test]
fn what_is_stored_is_read_every_five_minutes_and_changes_are_seen() {
    let mut world = with_kv();
    world.want(&[("a", kv())]);
    assert_eq!(world.key_of("a").as_deref(), Some("[\"repo:read\", \"x\"]"));
    assert!(!format!("{:?}", world.found).contains("SECRET"));
    let line = &world.vault.audit[1];
    assert_eq!(
        (line.path.as_str(), line.worker.as_deref()),
        ("secret/data/workers/a/git", Some("a")),
        "the audit log says for whom"
    );
    world.pass(minutes(60));
    let reads = world.vault.asked("secret/data/workers/a/git");
    assert!((11..=14).contains(&reads), "{reads} reads in an hour");
    assert_eq!(world.vault.asked("auth/approle/login"), 1, "the token was renewed");
    world.vault.kv.insert("workers/a/git".to_owned(), json!({"token": "new", "scopes": "changed"}));
    world.pass(minutes(6));
    assert_eq!(world.key_of("a").as_deref(), Some("[\"changed\"]"));
}

/// A lease of an hour that lives four at most, for two days: there is always a good credential, and old ones are revoked.
#[test]
fn leases_are_renewed_then_replaced_without_a_gap() {
    let mut world = World::new();
    world.want(&[("a", declared(&dynamic()))]);
    world.law = |world| {
        let granted = &world.found.secrets[&worker("a")]["s3"];
        assert!(granted.expires.is_some_and(|expires| expires > world.now), "it has ended");
        let held = world.found.status[0].held_by.clone();
        assert!(
            world.vault.leases.get(&held).is_some_and(|lease| lease.until >= world.seconds()),
            "{held} is not there"
        );
        assert!(world.vault.leases.len() <= 2, "{:?}", world.vault.leases.keys());
    };
    world.pass(minutes(48 * 60));
    let reads = world.vault.asked(DYNAMIC);
    assert!((12..=18).contains(&reads), "{reads} credentials in two days");
    assert!(world.vault.asked("sys/leases/renew") > 48 * 2, "renewed about every quarter of an hour");
    assert_eq!(world.vault.asked("sys/leases/revoke"), reads - 1, "each that was replaced");
}

#[test]
fn what_cannot_be_renewed_is_read_anew_near_its_end() {
    let mut world = World::new();
    world.vault.lease_terms = Terms { ttl: 600, most: 600, renewable: false };
    world.want(&[("a", declared(&dynamic()))]);
    world.pass(minutes(120));
    let reads: Vec<u64> = world.vault.audit.iter().filter(|line| line.path == DYNAMIC).map(|line| line.at).collect();
    assert!(reads.windows(2).all(|pair| (509..=571).contains(&(pair[1] - pair[0]))), "{reads:?}");
    assert_eq!(world.vault.asked("sys/leases/renew"), 0);
}

/// A token ends for good after an hour, and takes its leases with it: a new one comes before, and so do new leases.
#[test]
fn a_token_is_replaced_in_time_and_its_leases_with_it() {
    for renewable in [true, false] {
        let mut world = World::new();
        world.vault.token_terms = Terms { ttl: 1200, most: 3600, renewable };
        world.want(&[("a", declared(&dynamic())), ("b", declared(&dynamic()))]);
        world.law = |world| {
            for held in world.found.status.iter().map(|status| &status.held_by) {
                assert!(world.vault.leases.contains_key(held), "{held} ended with its token");
            }
        };
        world.pass(minutes(24 * 60));
        let logins = world.vault.asked("auth/approle/login");
        assert!(
            if renewable { (24..=40).contains(&logins) } else { (70..=90).contains(&logins) },
            "{logins} logins in a day"
        );
        assert!(world.vault.audit.iter().all(|line| line.status < 300), "nothing was refused");
    }
}

#[test]
fn a_lease_that_may_not_be_revoked_is_told() {
    let mut world = World::new();
    world.vault.may_revoke = false;
    world.want(&[("a", declared(&dynamic()))]);
    let lease = world.found.status[0].held_by.clone();
    world.want(&[]);
    assert_eq!(world.left.len(), 1, "{:?}", world.left);
    assert_eq!((world.left[0].lease.as_str(), world.left[0].worker.as_str()), (lease.as_str(), "a"));
    assert!(world.left[0].problem.contains("sys/leases/revoke"), "{:?}", world.left);
}

#[test]
fn what_is_left_at_the_end_is_told_where_nobody_answers() {
    let mut world = World::new();
    world.want(&[("a", declared(&dynamic()))]);
    world.unplugged = true;
    world.tell(Event::Stop);
    assert!(world.stopped && world.left.len() == 1, "{:?}", world.left);
    assert!(world.left[0].problem.contains("connection refused"), "{:?}", world.left);
}

/// Declared in another namespace while it was read: what comes late is revoked where it was made.
#[test]
fn what_comes_late_is_revoked_in_its_own_namespace() {
    let mut world = World::new();
    let of = |namespace: &str| Declared { namespace: Some(namespace.to_owned()), ..declared(&dynamic()) };
    world.want(&[("b", kv())]);
    world.slow = Some(Vec::new());
    world.want(&[("a", of("one"))]);
    world.vault.namespace = Some("one".to_owned());
    let read = world.slow.take().expect("kept back").pop().expect("a read");
    world.want(&[("a", of("two"))]);
    world.slow = Some(Vec::new());
    let answered = world.answered(&read);
    world.tell(answered);
    let late = world.slow.take().expect("kept back");
    let revoke = late.iter().find(|call| matches!(call.ask, VaultRequest::Revoke(_))).expect("a revocation");
    assert_eq!(revoke.namespace.as_deref(), Some("one"));
}

#[test]
fn a_sealed_vault_is_left_alone_and_found_again() {
    let mut world = with_kv();
    world.want(&[("a", kv())]);
    world.vault.sealed = true;
    let before = world.vault.audit.len();
    world.pass(minutes(30));
    let asked = world.vault.audit.len() - before;
    assert!((10..=60).contains(&asked), "{asked} calls to a sealed Vault");
    assert!(world.problem().contains("sealed"), "{}", world.problem());
    assert!(world.found.outage.as_ref().is_some_and(|outage| outage.failures > 3 && outage.until > world.now));
    assert!(world.key_of("a").is_some(), "what is stored stays good");
    world.vault.sealed = false;
    world.pass(minutes(2));
    assert_eq!(world.found.outage, None);
    assert_eq!(world.problem(), "");
}

#[test]
fn a_lease_that_ends_while_nobody_answers_is_taken_away_and_comes_back() {
    let mut world = World::new();
    world.want(&[("a", declared(&dynamic()))]);
    world.unplugged = true;
    world.pass(minutes(59));
    assert!(world.key_of("a").is_some(), "it is good to its end");
    world.pass(minutes(2));
    assert_eq!(world.key_of("a"), None);
    assert!(world.problem().contains("lease has ended"), "{}", world.problem());
    world.unplugged = false;
    world.pass(minutes(2));
    assert!(world.key_of("a").is_some());
    assert_eq!(world.problem(), "");
}

#[test]
fn what_the_policy_forbids_is_told_and_troubles_nothing_else() {
    let mut world = with_kv();
    world.want(&[("a", kv()), ("b", declared(&json!({"git_token": "kv/other"})))]);
    world.pass(minutes(60));
    assert!(world.key_of("a").is_some());
    assert!(world.problem().contains("kv/data/other"), "{}", world.problem());
    assert_eq!(world.vault.asked("auth/approle/login"), 1, "the token is not to blame");
    let tried = world.vault.asked("kv/data/other");
    assert!((60..=150).contains(&tried), "{tried} tries in an hour");
    world.vault.policy.insert("kv/data/".to_owned());
    world.pass(minutes(2));
    assert!(world.problem().contains("nothing at kv/other"), "{}", world.problem());
}

#[test]
fn a_token_that_somebody_revoked_is_replaced() {
    let mut world = World::new();
    world.want(&[("a", declared(&dynamic()))]);
    world.pass(minutes(5));
    let before = world.key_of("a");
    world.vault.revoke_all_tokens();
    world.pass(minutes(20));
    assert_eq!(world.vault.asked("auth/approle/login"), 2);
    assert!(world.key_of("a").is_some() && world.key_of("a") != before, "the old one went with its token");
    assert_eq!(world.problem(), "");
}

#[test]
fn a_refused_login_is_told_and_tried_ever_more_rarely() {
    let mut world = with_kv();
    let ids = std::mem::take(&mut world.vault.secret_ids);
    world.want(&[("a", kv())]);
    world.pass(minutes(30));
    assert!(world.problem().contains("invalid role or secret ID"), "{}", world.problem());
    let logins = world.vault.asked("auth/approle/login");
    assert!((30..=70).contains(&logins), "{logins} logins in half an hour");
    world.vault.secret_ids = ids;
    world.pass(minutes(2));
    assert!(world.key_of("a").is_some());
    assert_eq!(world.problem(), "");
}

#[test]
fn who_goes_and_the_end_revoke() {
    let mut world = World::new();
    world.want(&[("a", declared(&dynamic())), ("b", declared(&dynamic()))]);
    assert_eq!(world.vault.leases.len(), 2);
    world.want(&[("b", declared(&dynamic()))]);
    assert_eq!(world.vault.leases.len(), 1);
    assert_eq!(world.key_of("a"), None);
    world.tell(Event::Stop);
    assert!(world.stopped && world.vault.leases.is_empty());
    assert_eq!(world.vault.tokens(), 0);
    assert_eq!(world.brain.wake_at(), None);

    // Where nobody answers it ends as well.
    let mut world = World::new();
    world.want(&[("a", declared(&dynamic()))]);
    world.unplugged = true;
    world.tell(Event::Stop);
    assert!(world.stopped);
    // And where nothing was begun.
    let mut world = World::new();
    world.tell(Event::Stop);
    assert!(world.stopped);
}

/// An answer that comes when its secret is declared otherwise, gone, or we are stopping: nobody gets it, its lease ends.
#[test]
fn late_answers_are_not_taken_and_their_leases_end() {
    let another = json!({"s3": {"type": "s3_credentials", "path": "aws/creds/other", "region": "x"}});
    let ways: [fn(&mut World, Declared); 3] =
        [|world, other| world.want(&[("a", other)]), |world, _| world.want(&[]), |world, _| world.tell(Event::Stop)];
    for (way, left) in ways.into_iter().zip([1, 0, 0]) {
        let mut world = World::new();
        world.slow = Some(Vec::new());
        world.want(&[("a", declared(&dynamic()))]);
        // The login, then the read, which is kept back.
        let login = world.slow.take().and_then(|mut kept| kept.pop()).expect("a login");
        world.slow = Some(Vec::new());
        let event = world.answered(&login);
        world.tell(event);
        let read = world.slow.take().and_then(|mut kept| kept.pop()).expect("a read");
        let late = world.answered(&read);
        assert_eq!(world.vault.leases.len(), 1);
        way(&mut world, declared(&another));
        world.tell(late);
        assert_eq!(world.vault.leases.len(), left, "{:?}", world.vault.leases.keys());
        assert!(world.vault.leases.keys().all(|lease| lease.contains("other")));
    }
}

#[test]
fn only_the_vault_of_our_role_is_asked() {
    let mut world = World::new();
    world.want(&[("a", declared_at("https://evil.com", &dynamic()))]);
    world.pass(minutes(60));
    assert_eq!(world.vault.asked(DYNAMIC), 0);
    assert!(world.problem().contains("https://evil.com/"), "{}", world.problem());
}

#[test]
fn a_thousand_workers_ask_a_few_at_a_time() {
    let mut world = World::new();
    let all: Vec<(String, Declared)> = (0..1000).map(|n| (format!("w{n}"), declared(&dynamic()))).collect();
    let all: Vec<(&str, Declared)> = all.iter().map(|(name, declared)| (name.as_str(), declared.clone())).collect();
    world.want(&all);
    assert_eq!(world.vault.leases.len(), 1000);
    assert!(world.most_in_flight <= 8, "{} calls at once", world.most_in_flight);
}

#[test]
fn what_cannot_be_used_is_told_without_its_value() {
    for (data, says) in [
        (json!({"token": "hush", "owner": "hush"}), "owner"),
        (json!({"tokne": "hush"}), "tokne"),
        (json!({"token": ["hush"]}), "not text"),
        (json!({"token": "hush\n"}), "end of a line"),
        (json!({}), "lacks its token"),
    ] {
        let mut world = World::new();
        world.vault.kv.insert("workers/a/git".to_owned(), data.clone());
        world.want(&[("a", kv())]);
        let problem = world.problem();
        assert!(problem.contains(says) && !problem.contains("hush"), "{data}: {problem}");
    }
}
