//! Copies of the leader's artifacts on the other controllers, so that whoever leads next builds nothing: what to copy, and what to keep.
//! Pure.
//!
//! ```text
//! leader: GET /functions-artifacts                ──▶ Listing ──┐
//!         GET /functions-artifacts/DIGEST               a ZIP   ├── decide ──▶ Copies { parts, used }
//!         GET /functions-artifacts/DIGEST/sbom.json     (…)     │
//! here:   what the store holds, and what is deployed ───────────┘
//! ```
//! A copy counts once its digest is right ([`Arrival`](super::Arrival)); what is not in use goes as on the leader
//! ([`ArtifactStore::sweep`](super::ArtifactStore::sweep)).

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{artifacts::MAX_ARTIFACT_BYTES, documents::Document};
use crate::status::ArtifactStatus;

/// Path of the leader's listing on the peer port.
pub const LISTING: &str = "/functions-artifacts";

/// Artifacts of the functions that the leader knows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Listing {
    /// System and processor of the leader: libraries in its artifacts run on such machines alone.
    pub platform: String,
    /// Artifacts in use.
    pub artifacts: Vec<Listed>,
}

/// An artifact in use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Listed {
    /// `sha256:…` of the ZIP file.
    pub digest: String,
    /// Its bytes; `None`: the leader does not have it.
    pub size: Option<u64>,
    /// Endings of the documents beside it.
    pub documents: Vec<String>,
}

/// An artifact that this node has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LocalArtifact {
    /// Bytes of the ZIP file.
    pub size: u64,
    /// The documents beside it.
    pub documents: Vec<Document>,
}

/// Something to copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CopyItem {
    /// The ZIP file of an artifact, without the documents beside it.
    Zip(ArtifactStatus),
    /// A document beside the artifact of this digest.
    Document(String, Document),
}

impl CopyItem {
    /// Path on the peer port of the leader.
    #[must_use]
    pub fn path(&self) -> String {
        match self {
            Self::Zip(artifact) => format!("{LISTING}/{}", artifact.digest),
            Self::Document(digest, document) => format!("{LISTING}/{digest}/{}", document.ending()),
        }
    }
}

/// Decision about the copies of a node.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Copies {
    /// Parts to copy, one after another: small artifacts first, each before its documents.
    pub parts: Vec<CopyItem>,
    /// Digests of artifacts in use, which a clean-up leaves alone.
    pub used: BTreeSet<String>,
}

/// System and processor of this machine.
#[must_use]
pub fn platform() -> String {
    format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH)
}

/// Decides about the copies of a node that has `here`, and has `deployed` these digests itself. `platform`: its own.
#[must_use]
pub fn decide(
    listing: &Listing,
    platform: &str,
    here: &BTreeMap<String, LocalArtifact>,
    deployed: BTreeSet<String>,
) -> Copies {
    let mut copies = Copies { parts: Vec::new(), used: deployed };
    copies.used.extend(listing.artifacts.iter().map(|listed| listed.digest.clone()));
    if listing.platform != platform {
        return copies;
    }
    let offered = listing.artifacts.iter().filter(|listed| is_digest(&listed.digest));
    // A map: nothing is copied twice, and the small ones come first.
    let offered: BTreeMap<(u64, &str), &Listed> = offered
        .filter_map(|listed| {
            Some(((listed.size.filter(|size| *size <= MAX_ARTIFACT_BYTES)?, listed.digest.as_str()), listed))
        })
        .collect();
    for ((size, digest), listed) in offered {
        let held = here.get(digest).filter(|held| held.size == size);
        if held.is_none() {
            copies.parts.push(CopyItem::Zip(ArtifactStatus { digest: digest.to_owned(), size }));
        }
        let has = |document: Document| held.is_some_and(|held| held.documents.contains(&document));
        let lacking = Document::ALL
            .into_iter()
            .filter(|document| listed.documents.iter().any(|ending| ending == document.ending()) && !has(*document));
        copies.parts.extend(lacking.map(|document| CopyItem::Document(digest.to_owned(), document)));
    }
    copies
}

