//! One run of a session, through the C interface of ONNX Runtime.
//!
//! The safe wrapper of `ort` takes `&mut Session` and builds type information, allocator handles and names anew for each
//! run; this needs neither: `Run` may be called from many threads at once on the CPU provider (ONNX Runtime's own
//! promise), and names are made once. Everything unsafe of the engine is in this file.
#![expect(unsafe_code, reason = "calls the C interface of ONNX Runtime; each block says why it is sound")]

use std::{
    ffi::{CStr, CString, c_char, c_void},
    ptr::{self, NonNull},
};

use berth_spec::{Datatype, InferError, Signature, Tensor, tensor::BytesElements, tensor::element_count};
use bytes::{BufMut, Bytes, BytesMut};
use ort::{
    AsPointer,
    memory::{AllocationDevice, Allocator, AllocatorType, MemoryInfo, MemoryType},
    session::Session,
    sys,
};

use super::watchdog::Runs;
use crate::runtime::batch::{Engine, StopCondition, View};

/// A session with what its runs need.
pub(super) struct Call {
    session: Session,
    memory: MemoryInfo<'static>,
    input_names: Vec<CString>,
    /// Inputs that may be left out.
    optional: Vec<(CString, String)>,
    outputs: Vec<(CString, String)>,
    /// The sizes of the inputs decide how long a run takes.
    bounded: bool,
    runs: Runs,
}

/// Turns a status of the C interface into a result, and frees it.
fn check(status: sys::OrtStatusPtr) -> ort::Result<()> {
    // SAFETY: every status that is passed here came from a call of the interface and is passed once.
    unsafe { ort::Error::result_from_status(status) }
}

/// Calls a function of the C interface that gives a status.
macro_rules! api {
    ($function:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: see the comment above each use; pointers are valid for the call and of the kind that is asked for.
        check(unsafe { (ort::api().$function)($($argument),*) })
    };
}

impl Call {
    /// Prepares the runs of `session`, whose signature is `signature`. `bounded`: the sizes of the inputs decide how long
    /// a run takes.
    pub(super) fn new(session: Session, signature: &Signature, bounded: bool) -> ort::Result<Self> {
        let name = |name: &str| CString::new(name).map_err(|_| ort::Error::new("a tensor's name contains NUL"));
        let memory = MemoryInfo::new(AllocationDevice::CPU, 0, AllocatorType::Device, MemoryType::Default)?;
        let input_names = signature.inputs.iter().map(|spec| name(&spec.name)).collect::<ort::Result<_>>()?;
        let optional = signature.optional.iter();
        let optional = optional.map(|spec| Ok((name(&spec.name)?, spec.name.clone()))).collect::<ort::Result<_>>()?;
        let outputs = signature.outputs.iter();
        let outputs = outputs.map(|spec| Ok((name(&spec.name)?, spec.name.clone()))).collect::<ort::Result<_>>()?;
        Ok(Self { session, memory, input_names, optional, outputs, bounded, runs: Runs::new() })
    }

