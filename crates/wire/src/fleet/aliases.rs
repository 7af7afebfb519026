//! The routes of aliases.

use berth_spec::{
    DeploymentName,
    routes::{AliasRoute, Stickiness},
};

use super::v1;

/// At least as many bytes as the route takes.
pub(super) fn bound(route: &AliasRoute) -> usize {
    let targets: usize = route.targets.iter().map(|(name, _)| name.as_str().len() + 16).sum();
    let sticky = match &route.sticky {
        Stickiness::None | Stickiness::Client => 0,
        Stickiness::Header(text) | Stickiness::Field(text) => text.len(),
    };
    32 + route.name.as_str().len() + targets + sticky
}

pub(super) fn to(route: AliasRoute) -> v1::AliasRoute {
    let (by, property) = match route.sticky {
        Stickiness::None => (v1::Sticky::Not, String::new()),
        Stickiness::Client => (v1::Sticky::Client, String::new()),
        Stickiness::Header(header) => (v1::Sticky::Header, header),
        Stickiness::Field(field) => (v1::Sticky::Field, field),
    };
    let target = |(name, weight): (DeploymentName, u32)| v1::AliasTarget { deployment: name.to_string(), weight };
    v1::AliasRoute {
        name: route.name.to_string(),
        targets: route.targets.into_iter().map(target).collect(),
        sticky: by.into(),
        property,
    }
}

/// `None`: a name in it cannot be understood.
pub(super) fn of(route: v1::AliasRoute) -> Option<AliasRoute> {
    let sticky = match v1::Sticky::try_from(route.sticky) {
        Ok(v1::Sticky::Client) => Stickiness::Client,
        Ok(v1::Sticky::Header) => Stickiness::Header(route.property),
        Ok(v1::Sticky::Field) => Stickiness::Field(route.property),
        // Whatever a later version means: requests are answered all the same.
        Ok(v1::Sticky::Not) | Err(_) => Stickiness::None,
    };
    let target = |target: v1::AliasTarget| Some((DeploymentName::new(&target.deployment).ok()?, target.weight));
    let targets = route.targets.into_iter().map(target).collect::<Option<_>>()?;
    Some(AliasRoute { name: DeploymentName::new(&route.name).ok()?, targets, sticky })
}
