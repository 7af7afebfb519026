//! Writes of the status of one function into its object, also where somebody else writes it.

use std::sync::Arc;

use berth_spec::Time;

use super::Function;
use crate::controller::{
    Effect,
    writing::{CONTENDED, Writing},
};

impl Function {
    /// Writes the status, unless the object has it.
    pub(in crate::controller) fn write_if_new(&mut self, key: &str, effects: &mut Vec<Effect>) {
        if self.declared.status == self.status {
            // One copy of both is enough.
            self.declared.status = Arc::clone(&self.status);
            return;
        }
        self.write(key, effects);
    }

    /// The same where somebody may have overwritten it. Returns the time of the write, if that has to wait.
    pub(in crate::controller) fn mend(&mut self, key: &str, now: Time, effects: &mut Vec<Effect>) -> Option<Time> {
        // What is new does not wait.
        if self.writing != Writing::Done || self.declared.status == self.status {
            self.write_if_new(key, effects);
            return None;
        }
        if self.mend_at.is_some() {
            return None;
        }
        self.overwrites.count(now);
        if self.overwrites.are_few() {
            self.write(key, effects);
            return None;
        }
        if self.overwrites.are_news() {
            effects.push(Effect::Contended(key.to_owned()));
        }
        self.mend_later(now)
    }

    /// Notes that the object held another desired state than a write was for, or changed all the time. Returns the time of the next
    /// write, if that has to wait.
    pub(in crate::controller) fn superseded(
        &mut self,
        key: &str,
        now: Time,
        effects: &mut Vec<Effect>,
    ) -> Option<Time> {
        let before = std::mem::replace(&mut self.writing, Writing::Due);
        if matches!(before, Writing::Underway(identity) if *identity == self.declared.identity) {
            // The watch tells of another desired state. Changes of the same one it may have told already.
            return self.mend_later(now);
        }
        // The other one was heard of while the write was on its way.
        self.write_if_new(key, effects);
        None
    }

    /// Notes that the object was not there when its status was to be written. The watch tells that; of one that was put anew under this
    /// name it may have told already.
    pub(in crate::controller) fn vanished(&mut self, key: &str, effects: &mut Vec<Effect>) {
        let before = std::mem::replace(&mut self.writing, Writing::Due);
        if !matches!(before, Writing::Underway(identity) if *identity == self.declared.identity) {
            self.write_if_new(key, effects);
        }
    }

    fn mend_later(&mut self, now: Time) -> Option<Time> {
        if self.mend_at.is_some() {
            return None;
        }
        self.mend_at = Some(now + CONTENDED);
        self.mend_at
    }

    /// The time of a write has come that had to wait.
    pub(in crate::controller) fn mend_now(&mut self, key: &str, at: Time, effects: &mut Vec<Effect>) {
        if self.mend_at == Some(at) {
            self.mend_at = None;
            self.write_if_new(key, effects);
        }
    }

    pub(in crate::controller) fn write(&mut self, key: &str, effects: &mut Vec<Effect>) {
        if matches!(self.writing, Writing::Underway(_)) || self.gone || !self.declared.writable {
            return;
        }
        let (identity, status) = (self.declared.identity.clone(), Arc::clone(&self.status));
        self.writing = Writing::Underway(Box::new(identity.clone()));
        effects.push(Effect::Write(key.to_owned(), identity, status));
    }
}
