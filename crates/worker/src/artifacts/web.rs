//! Support for plain web servers that the object-store library's HTTP store lacks.
//!
//! It addresses objects by path: queries (pre-signed links) are lost and odd paths are rewritten. It also refuses
//! answers without a length, as servers give that compress or generate. A connector below it puts both right.

use std::{future::Future, pin::Pin};

use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};
use object_store::{ClientOptions, HeaderValue};
use url::Url;

/// The size that an object is given whose server does not tell it.
pub(super) const UNKNOWN_SIZE: u64 = u64::MAX;

/// Sends every request to exactly one location.
#[derive(Debug, Clone)]
pub(super) struct Exact {
    pub(super) url: Url,
    /// Shared by all locations, so that connections are.
    pub(super) client: HttpClient,
}

impl HttpConnector for Exact {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

impl HttpService for Exact {
    // What `#[async_trait]` makes of `async fn call(&self, request: HttpRequest) -> …`.
    fn call<'a, 'b>(
        &'a self,
        mut request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            let mut url = self.url.clone();
            url.set_fragment(None);
            *request.uri_mut() = url
                .as_str()
                .parse()
                .map_err(|error: http::uri::InvalidUri| HttpError::new(HttpErrorKind::Request, error))?;
            let mut response = self.client.execute(request).await?;
            if response.status().is_success() {
                let unknown = HeaderValue::from(UNKNOWN_SIZE);
                response.headers_mut().entry(http::header::CONTENT_LENGTH).or_insert(unknown);
            }
            Ok(response)
        })
    }
}
