"""What instances say to each other: one long-lived framed byte stream per direction between two of them.

Contract in proto/peers.md. `Codec` turns the core's messages into frames, `Outbox` decides what leaves first,
`Inbox` receives payloads into the place where they will be used, `PeerNetwork` keeps the connections. None of
them ever looks at what a message means.
"""
