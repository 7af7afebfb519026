//! The model card inside a manifest.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::PinnedCard;

/// A model card as it stands in a manifest. Its schema belongs to the registry, so one that cannot be read is kept with
/// the reason, to be reported at its place.
#[derive(Debug, Clone, PartialEq)]
pub enum RawCard {
    /// Pinned to its commits.
    Pinned(Arc<PinnedCard>),
    /// Not a pinned card, and why.
    Unreadable(String),
}

impl RawCard {
    /// The card, if it can be read.
    #[must_use]
    pub fn pinned(&self) -> Option<Arc<PinnedCard>> {
        match self {
            Self::Pinned(card) => Some(Arc::clone(card)),
            Self::Unreadable(_) => None,
        }
    }
}

impl<'de> Deserialize<'de> for RawCard {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written = serde_json::Value::deserialize(deserializer)?;
        Ok(match PinnedCard::deserialize(&written) {
            Ok(card) => Self::Pinned(Arc::new(card)),
            Err(error) => Self::Unreadable(error.to_string()),
        })
    }
}

impl Serialize for RawCard {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Pinned(card) => card.serialize(serializer),
            Self::Unreadable(_) => serializer.serialize_none(),
        }
    }
}
