//! The extensions that are declared, so that clients get a clear UNIMPLEMENTED, and not served.

use berth_spec::Class;
use tonic::Status;

use crate::ingress::fault::Fault;

/// The status of a call to an extension that is not served.
pub(super) fn refused(what: &str) -> Status {
    let message = format!("{what} is not supported; ServerMetadata lists the extensions that are");
    Fault::new(Class::Unsupported, "unsupported", message).into()
}

/// The methods of shared memory, trace and logging, each refused. They are written in the form that `async_trait` gives
/// to the others, because it does not look into macros.
macro_rules! methods {
    () => {
        $crate::ingress::grpc::refused::methods! {
            "the shared memory extension":
            system_shared_memory_status(SystemSharedMemoryStatusRequest) -> SystemSharedMemoryStatusResponse,
            system_shared_memory_register(SystemSharedMemoryRegisterRequest) -> SystemSharedMemoryRegisterResponse,
            system_shared_memory_unregister(SystemSharedMemoryUnregisterRequest) -> SystemSharedMemoryUnregisterResponse,
            cuda_shared_memory_status(CudaSharedMemoryStatusRequest) -> CudaSharedMemoryStatusResponse,
            cuda_shared_memory_register(CudaSharedMemoryRegisterRequest) -> CudaSharedMemoryRegisterResponse,
            cuda_shared_memory_unregister(CudaSharedMemoryUnregisterRequest) -> CudaSharedMemoryUnregisterResponse,
        }
        $crate::ingress::grpc::refused::methods! {
            "the trace extension": trace_setting(TraceSettingRequest) -> TraceSettingResponse,
        }
        $crate::ingress::grpc::refused::methods! {
            "the logging extension": log_settings(LogSettingsRequest) -> LogSettingsResponse,
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
