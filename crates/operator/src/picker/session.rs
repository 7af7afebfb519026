//! One stream of external processing: parts of a request come in, answers go out. No I/O.
//!
//! ```text
//! request headers ──▶ choose ──▶ the endpoint, in a header and in metadata     or 503: none is ready, 429: all are busy
//! bodies          ──▶ back as they came; none are sent where the Gateway can be told so
//! response headers ─▶ count at the endpoint that served          its end, or that of the stream ──▶ release
//! ```

use std::{collections::BTreeSet, net::SocketAddr};

use berth_wire::external_processor::{
    BodyMutation, BodyResponse, CommonResponse, HeaderMutation, HeaderValue, HeaderValueOption, HeadersResponse,
    HttpBody, HttpStatus, ImmediateResponse, Metadata, ProcessingMode, ProcessingRequest, ProcessingResponse,
    ProtocolConfiguration, StreamedBodyResponse, Struct, TrailersResponse, Value,
    body_mutation::Mutation,
    header_value_option::HeaderAppendAction,
    processing_mode::{BodySendMode, HeaderSendMode},
    processing_request::Request,
    processing_response::Response,
    value::Kind,
};

use super::{Permit, Pool, Refusal};

/// The header, and the key of the metadata, that name the endpoint.
const DESTINATION: &str = "x-gateway-destination-endpoint";

/// The namespace of the metadata that the load balancers of Gateways read and write.
const BALANCER: &str = "envoy.lb";

/// The key of the endpoint that served, in that namespace.
const SERVED: &str = "x-gateway-destination-endpoint-served";

/// The namespace of the metadata that says which endpoints may be chosen.
const CANDIDATES: &str = "envoy.lb.subset_hint";

/// The key of those endpoints, in that namespace.
const SUBSET: &str = "x-gateway-destination-endpoint-subset";

/// The conversation about one request.
pub(super) struct Session {
    pool: Pool,
    modes: Modes,
    permit: Option<Permit>,
}

/// The ways in which a Gateway sends bodies.
#[derive(Debug, Clone, Copy)]
struct Modes {
    request: BodySendMode,
    response: BodySendMode,
    /// The Gateway waits for the answer to headers before it sends a body, and takes another mode there.
    waits: bool,
}

impl Default for Modes {
    /// Of a Gateway that does not say: the mode that the protocol of pickers asks for.
    fn default() -> Self {
        let mode = BodySendMode::FullDuplexStreamed;
        Self { request: mode, response: mode, waits: false }
    }
}

impl From<&ProtocolConfiguration> for Modes {
    fn from(config: &ProtocolConfiguration) -> Self {
        let waits = !config.send_body_without_waiting_for_header_response;
        Self { request: config.request_body_mode(), response: config.response_body_mode(), waits }
    }
}

impl Modes {
    /// Bodies are not looked at. Of a body that is on its way already the Gateway wants each chunk back.
    fn without_bodies(self) -> Option<ProcessingMode> {
        let modes = [self.request, self.response];
        let sends = modes.iter().any(|mode| *mode != BodySendMode::None);
        let streams = modes.contains(&BodySendMode::FullDuplexStreamed);
        (self.waits && sends && !streams).then(|| ProcessingMode {
            request_header_mode: HeaderSendMode::Default.into(),
            response_header_mode: HeaderSendMode::Send.into(),
            request_body_mode: BodySendMode::None.into(),
            response_body_mode: BodySendMode::None.into(),
            request_trailer_mode: HeaderSendMode::Skip.into(),
            // With these to come, the stream lasts as long as the response.
            response_trailer_mode: HeaderSendMode::Send.into(),
        })
    }
}

impl Session {
    pub(super) fn new(pool: Pool) -> Self {
        Self { pool, modes: Modes::default(), permit: None }
    }

    /// The answer to a part; `None` where none is expected.
    pub(super) fn on(&mut self, part: ProcessingRequest) -> Option<ProcessingResponse> {
        let ProcessingRequest { request, metadata_context, observability_mode, protocol_config } = part;
        if let Some(config) = &protocol_config {
            self.modes = Modes::from(config);
        }
        if observability_mode {
            return None;
        }
        let metadata = metadata_context.unwrap_or_default();
        Some(match request? {
            Request::RequestHeaders(_) => self.pick(&metadata),
            Request::RequestBody(body) => answer(Response::RequestBody(back(self.modes.request, body))),
            Request::RequestTrailers(_) => answer(Response::RequestTrailers(TrailersResponse {})),
            Request::ResponseHeaders(headers) => {
                self.served(&metadata);
                self.release_if(headers.end_of_stream);
                answer(Response::ResponseHeaders(HeadersResponse::default()))
            }
            Request::ResponseBody(body) => {
                self.release_if(body.end_of_stream);
                answer(Response::ResponseBody(back(self.modes.response, body)))
            }
            Request::ResponseTrailers(_) => {
                self.release_if(true);
                answer(Response::ResponseTrailers(TrailersResponse {}))
            }
        })
    }

