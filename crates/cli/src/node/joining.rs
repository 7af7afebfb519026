//! The first certificate of a node that has a join token.

use std::path::Path;

use berth_peer::{
    joining,
    pki::{Enrolment, JoinToken},
};
use berth_spec::WorkerId;
use fs_err as fs;

use super::settings::NodeArgs;
use crate::{commands, failure::Failure};

/// Asks the cluster for a certificate, unless the node has one from an earlier start, and lets the node use it.
///
/// # Errors
/// The token is not one, no controller gives a certificate, or it cannot be kept.
pub(super) fn certify(args: &mut NodeArgs) -> Result<(), Failure> {
    let Some((file, folder)) = args.joins() else { return Ok(()) };
    if let Some(enrolment) = Enrolment::begin(&folder)? {
        let token: JoinToken =
            read(file)?.parse().map_err(|error| Failure::Usage(format!("{}: {error}", file.display())))?;
        let name = args.wanted_name().cloned().map_or_else(own_name, Ok)?;
        let issued = commands::block_on(async {
            let issued = joining::join(&token, &name, enrolment.request()).await;
            issued.map_err(|error| Failure::Failed(error.to_string()))
        })?;
        enrolment.finish(&issued)?;
    }
    let members = Enrolment::members(&folder);
    args.take_certificate(folder, &members);
    Ok(())
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
