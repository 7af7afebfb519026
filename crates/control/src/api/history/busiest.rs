//! The models with a history of their own: the busiest, without a change each time that two of them swap places.

use std::collections::BTreeMap;

use super::{MODELS, ModelFigures, Track};

/// Weight of a new sample in a model's long rate: a model that falls silent keeps its place for about a quarter of an hour.
const NEW: f32 = 0.01;

/// Times the long rate of the quietest model that a newcomer must be asked. Keeps models of equal load from taking turns.
const BUSIER: f32 = 2.0;

#[derive(Debug, Default)]
struct ModelHistory {
    /// Requests per second, smoothed.
    long_rate: f32,
    track: Track<5>,
}

/// Histories of the busiest models by name, at most [`MODELS`].
#[derive(Debug, Default)]
pub(crate) struct BusiestModels(BTreeMap<String, ModelHistory>);

impl BusiestModels {
    /// Takes a sample of all models. Those without requests for a day give their places back.
    pub(crate) fn push(&mut self, tick: u64, each: &BTreeMap<String, ModelFigures>) {
        let silent = [0.0, 0.0, 0.0, f32::NAN, f32::NAN];
        for (name, model) in &mut self.0 {
            let figures = each.get(name).copied().unwrap_or(silent);
            model.long_rate += NEW * (figures[0] - model.long_rate);
            // A day without requests ends the track, and so the history of the model.
            if figures[0] > 0.0 || !model.is_asleep() {
                model.track.push(tick, figures);
            }
        }
        self.0.retain(|_, model| !model.track.is_over(tick));
        let asked = each.iter().filter(|(_, figures)| figures[0] > 0.0);
        let mut newcomers: Vec<_> = asked.filter(|(name, _)| !self.0.contains_key(*name)).collect();
        newcomers.sort_by(|a, b| b.1[0].total_cmp(&a.1[0]));
        for (name, figures) in newcomers {
            if !self.makes_room(figures[0]) {
                break;
            }
            let mut model = ModelHistory { long_rate: figures[0] * NEW, track: Track::default() };
            model.track.push(tick, *figures);
            self.0.insert(name.clone(), model);
        }
    }

    pub(crate) fn track(&self, name: &str) -> Option<&Track<5>> {
        self.0.get(name).map(|model| &model.track)
    }

    /// True if a model with this rate gets a place.
    fn makes_room(&mut self, rate: f32) -> bool {
        if self.0.len() < MODELS {
            return true;
        }
        let quietest = self.0.iter().min_by(|a, b| a.1.long_rate.total_cmp(&b.1.long_rate));
        let Some((name, _)) = quietest.filter(|(_, model)| rate > BUSIER * model.long_rate) else { return false };
        let name = name.clone();
        self.0.remove(&name);
        true
    }

    #[cfg(test)]
    pub(super) fn allocated(&self) -> usize {
        self.0.values().map(|model| model.track.allocated()).sum()
    }

    #[cfg(test)]
    pub(super) fn names(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }
}

impl ModelHistory {
    /// True if the long rate is as good as none.
    fn is_asleep(&self) -> bool {
        self.long_rate < 1e-6
    }
}
