//! Names of revisions, digests and signatures, which several messages hold.

use berth_spec::{DeploymentName, Digest, RevisionId, Signature, TensorSpec};
use bytes::Bytes;

use super::v1;

pub(super) fn name_to(id: &RevisionId) -> v1::RevisionName {
    v1::RevisionName { deployment: id.deployment().to_string(), hash: hash_to(id) }
}

pub(super) fn name_of(name: v1::RevisionName) -> Option<RevisionId> {
    Some(RevisionId::with_hash(DeploymentName::new(&name.deployment).ok()?, hash_of(&name.hash)?))
}

pub(super) fn hash_to(id: &RevisionId) -> Bytes {
    Bytes::copy_from_slice(&id.hash_bytes())
}

pub(super) fn hash_of(hash: &[u8]) -> Option<[u8; 6]> {
    hash.try_into().ok()
}

pub(super) fn digest_to(digest: Option<Digest>) -> Bytes {
    digest.map_or_else(Bytes::new, |digest| Bytes::copy_from_slice(&digest.0))
}

pub(super) fn digest_of(digest: &[u8]) -> Option<Digest> {
    digest.try_into().ok().map(Digest)
}

pub(super) fn signature_to(signature: &Signature) -> v1::Signature {
    let tensors = |tensors: &[TensorSpec]| {
        let tensor = |tensor: &TensorSpec| v1::TensorSpec {
            name: tensor.name.clone(),
            datatype: tensor.datatype.as_str().to_owned(),
            shape: tensor.shape.clone(),
        };
        tensors.iter().map(tensor).collect()
    };
    v1::Signature { inputs: tensors(&signature.inputs), outputs: tensors(&signature.outputs) }
}

/// `None`: a tensor has a datatype that this version does not know.
pub(super) fn signature_of(signature: v1::Signature) -> Option<Signature> {
    let tensors = |tensors: Vec<v1::TensorSpec>| -> Option<Vec<TensorSpec>> {
        let tensor = |tensor: v1::TensorSpec| {
            let datatype = tensor.datatype.parse().ok()?;
            Some(TensorSpec { name: tensor.name, datatype, shape: tensor.shape })
        };
        tensors.into_iter().map(tensor).collect()
    };
    Some(Signature { inputs: tensors(signature.inputs)?, outputs: tensors(signature.outputs)?, ..Signature::default() })
}

/// Durations are nanoseconds on the wire; longer ones than 584 years are as good as that.
pub(super) fn nanos(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
