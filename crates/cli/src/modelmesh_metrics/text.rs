//! Samples of metrics, read from OpenMetrics text.

use std::collections::BTreeMap;

/// One sample, as it was written.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sample<'t> {
    /// With `_sum`, `_count`, `_bucket` or `_total`.
    pub(super) name: &'t str,
    /// Between the braces.
    pub(super) labels: &'t str,
    pub(super) value: f64,
}

impl<'t> Sample<'t> {
    fn read(line: &'t str) -> Option<Self> {
        let (series, value) = line.rsplit_once(' ')?;
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        Some(Self { name, labels: labels.strip_suffix('}').unwrap_or(labels), value: value.parse().ok()? })
    }

    /// The value of a label, which must hold no quotes.
    pub(super) fn label(&self, name: &str) -> Option<&'t str> {
        self.labels.match_indices(name).find_map(|(at, _)| {
            let begins = at == 0 || self.labels[..at].ends_with(',');
            let value = self.labels[at + name.len()..].strip_prefix("=\"").filter(|_| begins)?;
            value.split_once('"').map(|(value, _)| value)
        })
    }
}

/// The samples of a text by their names.
pub(super) fn samples(text: &str) -> BTreeMap<&str, Vec<Sample<'_>>> {
    let mut samples: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for sample in text.lines().filter(|line| !line.starts_with('#')).filter_map(Sample::read) {
        samples.entry(sample.name).or_default().push(sample);
    }
    samples
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_have_labels_and_values() {
        let text = "# TYPE a histogram\na_bucket{le=\"0.5\",phase=\"load\"} 3\na_sum 1.5\n# EOF\n";
        let read = samples(text);
        let bucket = &read["a_bucket"][0];
        assert_eq!(
            (bucket.label("le"), bucket.label("phase"), bucket.label("hase")),
            (Some("0.5"), Some("load"), None)
        );
        assert_eq!((bucket.value, read["a_sum"][0].value, read.len()), (3.0, 1.5, 2));
    }
}