    fn call(&self, inputs: &[View<'_>], outputs: &[usize], stop: &StopCondition) -> Result<Vec<Tensor>, InferError> {
        let values = inputs.iter().map(|input| self.value(input)).collect::<Result<Vec<Value<'_>>, InferError>>()?;
        let value_pointers: Vec<*const sys::OrtValue> =
            values.iter().map(|value| value.raw.as_ptr().cast_const()).collect();
        let mut input_names: Vec<*const c_char> = self.input_names.iter().map(|name| name.as_ptr()).collect();
        let more = inputs.get(input_names.len()..).unwrap_or_default().iter();
        let more = more.filter_map(|input| self.optional.iter().find(|(_, name)| name == input.name));
        input_names.extend(more.map(|(name, _)| name.as_ptr()));
        if input_names.len() != values.len() || outputs.iter().any(|&index| index >= self.outputs.len()) {
            return Err(InferError::Internal("a run does not match the model's signature".to_owned()));
        }
        let output_names: Vec<*const c_char> = outputs.iter().map(|&index| self.outputs[index].0.as_ptr()).collect();
        let mut raw: Vec<*mut sys::OrtValue> = vec![ptr::null_mut(); outputs.len()];
        let watched = self.runs.begin(stop).map_err(|error| internal(&error))?;
        let watched = watched.ok_or_else(|| InferError::Model("the model is being unloaded".to_owned()))?;
        // All arrays have the lengths that are given, names are NUL-terminated, and `values` and the options outlive the
        // call.
        let ran = api!(Run(
            self.session.ptr().cast_mut(),
            watched.options(),
            input_names.as_ptr(),
            value_pointers.as_ptr(),
            values.len(),
            output_names.as_ptr(),
            outputs.len(),
            raw.as_mut_ptr(),
        ));
        // Owned from here on, so that they are freed whatever happens.
        let results: Vec<Option<Value<'_>>> = raw.into_iter().map(|raw| NonNull::new(raw).map(Value::owned)).collect();
        let stopped = watched.end();
        ran.map_err(|error| if stopped { self.stopped() } else { model_failed(&error) })?;
        let results = results.into_iter().zip(outputs);
        results
            .map(|(value, &index)| {
                let name = &self.outputs[index].1;
                let value = value.ok_or_else(|| InferError::Model(format!("output {name:?} was not computed")))?;
                value.read(name)
            })
            .collect()
    }

    fn stopped(&self) -> InferError {
        if self.runs.have_ended() {
            return InferError::Model("the model was unloaded while it ran this request".to_owned());
        }
        InferError::TimedOut("the deadline passed while the model ran, and the run was stopped".to_owned())
    }

    /// A value over `input`, without copying unless it is text or lies badly.
    fn value<'a>(&self, input: &View<'a>) -> Result<Value<'a>, InferError> {
        let Some(size) = input.datatype.size() else { return text_value(input) };
        let needed = element_count(input.shape).and_then(|n| n.checked_mul(size));
        if needed != Some(input.data.len()) {
            return Err(InferError::Internal("a tensor's data does not fit its shape".to_owned()));
        }
        let misplaced = input.data.as_ptr().align_offset(size) != 0;
        // Room to move the start to an aligned place.
        let copy: Option<Box<[u64]>> = misplaced.then(|| {
            let words = input.data.chunks(8).map(|chunk| {
                let mut word = [0; 8];
                word[..chunk.len()].copy_from_slice(chunk);
                u64::from_ne_bytes(word)
            });
            words.collect()
        });
        let start: *const u8 = copy.as_ref().map_or(input.data.as_ptr(), |copy| copy.as_ptr().cast());
        let mut raw = ptr::null_mut();
        // `start` has `data.len()` bytes, aligned for the datatype, and they live as long as the value: borrowed for 'a,
        // or owned by it. ONNX Runtime does not write to the inputs of a run.
        api!(CreateTensorWithDataAsOrtValue(
            self.memory.ptr(),
            start.cast_mut().cast::<c_void>(),
            input.data.len(),
            input.shape.as_ptr(),
            input.shape.len(),
            element_type(input.datatype),
            &raw mut raw,
        ))
        .map_err(|error| internal(&error))?;
        let raw = NonNull::new(raw).ok_or_else(|| InferError::Internal("no value was made".to_owned()))?;
        Ok(Value { raw, _copy: copy, _data: std::marker::PhantomData })
    }
}

impl Engine for Call {
    fn run(&self, inputs: &[View<'_>], outputs: &[usize], stop: &StopCondition) -> Result<Vec<Tensor>, InferError> {
        self.call(inputs, outputs, stop)
    }

    fn is_bounded(&self) -> bool {
        self.bounded
    }

    fn end(&self) {
        self.runs.end();
    }
}

/// A value of ONNX Runtime that is released when dropped.
struct Value<'a> {
    raw: NonNull<sys::OrtValue>,
    /// The elements, where they had to be copied.
    _copy: Option<Box<[u64]>>,
    /// The elements, where they are borrowed.
    _data: std::marker::PhantomData<&'a [u8]>,
}

