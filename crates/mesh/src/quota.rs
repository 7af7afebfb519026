//! Quotas: limits on the use of a model by all, and of all models by one principal.
//!
//! ```text
//! admit ─▶ limits of the model or the principal? ── none ──▶ on; nothing is counted
//!              │ some
//!              ▼
//!          Meter::enter ── exceeded ──▶ 429, with the limit, its owner, and when to come again
//!              │ fine
//!              ▼
//!          MeteredRequest: held until the last byte of the answer; bytes of the body are counted as they are known
//! ```
//! `berth_spec::meter` is the arithmetic, without a clock; [`metered`] is one request.

pub(crate) mod metered;