/// True of the text of a digest, which names a file.
pub(super) fn is_digest(text: &str) -> bool {
    let digits = text.strip_prefix("sha256:").unwrap_or_default();
    digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(digit: u8) -> String {
        format!("sha256:{digit:064}")
    }

    fn listed(digit: u8, size: Option<u64>, documents: &[&str]) -> Listed {
        let documents = documents.iter().map(|ending| (*ending).to_owned()).collect();
        Listed { digest: digest(digit), size, documents }
    }

    fn held(digit: u8, size: u64, documents: &[Document]) -> (String, LocalArtifact) {
        (digest(digit), LocalArtifact { size, documents: documents.to_vec() })
    }

    fn zip(digit: u8, size: u64) -> CopyItem {
        CopyItem::Zip(ArtifactStatus { digest: digest(digit), size })
    }

    #[test]
    fn a_node_copies_what_it_lacks_and_keeps_what_is_in_use() {
        let sbom = |digit| CopyItem::Document(digest(digit), Document::Sbom);
        let foreign = Listed { digest: "../../etc/passwd".to_owned(), size: Some(1), documents: vec![] };
        let cases = [
            ("nothing is there", vec![], vec![], vec![], vec![]),
            ("all of it", vec![listed(1, Some(7), &["sbom.json"])], vec![], vec![zip(1, 7), sbom(1)], vec![1]),
            ("it is here", vec![listed(1, Some(7), &[])], vec![held(1, 7, &[])], vec![], vec![1]),
            (
                "a document is not",
                vec![listed(1, Some(7), &["sbom.json"])],
                vec![held(1, 7, &[])],
                vec![sbom(1)],
                vec![1],
            ),
            ("half of it is", vec![listed(1, Some(7), &[])], vec![held(1, 3, &[])], vec![zip(1, 7)], vec![1]),
            ("the leader lacks it", vec![listed(1, None, &[])], vec![], vec![], vec![1]),
            (
                "the small one first",
                vec![listed(1, Some(9), &[]), listed(2, Some(7), &[])],
                vec![],
                vec![zip(2, 7), zip(1, 9)],
                vec![1, 2],
            ),
            (
                "twice the same",
                vec![listed(1, Some(7), &[]), listed(1, Some(7), &[])],
                vec![],
                vec![zip(1, 7)],
                vec![1],
            ),
            ("too large", vec![listed(1, Some(MAX_ARTIFACT_BYTES + 1), &[])], vec![], vec![], vec![1]),
            ("unknown documents", vec![listed(1, Some(7), &["../x"])], vec![], vec![zip(1, 7)], vec![1]),
            ("others are idle", vec![], vec![held(3, 7, &[Document::Sbom])], vec![], vec![]),
        ];
        for (case, artifacts, here, parts, used) in cases {
            let listing = Listing { platform: "linux/x86_64".to_owned(), artifacts };
            let used: BTreeSet<String> = used.into_iter().map(digest).collect();
            let copies = decide(&listing, "linux/x86_64", &here.into_iter().collect(), BTreeSet::new());
            assert_eq!(copies, Copies { parts, used }, "{case}");
        }
        let listing = Listing { platform: "linux/x86_64".to_owned(), artifacts: vec![foreign] };
        let copies = decide(&listing, "linux/x86_64", &BTreeMap::new(), BTreeSet::new());
        assert!(copies.parts.is_empty(), "a digest names a file: {copies:?}");
    }

    #[test]
    fn libraries_for_other_machines_are_not_copied_and_what_is_deployed_stays() {
        let listing = Listing { platform: "linux/aarch64".to_owned(), artifacts: vec![listed(1, Some(7), &[])] };
        let copies = decide(&listing, "linux/x86_64", &BTreeMap::new(), BTreeSet::from([digest(4)]));
        assert_eq!(copies, Copies { parts: vec![], used: BTreeSet::from([digest(1), digest(4)]) });
    }

    #[test]
    fn paths_name_digests_and_documents() {
        assert_eq!(zip(1, 7).path(), format!("/functions-artifacts/{}", digest(1)));
        let lock = CopyItem::Document(digest(1), Document::Lock);
        assert_eq!(lock.path(), format!("/functions-artifacts/{}/lock", digest(1)));
    }

    #[test]
    fn listings_of_other_versions_are_read() {
        let text = r#"{"platform": "linux/x86_64", "more": 1, "artifacts": [{"digest": "sha256:1", "age": 2}]}"#;
        let listing: Listing = serde_json::from_str(text).expect("a listing");
        assert_eq!((listing.artifacts[0].size, listing.artifacts[0].digest.as_str()), (None, "sha256:1"));
    }
}
