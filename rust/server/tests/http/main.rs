//! The server over real sockets, with a scripted engine behind it.

mod answers;
mod fields;
mod routes;
mod served;
