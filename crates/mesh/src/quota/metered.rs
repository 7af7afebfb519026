//! One request that counts against limits: of its model, of its principal, or of both.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use berth_spec::{ByteSize, InferError, UseLimit, UseLimits, meter::Exceeded};
use berth_wire::access::{Asker, Principal};
use http::{HeaderMap, header};
use tokio::time::Instant;

use crate::{
    account::Account,
    accounts::Accounts,
    deployment::DeploymentState,
    metrics::{Scope, Totals},
};

/// Held until the request and its answer are done.
pub(crate) struct MeteredRequest {
    principal: Option<(Arc<Account>, UseLimits)>,
    model: Option<(Arc<DeploymentState>, UseLimits)>,
    /// Bytes of the body that its head announced, and that were counted then.
    announced: u64,
}

/// A model, with the limits on its use.
#[derive(Clone, Copy)]
pub(crate) struct LimitedModel<'a> {
    pub(crate) entry: &'a Arc<DeploymentState>,
    pub(crate) limits: &'a UseLimits,
}

impl MeteredRequest {
    /// Counts a request; `None` where nothing limits it, which costs nothing.
    pub(crate) fn enter(
        accounts: &Accounts,
        totals: &Totals,
        asker: Option<&Asker>,
        model: Option<LimitedModel<'_>>,
        headers: Option<&HeaderMap>,
        now: Instant,
    ) -> Result<Option<Arc<Self>>, InferError> {
        let principal = asker.and_then(|asker| asker.0.as_deref());
        let limited = principal.and_then(|known| Some((known, accounts.limits(known.limits)?)));
        let model = model.filter(|model| model.limits.counts());
        if limited.is_none() && model.is_none() {
            return Ok(None);
        }
        let (now, announced) = (accounts.nanos(now), headers.map_or(0, announced));
        let mut metered = Self { principal: None, model: None, announced };
        if let Some((Principal { name, .. }, limits)) = limited {
            let account = accounts.of(name);
            let entered = account.meter.enter(&limits, now, announced);
            entered.map_err(|met| refused(totals, Scope::Principal, &format!("{name:?}"), &limits, met))?;
            metered.principal = Some((account, limits));
        }
        if let Some(LimitedModel { entry, limits }) = model {
            let entered = entry.hot().meter.enter(limits, now, announced);
            let called = || format!("model {:?}", entry.name.as_str());
            entered.map_err(|met| refused(totals, Scope::Model, &called(), limits, met))?;
            metered.model = Some((Arc::clone(entry), *limits));
        }
        Ok(Some(Arc::new(metered)))
    }

    /// Counts the bytes of a body that came, as far as they were not announced.
    pub(crate) fn received(&self, accounts: &Accounts, bytes: usize) {
        let more = (bytes as u64).saturating_sub(self.announced);
        if more == 0 {
            return;
        }
        let now = accounts.nanos(Instant::now());
        if let Some((account, limits)) = &self.principal {
            account.meter.spend(limits, now, more);
        }
        if let Some((entry, limits)) = &self.model {
            entry.hot().meter.spend(limits, now, more);
        }
    }
}

impl Drop for MeteredRequest {
    fn drop(&mut self) {
        if let Some((account, _)) = &self.principal {
            account.meter.leave();
        }
        if let Some((entry, _)) = &self.model {
            entry.hot().meter.leave();
        }
    }
}

/// Length of the body as the head announces it.
fn announced(headers: &HeaderMap) -> u64 {
    let length = headers.get(header::CONTENT_LENGTH);
    length.and_then(|length| length.to_str().ok()?.parse().ok()).unwrap_or(0)
}

fn refused(totals: &Totals, scope: Scope, owner: &str, limits: &UseLimits, met: Exceeded) -> InferError {
    totals.limited[scope as usize][met.limit as usize].fetch_add(1, Relaxed);
    let requests = |number: Option<u32>| match number {
        Some(1) | None => "1 request".to_owned(),
        Some(number) => format!("{number} requests"),
    };
    let most = match met.limit {
        UseLimit::Rate => format!("{} per second", requests(limits.rate)),
        UseLimit::InFlight => format!("{} at once", requests(limits.in_flight)),
        UseLimit::Bytes => {
            format!("{} of request bodies per second", limits.bytes_per_second.unwrap_or(ByteSize::ZERO))
        }
    };
    let message = format!("{owner} is limited to {most} at this gateway; try again later");
    InferError::Limited { limit: met.limit, message, retry_in: met.retry_in }
}
