//! Binds the addresses of `--host` and `--port`, before anything slow begins.

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};

use limits::quote;

use crate::settings::{Refusal, Settings};

/// Connections that may wait while the server starts or is busy.
const BACKLOG: i32 = 1024;

/// The bound listeners, one for each host.
pub fn bind(settings: &Settings) -> Result<Vec<TcpListener>, Refusal> {
    let port = settings.count("port").unwrap_or(8000) as u16;
    let mut listeners: Vec<TcpListener> = Vec::new();
    for host in settings.texts("host") {
        // With port 0 the first host draws the port, and the others share it.
        let port = match listeners.first().and_then(|first| first.local_addr().ok()) {
            Some(first) => first.port(),
            None => port,
        };
        listeners.push(bind_one(&host, port)?);
    }
    Ok(listeners)
}

fn bind_one(host: &str, port: u16) -> Result<TcpListener, Refusal> {
    let refuse = |what: String| Refusal(format!("--host {} --port {port}: {what}", quote(host)));
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let address = (bare, port)
        .to_socket_addrs()
        .map_err(|error| refuse(error.to_string()))?
        .next()
        .ok_or_else(|| refuse("no address has this name".to_string()))?;
    let listener = TcpListener::bind(address).map_err(|error| refuse(plain(&error, port)))?;
    listener
        .set_nonblocking(true)
        .map_err(|error| refuse(error.to_string()))?;
    deepen(&listener).map_err(|error| refuse(error.to_string()))?;
    Ok(listener)
}

/// Lets more connections wait than the standard library asks for.
fn deepen(listener: &TcpListener) -> std::io::Result<()> {
    use std::os::fd::AsRawFd;
    // SAFETY: `listen` on an open, bound descriptor only changes the length of its queue.
    match unsafe { libc::listen(listener.as_raw_fd(), BACKLOG) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

fn plain(error: &std::io::Error, port: u16) -> String {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => format!(
            "the port is in use; another server runs there, or give --port {}",
            port.wrapping_add(1)
        ),
        std::io::ErrorKind::PermissionDenied => {
            "not permitted; ports below 1024 need privileges".to_string()
        }
        std::io::ErrorKind::AddrNotAvailable => "this machine has no such address".to_string(),
        _ => error.to_string(),
    }
}

/// The URL a person can open: a wildcard address is shown as the loopback one.
pub fn url(address: SocketAddr) -> String {
    if !address.ip().is_unspecified() {
        return format!("http://{address}");
    }
    let loopback = if address.is_ipv4() {
        "127.0.0.1"
    } else {
        "[::1]"
    };
    format!("http://{loopback}:{}", address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(arguments: &[&str]) -> Settings {
        let arguments: Vec<String> = arguments.iter().map(|a| a.to_string()).collect();
        Settings::load(&arguments, &[], |_| unreachable!()).unwrap()
    }

    #[test]
    fn a_taken_port_is_said_plainly() {
        let first = bind(&settings(&["--port", "0"])).unwrap();
        let port = first[0].local_addr().unwrap().port().to_string();
        let error = bind(&settings(&["--port", &port])).unwrap_err().0;
        assert!(error.contains("the port is in use"), "{error}");
    }

    #[test]
    fn several_hosts_share_one_port() {
        let listeners = bind(&settings(&[
            "--port",
            "0",
            "--host",
            "127.0.0.1",
            "--host",
            "127.0.0.2",
        ]))
        .unwrap();
        assert_eq!(listeners.len(), 2);
        assert_eq!(
            listeners[0].local_addr().unwrap().port(),
            listeners[1].local_addr().unwrap().port()
        );
    }

    #[test]
    fn wildcards_are_shown_as_loopback() {
        assert_eq!(url("0.0.0.0:80".parse().unwrap()), "http://127.0.0.1:80");
        assert_eq!(url("[::]:80".parse().unwrap()), "http://[::1]:80");
        assert_eq!(url("[::1]:80".parse().unwrap()), "http://[::1]:80");
    }

    #[test]
    fn a_name_without_an_address_is_refused() {
        assert!(bind(&settings(&["--port", "0", "--host", "256.1.1.1.x"])).is_err());
    }
}
