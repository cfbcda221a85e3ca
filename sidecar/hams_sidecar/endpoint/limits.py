"""Every bound of the inference endpoint, by name; the unit is the last word. What a graph may change comes
from its `frontend` section."""

json_slice_bytes = 64 << 10
"""Tensors in JSON are read and written in slices of this size, and the event loop runs in between: at most a
few milliseconds at a time."""

json_head_bytes_max = 256 << 10
"""JSON besides the data of tensors: names, shapes, parameters. It is decoded at once, so it is small."""

json_cut_bytes_min = 1024
"""Data of a tensor from this size on is not part of that."""

chunk_joined_bytes_max = 4 << 10
"""A smaller piece of a body is joined to what comes next."""

direct_body_bytes_min = 128 << 10
"""If more than this is missing of a body of which a first part has come, the rest is received in place: worth
a change of protocol, saves two copies."""

direct_body_parts = 16
"""One part of so many has to come first: room for a whole body is not taken for a head that announces it."""

dimension_max = (1 << 31) - 1
"""Any dimension of a tensor: what every numpy, every model and the peers' codec can express, and more than a
request can fill."""

rows_without_data_max = 65_536
"""Rows of a request that brings fewer bytes than rows (a variable dimension of 0): as many as the largest
batch that a graph may ask for. Other requests are bounded by their bytes. What a model makes of each row
costs memory, so rows may not come for nothing."""

tensors_spare = 16
"""Tensors of a request beyond those that its graph has: so few are looked at, so that the mistake can be
named; more are refused before they are."""

bytes_elements_max = 1 << 20
"""Elements of one BYTES tensor: each becomes an object, here, in the model, and in the client."""

json_values_max = 8 << 20
"""Values of one tensor in JSON: their nesting is compared at once."""

json_string_bytes_max = 1 << 20
"""One string in the data of a request, as JSON: it is decoded at once."""

bytes_slice_elements = 2048
"""BYTES are walked in slices of so many elements, and the event loop runs in between."""

shown_chars_max = 120
"""Of what a client sent, shown to it in an error: a mistake of megabytes is not sent back."""

parameters_max = 64
"""Parameters of one request: they travel with every token."""

parameters_bytes_max = 16 << 10
"""Names and string values of a request's parameters, together; less where a graph may have so many requests
open that a copy of all would not fit one message (`hams_wire.room`)."""

parameter_bytes = 32
"""What a parameter counts beside its name and value: many small ones take longer to read than one."""

parameters_bytes_min = 256
"""So much is always allowed."""

parameters_json_bytes_max = 2 * parameters_bytes_max
"""The same as JSON, in a body: more is not decoded."""

id_bytes_max = 1024
"""The client's request id: echoed, never stored."""

idempotency_key_bytes_max = 256
"""An idempotency key: stored in the shard's log as long as its reply."""

key_scope_chars = 16
"""Of a token's digest, in front of the keys that were sent with it: 64 bits."""

trace_bytes_max = 512
"""A traceparent or tracestate header; a longer one is left out, as the W3C recommends for tracestate."""

pipelined_max = 128
"""Requests that wait for their turn on one connection."""

headers_max = 128
"""Header and trailer fields of one HTTP request."""

head_bytes_max = 64 << 10
"""Request line and headers of one HTTP request, as far as they came in pieces; and what comes between two
pieces of a body, or behind the last (extensions of chunks, trailers)."""

heads_bytes_max = 64 << 20
"""All unfinished heads of one frontend together: they need no token, and a thousand connections may have
begun one. A head that comes in one piece does not count."""

head_s_max = 20.0
"""A connection has this long to send its first request, and the rest of any head it has begun."""

idle_s_max = 75.0
"""A connection without a request is kept this long: longer than load balancers do, so that they close it and
not we."""

write_stall_s_max = 20.0
"""A client that takes none of the bytes waiting for it for this long is cut off."""

body_unhurried_s = 1.0
"""Where bodies together have no room left, the slowest of those that have been arriving for longer than this
gives way (429)."""

answered_body_s_max = 20.0
"""What is left of a body whose request is answered already has this long to come; then its connection
closes. A client that reads only after it has sent everything still gets the answer and keeps its
connection."""

linger_s_max = 2.0
"""After a refusal the rest of the request is thrown away for this long, so that the client sees the refusal
and not a reset connection."""

linger_bytes_max = 16 << 20
"""At most this much is thrown away after a refusal."""