impl Drop for Value<'_> {
    fn drop(&mut self) {
        // SAFETY: the value is owned and released once.
        unsafe { (ort::api().ReleaseValue)(self.raw.as_ptr()) };
    }
}

impl Value<'static> {
    fn owned(raw: NonNull<sys::OrtValue>) -> Self {
        Self { raw, _copy: None, _data: std::marker::PhantomData }
    }
}

impl Value<'_> {
    /// Copies the value out.
    fn read(&self, name: &str) -> Result<Tensor, InferError> {
        let (mut element, mut shape, mut rank) = (0_i32, ptr::null::<i64>(), 0_usize);
        // The element type is read as a number: a newer library may have types that the enum lacks.
        api!(GetTensorElementTypeAndShapeDataReference(
            self.raw.as_ptr(),
            (&raw mut element).cast(),
            &raw mut shape,
            &raw mut rank,
        ))
        .map_err(|error| internal(&error))?;
        // SAFETY: the reference that was got has `rank` dimensions and lives as long as the value.
        let shape = if rank == 0 { Vec::new() } else { unsafe { std::slice::from_raw_parts(shape, rank) }.to_vec() };
        let datatype = datatype(element).ok_or_else(|| {
            InferError::Model(format!("output {name:?} has element type {element}, which has no name"))
        })?;
        let elements = element_count(&shape);
        let Some(elements) = elements else {
            return Err(InferError::Model(format!("output {name:?} has the impossible shape {shape:?}")));
        };
        let data = match datatype.size() {
            Some(size) => self.read_numbers(elements * size)?,
            None => self.read_text(elements)?,
        };
        Ok(Tensor { name: name.to_owned(), datatype, shape, data })
    }

    fn read_numbers(&self, length: usize) -> Result<Bytes, InferError> {
        let mut start = ptr::null_mut();
        // The value is a tensor of numbers.
        api!(GetTensorMutableData(self.raw.as_ptr(), &raw mut start)).map_err(|error| internal(&error))?;
        if length == 0 || start.is_null() {
            return Ok(Bytes::new());
        }
        // SAFETY: the tensor has `length` bytes, on the CPU, that nobody writes to.
        Ok(Bytes::copy_from_slice(unsafe { std::slice::from_raw_parts(start.cast::<u8>(), length) }))
    }

    /// Strings, in the wire form of BYTES.
    fn read_text(&self, elements: usize) -> Result<Bytes, InferError> {
        let mut length = 0;
        // The value is a tensor of strings.
        api!(GetStringTensorDataLength(self.raw.as_ptr(), &raw mut length)).map_err(|error| internal(&error))?;
        let (mut content, mut starts) = (vec![0_u8; length], vec![0_usize; elements]);
        if elements > 0 {
            // Both buffers have the lengths that are given.
            api!(GetStringTensorContent(
                self.raw.as_ptr(),
                content.as_mut_ptr().cast::<c_void>(),
                length,
                starts.as_mut_ptr(),
                elements,
            ))
            .map_err(|error| internal(&error))?;
        }
        let mut data = BytesMut::with_capacity(length + 4 * elements);
        for (index, &start) in starts.iter().enumerate() {
            let text = &content[start..starts.get(index + 1).copied().unwrap_or(length)];
            let prefix = u32::try_from(text.len());
            data.put_u32_le(prefix.map_err(|_| InferError::Model("a string of 4 GiB or more".to_owned()))?);
            data.put_slice(text);
        }
        Ok(data.freeze())
    }
}

