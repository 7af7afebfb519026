//! A model's configuration in Triton's words, as far as it means something here.

use berth_spec::{Datatype, Signature, TensorSpec};
use berth_wire::oip;
use serde::Serialize;

use crate::local::Batching;

/// The body of `GET /v2/models/{m}[/versions/{v}]/config`.
#[derive(Debug, Clone, Serialize)]
pub struct ModelConfig<'a> {
    name: &'a str,
    platform: &'a str,
    backend: &'a str,
    max_batch_size: i32,
    input: Vec<Io<'a>>,
    output: Vec<Io<'a>>,
    instance_group: [Instances<'a>; 1],
    #[serde(skip_serializing_if = "Option::is_none")]
    dynamic_batching: Option<DynamicBatching>,
}

#[derive(Debug, Clone, Serialize)]
struct Io<'a> {
    name: &'a str,
    data_type: &'static str,
    dims: &'a [i64],
    /// True if it may be left out.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    optional: bool,
    #[serde(skip)]
    datatype: Datatype,
}

#[derive(Debug, Clone, Serialize)]
struct Instances<'a> {
    name: &'a str,
    kind: &'static str,
    count: i32,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct DynamicBatching {
    max_queue_delay_microseconds: u64,
    /// None: the parameter `priority` of a request has no effect.
    priority_levels: u32,
}

impl<'a> ModelConfig<'a> {
    /// Of a model that is batched like this.
    ///
    /// Triton's `dims` leave the batch dimension out when `max_batch_size` is above 0. That can be said only of a model
    /// whose every tensor has a variable first dimension; any other is described whole, with `max_batch_size` 0.
    #[must_use]
    pub fn new(name: &'a str, platform: &'a str, signature: &'a Signature, batching: Batching) -> Self {
        let tensors = || signature.inputs.iter().chain(&signature.outputs);
        let batched = batching.max_rows > 1 && tensors().all(|tensor| tensor.shape.first() == Some(&-1));
        let io = |specs: &'a [TensorSpec]| specs.iter().map(|spec| Io::new(spec, batched)).collect::<Vec<_>>();
        Self {
            name,
            platform,
            backend: platform.split('_').next().unwrap_or(platform),
            max_batch_size: if batched { i32::try_from(batching.max_rows).unwrap_or(i32::MAX) } else { 0 },
            input: [io(&signature.inputs), signature.optional.iter().map(Io::optional).collect()].concat(),
            output: io(&signature.outputs),
            instance_group: [Instances { name, kind: "KIND_CPU", count: 1 }],
            dynamic_batching: batched.then(|| DynamicBatching {
                max_queue_delay_microseconds: u64::try_from(batching.max_delay.as_micros()).unwrap_or(u64::MAX),
                priority_levels: 0,
            }),
        }
    }

    /// The same as the message of `ModelConfig` over gRPC.
    #[must_use]
    pub fn to_proto(&self) -> oip::ModelConfigResponse {
        use oip::model_config::SchedulingChoice;
        let batching = self.dynamic_batching.map(|batching| {
            SchedulingChoice::DynamicBatching(oip::ModelDynamicBatching {
                max_queue_delay_microseconds: batching.max_queue_delay_microseconds,
                ..Default::default()
            })
        });
        let config = oip::ModelConfig {
            name: self.name.to_owned(),
            platform: self.platform.to_owned(),
            backend: self.backend.to_owned(),
            max_batch_size: self.max_batch_size,
            input: self.input.iter().map(Io::to_input).collect(),
            output: self.output.iter().map(Io::to_output).collect(),
            instance_group: vec![oip::ModelInstanceGroup {
                name: self.name.to_owned(),
                kind: oip::model_instance_group::Kind::Cpu.into(),
                count: 1,
                ..Default::default()
            }],
            scheduling_choice: batching,
            ..Default::default()
        };
        oip::ModelConfigResponse { config: Some(config) }
    }
}

impl<'a> Io<'a> {
    fn new(spec: &'a TensorSpec, batched: bool) -> Self {
        let dims = spec.shape.get(usize::from(batched)..).unwrap_or_default();
        let data_type = data_type(spec.datatype).as_str_name();
        Self { name: &spec.name, data_type, dims, optional: false, datatype: spec.datatype }
    }

    /// One that may be left out. It is of the whole request, not of its rows.
    fn optional(spec: &'a TensorSpec) -> Self {
        Self { optional: true, ..Self::new(spec, false) }
    }

    fn to_input(&self) -> oip::ModelInput {
        oip::ModelInput {
            name: self.name.to_owned(),
            data_type: data_type(self.datatype).into(),
            dims: self.dims.to_vec(),
            optional: self.optional,
            ..Default::default()
        }
    }

    fn to_output(&self) -> oip::ModelOutput {
        oip::ModelOutput {
            name: self.name.to_owned(),
            data_type: data_type(self.datatype).into(),
            dims: self.dims.to_vec(),
            ..Default::default()
        }
    }
}

const fn data_type(datatype: Datatype) -> oip::DataType {
    match datatype {
        Datatype::Bool => oip::DataType::TypeBool,
        Datatype::Uint8 => oip::DataType::TypeUint8,
        Datatype::Uint16 => oip::DataType::TypeUint16,
        Datatype::Uint32 => oip::DataType::TypeUint32,
        Datatype::Uint64 => oip::DataType::TypeUint64,
        Datatype::Int8 => oip::DataType::TypeInt8,
        Datatype::Int16 => oip::DataType::TypeInt16,
        Datatype::Int32 => oip::DataType::TypeInt32,
        Datatype::Int64 => oip::DataType::TypeInt64,
        Datatype::Fp16 => oip::DataType::TypeFp16,
        Datatype::Bf16 => oip::DataType::TypeBf16,
        Datatype::Fp32 => oip::DataType::TypeFp32,
        Datatype::Fp64 => oip::DataType::TypeFp64,
        Datatype::Bytes => oip::DataType::TypeString,
    }
}
