//! Functions of this machine as the control API and sources see them: read, declared and deleted.

use std::collections::BTreeMap;

use berth_control::{
    functions::{ApplyFunction, DeleteFunction, FunctionHost, FunctionText},
    handle::{Applied, Error},
};
use berth_spec::{DeploymentName, Origin};
use berth_wire::api::FunctionView;
use futures::{FutureExt as _, future::BoxFuture};

use super::Host;
use crate::{
    build::{Document, end_of_file},
    deployment::{FunctionName, FunctionSpec},
    source::Summary,
};

impl FunctionHost for Host {
    fn list(&self) -> Vec<FunctionView> {
        self.functions().iter().map(Summary::view).collect()
    }

    fn get(&self, name: &DeploymentName) -> Option<FunctionView> {
        self.function(name.as_str()).map(|function| function.view())
    }

    fn text(&self, name: &DeploymentName, text: FunctionText) -> Option<String> {
        let function = self.function(name.as_str())?;
        let document = match text {
            FunctionText::Log => return Some(self.log(name.as_str())),
            FunctionText::Sbom => Document::Sbom,
            FunctionText::Provenance => Document::Provenance,
            FunctionText::Lock => Document::Lock,
        };
        let digest = &function.status.artifact.as_ref()?.digest;
        // The spec that was deployed with it: the newest one may have another place of code.
        let deployed = function.status.history.iter().find(|past| past.artifact == *digest);
        let spec = deployed.and_then(|past| FunctionSpec::reread(&function.name, &past.spec.0).ok());
        self.builder.artifacts().document_for(digest, document, spec.as_ref())
    }

    fn ready(&self) -> BoxFuture<'_, Result<(), Error>> {
        self.objects().map(|found| found.map(drop)).boxed()
    }

    fn owned_by(&self, origins: &[&Origin]) -> BTreeMap<DeploymentName, Origin> {
        let summaries = self.summaries();
        let owned = summaries.functions.values().filter(|function| origins.contains(&function.origin()));
        owned
            .filter_map(|function| {
                let name = FunctionName::new(&function.name).ok()?;
                Some((DeploymentName::from(name), function.origin().clone()))
            })
            .collect()
    }

    fn apply(&self, request: ApplyFunction) -> BoxFuture<'_, Result<Applied, Error>> {
        let known = self.function(request.manifest.name.as_str()).map(|known| known.generation);
        let known = known.and_then(|number| u64::try_from(number).ok()).unwrap_or_default();
        async move { self.objects().await?.apply(&request, known).await }.boxed()
    }

    fn delete(&self, request: DeleteFunction) -> BoxFuture<'_, Result<Applied, Error>> {
        async move { self.objects().await?.delete(&request).await }.boxed()
    }
}

impl Host {
    /// The log of a function's last build, then the end of its output. Blocks.
    fn log(&self, name: &str) -> String {
        let built = end_of_file(&self.builder.log_path(name));
        let said = self.local.said(name).filter(|said| !said.is_empty());
        let said = said.map(|said| format!("--- output of the function ---\n{said}")).unwrap_or_default();
        built + &said
    }
}
