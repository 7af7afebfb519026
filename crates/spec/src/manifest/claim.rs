//! Resources of one replica: those of the deployment, and those of its model card where the deployment says nothing.

use super::{
    raw::{RawGpu, RawResources},
    resolve::Problems,
    scalar::Problem,
};
use crate::{
    ByteSize, PinnedCard,
    card::{Resources, size},
    deployment::GpuNeed,
};

/// The most that the schema lets a deployment ask for; a card's word is held to the same.
const MOST_CORES: f32 = 1024.0;
const MOST_GPUS: u32 = 64;

/// Resources of one replica.
#[derive(Debug, Default)]
pub(super) struct Claim {
    pub(super) memory: Option<ByteSize>,
    pub(super) cpu: Option<f32>,
    pub(super) gpu: Option<GpuNeed>,
}

/// Each field by itself: who overrides the memory keeps the card's cores.
pub(super) fn claim(raw: &RawResources, card: Option<&PinnedCard>, problems: &mut Problems) -> Claim {
    let of_card = card.and_then(|card| card.card.resources.as_ref());
    let of_card = of_card.map(|needs| of_card_alone(needs, problems)).unwrap_or_default();
    Claim {
        memory: raw.memory.as_ref().map(|size| size.0).or(of_card.memory),
        cpu: raw.cpu.map(|cores| cores.0).or(of_card.cpu),
        gpu: raw.gpu.as_ref().map(gpu).or(of_card.gpu),
    }
}

/// A card that comes by hand was held against no schema.
fn of_card_alone(needs: &Resources, problems: &mut Problems) -> Claim {
    let mut wrong = |message: String, remedy: &str| {
        problems.push(("spec.model.card", Problem::new(message, remedy)));
    };
    let memory = size(&needs.memory).filter(|size| *size > ByteSize::ZERO);
    if memory.is_none() {
        let message = format!("resources.memory of the card is {:?}", needs.memory);
        wrong(message, "write a whole number with Mi or Gi, for example 4Gi");
    }
    if !(0.0..=MOST_CORES).contains(&needs.cpu) {
        wrong(format!("resources.cpu of the card is {}", needs.cpu), "give 0 to 1024 cores");
    }
    let count = needs.gpu.unwrap_or_default();
    if count > MOST_GPUS {
        wrong(format!("resources.gpu of the card is {count}"), "give 0 to 64 GPUs");
    }
    let kind = || needs.gpu_type.as_ref().map(|kind| kind.to_ascii_lowercase());
    let gpu = (count > 0).then(|| GpuNeed { count, kind: kind(), memory: None });
    Claim { memory, cpu: Some(needs.cpu), gpu }
}

fn gpu(raw: &RawGpu) -> GpuNeed {
    GpuNeed {
        count: raw.count.get(),
        kind: raw.kind.as_ref().map(|kind| kind.0.to_ascii_lowercase()),
        memory: raw.memory.as_ref().map(|size| size.0),
    }
}
