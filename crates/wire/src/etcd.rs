//! Messages of etcd, generated from `proto/etcd.proto`. `control::store::etcd` is the only user; the servers are
//! for tests.

#![expect(missing_docs, reason = "generated; proto/etcd.proto says what the fields mean")]

tonic::include_proto!("etcdserverpb");
