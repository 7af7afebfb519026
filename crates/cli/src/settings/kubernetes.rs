//! Settings of a Kubernetes source.

use berth_kubernetes::{Gateway, KubernetesConfig};
use clap::Args;

use crate::failure::Failure;

#[derive(Debug, Args)]
pub(super) struct KubernetesArgs {
    /// Context of the kubeconfig for Kubernetes sources [default: the current one; in a pod, its service account]
    #[arg(long, value_name = "NAME", env = "BERTH_KUBERNETES_CONTEXT")]
    kubernetes_context: Option<String>,
    /// Labels of the objects that Kubernetes sources follow, as kubectl -l takes them [default: all objects]
    #[arg(long, value_name = "LABELS", env = "BERTH_KUBERNETES_SELECTOR")]
    kubernetes_selector: Option<String>,
    /// Address of the models for clients, from which status.url of Kubernetes objects is made: http://HOST:PORT, or one for each
    /// object, http://{name}-{namespace}.HOST [default: objects have no URL]
    #[arg(long, value_name = "URL", env = "BERTH_KUBERNETES_URL", value_parser = address)]
    kubernetes_url: Option<String>,
    /// Gateway that gets an HTTPRoute for each InferenceService, with an address for each in --kubernetes-url
    #[arg(long, value_name = "NAMESPACE/NAME", env = "BERTH_KUBERNETES_GATEWAY", value_parser = gateway, requires_all = ["kubernetes_service", "kubernetes_url"])]
    kubernetes_gateway: Option<(String, String)>,
    /// Service of this fleet, to which these routes lead
    #[arg(long, value_name = "NAMESPACE/NAME:PORT", env = "BERTH_KUBERNETES_SERVICE", value_parser = service)]
    kubernetes_service: Option<(String, String, u16)>,
    /// InferencePool of this fleet, to which these routes lead in place of the Service
    #[arg(long, value_name = "NAMESPACE/NAME", env = "BERTH_KUBERNETES_POOL", value_parser = gateway, requires = "kubernetes_gateway")]
    kubernetes_pool: Option<(String, String)>,
}

fn gateway(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('/').filter(|(namespace, name)| !namespace.is_empty() && !name.is_empty());
    let (namespace, name) = parts.ok_or("write NAMESPACE/NAME")?;
    Ok((namespace.to_owned(), name.to_owned()))
}

fn service(text: &str) -> Result<(String, String, u16), String> {
    const HOW: &str = "write NAMESPACE/NAME:PORT";
    let (place, port) = text.rsplit_once(':').ok_or(HOW)?;
    let (namespace, name) = gateway(place).map_err(|_| HOW)?;
    Ok((namespace, name, port.parse().map_err(|_| HOW)?))
}

fn address(text: &str) -> Result<String, String> {
    let filled = text.replace("{name}", "name").replace("{namespace}", "namespace");
    let url = url::Url::parse(&filled).map_err(|error| format!("{error}: write http://HOST:PORT"))?;
    let fine = matches!(url.scheme(), "http" | "https") && url.has_host() && url.username().is_empty();
    if fine && url.query().is_none() { Ok(text.to_owned()) } else { Err("write http://HOST:PORT".to_owned()) }
}

impl KubernetesArgs {
    /// Refuses settings that nothing reads.
    ///
    /// # Errors
    /// [`Failure::Usage`]: the flag that has no source.
    pub(super) fn check(&self, has_source: bool) -> Result<(), Failure> {
        let given = [
            ("--kubernetes-context", self.kubernetes_context.is_some()),
            ("--kubernetes-selector", self.kubernetes_selector.is_some()),
            ("--kubernetes-url", self.kubernetes_url.is_some()),
            ("--kubernetes-gateway", self.kubernetes_gateway.is_some()),
            ("--kubernetes-service", self.kubernetes_service.is_some()),
            ("--kubernetes-pool", self.kubernetes_pool.is_some()),
        ];
        let own = self.kubernetes_url.as_ref().is_some_and(|url| url.contains("{name}"));
        if self.kubernetes_gateway.is_some() && !own {
            return Err(Failure::Usage(
                "--kubernetes-gateway needs an address for each object: --kubernetes-url 'http://{name}-{namespace}.HOST'".to_owned(),
            ));
        }
        match given.iter().find(|(_, given)| *given) {
            Some((flag, _)) if !has_source => {
                Err(Failure::Usage(format!("{flag} requires a Kubernetes source: --source kubernetes")))
            }
            _ => Ok(()),
        }
    }

    /// The settings of the source for a namespace, or for all.
    pub(super) fn config(&self, namespace: Option<String>) -> KubernetesConfig {
        KubernetesConfig {
            context: self.kubernetes_context.clone(),
            namespace,
            selector: self.kubernetes_selector.clone(),
            url: self.kubernetes_url.clone(),
            gateway: self
                .kubernetes_gateway
                .clone()
                .zip(self.kubernetes_service.clone())
                .map(|(gateway, service)| Gateway { gateway, service, pool: self.kubernetes_pool.clone() }),
        }
    }
}
