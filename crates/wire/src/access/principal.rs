//! Principals: somebody who asks, with the roles that they have and where.

use std::{fmt, sync::Arc};

use berth_spec::{NameKey, UseLimits};
use serde::{Deserialize, Serialize};

use super::{Action, Role};

/// The thing that an action is about.
#[derive(Debug, Clone, Copy)]
pub enum Resource<'a> {
    /// The whole server, or all namespaces.
    Server,
    /// Something that the request names later: the role is checked now, the place then.
    Somewhere,
    /// Everything in a namespace, or a function of it: a role that is limited to models does not hold for functions.
    Namespace(&'a str),
    /// A model, or a deployment or alias of this name.
    Model(NameKey<'a>),
}

/// A role, and where it holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Role that is granted.
    pub role: Role,
    /// Namespaces; empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<String>,
    /// Patterns of model names, with `*` for any text; empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
}

impl Grant {
    /// A role without limits.
    #[must_use]
    pub const fn everywhere(role: Role) -> Self {
        Self { role, namespaces: Vec::new(), models: Vec::new() }
    }

    fn covers(&self, resource: Resource<'_>) -> bool {
        let inside = |namespace: &str| self.namespaces.is_empty() || self.namespaces.iter().any(|own| own == namespace);
        match resource {
            Resource::Server => self.namespaces.is_empty() && self.models.is_empty(),
            Resource::Somewhere => true,
            Resource::Namespace(namespace) => inside(namespace) && self.models.is_empty(),
            Resource::Model(key) => {
                inside(key.namespace)
                    && (self.models.is_empty() || self.models.iter().any(|pattern| matches(pattern, key.name)))
            }
        }
    }
}

/// Compares a name with a pattern, in which `*` is any text.
pub(super) fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = name.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut last = None;
    for part in parts {
        if let Some(between) = last.replace(part) {
            let Some(at) = rest.find(between) else { return false };
            rest = &rest[at + between.len()..];
        }
    }
    match last {
        None => rest.is_empty(),
        Some(end) => rest.ends_with(end),
    }
}

/// Somebody who asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Principal {
    /// Name in logs and in the audit: `token:ID`, `certificate:DNS:NAME`, `oidc:SUBJECT`.
    pub name: Arc<str>,
    /// Roles of the principal.
    pub grants: Vec<Grant>,
    /// Limits of its own on what it uses at the inference port; `None`: those for everybody. They do not go along to other nodes.
    #[serde(skip)]
    pub limits: Option<UseLimits>,
    /// End of the token that it showed, in seconds since the Unix epoch; `None`: it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<u64>,
}

impl Principal {
    /// A principal with these roles, without limits of its own and without an end.
    #[must_use]
    pub fn of(name: &str, grants: Vec<Grant>) -> Self {
        Self { name: name.into(), grants, limits: None, expires: None }
    }

    /// Decides whether the principal may do something.
    ///
    /// # Errors
    /// [`Denied`]: no role of it allows that, or not there.
    pub fn may(&self, action: Action, resource: Resource<'_>) -> Result<(), Denied> {
        if action.is_public() || self.grants.iter().any(|grant| action.allows(grant.role) && grant.covers(resource)) {
            return Ok(());
        }
        let elsewhere = self.grants.iter().any(|grant| action.allows(grant.role));
        let mut roles: Vec<&str> = self.grants.iter().map(|grant| grant.role.as_str()).collect();
        roles.dedup();
        let (needed, by) = (action.roles().unwrap_or_default(), self.name.clone());
        let place = match resource {
            Resource::Server => Some("in all namespaces, for all models".to_owned()),
            Resource::Somewhere => None,
            Resource::Namespace(namespace) => Some(format!("in namespace {namespace:?}")),
            Resource::Model(key) => Some(format!("in namespace {:?} for {:?}", key.namespace, key.name)),
        };
        Err(Denied { action, needed, place: place.filter(|_| elsewhere), has: roles.join(", "), by })
    }
}

/// Refusal of an action.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Denied {
    /// Action that was refused.
    pub action: Action,
    /// Roles that may do it.
    pub needed: &'static [Role],
    /// The place where the principal lacks the role, if it has it elsewhere.
    pub place: Option<String>,
    has: String,
    by: Arc<str>,
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let needed: Vec<&str> = self.needed.iter().map(|role| role.as_str()).collect();
        let needed = match needed.split_last() {
            Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
            _ => needed.concat(),
        };
        write!(f, "this needs the role {needed}")?;
        match &self.place {
            Some(place) => write!(f, " {place}; {} has {} elsewhere", self.by, self.has),
            None => write!(f, "; {} has {}", self.by, if self.has.is_empty() { "none" } else { &self.has }),
        }
    }
}