/// A tensor of strings, copied from the wire form of BYTES.
fn text_value<'a>(input: &View<'a>) -> Result<Value<'a>, InferError> {
    let allocator = Allocator::default();
    let mut raw = ptr::null_mut();
    // The shape has `shape.len()` dimensions; the default allocator is ONNX Runtime's and is never freed.
    api!(CreateTensorAsOrtValue(
        allocator.ptr().cast_mut(),
        input.shape.as_ptr(),
        input.shape.len(),
        sys::ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING,
        &raw mut raw,
    ))
    .map_err(|error| internal(&error))?;
    let raw = NonNull::new(raw).ok_or_else(|| InferError::Internal("no value was made".to_owned()))?;
    let value = Value::owned(raw);
    let count = element_count(input.shape).unwrap_or(0);
    let mut filled = 0;
    for (index, element) in BytesElements::new(input.data).flatten().take(count).enumerate() {
        let mut buffer = ptr::null_mut();
        // `index` is within the tensor.
        api!(GetResizedStringTensorElementBuffer(raw.as_ptr(), index, element.len(), &raw mut buffer))
            .map_err(|error| internal(&error))?;
        if !element.is_empty() {
            // SAFETY: the buffer was just made to hold `element.len()` bytes.
            unsafe { ptr::copy_nonoverlapping(element.as_ptr(), buffer.cast::<u8>(), element.len()) };
        }
        filled += 1;
    }
    if filled != count {
        return Err(InferError::Internal("a tensor's data does not fit its shape".to_owned()));
    }
    Ok(value)
}

/// The execution providers that the loaded library was built with, e.g. `cpu`, `cuda`.
pub(super) fn providers() -> Vec<String> {
    let (mut names, mut count) = (ptr::null_mut::<*mut c_char>(), 0);
    // The library allocates the array, and frees it below.
    if api!(GetAvailableProviders(&raw mut names, &raw mut count)).is_err() || names.is_null() {
        return vec!["cpu".to_owned()];
    }
    let found = (0..usize::try_from(count).unwrap_or(0)).map(|index| {
        // SAFETY: the array has `count` NUL-terminated names.
        let name = unsafe { CStr::from_ptr(*names.add(index)) }.to_string_lossy().into_owned();
        name.strip_suffix("ExecutionProvider").unwrap_or(&name).to_lowercase()
    });
    let found = found.collect();
    // The array came from `GetAvailableProviders` and is not used again. It cannot fail on such an array.
    let _ = api!(ReleaseAvailableProviders(names, count));
    found
}

/// Each element type of ONNX that the protocol has a name for.
const ELEMENT_TYPES: [(sys::ONNXTensorElementDataType, Datatype); 14] = {
    use sys::ONNXTensorElementDataType as Onnx;
    [
        (Onnx::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, Datatype::Fp32),
        (Onnx::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, Datatype::Int64),
        (Onnx::ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING, Datatype::Bytes),
        (Onnx::ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL, Datatype::Bool),
        (Onnx::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, Datatype::Int32),
        (Onnx::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8, Datatype::Uint8),
        (Onnx::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8, Datatype::Int8),
        (Onnx::ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE, Datatype::Fp64),
        (Onnx::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16, Datatype::Fp16),
        (Onnx::ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16, Datatype::Bf16),
        (Onnx::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16, Datatype::Uint16),
        (Onnx::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16, Datatype::Int16),
        (Onnx::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32, Datatype::Uint32),
        (Onnx::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64, Datatype::Uint64),
    ]
};

fn element_type(datatype: Datatype) -> sys::ONNXTensorElementDataType {
    let found = ELEMENT_TYPES.iter().find(|(_, name)| *name == datatype);
    found.expect("the table has every datatype").0
}

fn datatype(element: i32) -> Option<Datatype> {
    ELEMENT_TYPES.iter().find(|(onnx, _)| *onnx as i32 == element).map(|&(_, name)| name)
}

fn internal(error: &ort::Error) -> InferError {
    InferError::Internal(format!("onnxruntime: {}", error.message()))
}

/// The model's own failure, without the boilerplate of the engine.
fn model_failed(error: &ort::Error) -> InferError {
    let message = error.message();
    let message = message.strip_prefix("Non-zero status code returned while running ").unwrap_or(message);
    InferError::Model(format!("the model failed on this request: {}", message.trim()))
}