    fn release_if(&mut self, ended: bool) {
        if ended {
            self.permit = None;
        }
    }

    fn pick(&mut self, metadata: &Metadata) -> ProcessingResponse {
        self.permit = None;
        let subset = find(metadata, CANDIDATES, SUBSET).map(|value| addresses(value).collect::<BTreeSet<_>>());
        match self.pool.choose(subset.as_ref()) {
            Ok(permit) => {
                let endpoint = permit.endpoint.to_string();
                self.permit = Some(permit);
                directed(endpoint, self.modes.without_bodies())
            }
            Err(Refusal::NoneReady) => refused(503, "berth_none_ready", "no pod of the model is ready\n"),
            Err(Refusal::Busy) => refused(429, "berth_busy", "all pods of the model are busy\n"),
        }
    }

    /// Counts the request where it is served: a Gateway may have gone on to another endpoint.
    fn served(&mut self, metadata: &Metadata) {
        let served = find(metadata, BALANCER, SERVED).and_then(|value| addresses(value).next());
        if let (Some(permit), Some(endpoint)) = (&mut self.permit, served) {
            permit.move_to(endpoint);
        }
    }
}

fn answer(response: Response) -> ProcessingResponse {
    ProcessingResponse { response: Some(response), ..ProcessingResponse::default() }
}

/// A chunk of a body, unchanged.
fn back(mode: BodySendMode, body: HttpBody) -> BodyResponse {
    let HttpBody { body, end_of_stream } = body;
    let streamed = Mutation::StreamedResponse(StreamedBodyResponse { body, end_of_stream });
    let mutation = (mode == BodySendMode::FullDuplexStreamed).then_some(BodyMutation { mutation: Some(streamed) });
    BodyResponse { response: Some(CommonResponse { body_mutation: mutation, ..CommonResponse::default() }) }
}

fn directed(endpoint: String, mode_override: Option<ProcessingMode>) -> ProcessingResponse {
    let header = HeaderValue { key: DESTINATION.to_owned(), raw_value: endpoint.clone().into() };
    let set = HeaderValueOption {
        header: Some(header),
        // A client does not choose.
        append_action: HeaderAppendAction::OverwriteIfExistsOrAdd.into(),
    };
    let common = CommonResponse {
        header_mutation: Some(HeaderMutation { set_headers: vec![set] }),
        clear_route_cache: true,
        ..CommonResponse::default()
    };
    let inner = Struct { fields: [(DESTINATION.to_owned(), text(endpoint))].into() };
    let metadata = Struct { fields: [(BALANCER.to_owned(), Value { kind: Some(Kind::StructValue(inner)) })].into() };
    ProcessingResponse {
        response: Some(Response::RequestHeaders(HeadersResponse { response: Some(common) })),
        dynamic_metadata: Some(metadata),
        mode_override,
    }
}

fn refused(code: i32, details: &str, message: &'static str) -> ProcessingResponse {
    answer(Response::ImmediateResponse(ImmediateResponse {
        status: Some(HttpStatus { code }),
        body: message.into(),
        details: details.to_owned(),
    }))
}

fn text(text: String) -> Value {
    Value { kind: Some(Kind::StringValue(text)) }
}

fn find<'a>(metadata: &'a Metadata, namespace: &str, key: &str) -> Option<&'a Value> {
    metadata.filter_metadata.get(namespace)?.fields.get(key)
}

/// The addresses in a list, or in a text with commas. What is none is left out.
fn addresses(value: &Value) -> impl Iterator<Item = SocketAddr> + '_ {
    let all = match &value.kind {
        Some(Kind::ListValue(list)) => list.values.as_slice(),
        _ => std::slice::from_ref(value),
    };
    let texts = all.iter().filter_map(|one| match &one.kind {
        Some(Kind::StringValue(text)) => Some(text.as_str()),
        _ => None,
    });
    texts.flat_map(|text| text.split(',')).filter_map(|one| one.trim().parse().ok())
}
