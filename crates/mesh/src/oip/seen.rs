//! Keys that an object had: a key given twice has no meaning that two readers would agree on.

use berth_spec::InferError;

/// The keys that mean something, as bits.
#[derive(Debug, Clone, Copy)]
pub(super) enum Field {
    Id = 1,
    Parameters = 2,
    Inputs = 4,
    Outputs = 8,
    Name = 16,
    Datatype = 32,
    Shape = 64,
    Data = 128,
}

/// Keys that an object had.
#[derive(Debug, Default)]
pub(super) struct SeenKeys(u8);

impl SeenKeys {
    /// True if it had this one.
    pub(super) const fn has(&self, field: Field) -> bool {
        self.0 & field as u8 != 0
    }

    /// Notes a key; that it comes again is an error.
    pub(super) fn once(&mut self, field: Field, key: &str) -> Result<(), InferError> {
        if self.has(field) {
            return Err(InferError::Invalid(format!("{key:?} is given twice")));
        }
        self.0 |= field as u8;
        Ok(())
    }
}
