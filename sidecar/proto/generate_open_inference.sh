#!/bin/sh
# Makes hams_sidecar/endpoint/open_inference_pb2.{py,pyi} from open_inference.proto. Run from the repository root, with grpcio-tools installed.
#
# The messages live in a descriptor pool of their own: client libraries (tritonclient, kserve) register the same names with other contents in the
# process-wide pool, and one process may well import both.
set -eu
out=sidecar/hams_sidecar/endpoint
"${PYTHON:-.venv/bin/python}" -m grpc_tools.protoc --proto_path=sidecar/proto --python_out="$out" --pyi_out="$out" open_inference.proto
sed -i 's/_descriptor_pool\.Default()/_descriptor_pool.DescriptorPool()/' "$out/open_inference_pb2.py"
grep -q '_descriptor_pool.DescriptorPool()' "$out/open_inference_pb2.py"