connections_max = 16_384
"""Open HTTP connections of one frontend; further ones are told (503)."""

refused_connections_max = 1024
"""Of those so many at a time: beyond them a connection is reset at once."""

http_files_share = 0.375
grpc_files_share = 0.25
refused_files_share = 0.125
"""Connections over HTTP, over gRPC, and those that are told that there are too many, may take these shares of
the limit of open files, if that is less than their own bounds. A quarter is left for everything else."""

backlog_connections_max = 4096
"""Connections waiting to be accepted."""

retry_after_s = 1.0
"""`Retry-After` where the endpoint itself has no room."""

propagation_s = 5.0
"""After SIGTERM readiness is refused, and requests are served on for this long: load balancers need it to
notice."""

last_request_s_max = 1.0
"""A connection that was opened in the last moment before the port closed has this long to send its
request."""

drain_s_max = 30.0
"""Then open requests get this long to finish."""

grpc_connections_max = 4096
"""Open gRPC connections of one frontend; further ones are closed at once."""

grpc_calls_max = 4096
"""Concurrent gRPC calls of one frontend; above it the slowest that is still sending gives way, or the new one
gets RESOURCE_EXHAUSTED."""

grpc_pending_calls_max = 4096
"""Calls that grpc has read and that no handler has begun, reset ones among them; from here to twice as many
it cancels more and more of the new ones, whoever sent them. Its default of 1,000 is a moment of one
client."""

grpc_streams_max = 1024
"""Concurrent calls of one gRPC connection; a client's further ones wait at the client."""

grpc_watchers_max = 256
"""Calls that watch health; further ones get RESOURCE_EXHAUSTED."""

grpc_reflections_max = 1000
"""Questions in one call of reflection, which lasts a request's time at most."""

grpc_message_unhurried_s = 0.1
"""A gRPC message that is not there after this long is counted in the bytes held, as if it were as large as it
may be: how much of it has arrived cannot be seen. So what is held uncounted is what a network brings in this
time."""

grpc_reply_rate_min = 1 << 20
"""Bytes per second at which a client has to take a reply over gRPC, after the first `write_stall_s_max`."""

grpc_handshake_s = 20.0
"""A connection has this long to begin to speak HTTP/2."""

grpc_idle_s = 300.0
"""A gRPC connection without a call is asked to go after this long; clients come back by themselves."""

grpc_small_message_bytes_max = 4096
"""A message to any method but ModelInfer."""

grpc_parsed_bytes_max = 4 << 20
"""A ModelInfer message besides its raw tensors, typed contents included: what is parsed at once, and grows to
several times its size. gRPC's own default for a whole message."""

grpc_varied_bytes_max = 1 << 20
"""The same besides packed FP32 and FP64: what takes the parser longest, some 15 ms of this."""

grpc_parsed_growth = 2
"""Bytes that a byte of packed FP32 and FP64 holds while it is parsed, at most."""

grpc_varied_growth = 16
"""Bytes that a byte of the rest holds: a number of one byte is one of eight, in an array that doubles."""

grpc_unscanned_bytes_max = 4 << 10
"""A message that is parsed as it is: whatever it holds, it is little."""

grpc_at_once_bytes_max = 16 << 10
"""A message that is read without a pause, and does not wait for the turn of others."""

grpc_fields_spare = 256
"""Fields of a message, those of messages within counted, that belong to no tensor: names, parameters, what is
not known here."""

grpc_fields_per_tensor = 48
"""Fields for each tensor of the graph, and each of `tensors_spare`."""

grpc_fields_slice = 256
"""Fields are looked at in slices of so many, and the event loop runs in between."""

grpc_shape_bytes_max = 256
"""Bytes of a packed shape."""

grpc_overhead_bytes = 64 << 10
"""What a gRPC message may hold beyond `maxRequestBytes` of tensors: names, shapes, parameters."""

grpc_keepalive_s = 30.0
"""A gRPC connection that answers no ping for this long is closed."""

heads_known_max = 256
"""JSON heads of binary requests that are remembered as passed."""

head_known_bytes_max = 2048
"""A larger head is read anew each time."""

tokens_max = 1000
"""Of clients' tokens that are looked at; each request is compared with all of them."""

tokens_check_s = 1.0
"""Between two looks at the folder with the tokens."""

deadline_min_ms = 1
"""The shortest deadline that a client may name."""
