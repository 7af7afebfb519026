//! The way by which a request came.

use std::{fmt, net::IpAddr, str::FromStr};

use crate::api::AuditPort;

/// Port and address of a client's request. Travels among its extensions, and between nodes as text: `api 10.0.0.7`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// Port, by the kind that the audit log names.
    pub port: AuditPort,
    /// Address of the client; `None`: its connection has gone.
    pub address: Option<IpAddr>,
}

impl fmt::Display for Arrival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some(address) => write!(f, "{} {address}", self.port.as_str()),
            None => f.write_str(self.port.as_str()),
        }
    }
}

impl FromStr for Arrival {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (port, address) = text.split_once(' ').unwrap_or((text, ""));
        let port = [AuditPort::Api, AuditPort::Inference].into_iter().find(|one| one.as_str() == port).ok_or(())?;
        Ok(Self { port, address: address.parse().ok() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arrival_comes_back_from_its_text() {
        for text in ["api", "api 10.0.0.7", "inference 2001:db8::7"] {
            assert_eq!(text.parse::<Arrival>().map(|arrival| arrival.to_string()).as_deref(), Ok(text));
        }
        assert!("".parse::<Arrival>().is_err() && "other 10.0.0.7".parse::<Arrival>().is_err());
    }
}
