//! The index of the model repository: any number of deployments, made piece by piece as the client reads it.

use bytes::Bytes;
use http::{Response, header};

use crate::{
    body::reply::{JSON, ReplyBody},
    repository::RepositoryModel,
};

/// Deployments per piece: some 60 KiB of JSON, a good size for a write.
const MODELS_PER_PIECE: usize = 1_024;

/// The progress of the array.
#[derive(Clone, Copy)]
enum Stage {
    /// Nothing was told yet: the next row opens the array.
    Opening,
    /// The next row follows another one.
    Telling,
    /// The array is closed.
    Closed,
}

/// The answer for these deployments.
pub(super) fn index(entries: Vec<RepositoryModel>, ready_only: bool) -> Response<ReplyBody> {
    let mut entries = entries.into_iter();
    let mut stage = Stage::Opening;
    let pieces = std::iter::from_fn(move || match stage {
        Stage::Closed => None,
        Stage::Opening | Stage::Telling => Some(piece(&mut entries, ready_only, &mut stage)),
    });
    let mut response = Response::new(ReplyBody::Pieces { left: Box::new(pieces), length: None });
    response.headers_mut().insert(header::CONTENT_TYPE, JSON);
    response
}

fn piece(entries: &mut std::vec::IntoIter<RepositoryModel>, ready_only: bool, stage: &mut Stage) -> Bytes {
    let mut piece = Vec::with_capacity(64 * MODELS_PER_PIECE.min(entries.len() + 1));
    // A piece must not be empty, and few deployments may be ready: go on until something was told.
    while piece.is_empty() && entries.len() > 0 {
        for entry in entries.by_ref().take(MODELS_PER_PIECE) {
            entry.index(ready_only, |row| {
                piece.push(if matches!(stage, Stage::Opening) { b'[' } else { b',' });
                *stage = Stage::Telling;
                serde_json::to_writer(&mut piece, &row).expect("a Vec takes everything, and strings are always JSON");
            });
        }
    }
    if entries.len() == 0 {
        let end: &[u8] = if matches!(stage, Stage::Opening) { b"[]" } else { b"]" };
        piece.extend_from_slice(end);
        *stage = Stage::Closed;
    }
    piece.into()
}
