//! The first certificate of a node that has a join token, or the token of its pod.

use std::path::Path;

use berth_peer::{
    joining,
    pki::{Enrolment, JoinToken},
};
use berth_spec::{Roles, WorkerId};
use fs_err as fs;

use super::settings::{NodeArgs, Proof, has_joined};
use crate::{commands, failure::Failure};

/// Lets the node use the certificate of an earlier start; where there is none, asks the cluster for one with its token.
///
/// # Errors
/// The token is not one, no controller gives a certificate, or it cannot be kept.
pub(super) fn certify(args: &mut NodeArgs) -> Result<(), Failure> {
    let Some(folder) = args.joins() else { return Ok(()) };
    match args.proof() {
        Some(proof) => join(args, proof, &folder)?,
        None if has_joined(&folder) => {}
        None => return Ok(()),
    }
    let members = Enrolment::members(&folder);
    args.take_certificate(folder, &members);
    Ok(())
}

/// Asks the cluster for a certificate, unless the folder has one. The token's file is read only then: it may be gone later.
fn join(args: &NodeArgs, proof: Proof<'_>, folder: &Path) -> Result<(), Failure> {
    let Some(enrolment) = Enrolment::begin(folder)? else { return Ok(()) };
    let token = match proof {
        Proof::PodToken(file) => args.pod_token(file)?,
        Proof::JoinToken(file) => {
            let token: JoinToken =
                read(file)?.parse().map_err(|error| Failure::Usage(format!("{}: {error}", file.display())))?;
            check_roles(args.roles(), token.roles, file)?;
            token
        }
    };
    let name = args.wanted_name().cloned().map_or_else(own_name, Ok)?;
    let issued = commands::block_on(async {
        let issued = joining::join(&token, &name, enrolment.request()).await;
        issued.map_err(|error| Failure::Failed(error.to_string()))
    })?;
    Ok(enrolment.finish(&issued)?)
}

/// Checks that the token gives the roles that the node says: a certificate without them would use it up for nothing.
fn check_roles(said: Roles, given: Option<Roles>, file: &Path) -> Result<(), Failure> {
    match given {
        Some(given) if !given.contain(said) => Err(Failure::Usage(format!(
            "--roles says {said}, the join token in {} is for {given}: say --roles {given}, or make another with \
             `berth join-token create --roles {said}`",
            file.display()
        ))),
        _ => Ok(()),
    }
}

fn read(file: &Path) -> Result<String, Failure> {
    fs::read_to_string(file).map_err(|error| Failure::Usage(format!("--join-token: {error}")))
}

/// The machine's name, for a node that is given none.
fn own_name() -> Result<WorkerId, Failure> {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    WorkerId::new(&name).map_err(|error| {
        Failure::Usage(format!("this machine's name {name:?} cannot be the name of a node ({error}): say --name"))
    })
}

#[cfg(test)]
mod tests {
    use berth_peer::pki::{CA, GOSSIP_KEY, NODE, NODE_KEY};
    use clap::Parser;

    use super::*;
    use crate::node::settings::NodeSettings;

    #[derive(Parser)]
    struct TestArgs {
        #[command(flatten)]
        args: NodeArgs,
    }

    /// The folder of the certificate, and members that a node gossips with at first.
    fn started(words: &str, data: &Path) -> Result<(String, usize), String> {
        let words = words.replace("DATA", &data.display().to_string());
        let words = std::iter::once("node").chain(words.split_whitespace());
        let mut args = TestArgs::try_parse_from(words).map_err(|error| error.to_string())?.args;
        certify(&mut args).map_err(|error| error.to_string())?;
        let certified = |_: &Path| Ok((WorkerId::new("a").expect("a name"), Roles::ALL));
        let settings = NodeSettings::new(args, certified).map_err(|error| error.to_string())?;
        let cluster = settings.cluster.expect("a cluster");
        let folder = cluster.pki.strip_prefix(data).unwrap_or(&cluster.pki).display().to_string();
        Ok((folder, cluster.join.len()))
    }

    #[test]
    fn a_token_for_other_roles_is_not_used_up() {
        let data = tempfile::tempdir().expect("a folder");
        let worker = Roles { worker: true, ..Roles::NONE };
        // Nobody listens there: a node that asks waits for some seconds, and says so.
        let at = vec!["127.0.0.1:1".to_owned()];
        let token = JoinToken { secret: "s".to_owned(), ca: "ab".to_owned(), at, roles: Some(worker) };
        fs::write(data.path().join("join.token"), token.text()).expect("written");
        let words = "--data DATA --name b --store etcd://localhost --join-token DATA/join.token";
        let error = started(words, data.path()).expect_err("it is for workers");
        for part in ["--roles says controller,", "is for worker: say --roles worker", "join-token create"] {
            assert!(error.contains(part), "{part}: {error}");
        }
        let file = Path::new("join.token");
        assert!(check_roles(worker, Some(Roles::ALL), file).is_ok());
        assert!(check_roles(worker, None, file).is_ok(), "one of an earlier version does not say");
    }

    #[test]
    fn a_pod_that_joined_keeps_its_certificate_where_it_says() {
        let data = tempfile::tempdir().expect("a folder");
        let (data, pki) = (data.path(), data.path().join("memory/pod-1"));
        let words = "--data DATA --store etcd://localhost --pki DATA/memory/pod-1 --pod-token DATA/gone";
        let error = started(words, data).expect_err("it does not say whom to ask");
        assert!(error.contains("--join-ca"), "{error}");
        for file in [NODE_KEY, CA, GOSSIP_KEY, NODE] {
            fs::write(pki.join(file), "").expect("written");
        }
        assert_eq!(started(words, data), Ok(("memory/pod-1".to_owned(), 0)), "a token is needed once");
    }

    #[test]
    fn a_node_that_joined_needs_its_token_no_more() {
        let data = tempfile::tempdir().expect("a folder");
        let (data, pki) = (data.path(), data.path().join("pki"));
        let words = "--data DATA --store etcd://localhost";
        fs::create_dir(&pki).expect("a folder");
        let kept = Ok(("pki".to_owned(), 1));
        for file in [NODE_KEY, CA, GOSSIP_KEY, NODE] {
            let error = started(words, data).expect_err("it is not complete");
            assert!(error.contains("a node needs a certificate"), "{file} is missing: {error}");
            fs::write(pki.join(file), "").expect("written");
            fs::write(pki.join("members"), "10.0.0.1:7946").expect("written");
        }
        assert_eq!(started(words, data), kept);
        assert_eq!(started(&format!("{words} --join-token DATA/gone"), data), kept);
        let elsewhere = started(&format!("{words} --pki elsewhere"), data);
        assert_eq!(elsewhere, Ok(("elsewhere".to_owned(), 0)), "a flag comes first");
    }
}
