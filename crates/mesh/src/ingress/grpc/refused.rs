//! The extensions that are declared, so that clients get a clear UNIMPLEMENTED, and not served.

use berth_spec::Class;
use tonic::Status;

use crate::ingress::error_response::ErrorResponse;

/// The status of a call to an extension that is not served.
pub(super) fn refused(what: &str) -> Status {
    let message = format!("{what} is not supported; ServerMetadata lists the extensions that are");
    ErrorResponse::new(Class::Unsupported, "unsupported", message).into()
}

/// The methods of CUDA's shared memory, each refused. They are written in the form that `async_trait` gives
/// to the others, because it does not look into macros.
macro_rules! methods {
    () => {
        $crate::ingress::grpc::refused::methods! {
            "the extension of CUDA's shared memory":
            cuda_shared_memory_status(CudaSharedMemoryStatusRequest) -> CudaSharedMemoryStatusResponse,
            cuda_shared_memory_register(CudaSharedMemoryRegisterRequest) -> CudaSharedMemoryRegisterResponse,
            cuda_shared_memory_unregister(CudaSharedMemoryUnregisterRequest) -> CudaSharedMemoryUnregisterResponse,
        }
    };
    ($what:literal: $($name:ident($request:ident) -> $response:ident,)+) => {
        $(
            fn $name<'s, 'f>(
                &'s self,
                _: Request<wire::$request>,
            ) -> std::pin::Pin<Box<dyn Future<Output = Result<Response<wire::$response>, Status>> + Send + 'f>>
            where
                's: 'f,
                Self: 'f,
            {
                Box::pin(std::future::ready(Err($crate::ingress::grpc::refused::refused($what))))
            }
        )+
    };
}
pub(super) use methods;
