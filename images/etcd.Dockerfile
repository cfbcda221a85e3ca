# etcd and etcdctl, static, for clusters that can pull nothing. Context: the repository, with the programs in `out/etcd`.
FROM scratch
COPY out/etcd /usr/local/bin
ENV PATH=/usr/local/bin
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/etcd"]
