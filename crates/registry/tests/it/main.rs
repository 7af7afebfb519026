//! The crate from outside: documents by the table, registries and model repositories made by the real git.

mod card_reference;
mod cards;
mod desired;
mod documents;
mod fixture;
mod mutations;
mod outcomes;
mod properties;
mod render;
mod rules;
mod warm;
