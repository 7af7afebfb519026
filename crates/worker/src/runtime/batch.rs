//! Dynamic batching: requests that are there together run together, whatever the engine.
//!
//! ```text
//! infer ──check──▶ queue ──▶ leader ── short runs ──▶ this thread ─┐
//!                    │         └────── long runs ───▶ pool ────────┼─▶ join ▶ Engine::run ▶ split ─▶ answers
//!                    └◀─────────── takes until empty ◀─────────────┘
//! ```
//! Flat combining: whoever pushes a request while nobody is gathering becomes the leader. It lets the other ready
//! connections go first (one yield, or `max_delay`), then runs everything that fits together and answers for all. A
//! request therefore costs no thread switch while runs are short, and batches grow by themselves under load.
//!
//! A connection's thread is never held for long: models whose run time depends on the values of their inputs
//! ([`Engine::is_bounded`]) run on threads of the pool that are theirs, and one that once kept a connection's thread too
//! long does so from then on.
//!
//! What holds, and is property-tested: an answer is the same as without batching, bit for bit where the engine is; a
//! request that fails, fails alone; a request that was dropped or whose deadline passed is not run; no queue is
//! unbounded.
//!
//! Reading order: [`queue`] decides who runs with whom and [`batch_sizer`] how many rows pay, [`join`] copies, [`batcher`] leads, [`pool`] lends threads,
//! [`tally`] counts, [`stop`] ends. [`independence`] says whether a model may be batched at all.

pub mod batch_sizer;
pub mod batcher;
pub mod independence;
pub mod join;
pub mod pool;
pub mod queue;
pub mod stop;
pub mod tally;

use berth_spec::{Datatype, InferError, Tensor};

pub use batcher::{Batcher, Limits};
pub use pool::Pool;
pub use stop::StopCondition;

/// One input of one run: row-major, little-endian, as in [`Tensor`].
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// The name. Inputs come in the order of the signature, and behind them those that may be left out, in any.
    pub name: &'a str,
    /// The element type, which gives the bytes of each element in `data`.
    pub datatype: Datatype,
    /// Dimensions, all at least 0.
    pub shape: &'a [i64],
    /// The elements; exactly as many as `shape` says.
    pub data: &'a [u8],
}

impl<'a> View<'a> {
    /// A view of the whole tensor, which copies nothing.
    #[must_use]
    pub fn of(tensor: &'a Tensor) -> Self {
        Self { name: &tensor.name, datatype: tensor.datatype, shape: &tensor.shape, data: &tensor.data }
    }
}

/// An engine that executes runs. Called from many threads at once, at most [`Limits::lanes`] of them.
pub trait Engine: Send + Sync + 'static {
    /// Runs the model on `inputs`, which are in the order of its signature, and gives the outputs whose indices in
    /// the signature are `outputs`, in that order. Blocks, and fails with [`InferError::TimedOut`] soon after `stop`
    /// says so.
    fn run(&self, inputs: &[View<'_>], outputs: &[usize], stop: &StopCondition) -> Result<Vec<Tensor>, InferError>;

    /// True if the time of a run follows from the sizes of its inputs. One whose time depends on their values never runs
    /// on the thread of a connection, nor among the runs of other models.
    fn is_bounded(&self) -> bool {
        true
    }

    /// Stops all runs and refuses further ones.
    fn end(&self) {}
}
