//! A function, for people.

use std::sync::Arc;

use berth_control::store::Rev;

use super::{compact_object::CompactObject, function::Function};
use crate::{deployment::ObjectMeta, status::Status};

/// A function, for people.
#[derive(Debug)]
pub struct View<'a> {
    /// Its key: its name in the written form, where it is a name.
    pub name: &'a str,
    /// Its spec as JSON text; empty where there is none.
    pub text: &'a Arc<str>,
    /// Labels, annotations, owner.
    pub metadata: &'a ObjectMeta,
    /// Its status.
    pub status: &'a Arc<Status>,
    /// Number of the desired state.
    pub generation: i64,
    /// Revision of the store at which the object was written.
    pub rev: Rev,
}

impl Function {
    pub(super) fn view<'a>(&'a self, name: &'a str) -> View<'a> {
        let CompactObject { text, metadata, rev, .. } = &self.declared;
        View { name, text, metadata, status: &self.status, generation: self.number, rev: *rev }
    }
}
