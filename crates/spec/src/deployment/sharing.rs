//! Equal settings, held once.

use std::sync::Arc;

use super::{Deployment, ModelDetails, Settings};

/// Settings that are remembered: more than a fleet usually mixes, and few enough to search at every declaration.
const MAX_SETTINGS: usize = 64;

/// Remembers the settings, the details of models and the origins that came through lately, so that deployments with equal
/// ones share them.
#[derive(Debug, Clone, Default)]
pub struct Sharing {
    settings: Recent<Settings>,
    details: Recent<ModelDetails>,
    origins: Recent<String>,
}

impl Sharing {
    /// Makes a deployment share its settings, its model's details and its origin with earlier ones that are equal.
    pub fn share(&mut self, deployment: &mut Deployment) {
        self.settings.share(&mut deployment.spec.settings);
        self.details.share(&mut deployment.spec.model.details);
        if let Some(origin) = &mut deployment.origin.0 {
            self.origins.share(origin);
        }
    }
}

/// Values that came through lately; the ones that were met last are at the end.
#[derive(Debug, Clone)]
struct Recent<T>(Vec<Arc<T>>);

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: PartialEq> Recent<T> {
    fn share(&mut self, value: &mut Arc<T>) {
        match self.0.iter().rposition(|known| known == value) {
            Some(at) => {
                let last = self.0.len() - 1;
                self.0.swap(at, last);
                *value = Arc::clone(&self.0[last]);
            }
            None => {
                if self.0.len() == MAX_SETTINGS {
                    self.0.remove(0);
                }
                self.0.push(Arc::clone(value));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Generation, Origin, Time,
        deployment::{Labels, Spec},
        manifest::{self, ParseContext},
    };

    fn deployment(model: usize, priority: usize) -> Deployment {
        let text = format!(
            "apiVersion: berth.dev/v1\nkind: ModelDeployment\nmetadata: {{name: m}}\n\
             spec: {{model: {{format: onnx, uri: \"https://example.org/{model}.onnx\"}}, priority: {priority}}}\n"
        );
        let context = ParseContext { file: "test".to_owned(), base: None, ..ParseContext::default() };
        let manifest = manifest::parse(&text, &context).expect("a manifest").remove(0);
        Deployment {
            name: manifest.name,
            generation: Generation(1),
            labels: Labels::default(),
            origin: Origin::directory("/models"),
            created: Time::ZERO,
            deleting: false,
            resource_version: 0,
            spec: manifest.spec,
            digest: None,
            artifact: None,
        }
    }

    fn shared(sharing: &mut Sharing, mut deployment: Deployment) -> Spec {
        sharing.share(&mut deployment);
        deployment.spec
    }

    #[test]
    fn equal_settings_are_held_once_and_written_to_apart() {
        let mut sharing = Sharing::default();
        let (one, mut other) = (shared(&mut sharing, deployment(1, 7)), shared(&mut sharing, deployment(2, 7)));
        assert!(Arc::ptr_eq(&one.settings, &other.settings));
        assert!(Arc::ptr_eq(&one.model.details, &other.model.details));
        assert_eq!(other, deployment(2, 7).spec);
        other.priority = 8;
        assert_eq!((one.priority, other.priority), (7, 8));
        assert!(!Arc::ptr_eq(
            &one.settings,
            &shared(&mut sharing, Deployment { spec: other, ..deployment(2, 8) }).settings
        ));
    }

    #[test]
    fn what_is_met_often_stays_and_the_rest_is_bounded() {
        let mut sharing = Sharing::default();
        let often = shared(&mut sharing, deployment(0, 100));
        for round in 0..3 {
            for priority in 1..=MAX_SETTINGS / 2 {
                shared(&mut sharing, deployment(round, priority));
            }
            assert!(Arc::ptr_eq(&often.settings, &shared(&mut sharing, deployment(round, 100)).settings));
        }
        for cores in 1..=2 * MAX_SETTINGS {
            let mut many = deployment(0, 1);
            many.spec.cpu = Some(0.5 * f32::from(u16::try_from(cores).expect("a few")));
            shared(&mut sharing, many);
        }
        assert_eq!(sharing.settings.0.len(), MAX_SETTINGS);
    }
}
