//! Converts the controller's answers to the stable shapes of [`berth_wire::api`]. Pure; one function per shape.

mod decision;
mod deployment;
mod fleet;

pub(crate) use decision::{applied, deleted, event, explanation, plan};
pub(crate) use deployment::{deployment, gone, phase};
pub(crate) use fleet::{alias, memory, replica, revision, worker};

use berth_wire::api::{API_VERSION, Kind};

/// `apiVersion` and `kind` of a shape.
fn head<T: Kind>() -> (String, String) {
    (API_VERSION.to_owned(), T::KIND.to_owned())
}
