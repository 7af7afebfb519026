//! Tensors that arrive as bytes, and the body that is one such tensor and nothing else.

use berth_spec::{Datatype, InferError, Signature, Tensor, TensorSpec, tensor::element_count};
use bytes::Bytes;

use super::Decoded;

/// A tensor from bytes out of a request. Besides what [`Tensor::new`] checks, every BOOL must be 0 or 1.
pub(super) fn tensor(name: String, datatype: Datatype, shape: Vec<i64>, data: Bytes) -> Result<Tensor, InferError> {
    if datatype == Datatype::Bool && data.iter().any(|&byte| byte > 1) {
        return Err(InferError::Invalid(format!("input {name:?}: every byte of a BOOL tensor must be 0 or 1")));
    }
    Tensor::new(name, datatype, shape, data).map_err(|error| InferError::Invalid(error.to_string()))
}

/// A raw binary request (header 0): the body is the one input of the model, its shape follows from the signature and
/// the size, and every output comes back binary. The body for BYTES is one element, without a length before it.
pub(super) fn decode(body: &Bytes, signature: &Signature) -> Result<Decoded, InferError> {
    let [input] = signature.inputs.as_slice() else {
        return Err(InferError::Invalid(format!(
            "a raw binary request needs a model with one input, this one has {}: send the binary tensor extension's JSON part",
            signature.inputs.len()
        )));
    };
    let data = if input.datatype == Datatype::Bytes { with_length(body)? } else { body.clone() };
    let shape = infer_shape(input, data.len())?;
    let mut decoded = Decoded::default();
    decoded.request.inputs.push(tensor(input.name.clone(), input.datatype, shape, data)?);
    decoded.form.binary = true;
    Ok(decoded)
}

/// One BYTES element in its wire form.
fn with_length(body: &Bytes) -> Result<Bytes, InferError> {
    let length = u32::try_from(body.len())
        .map_err(|_| InferError::TooLarge("an element of BYTES has at most 2^32-1 bytes".to_owned()))?;
    Ok([&length.to_le_bytes(), body.as_ref()].concat().into())
}

/// The shape that `bytes` bytes have. A variable first dimension besides another variable one is the batch, and is 1.
fn infer_shape(input: &TensorSpec, bytes: usize) -> Result<Vec<i64>, InferError> {
    let invalid =
        |what: String| InferError::Invalid(format!("input {:?} of shape {:?}: {what}", input.name, input.shape));
    let mut shape = input.shape.clone();
    let variable = |shape: &[i64]| shape.iter().filter(|&&dimension| dimension < 0).count();
    let Some(size) = input.datatype.size() else {
        shape.iter_mut().filter(|dimension| **dimension < 0).for_each(|dimension| *dimension = 1);
        return match element_count(&shape) {
            Some(1) => Ok(shape),
            _ => Err(invalid("a raw binary request carries one element of BYTES".to_owned())),
        };
    };
    if variable(&shape) > 1 && shape[0] < 0 {
        shape[0] = 1;
    }
    if variable(&shape) > 1 {
        return Err(invalid("a raw binary request can leave one dimension open".to_owned()));
    }
    let Some(open) = shape.iter().position(|&dimension| dimension < 0) else { return Ok(shape) };
    shape[open] = 1;
    let unit = element_count(&shape).and_then(|elements| elements.checked_mul(size)).filter(|&unit| unit > 0);
    shape[open] = match unit {
        Some(unit) if bytes.is_multiple_of(unit) => i64::try_from(bytes / unit).unwrap_or(i64::MAX),
        _ => return Err(invalid(format!("{bytes} bytes are not a whole number of rows"))),
    };
    Ok(shape)
}
