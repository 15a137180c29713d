//! Listening on every address of the machine: a pod of a cluster with IPv6 alone has no other.
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;

/// Connections that wait in the kernel until they are accepted.
const BACKLOG: i32 = 1024;

/// Takes a port of every address, of both kinds where the machine has IPv6; port 0 takes any free one.
pub async fn on_every_address(port: u16) -> io::Result<TcpListener> {
    match of_both_kinds(port) {
        // A kernel without IPv6 says so in more than one way.
        Err(error) if !matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied) => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await
        }
        outcome => outcome,
    }
}

fn of_both_kinds(port: u16) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::IPV6, Type::STREAM, Some(Protocol::TCP))?;
    // Whatever the machine's default is.
    socket.set_only_v6(false)?;
    // A process that was started again takes the port although its predecessor's connections are still ending.
    socket.set_reuse_address(true)?;
    socket.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)).into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    TcpListener::from_std(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpStream;

    #[tokio::test]
    async fn one_port_is_reached_by_either_kind_of_address() {
        let listener = on_every_address(0).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
        if std::net::TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
            TcpStream::connect((Ipv6Addr::LOCALHOST, port)).await.unwrap();
        } else {
            println!("this machine has no IPv6");
        }
    }

    #[tokio::test]
    async fn a_port_that_is_taken_by_ipv4_alone_is_taken() {
        let taken = std::net::TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let error = on_every_address(taken.local_addr().unwrap().port()).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }
}