/// Origin of a request: a principal, or anybody on a server that asks for no token. Travels among the extensions of a
/// request.
#[derive(Debug, Clone, Default)]
pub struct Asker(pub Option<Arc<Principal>>);

impl Asker {
    /// Anybody, on a server that asks for no token.
    pub const OPEN: Self = Self(None);

    /// As [`Principal::may`].
    ///
    /// # Errors
    /// [`Denied`].
    pub fn may(&self, action: Action, resource: Resource<'_>) -> Result<(), Denied> {
        self.0.as_ref().map_or(Ok(()), |principal| principal.may(action, resource))
    }

    /// True if everything that may be known of an answer may be told: the asker of a server without tokens.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.0.is_none()
    }

    /// Name in logs and in the audit.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.as_ref().map_or("anybody", |principal| &principal.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn principal(role: Role, namespaces: &[&str], models: &[&str]) -> Principal {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        Principal::of("token:x", vec![Grant { role, namespaces: owned(namespaces), models: owned(models) }])
    }

    #[test]
    fn patterns() {
        for (pattern, name, expected) in [
            ("fraud-*", "fraud-1", true),
            ("fraud-*", "fraud-", true),
            ("fraud-*", "fraud", false),
            ("*", "", true),
            ("*-eu", "a-eu", true),
            ("*-eu", "a-eu-", false),
            ("a*b*c", "axxbyyc", true),
            ("a*b*c", "axxcyyb", false),
            ("a*a", "a", false),
            ("iris", "iris", true),
            ("iris", "iris2", false),
            ("**", "x", true),
            ("", "x", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    proptest::proptest! {
        #[test]
        fn a_pattern_matches_as_one_that_tries_everything(pattern in "[ab*]{0,8}", name in "[ab]{0,8}") {
            fn naive(pattern: &[u8], name: &[u8]) -> bool {
                match (pattern.split_first(), name.split_first()) {
                    (None, None) => true,
                    (Some((b'*', rest)), _) => naive(rest, name) || (!name.is_empty() && naive(pattern, &name[1..])),
                    (Some((p, pattern)), Some((n, name))) => p == n && naive(pattern, name),
                    _ => false,
                }
            }
            proptest::prop_assert_eq!(matches(&pattern, &name), naive(pattern.as_bytes(), name.as_bytes()));
        }
    }

    #[test]
    fn a_role_holds_where_it_was_given() {
        let model = |namespace, name| Resource::Model(NameKey { namespace, name });
        let caller = principal(Role::Caller, &["bank"], &["fraud-*"]);
        for (action, resource, allowed) in [
            (Action::Infer, model("bank", "fraud-1"), true),
            (Action::Infer, model("bank", "iris"), false),
            (Action::Infer, model("default", "fraud-1"), false),
            (Action::Infer, Resource::Somewhere, true),
            (Action::ReadModels, Resource::Namespace("bank"), false),
            (Action::Declare, model("bank", "fraud-1"), false),
            (Action::Probe, Resource::Server, true),
        ] {
            assert_eq!(caller.may(action, resource).is_ok(), allowed, "{action:?} {resource:?}");
        }
        let admin = principal(Role::Admin, &["bank"], &[]);
        assert!(admin.may(Action::Declare, model("bank", "x")).is_ok());
        assert!(admin.may(Action::Declare, model("shop", "x")).is_err());
        assert!(admin.may(Action::ManageTokens, Resource::Server).is_err(), "an admin of a namespace makes no tokens");
        assert!(principal(Role::Admin, &[], &[]).may(Action::ManageTokens, Resource::Server).is_ok());
    }

    #[test]
    fn a_refusal_names_the_role_that_would_be_needed() {
        let told = principal(Role::Viewer, &[], &[]).may(Action::Declare, Resource::Somewhere).expect_err("a viewer");
        assert_eq!(told.to_string(), "this needs the role deployer or admin; token:x has viewer");
        let told = principal(Role::Deployer, &["a"], &[]).may(Action::Declare, Resource::Namespace("b"));
        let told = told.expect_err("another namespace").to_string();
        assert_eq!(told, "this needs the role deployer or admin in namespace \"b\"; token:x has deployer elsewhere");
    }
}
